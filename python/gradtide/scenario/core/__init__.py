"""Makes and edits the JSON input of the Rust core, and calls the functions of `_core` that read it.

    network   input for a topology and its nodes; numbers of hosts, switches and cables, and names of links
    job       input for parts of a job; the core's counts of its messages, ops and bytes
    input     input for a resolved scenario
    queries   runs a scenario, and computes properties of its jobs that need no run
    edited    runs a scenario at another rate, order or barrier, or reduced to two hosts with one link
    ns3       fields and values of the input that the ns-3 program of `gradtide check` supports

No module outside this package names a field of `crates/train/src/spec.rs`; tests/test_core_input.py checks this.
"""
