"""The core's input as JSON: only this package makes it, edits it, or calls the functions of `_core` that read it.

    network   a topology and its nodes; their counts and the names of links
    job       a collective's algorithm, a graph of ops, a recorded step; what the core counts of them
    input     a resolved scenario
    queries   a run of a scenario, and what the core knows about its jobs without a run
    edited    a run under another rate, order or barrier; a job's exchange reduced to one link between two hosts
    ns3       which of its fields the program for ns-3 supports

Elsewhere nothing names a field of `crates/train/src/spec.rs`; tests/test_core_input.py checks that.
"""
