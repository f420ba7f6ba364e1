"""Attacks gradtide: mutated inputs, random runs, kills, failing disks and killed studies. `make attack` runs all of it.

    cd tests && python -m attack --seed 1 --minutes 10 --only inputs
    cd tests && python -m attack --replay attack_corpus/flows/word-limit

Equal seeds give equal attacks. `mutate` changes inputs, `readers` lists who reads them, `pool` runs attempts in
processes with limits, `inputs`, `runs`, `kills`, `saves` and `sweeps` are the five attacks, `page` writes their counts.
"""
