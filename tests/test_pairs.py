"""Commands x cluster presets x kinds of model, pairwise: an answer whose premises are true, or a refusal."""

from pathlib import Path

import pytest

from attack import pairs
from gradtide import presets

COVERING = pairs.covering(seed=1)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", COVERING, ids="-".join)
def test_an_answer_has_true_premises_or_there_is_none(case: pairs.Case) -> None:
    assert pairs.outcome(case) in (pairs.ANSWERED, pairs.REFUSED)


@pytest.mark.parametrize("cluster", presets.cluster_names())
@pytest.mark.parametrize("model", ["image preset", "layer table", "profile", "scenario"])
def test_every_cluster_is_answered_for_models_of_any_kind(cluster: str, model: str) -> None:
    assert pairs.outcome(pairs.Case("run", cluster, model)) == pairs.ANSWERED


@pytest.mark.parametrize("command", ["run", "compare", "plan", "collectives", "buy"])
def test_every_study_answers_on_nodes_and_on_hosts(command: str) -> None:
    for cluster in ("ethernet-10g", "h100-hgx"):
        assert pairs.outcome(pairs.Case(command, cluster, "layer table")) == pairs.ANSWERED
