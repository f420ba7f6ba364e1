"""What a job does to other tenants' flows: in two bands, over a map of loads, by policies and by a linear programme."""
