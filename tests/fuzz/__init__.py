"""Fuzzes gradtide for as long as asked: `make fuzz` runs every target for ten minutes.

    cd tests && python -m fuzz --seconds 60 --only units

Two kinds of targets: those of the core, in Rust (`/fuzz`), which libFuzzer feeds guided by coverage, and those of
readers and writers in Python (`targets`), which hypothesis feeds. `seeds` writes inputs for the first, `page` the
counts of both.
"""
