"""Attacks gradtide: mutated inputs, random runs, relations, kills, failing disks and killed studies.

`make attack` runs all of it.

    cd tests && python -m attack --seed 1 --minutes 10 --only inputs
    cd tests && python -m attack --replay attack_corpus/flows/word-limit

Equal seeds give equal attacks. `mutate` changes inputs, `readers` lists who reads them, `pool` runs attempts in
processes with limits, `inputs`, `runs`, `related`, `pairs`, `kills`, `saves` and `sweeps` are the attacks, `page`
writes their counts. `draws` draws scenarios and `relations` lists what must hold between their runs, for `related`.
"""
