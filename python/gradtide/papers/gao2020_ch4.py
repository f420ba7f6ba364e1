"""Gao (2020), chapter 4: transfers of gradients in FIFO and priority order, with and without the barrier."""

from collections.abc import Mapping

from gradtide import _core, words
from gradtide.answer.build import build
from gradtide.estimate import Limits
from gradtide.papers.harness import (
    RULE,
    SHOWN,
    Check,
    Part,
    Progress,
    Reproduction,
    Said,
    below,
    chart,
    check,
    commands,
    judged,
    line,
    published,
    table,
    value,
)
from gradtide.scenario import Job, Scenario
from gradtide.studies.keep import Kept
from gradtide.studies.run import run_all, total_cost

FIGURES = ("4.7", "4.8", "4.9", "4.10", "4.11")
GAO_RATES_GBPS = (1, 2, 5, 10, 20)
GAO_SCHEDULES = {
    "FIFO with barrier": ("fifo", True),
    "priority with barrier": ("priority", True),
    "FIFO without barrier": ("fifo", False),
    "priority without barrier": ("priority", False),
}
FIFO, PRIORITY = "FIFO with barrier", "priority without barrier"
# Schedules with the buckets of the author's program, which differ from the text of the thesis; see `author_buckets`.
AUTHOR_FIFO, AUTHOR_PRIORITY = f"{FIFO}, author's buckets", f"{PRIORITY}, author's buckets"

PAPER = published(__name__)
NOTES = PAPER["notes"]
# A case is (schedule, link rate in Gbit/s).
Case = tuple[str, int]


def chapter4(
    jobs: int, progress: Progress, figure: str | None = None, keep: Kept | None = None, limits: Limits | None = None
) -> Reproduction:
    """Gao (2020): reproduce figs 4.7 to 4.11, or one of these figures. All runs together take a second."""
    base = Scenario.load(PAPER["preset"])
    authors = base.replace(fusion=None, buckets=author_buckets(base.jobs[0]))
    schedules = {name: (base, order, barrier) for name, (order, barrier) in GAO_SCHEDULES.items()}
    schedules |= {AUTHOR_FIFO: (authors, "fifo", True), AUTHOR_PRIORITY: (authors, "priority", False)}
    cases = {
        (name, gbps): scenario.replace(link_rate=f"{gbps}Gbps", order=order, barrier=barrier)
        for name, (scenario, order, barrier) in schedules.items()
        for gbps in GAO_RATES_GBPS
    }
    results = dict(zip(cases, run_all(list(cases.values()), jobs, progress, keep, limits), strict=True))
    times_ms = {case: 1e3 * result.iteration_time for case, result in results.items()}
    fig_4_7 = table(
        "Figure 4.7: iteration time in ms over link rate",
        ["schedule", *(words.rate(gbps * 1e9) for gbps in GAO_RATES_GBPS)],
        [[name, *(f"{times_ms[name, gbps]:.1f}" for gbps in GAO_RATES_GBPS)] for name in schedules],
        "The author's program fills its buckets from the input side, strictly below the cap, and leaves the last layer "
        "alone; gradtide fills them from the output side, as gradients become ready.",
    )
    over_rates = chart(
        "Iteration time over link rate, 2 workers, 100 MB, 900 ms of compute",
        ("link rate (Gbit/s)", GAO_RATES_GBPS),
        "iteration time (ms)",
        (line(schedule, [times_ms[schedule, gbps] for gbps in GAO_RATES_GBPS]) for schedule in schedules),
        "The thesis draws FIFO with the barrier and priority without it, which changes two things at once: neither "
        "priority nor removing the barrier changes anything alone.",
    )
    points = [(gbps * 1e9, times_ms[FIFO, gbps], times_ms[PRIORITY, gbps]) for gbps in GAO_RATES_GBPS]
    drawn = {
        "4.8": (FIFO, 1, "fifo-1gbps"),
        "4.9": (PRIORITY, 1, "priority-1gbps"),
        "4.10": (FIFO, 5, "fifo-5gbps"),
        "4.11": (PRIORITY, 5, "priority-5gbps"),
    }
    summary = {
        "schema": "gradtide.reproduce/1",
        "version": _core.__version__,
        "engine": base.engine,
        "seed": base.seed,
        "paper": "gao2020",
        "part": "ch4",
        "title": PAPER["subject"],
        **build(
            "reproduce",
            words.saving_headline(points, FIFO, PRIORITY),
            [result.scenario for result in results.values()],
        ).to_dict(),
        "rule": RULE,
        "checks": _figure_checks(times_ms, results[FIFO, 1].job["compute_ms"]),
        "tables": [{"figure": "4.7", **fig_4_7}],
        "series": [{"figure": "4.7", **over_rates}],
        "timelines": [
            {"figure": of, "title": f"{gbps} Gbit/s, {schedule}", "run": f"runs/{name}"}
            for of, (schedule, gbps, name) in drawn.items()
        ],
        "commands": commands("gao2020/ch4", FIGURES),
        "cost": total_cost(result.summary for result in results.values()),
    }
    result = Reproduction(summary, {name: results[schedule, gbps] for schedule, gbps, name in drawn.values()})
    return result if figure is None else result.only(figure)


