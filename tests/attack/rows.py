"""Relations between a study and runs: a row is the run of its scenario alone, whichever study times it."""

from random import Random

import gradtide as gt
from attack.changes import (
    ROUNDING_PS,
    Ran,
    copied,
    engine,
    is_parallel,
    is_plain_star,
    is_random,
    jobs,
    ran,
    resolved,
    tenants,
)
from attack.draws import Data
from attack.relations import relation
from gradtide.scenario import Scenario
from gradtide.studies.exchange import OF_AN_EXCHANGE
from gradtide.studies.store import Store


def mean_ps(one: Ran, name: str = "j0") -> float:
    """Return the mean iteration time of a job."""
    lengths = [length for key, length in one.lengths.items() if key.startswith(f"{name} iteration")]
    return sum(lengths) / len(lengths)


def exchange_ps(data: Data, name: str, size: int) -> float:
    """Return how long a job exchanges one gradient, in one bucket and behind a barrier, by the rules of its own."""
    more = copied(data)
    job = more["job"]["j0"]
    job["model"] = {"layers": [{"name": "x", "forward": "1us", "backward": "1us", "parameters": f"{size}B"}]}
    job["collective"] = {**job["collective"], "kind": name}
    # Some orders have defaults of their own.
    asked = resolved(data)["job"]["j0"]["schedule"]
    job["schedule"] = {key: value for key, value in asked.items() if key in OF_AN_EXCHANGE}
    job["schedule"]["fusion"] = "1GB"
    job.pop("compute", None)
    job.pop("task", None)
    return mean_ps(ran(more)) - 2_000_000


def off(what: str, row_ps: float, run_ps: float, tolerance_ps: float = ROUNDING_PS) -> str:
    """Return by how much a row of a study is not what the run says."""
    if abs(row_ps - run_ps) <= tolerance_ps:
        return ""
    return f"{what}: {row_ps / 1e6} us in the study, {run_ps / 1e6} us alone ({100 * (row_ps / run_ps - 1):+.3g} %)"


def is_of_one_plain_job(data: Data) -> bool:
    """Whether a study of one job that sums gradients in buckets takes the scenario."""
    is_plain = all(
        not is_parallel(job) and "ops" not in job["model"] and "ps" not in job["collective"] for job in jobs(data)
    )
    sends = is_plain and any(layer["parameters"] != "0B" for job in jobs(data) for layer in layers(job))
    return len(jobs(data)) == 1 and not tenants(data) and sends and engine(data) == "fluid"


def layers(job: Data) -> list[Data]:
    """Return the layers of a model; one with parameters stands for a model that is described in another way."""
    return list(job["model"].get("layers", [{"parameters": "1B"}]))


def trains(data: Data) -> bool:
    return all(job.get("task", "train") == "train" for job in jobs(data))


@relation(lambda data: len(jobs(data)) == 1 and engine(data) == "fluid")
def a_row_of_a_sweep_is_its_scenario(data: Data, chance: Random) -> str:
    """In one piece and in two shards, which give the same table."""
    grid = {"run.seed": [0, 3], "job.j0.iterations": [1, 2]}
    study = {"sweep": {"scenario": data, "grid": grid}}
    whole = gt.sweep(study).rows
    store = Store(None)
    gt.sweep(study, store=store, shard=(1, 2))
    halves = gt.sweep(study, store=store, shard=(2, 2)).rows
    if whole != halves:
        return "the rows of two shards are not those of the whole"
    for row in whole:
        more = copied(data)
        more["run"]["seed"] = row["run.seed"]
        more["job"]["j0"]["iterations"] = row["job.j0.iterations"]
        wrong = off(f"row {row['run']}", 1e9 * row["jobs.j0.iteration_time_ms.mean"], mean_ps(ran(more)))
        if wrong:
            return wrong
    return ""


@relation(lambda data: is_of_one_plain_job(data) and trains(data))
def a_row_of_compare_is_its_scenario(data: Data, chance: Random) -> str:
    """The resolved scenario of each row is run alone; of parameter servers, other schedules are compared."""
    result = gt.compare(copied(data), schedules=["fifo+barrier", "priority", "fifo+chunk=64kB"])
    for row in result.rows:
        alone = ran(result.results[row["run"]].scenario.to_dict())
        if wrong := off(row["schedule"], 1e6 * row["iteration_time_us"], mean_ps(alone)):
            return wrong
    return ""


@relation(lambda data: is_of_one_plain_job(data) and jobs(data)[0].get("workers", 0) > 1)
def a_row_of_collectives_is_an_exchange_of_a_run(data: Data, chance: Random) -> str:
    """A job that exchanges a gradient of the row's size, behind a barrier and in one bucket, waits as long as it says.

    Random draws would be others.
    """
    # A tree over nodes needs equal ones.
    name = chance.choice(("ring", "halving_doubling", "shuffle", *(["tree"] if is_plain_star(data) else [])))
    size = chance.choice((2, 1000, 1_000_000))
    (row,) = gt.collectives(copied(data), collectives=[name], sizes=[size]).rows
    return off(f"{name} of {size} B", 1e6 * row["exchange_us"], exchange_ps(data, name, size))


@relation(lambda data: is_of_one_plain_job(data) and trains(data) and is_plain_star(data))
def a_star_that_is_bought_is_the_star_of_a_run(data: Data, chance: Random) -> str:
    """The job on the network of a candidate, which is resolved and run alone; its exchange is one of the star's job."""
    result = gt.buy(copied(data), fabrics=["star", "leaf_spine"], bisection=["1"], collectives=["ring"])
    for row in result.rows:
        alone = ran(result.runs[row["candidate"]].scenario.to_dict())
        if wrong := off(row["candidate"], 1e9 * row["iteration_ms"], mean_ps(alone)):
            return wrong
    star = next(row for row in result.rows if row["fabric"] == "star")
    size = Scenario.from_dict(copied(data)).jobs[0].parameter_bytes
    return off("exchange", 1e9 * star["exchange_ms"], exchange_ps(data, "ring", size))


@relation(lambda data: is_of_one_plain_job(data) and trains(data) and not is_random(data))
def a_plan_is_the_run_of_the_plan(data: Data, chance: Random) -> str:
    """Its row is the time of the scenario with the plan; noise would be drawn for several seeds."""
    result = gt.plan(copied(data), noise=0, budget=12, device="ideal")
    row = next(row for row in result.rows if row["chosen"])
    return off("plan", 1e9 * row["iteration_ms"], mean_ps(ran(result.scenario.to_dict())))
