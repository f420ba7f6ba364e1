"""Language models trained in parallel: mesh, compute times and memory per rank.

    spec(architecture, accelerator, mesh, training, layout, …)

Pure functions: no file is read, no scenario parsed, nothing simulated. The core derives the communication.
"""
