"""The core's input as JSON: only this package makes it, edits it, or calls the functions of `_core` that read it.

    network   a topology and its nodes; their counts and the names of links
    job       a collective's algorithm, a graph of ops, a recorded step; the core's counts of messages, ops and bytes
    input     a resolved scenario
    queries   a run of a scenario, and properties of its jobs that need no run
    edited    a run under another rate, order or barrier; a job's exchange reduced to one link between two hosts
    ns3       the fields and values of the input that the program for ns-3 supports

No other module names a field of `crates/train/src/spec.rs`; tests/test_core_input.py checks this.
"""
