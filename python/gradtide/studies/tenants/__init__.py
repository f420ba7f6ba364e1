"""How training jobs slow down other tenants' flows, by the priority band of the jobs, their loads, or a policy."""
