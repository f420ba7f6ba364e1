"""Files that are made from others are what `tools/generate.py` makes of them now."""

import json
from pathlib import Path
from typing import get_args

import pytest

from gradtide import _core
from gradtide.algorithms import ALGORITHMS
from gradtide.disciplines import DISCIPLINES, QueueKind
from gradtide.scenario.keys.cluster import Queue, Transport
from gradtide.transports import ECN, PARAMETERS

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.made
def test_made_files_are_made_of_the_code(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import generate

    for path, text in generate.made():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python tools/generate.py"


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_core_reads_an_algorithm_by_its_name(kind):
    parameters = {"group": {"group": 2}, "inside": {"inside": "ring"}, "ps": {"servers": 1, "placement": "packed"}}
    own = {name: value for key in ALGORITHMS[kind].keys for name, value in parameters[key].items()}
    assert _core.collective_counts(json.dumps({"kind": kind, **own}), 8)[0] > 0
    with pytest.raises(ValueError, match=r"unknown|invalid"):
        _core.collective_counts(json.dumps({"kind": kind, **own, "colour": 1}), 8)


def test_every_parameter_of_a_congestion_control_has_a_key() -> None:
    assert {name for parameters in PARAMETERS.values() for name in parameters} <= Transport.model_fields.keys()
    assert PARAMETERS.keys() == ECN.keys()


def test_every_queue_discipline_is_listed_with_keys_that_exist() -> None:
    assert tuple(DISCIPLINES) == get_args(QueueKind)
    named = {key for one in DISCIPLINES.values() for key in (*one.needs, *one.takes)}
    assert named == Queue.declared().keys() - {"kind", "capacity"}
