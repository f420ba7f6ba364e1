"""Compute times and memory per rank of a language model that is trained in parallel.

    spec.describe(costs.Costs(architecture, accelerator, mesh, training), layout)

All functions are pure: they read no file, parse no scenario and simulate nothing. The Rust core derives the transfers.
"""