def author_buckets(job: Job) -> list[int]:
    """Return the number of layers in each bucket of the author's program.

    The program traverses the layers from layer 0. It closes a bucket before the layer with which the bucket would reach
    the cap, and before the last layer, which is always alone (horovod_simulation, ringallreduce_simulator.py).
    """
    counts, size = [0], 0
    for layer in job.layers[:-1]:
        if counts[-1] and size + layer.parameter_bytes >= job.schedule.cap_bytes:
            counts, size = [*counts, 0], 0
        counts[-1] += 1
        size += layer.parameter_bytes
    return [*counts, 1]


def _figure_checks(times_ms: Mapping[Case, float], backward_ms: float) -> list[Check]:
    def saved(gbps: int, fifo: str = FIFO, priority: str = PRIORITY) -> float:
        return 1 - times_ms[priority, gbps] / times_ms[fifo, gbps]

    fifo_ms, priority_ms = times_ms[FIFO, 1], times_ms[PRIORITY, 1]
    authors_ms = times_ms[AUTHOR_FIFO, 1] - times_ms[AUTHOR_PRIORITY, 1]
    authors = saved(1, AUTHOR_FIFO, AUTHOR_PRIORITY)
    above = max(abs(saved(gbps)) for gbps in GAO_RATES_GBPS if gbps >= 2)
    both = (times_ms[FIFO, 5], times_ms[PRIORITY, 5])
    ms, percent = "{:.1f} ms", "{:.1f} %"
    less, faster = 100 * saved(1), fifo_ms - priority_ms

    def equal(other_ms: float) -> Said:
        return Said("equal", (1 - words.SAME) * other_ms, (1 + words.SAME) * other_ms)

    claims = [
        ("4.8", judged("FIFO with barrier at 1 Gbit/s", value(1100, "about 1100 ms"), fifo_ms, ms)),
        ("4.8", judged("backward pass done", value(900, "around 900 ms"), backward_ms, ms)),
        ("4.9", judged("forward pass starts again", value(950, "around 950 ms"), priority_ms, ms)),
        ("4.9", judged("faster than FIFO by", value(150, "150 ms"), faster, ms, NOTES["buckets"], SHOWN)),
        ("4.9", judged("the same, author's buckets", value(150, "150 ms"), authors_ms, ms, NOTES["read"])),
        ("4.7", judged("reduction at 1 Gbit/s", value(12, "12 %"), less, percent, NOTES["buckets"], SHOWN)),
        ("4.7", judged("the same, author's buckets", value(12, "12 %"), 100 * authors, percent)),
        ("4.7", judged("difference from 2 Gbit/s on", below(100 * words.SAME, "none"), 100 * above, percent)),
        (
            "4.10, 4.11",
            judged("iteration times at 5 Gbit/s", [equal(both[1]), equal(both[0])], both, "{:.1f} and {:.1f} ms"),
        ),
    ]
    return [check(figure, *claim) for figure, claim in claims]


PART = Part(PAPER["title"], chapter4, FIGURES, seconds=1)
