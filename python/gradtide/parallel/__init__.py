"""Language models trained in parallel: mesh, compute times and memory per rank.

    spec(architecture, accelerator, mesh, training, layout, …)

All functions are pure: they read no file, parse no scenario and simulate nothing. The core derives the communication.
"""
