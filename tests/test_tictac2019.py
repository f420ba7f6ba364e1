"""`gradtide reproduce tictac`: what is shown, and what holds; on few runs where that is enough."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradtide import report
from gradtide.papers import PARTS, Reproduction, find
from gradtide.papers import tictac2019 as paper
from gradtide.presets import graphs
from gradtide.scenario import Scenario
from gradtide.studies.run import run_all


def _seen(base: Scenario, cases: Sequence[paper.Case]) -> dict[paper.Case, paper.Seen]:
    results = run_all([paper.scenario(base, case) for case in cases])
    return {case: paper.Seen(case, result) for case, result in zip(cases, results, strict=True)}


@pytest.fixture(scope="module")
def tiny() -> Reproduction:
    """All figures with two models, fewer workers and 40 repeats: every path, and nothing about the paper."""
    with pytest.MonkeyPatch.context() as patch:
        models, workers = ("Inception v1", "AlexNet v2"), (1, 2, 8)
        patch.setattr(paper, "MODELS", models)
        patch.setattr(paper, "WORKERS", workers)
        patch.setattr(paper, "FACTORS", (1, 2))
        patch.setattr(paper, "SMALL", ("AlexNet v2",))
        scaled = [
            paper.Case(m, t, paper.TIC, n, paper.servers_of(n)) for n in workers for m in models for t in paper.TASKS
        ]
        patch.setattr(paper, "SCALED", scaled)
        patch.setattr(paper, "SHARED", [case for case in scaled if case.workers > 1])
        spread = [paper.Case(m, t, paper.TIC, 8, n) for n in paper.SERVERS for m in models for t in paper.TASKS]
        patch.setattr(paper, "SPREAD", spread)
        loaded = [paper.Case(m, "inference", paper.TIC, 4, 1, factor=f) for f in (1, 2) for m in models]
        patch.setattr(paper, "LOADED", loaded)
        heuristics = [paper.Case("AlexNet v2", t, paper.TAC, is_cpu=True) for t in paper.TASKS]
        patch.setattr(paper, "HEURISTICS", heuristics)
        repeated = {task: replace(case, iterations=40) for task, case in paper.REPEATED.items()}
        patch.setattr(paper, "REPEATED", repeated)
        patch.setattr(paper, "ORDERS", [replace(case, iterations=40) for case in paper.ORDERS])
        return replace(paper.STATEMENTS, figures=paper.figures()).make(2, None)


def test_every_figure_is_there_with_a_verdict(tiny: Reproduction, tmp_path: Path) -> None:
    names = [item["figure"] for item in tiny.summary["figures"]]
    assert names == list(paper.FIGURES)
    assert {one["figure"] for one in tiny.summary["checks"]} == set(names)
    for one in tiny.summary["checks"]:
        assert one["verdict"] == "agrees" or one["note"], one["quantity"]
    folder = tiny.save(tmp_path / "tictac")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "gradtide reproduce tictac<" in page
    assert page.count('class="grouped"') == len(tiny.summary["bars"]) == 3 + 2 + 1 + 2 + 2
    assert report.write_report(folder).read_text(encoding="utf-8") == page


def test_a_statement_counts_once_and_the_other_reading_is_shown(tiny: Reproduction) -> None:
    checks = {(one["figure"], one["quantity"]): one for one in tiny.summary["checks"]}
    readings = [key for key in checks if key[1].endswith(", random orders")]
    assert len(readings) > 20
    for figure, quantity in readings:
        assert checks[figure, quantity]["verdict"] == "shown"
        assert (figure, quantity.removesuffix(", random orders")) in checks
    fitted = [quantity for (_, quantity), one in checks.items() if one["verdict"] == "fitted"]
    assert fitted == ["VGG-16: unique orders of 1000"]


def test_bars_have_a_value_for_every_row(tiny: Reproduction) -> None:
    for item in tiny.summary["bars"]:
        assert all(len(group["values"]) == len(item["rows"]) for group in item["groups"])


def test_table_1_has_the_paper_parameters_and_bytes() -> None:
    for row in paper.TABLE_1.values():
        graph = graphs.graph(row["preset"])
        assert (graph.tensors, f"{graph.parameter_bytes / 2**20:.2f}") == (row["parameters"], f"{row['mib']:.2f}")
        assert graph.batch == row["batch"]


def test_an_order_costs_nothing_and_saves_at_most_what_can_overlap() -> None:
    """With T = N + C - alpha min(N, C) and 0 <= alpha <= 1, no order gains more than the smaller over the larger part.

    One worker, one server and inference, without noise: N is the pulls on an idle link, C is the same for all orders.
    The order's first pull is what compute always waits for, and a round trip of 100 us.
    """
    base = Scenario.load("paper/tictac2019")
    cases = [
        paper.Case(model, "inference", which, 1, 1, noise=0)
        for model in ("AlexNet v2", "Inception v1", "ResNet-50 v1")
        for which in (paper.RANDOM, paper.TIC)
    ]
    study = paper.Study(_seen(base, cases), paper.RANDOM)
    for case in cases[1::2]:
        rho = study.rho(case)
        assert 0 < study.gain(case) <= min(rho, 1) / max(rho, 1) + 1e-3


def test_iterations_that_count_are_those_after_the_first_two() -> None:
    base = Scenario.load("paper/tictac2019")
    case = paper.Case("AlexNet v2", "inference", paper.RANDOM, 2, 1)
    (result,) = run_all([paper.scenario(base, case)])
    study = paper.Study({case: paper.Seen(case, result)})
    times = result.job["iteration_time_ms"]["all"]
    assert len(times) == 12
    assert study.time_ms(case) == pytest.approx(np.mean(times[2:]))
    # Of the two workers one ends the iteration, and the other waits for it.
    waits = result.workers["straggler_us"].reshape(12, 2)
    assert study.straggler(case) == pytest.approx(max(waits[2:].max(axis=1) / 1e3 / times[2:]))


def test_a_gain_is_of_a_test_of_ten_iterations() -> None:
    base = Scenario.load("paper/tictac2019")
    case = paper.Case("Inception v1", "inference", paper.TIC, 2, 1, iterations=32)
    plain = replace(case, order=paper.ARBITRARY, disorder=0.0)
    study = paper.Study(_seen(base, [plain, replace(case, disorder=None)]))
    (gains,) = study.tested([case])
    slow, fast = (study.column(one, "time_us") for one in (study.without(case), study.kept(case)))
    assert gains == pytest.approx([slow[i : i + 10].mean() / fast[i : i + 10].mean() - 1 for i in (0, 10, 20)])
    waits = study.results[plain].straggler_us[2:] / slow
    assert study.straggler(plain) == pytest.approx(np.mean([max(waits[i : i + 10]) for i in (0, 10, 20)]))


def test_orders_are_counted_once_each() -> None:
    base = Scenario.load("paper/tictac2019")
    cases = [paper.Case("VGG-16", "inference", which, 1, 1, iterations=20) for which in (paper.RANDOM, paper.TIC)]
    study = paper.Study(_seen(base, cases))
    assert [study.orders(case) for case in cases] == [20, 1]


def test_rank_correlation() -> None:
    assert paper.rank_correlation([1, 2, 3], [10, 20, 900]) == pytest.approx(1)
    assert paper.rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5, 4 against 1, 3, 2, 4: covariance 4.5, variances 4.5 and 5.
    assert paper.rank_correlation([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_a_figure_runs_what_it_needs_alone() -> None:
    assert find("tictac/13") == (PARTS["tictac"], "13")
    assert find("tictac/table-1") == (PARTS["tictac"], "Table 1")
    assert find("tictac/8") is None
    alone = PARTS["tictac"].make(1, None, "4", None, None)
    assert {one["figure"] for one in alone.summary["checks"]} == {"4"}
    assert alone.summary["part"] == "4"
