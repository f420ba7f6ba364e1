"""`--estimate`: the number of runs that each study makes, and no run."""

import json

import pytest

import gradtide as gt
from cluster_scenarios import busy, scenario, written
from gradtide import papers
from gradtide.estimate import COUNTED, work_of
from gradtide.papers import site
from gradtide.studies.tenants.bands import tenants


@pytest.mark.parametrize(
    ("study", "is_bound"),
    [
        (lambda base, how: gt.compare(base, schedules=["fifo+barrier", "priority"], **how), False),
        (lambda base, how: gt.collectives(base, collectives=["ring", "tree"], sizes=["1kB", "1MB"], **how), False),
        (lambda base, how: gt.buy(base, fabrics=["star"], collectives=["ring", "tree"], **how), False),
        (lambda base, how: gt.plan(base, budget=3, seeds=2, **how), True),
        (lambda base, how: gt.plan(base.replace(engine="packet"), budget=3, seeds=2, **how), True),
        (lambda base, how: tenants(busy("ethernet-10g"), seeds=[0, 1], **how), True),
    ],
    ids=["compare", "collectives", "buy", "plan", "plan of packets", "tenants"],
)
def test_an_estimate_counts_the_runs_that_the_study_makes(study, is_bound, monkeypatch):
    from gradtide.studies import run as running

    base = scenario("ethernet-10g/4")
    made = []
    simulate = running.simulate
    monkeypatch.setattr(running, "simulate", lambda *given: made.append(given) or simulate(*given))
    work = work_of(lambda: study(base, {}), jobs=2)
    assert made == []
    study(base, {})
    counted = work.total.count
    assert counted >= len(made) if is_bound else counted == len(made)
    assert bool(work.why) == is_bound
    document = work.to_dict()
    assert (document["runs"], document["is_upper_bound"]) == (counted, is_bound)
    assert all(document[name] >= 0 for name in COUNTED)
    assert document["time_s"] > 0


OF_COMMANDS = {
    "run": [],
    "compare": ["--schedule", "fifo"],
    "plan": [],
    "collectives": ["--sizes", "1MB"],
    "buy": ["--fabrics", "star"],
}


@pytest.mark.parametrize("command", OF_COMMANDS)
def test_every_command_estimates_and_runs_nothing(command, tmp_path, gradtide):
    path = written(tmp_path, scenario("ethernet-10g/4").to_toml())
    words = [command, path, *OF_COMMANDS[command], "--estimate"]
    code, out, err = gradtide(*words, "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["schema"] == "gradtide.estimate/1"
    assert ("why" in document) == document["is_upper_bound"] == (command == "plan")
    code, out, _ = gradtide(*words)
    assert code == 0
    assert "time" in out
    code, _, err = gradtide(*words, "-o", tmp_path / "out")
    assert code == 2
    assert "--estimate" in err
    assert not (tmp_path / "out").exists()


def test_an_estimate_leaves_out_what_a_store_has(tmp_path, gradtide):
    path = written(tmp_path, scenario("ethernet-10g/4").to_toml())
    words = ["compare", path, "--schedule", "fifo", "--schedule", "priority", "--json"]
    store = ["--store", tmp_path / "runs.store"]
    assert json.loads(gradtide(*words, *store, "--estimate")[1])["runs"] == 2
    assert not (tmp_path / "runs.store").exists()
    gradtide(*words[:4], *store)
    assert json.loads(gradtide(*words, *store, "--estimate")[1])["runs"] == 1


def test_reproduce_and_demo_estimate_all_of_their_runs(tmp_path, gradtide, monkeypatch):
    monkeypatch.chdir(tmp_path)
    part = json.loads(gradtide("reproduce", "gao2020/ch4", "--estimate", "--json")[1])
    demo = json.loads(gradtide("demo", "-q", "--estimate", "--json")[1])
    assert min(part["runs"], demo["runs"]) > 1
    assert list(tmp_path.iterdir()) == []
    chapters = {name: papers.PARTS[name] for name in ("gao2020/ch3", "gao2020/ch4")}
    each = [work_of(lambda one=one: site.make({"one": one}, {})).total.count for one in chapters.values()]
    assert work_of(lambda: site.make(chapters, {})).total.count == sum(each) > each[1] == part["runs"]
