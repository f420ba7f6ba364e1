"""Reports of the studies of tenants: two bands, a map over loads, policies, and bands by a linear programme."""
