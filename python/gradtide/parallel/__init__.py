"""Language models that are divided over ranks: the mesh, what a rank computes in which time, what it has in memory.

    spec(architecture, accelerator, mesh, training, layout, …)

Numbers in, numbers out: no file is read, no scenario parsed, nothing simulated. What ranks send to one another, and
when, is for the core.
"""
