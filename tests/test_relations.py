"""Relations between runs of scenarios of every kind, with fixed seeds. `make attack` checks 100,000 of them."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from attack import related
from attack.draws import KINDS, Data
from attack.relations import RELATIONS

SEED = 42
OPEN: dict[str, Callable[[Data], bool]] = {}
"""Scenarios of which a relation does not hold yet; there is one of each in data/relations."""
KNOWN = sorted((Path(__file__).parent / "data/relations").glob("*.toml"))


@pytest.mark.parametrize("name", RELATIONS)
def test_a_relation_holds_for_every_kind_of_scenario(name: str) -> None:
    first = list(RELATIONS).index(name)
    wrong = {}
    for turn in range(0, len(KINDS), 8 if name in related.STUDIES else 1):
        index = first + turn * len(RELATIONS)
        _, kind, data = related.case(SEED, index)
        told = related.HOLDS if name in OPEN and OPEN[name](data) else related.outcome(name, data)
        if told != related.HOLDS:
            wrong[kind] = f"{told}; python -m attack --smaller {SEED}-{index}"
    assert not wrong


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)
def test_a_relation_that_does_not_hold_yet_is_known(path: Path) -> None:
    """One that holds at last goes to attack_corpus/relations, where it must hold from then on."""
    assert related.replayed(path) != related.HOLDS


@pytest.mark.parametrize("name", RELATIONS)
def test_a_relation_says_of_which_scenarios_it_is_true(name: str) -> None:
    assert inspect.getdoc(RELATIONS[name].check)
