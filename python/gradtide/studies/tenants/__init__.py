"""Effect of a job on other tenants' flows: in two bands, over a map of loads, under policies, and as an LP."""
