"""Sentences and small tables about results, for the terminal, reports and notebooks.

The module is longer than 600 lines because it has all wording of results that reports share with the terminal.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from gradtide.algorithms import ALGORITHMS

# Schedules count as equally fast if their iteration times differ by less than this share.
SAME = 0.005

HOST_TIME = "device idle, host busy"
"""Label of the time of a recorded step in which the device neither computes nor waits for the network."""


def shown(text: str) -> str:
    r"""Return a text that is safe for a terminal: on one line, without control sequences.

    Control characters, line breaks, marks that change the direction of writing, and halves of characters become one
    visible character each: `␛` for an escape, `␊` for a line feed, a blank for a tab, `�` for others.

    Example:
        >>> shown("a\x1b[2J\n\u202eb")
        'a␛[2J␊�b'
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(letter: str) -> str:
    if letter.isprintable():
        return letter
    if letter == "\t" or unicodedata.category(letter) == "Zs":
        return " "
    if letter < " ":
        # Unicode's visible pictures of the control characters are in the same order as the control characters.
        return chr(0x2400 + ord(letter))
    return "␡" if letter == "\x7f" else "\ufffd"


SYMBOLS = {
    "T": "iteration time",
    "C": "compute",
    "N": "communication",
    "rho": "N / C",
    "alpha": "(N + C - T) / min(N, C), the overlap",
    "U": "C / T, the utilisation",
    "FCT": "flow completion time",
    "slowdown": "FCT / least FCT on the idle network",
}


def legend(labels: Iterable[str]) -> str:
    """Return the legend of the symbols in the labels of a table, as in `U = C / T, the utilisation`."""
    used = _symbols(" ".join(labels))
    explained = used | _symbols(" ".join(SYMBOLS[symbol] for symbol in used))
    return "; ".join(f"{symbol} = {meaning}" for symbol, meaning in SYMBOLS.items() if symbol in explained)


def _symbols(text: str) -> set[str]:
    return set(re.findall(r"\w+", text)) & set(SYMBOLS)


def number(value: float) -> str:
    """Write a number with four significant digits, without trailing zeros, and without an exponent if it is above 1."""
    return _four_digits(value, f"{value:.4g}")


def _four_digits(value: float, text: str) -> str:
    """Return `text`, or the rounded value if `text` has the exponent of a large number or ends with a dot."""
    return "0" if value == 0 else f"{value:.0f}" if "e+" in text or text.endswith(".") else text


def rate(bps: float) -> str:
    """Write a link rate, as in `10 Gbit/s`."""
    for unit, name in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bps >= unit:
            return f"{number(bps / unit)} {name}"
    return f"{number(bps)} bit/s"


def milliseconds(value_ms: float) -> str:
    """Write a time with four digits, in seconds from 10 s on.

    Example:
        >>> milliseconds(93.2), milliseconds(5938.2), milliseconds(5938200.0)
        ('93.20 ms', '5938 ms', '5938 s')
    """
    value, unit = (value_ms / 1e3, "s") if value_ms >= 10_000 else (value_ms, "ms")
    return f"{_four_digits(value, f'{value:#.4g}')} {unit}"


TIMES_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "ps": 1e-12}
"""Units of time, the largest first, in seconds."""


def duration(time_s: float, digits: int = 4) -> str:
    """Write a time of any length with `digits` digits, in the largest unit in which it is at least 1.

    Example:
        >>> duration(0.0932), duration(2.05e-7), duration(0.0), duration(62.71e-6, 3)
        ('93.20 ms', '205.0 ns', '0 s', '62.7 us')
    """
    unit = next((unit for unit, size in TIMES_S.items() if time_s >= size * (1 - 1e-9)), "ps" if time_s else "s")
    value = time_s / TIMES_S[unit]
    return f"{_four_digits(value, f'{value:#.{digits}g}')} {unit}"


def ticks(count: float, unit: str) -> str:
    """Write a number of ticks of a graph of ops as a time, or as a number of ticks if the graph states no unit.

    Example:
        >>> ticks(117965, "ns"), ticks(66, "")
        ('118.0 us', '66 ticks')
    """
    return duration(count * TIMES_S[unit]) if unit else many(count, "tick")


def figure(name: str, value: float) -> str:
    """Write a figure of a summary with its unit, which follows from its path.

    Example:
        >>> figure("jobs.train.iteration_time_ms.mean", 8961.2), figure("jobs.train.mfu", 0.4)
        ('8961 ms', '0.4')
    """
    parts = name.split(".")
    if any(part.endswith("_ms") for part in parts):
        return milliseconds(value)
    if parts[-1].endswith("bytes") or "memory" in parts:
        return size(value)
    if parts[-1].endswith("_percent"):
        return f"{value:.1f} %"
    return rate(value) if parts[-1].endswith("_bps") else number(value)


def spaced(quantity: str) -> str:
    """Write a quantity of a scenario file with a space before its unit, as in `10 us`."""
    at = next((index for index, letter in enumerate(quantity) if letter.isalpha()), len(quantity))
    return f"{quantity[:at]} {quantity[at:]}".rstrip()


def percent(share: float) -> str:
    """Write a share with one decimal, as in `16.0 %`."""
    return f"{100 * share:.1f} %"


LEAST_DIFFERENCE = 0.001
"""Smallest relative difference in percent that is written as a number, because models and measurements are coarser."""


def difference(percent: float | None, *, signed: bool = False) -> str:
    """Write a relative difference, which may be tiny, with two digits and never with an exponent; a dash for None.

    Example:
        >>> difference(-0.0000013), difference(0.0125), difference(-3.14, signed=True), difference(0.0)
        ('under 0.001 %', '0.013 %', '-3.1 %', '0 %')
    """
    if percent is None or percent == 0:
        return "–" if percent is None else "0 %"
    size = abs(percent)
    if size < LEAST_DIFFERENCE:
        return f"under {LEAST_DIFFERENCE} %"
    decimals = 0 if size >= 9.95 else 1 if size >= 0.995 else 2 if size >= 0.0995 else 3
    sign = ("-" if percent < 0 else "+") if signed else ""
    return f"{sign}{size:,.{decimals}f} %"


def schedule(order: str, barrier: bool) -> str:
    """Name a schedule, as in `priority without barrier`."""
    name = "FIFO" if order == "fifo" else order
    return f"{name} with barrier" if barrier else f"{name} without barrier"


def workers(count: int, servers: int = 0) -> str:
    """Write the numbers of workers and of parameter servers."""
    beside = "" if not servers else " and 1 server" if servers == 1 else f" and {servers} servers"
    return ("1 worker" if count == 1 else f"{count} workers") + beside


def group(row: Mapping[str, Any], varied: Sequence[str]) -> str:
    """Name the workload on which schedules are compared, as in `vgg16 on 8 workers and 2 servers, inference`.

    Mini-batch, task and job are named if they are among the columns that differ within the comparison.
    """
    name = f"{row['model']} on {workers(row['workers'], row['servers'])}"
    if "batch" in varied and row["batch"]:
        name += f", batch {row['batch']}"
    if row["task"] != "train" or "task" in varied:
        name += f", {row['task']}"
    return f"{row['job']}: {name}" if "job" in varied else name


BOUND = "optimal"
"""The order that a search finds for one given run. It is a bound for other orders, and is never recommended."""


def settled(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a comparison that may be recommended; all rows if there is none.

    A row with the order `BOUND` is left out, because no worker can realise it. A row whose mean is below its lower
    bound is left out, because transfers are unfinished at the end of its run.
    """
    rows = list(rows)
    rows = [row for row in rows if row.get("order") != BOUND] or rows
    above = [row["above_bound_percent"] for row in rows]
    return [row for row, percent in zip(rows, above, strict=True) if percent is None or percent > -1e-3] or rows


def buckets(count: int) -> str:
    """Write a number of buckets."""
    return "1 bucket" if count == 1 else f"{count} buckets"


def run_headline(summary: Mapping[str, Any], link_rate_bps: float | None = None) -> str:
    """Return one sentence per job on its iteration time and its waits, and one on unfinished flows."""
    at = "" if link_rate_bps is None else f" at {rate(link_rate_bps)}"
    # If two jobs have the same model, their sentences begin with the names of the jobs.
    models = [job["model"] for job in summary["jobs"].values()]
    named = [f"{name}: " if models.count(job["model"]) > 1 else "" for name, job in summary["jobs"].items()]
    jobs = [name + _job_sentence(job, at) for name, job in zip(named, summary["jobs"].values(), strict=True)]
    return " ".join(filter(None, [*jobs, unfinished_sentence(summary["traffic"])]))


def _job_sentence(job: Mapping[str, Any], at: str) -> str:
    mean_ms = job["iteration_time_ms"]["mean"]
    waterfall = job["waterfall_ms"]
    if "parallel" in job:
        return _parallel_sentence(job)
    wait_ms = waterfall["exposed"] + waterfall["barrier"]
    who = (
        f"{job['model']} on {workers(job['workers'], job.get('servers', 0))}{at}: {milliseconds(mean_ms)} per iteration"
    )
    if waterfall.get("host", 0.0) >= SAME * mean_ms:
        who += f", {percent(waterfall['host'] / mean_ms)} of it with the device idle until the host launches a kernel"
    if wait_ms < SAME * mean_ms:
        return f"{who}, and no time is lost waiting for the network."
    own = "for its own gradients to be applied" if "asynchrony" in job else "at the barrier"
    why = own if waterfall["barrier"] > waterfall["exposed"] else f"for {_awaited(job)}"
    sentence = f"{who}, {percent(wait_ms / mean_ms)} of it waiting {why}."
    if job["workers"] > 1 and 0 < job["speed_up"] < 1 - SAME:
        slower = number(float(f"{1 / job['speed_up']:.2g}"))
        sentence += f" All {job['workers']} together are {slower} times slower than one worker alone."
    return sentence


def _awaited(job: Mapping[str, Any]) -> str:
    """Return the word for the data that a job's compute waits for: gradients in training, parameters in inference."""
    return {"inference": "parameters", "exchange": "the exchange"}.get(job.get("task", ""), "gradients")


def _parallel_sentence(job: Mapping[str, Any]) -> str:
    facts, time_ms = job["parallel"], job["iteration_time_ms"]["mean"]
    sentence = (
        f"{job['model']} on {ranks(facts['ranks'])} ({mesh(facts['mesh'])}): {milliseconds(time_ms)} per iteration"
    )
    if facts["mesh"] is not None:
        sentence += f", {number(facts['tokens_per_s_per_gpu'])} tokens/s per GPU"
        if facts["mfu"] is not None:
            sentence += f", {percent(facts['mfu'])} of the peak"
    group, figures = max(facts["groups"].items(), key=lambda one: one[1]["exposed_ms"], default=("", {"exposed_ms": 0}))
    if figures["exposed_ms"] >= SAME * time_ms:
        sentence += f"; compute waits {percent(figures['exposed_ms'] / time_ms)} of the time for {group}"
    if "memory" in facts and facts["memory"]["feasibility"] != "fits":
        sentence += f". {_fit(facts['memory'])}"
    return f"{sentence}."


def _fit(parts: Mapping[str, Any]) -> str:
    """Return the sentence that a rank does not, or may not, fit in memory, with changes that would make it fit."""
    sentence = f"It does not fit in memory: a rank needs {memory(parts)}"
    if parts["feasibility"] == "too close to call":
        least, most = (size(count, 3) for count in parts["likely_bytes"])
        sentence = f"It may not fit in memory: a rank needs {least} to {most} of {size(parts['device'], 3)}"
    if parts["would_fit"]:
        return f"{sentence}; it would fit with {', or with '.join(_keys(way['keys']) for way in parts['would_fit'])}"
    if parts["fits_on"] is None:
        return f"{sentence}; no change and no number of GPUs that was tried makes it fit"
    return f"{sentence}; it would fit on {parts['fits_on']['ranks']:,} GPUs with {_keys(parts['fits_on']['keys'])}"


def _keys(keys: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in keys.items())


def saving_headline(
    points: Sequence[tuple[float, float, float]], baseline: str, best: str, *, is_possible: bool = True
) -> str:
    """Return the sentence on the largest saving of `best` over `baseline`, and on the rate at which the saving ends.

    Args:
        points: link rate in bit/s, time of the baseline and time of the best schedule, both in one unit; at least one.
        baseline: name of the baseline.
        best: name of the best schedule.
        is_possible: False if no runtime supports the best schedule; the sentence then says that it would save time.
    """
    saves, makes = ("saves", "makes") if is_possible else ("would save", "would make")
    points = sorted(points)
    savings = [(rate_bps, 1 - best_time / base_time) for rate_bps, base_time, best_time in points]
    at, top = max(savings, key=lambda point: (point[1], -point[0]))
    if top < SAME:
        span = f"from {rate(points[0][0])} to {rate(points[-1][0])}"
        return f"Nothing saves time over {baseline} at any rate {span}."
    sentence = f"At {rate(at)}, {best} {saves} {percent(top)} over {baseline}"
    same_from = _same_from(savings)
    if same_from is None:
        return sentence + "."
    return f"{sentence}; from {rate(same_from)} on it {makes} no difference."


def saving_at(points: Sequence[tuple[float, float, float]], own_bps: float, baseline: str, best: str) -> str:
    """Return a sentence on the saving of `best` over `baseline` at the rate `own_bps`, and the rate where it ends.

    Each point has a link rate in bit/s, the time of the baseline and the time of the best schedule, both in one unit.
    The points must include the rate `own_bps`.
    """
    savings = {rate_bps: 1 - best_time / base_time for rate_bps, base_time, best_time in sorted(points)}
    sentence = f"At {rate(own_bps)}, {best} would save {percent(savings[own_bps])} over {baseline}"
    ends = _same_from(list(savings.items()))
    if ends is None or ends <= own_bps:
        return f"{sentence}."
    return f"{sentence}; from {rate(ends)} on it would make no difference."


def _same_from(savings: Sequence[tuple[float, float]]) -> float | None:
    """Return the lowest link rate from which on all savings are below `SAME`; None if there is no such rate."""
    same_from = None
    for rate_bps, saving in reversed(savings):
        if saving >= SAME:
            break
        same_from = rate_bps
    return same_from


def _ms(value: float | None) -> str:
    return "–" if value is None else milliseconds(value)


def run_rows(summary: Mapping[str, Any], *, has_symbols: bool = False) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table that a run prints: one row per figure, one column per job.

    With `has_symbols`, labels contain the symbols of the papers, and there are rows for rho and U.
    """
    jobs = summary["jobs"]
    rows: list[list[str]] = []

    def add(name: str, of: Any) -> None:
        rows.append([name, *(of(job) for job in jobs.values())])

    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}"

    def overlapped(job: Any) -> str:
        return "–" if job["alpha"] is None else f"{percent(job['alpha'])} of the possible overlap"

    def part(name: str) -> Any:
        def cell(job: Any) -> str:
            value = job["waterfall_ms"].get(name, 0.0)
            return f"{_ms(value)}  ({percent(value / job['iteration_time_ms']['mean'])})"

        return cell

    add("model", lambda job: f"{job['model']}, {workers(job['workers'], job.get('servers', 0))}")
    if any(job["computed_on"]["name"] for job in jobs.values()):
        add("computed on", lambda job: computed_on(job) if job["computed_on"]["name"] else "–")
    add("iteration time", lambda job: _ms(job["iteration_time_ms"]["mean"]))
    if any("unmeasured_iterations" in job for job in jobs.values()):
        add("  measured while all jobs run", _measured)
    add("  compute", part("compute"))
    if any("host" in job["waterfall_ms"] for job in jobs.values()):
        add(f"  {HOST_TIME}", part("host"))
    add(f"  waits for {' or '.join(dict.fromkeys(map(_awaited, jobs.values())))}", part("exposed"))
    add("  waits at the barrier", part("barrier"))
    if any(job["waterfall_ms"]["slowdown"] for job in jobs.values()):
        add("  slowed by overlap", part("slowdown"))
    if any("slowest_worker" in job for job in jobs.values()):
        add("slowest worker", _slowest)
    if any("asynchrony" in job for job in jobs.values()):
        add("iterations of workers", lambda job: _asynchronous(job, _rates))
        add("  staleness, iterations", lambda job: _asynchronous(job, _stale("staleness_iterations")))
        add("  staleness, updates", lambda job: _asynchronous(job, _stale("staleness_updates")))
        add("  waits for slower workers", lambda job: _asynchronous(job, _bound_wait))
    add("speed-up", lambda job: f"{job['speed_up']:.3g} times one worker without a network")
    add("scaling efficiency", lambda job: f"{percent(job['scaling_efficiency'])} of {workers(job['workers'])}")
    if any(job["samples_per_s"] for job in jobs.values()):
        add("throughput", lambda job: f"{number(job['samples_per_s'])} samples/s" if job["samples_per_s"] else "–")
    if has_symbols:
        add("communication N", lambda job: _ms(job["comm_ms"]))
        add("ratio rho = N/C", lambda job: share(job["rho"]))
        add("overlap alpha", lambda job: share(job["alpha"]))
        add("utilisation U = C/T", lambda job: share(job["utilisation"]))
        add("lower bound of T", lambda job: _ms(job["lower_bound_ms"]))
    else:
        add("communication", lambda job: _ms(job["comm_ms"]))
        add("  overlap with compute", overlapped)
        add("least iteration time", lambda job: _ms(job["lower_bound_ms"]))
    add("network slack", lambda job: " … ".join(_ms(job["slack_ms"][key]) for key in ("min", "p50", "max")))
    add("sent by a worker", lambda job: f"{number(job['bytes_per_worker'] / 1e6)} MB in {buckets(job['buckets'])}")
    return ["", *jobs], rows


def _measured(job: Mapping[str, Any]) -> str:
    count = job["iterations"]
    return f"{count} of {count + sum(job['unmeasured_iterations'].values())} iterations"


def parallel_rows(name: str, job: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table that a run of a parallel job prints: one row per figure."""
    facts, time_ms = job["parallel"], job["iteration_time_ms"]["mean"]

    def part(value_ms: float) -> str:
        return f"{_ms(value_ms)}  ({percent(value_ms / time_ms)})"

    rows = [
        ["model", f"{job['model']} on {ranks(facts['ranks'])}: {mesh(facts['mesh'])}"],
        *([] if facts["mesh"] is None else [["computed on", computed_on(job)]]),
        ["iteration time", _ms(time_ms)],
        ["  compute", part(sum(one["ranks"] * one["compute_ms"] for one in facts["classes"]) / facts["ranks"])],
    ]
    if "host_ms" in job:
        host_ms = sum(one["ranks"] * one.get("host_ms", 0.0) for one in facts["classes"]) / facts["ranks"]
        rows.append([f"  {HOST_TIME}", part(host_ms)])
    if facts.get("stated_efficiency") is not None:
        rows.append(["  efficiency", f"{percent(facts['stated_efficiency'])} of the peak, as stated"])
    if facts.get("times") is not None:
        rows.append(["  times of ops", f"from {facts['times']}"])
    if job["waterfall_ms"]["slowdown"]:
        rows.append(["  slowed by overlap", part(job["waterfall_ms"]["slowdown"])])
    waits = sorted(facts["groups"].items(), key=lambda one: -one[1]["exposed_ms"])
    rows += [[f"  waits for {group}", part(figures["exposed_ms"])] for group, figures in waits if figures["exposed_ms"]]
    if facts["waits_for_stages_ms"]:
        rows.append([f"  waits for {others(facts['mesh'])}", part(facts["waits_for_stages_ms"])])
    rows += [
        [
            "critical path",
            ", ".join(
                f"{kind} {percent(ms / time_ms)}"
                for kind, ms in facts["critical_path_ms"].items()
                if kind != "between" or ms / time_ms >= 0.0005
            ),
        ],
    ]
    if facts["mesh"] is not None:
        rows += [
            ["tokens", f"{facts['tokens']:,} in {facts['global_batch']:,} sequences"],
            ["throughput", f"{number(facts['tokens_per_s_per_gpu'])} tokens/s per GPU"],
            ["model FLOPs utilisation", "–" if facts["mfu"] is None else percent(facts["mfu"])],
            ["memory of a rank", memory(facts["memory"])],
        ]
    return ["", name], rows


_ORIGINS = {"file": "the model's file names it", "cluster": "the cluster's"}


def computed_on(job: Mapping[str, Any]) -> str:
    """Name the device and the batch of a job, and the origin of the device unless the job states it."""
    device, facts = job["computed_on"], job.get("parallel", {})
    name = device["name"]
    if facts.get("mesh") is not None:
        count = facts["micro_batch"]
        name += f" in {facts['precision']}, micro-batch of {count} sequence{'s' if count > 1 else ''}"
        name += "" if facts["recompute"] == "none" else f", {facts['recompute']} recomputation"
    elif job.get("batch"):
        name += f", mini-batch of {job['batch']}"
    said = [_ORIGINS[device["origin"]]] if device["origin"] in _ORIGINS else []
    if device["cluster"] is not None:
        said.append(f"the cluster has {device['cluster']}")
    if device["times_of"] is not None:
        said.append(f"times are those of {device['times_of']}")
    elif device["origin"] != "file" and facts.get("mesh") is None and not job.get("batch"):
        said.append("times are the model's own")
    return f"{name} ({'; '.join(said)})" if said else name


def group_rows(job: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the process groups of a parallel job."""
    header = ["group", "ranks", "transfers", "rank sends", "busy", "exposed", "slack"]
    rows = []
    for name, figures in job["parallel"]["groups"].items():
        least, most = (figures["slack_ms"][key] for key in ("min", "max"))
        slack = _ms(least) if least == most else f"{_ms(least)} … {_ms(most)}"  # "–" if no op waits
        counts = [str(figures["ranks"]), f"{figures['transfers']:,}", size(figures["bytes_per_rank"])]
        rows.append([name, *counts, _ms(figures["busy_ms"]), _ms(figures["exposed_ms"]), slack])
    return header, rows


def ranks(count: int) -> str:
    """Write a number of ranks."""
    return "1 rank" if count == 1 else f"{count:,} ranks"


def simulated(mesh: Mapping[str, int] | None, count: int) -> str:
    """Name the unit of simulation: "stage" if one rank per pipeline stage is simulated, otherwise "rank"."""
    return "rank" if mesh is None or count > mesh["pp"] else "stage"


def others(mesh: Mapping[str, int] | None) -> str:
    """Name the ranks whose readiness a rank waits for: other stages of the pipeline, or other ranks."""
    return "other ranks" if mesh is None or mesh["pp"] == 1 else "other stages"


def mesh(axes: Mapping[str, int] | None) -> str:
    """Write a mesh without its axes of one rank, as in `fsdp 16, tp 8`; None is the mesh of a recorded step."""
    if axes is None:
        return "as recorded"
    return ", ".join(f"{axis} {count}" for axis, count in axes.items() if count > 1) or "one rank"


SHORT_FIT = {"fits": "", "does not fit": ", too much", "too close to call": ", too close to call"}
"""Suffix of a memory size in a table, by the verdict on whether the rank fits in memory."""


def memory(parts: Mapping[str, Any]) -> str:
    """Write the memory that a rank needs and the memory of its device, as in `61.2 GB of 80 GB`."""
    needed, has = size(parts["total"], 3), size(parts["device"], 3)
    if parts["feasibility"] == "does not fit":
        return f"{needed}, and the device has {has}"
    return f"{needed} of {has}" + ("" if parts["feasibility"] == "fits" else ", too close to call")


def _slowest(job: Mapping[str, Any]) -> str:
    if "slowest_worker" not in job:
        return "all alike"
    if "asynchrony" in job:
        return f"number {job['slowest_worker']}; the other workers do not wait for it"
    waits = percent(job["straggler_percent"] / 100)
    return f"number {job['slowest_worker']}; others wait up to {waits} of an iteration for it"


def _asynchronous(job: Mapping[str, Any], of: Callable[[Mapping[str, Any]], str]) -> str:
    return of(job["asynchrony"]) if "asynchrony" in job else "–"


def _rates(figures: Mapping[str, Any]) -> str:
    rates = [worker["iterations_per_s"] for worker in figures["workers"].values()]
    return f"{number(figures['iterations_per_s'])} per s, of a worker {number(min(rates))} to {number(max(rates))}"


def _stale(name: str) -> Callable[[Mapping[str, Any]], str]:
    def words(figures: Mapping[str, Any]) -> str:
        of = figures[name]
        return "–" if of is None else f"{of['mean']:.2f} on average, {of['max']} at most"

    return words


def _bound_wait(figures: Mapping[str, Any]) -> str:
    bound = figures["bound"]
    return "no bound" if bound is None else f"{percent(figures['bound_wait_percent'] / 100)}, at most {bound} ahead"


def flow_rows(name: str, classes: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the completion times of a tenant's flows."""
    names = ("mean_fct_ms", "p50_fct_ms", "p90_fct_ms", "p99_fct_ms")

    def slowdown(figures: Mapping[str, Any]) -> list[str]:
        value = figures.get("mean_slowdown", 0.0)
        return [] if "mean_slowdown" not in figures else ["–" if value is None else f"{value:.2f}"]

    is_open = classes["all"].get("unfinished", 0) > 0
    rows = []
    for size, figures in classes.items():
        done = f"{figures['completed']} of {figures['started']}"
        unfinished = [_unfinished(figures)] if is_open else []
        rows.append([size, done, *(_ms(figures[key]) for key in names), *slowdown(figures), *unfinished])
    more = ["slowdown"] if "mean_slowdown" in classes["all"] else []
    more += ["unfinished"] if is_open else []
    return [f"{name}: flows", "completed", "mean time", "p50", "p90", "p99", *more], rows


def _unfinished(figures: Mapping[str, Any]) -> str:
    """Write the number of flows that are unfinished at the end of the run, and their mean rate."""
    count, rate_bps = figures["unfinished"], figures.get("unfinished_rate_bps")
    return str(count) if not count or rate_bps is None else f"{count} at {rate(rate_bps)}"


def flows_headline(traffic: Mapping[str, Any]) -> str:
    """Return a sentence per tenant on its flows, for a run without jobs. Tenants with completed flows come first."""
    ordered = sorted(traffic.items(), key=lambda one: one[1]["all"]["completed"] == 0)
    return " ".join(_flows_sentence(name, classes["all"]) for name, classes in ordered)


def announcing_sentence(tenants: Mapping[str, Mapping[str, float]]) -> str:
    """Return one sentence per tenant that compares bursts with and without announcements to the switches."""
    sentences = []
    for name, found in tenants.items():
        change = found["change_percent"] / 100
        took = (
            f"{percent(abs(change))} {'less' if change < 0 else 'more'} time" if abs(change) >= SAME else "as much time"
        )
        times = f"{milliseconds(found['announced_ms'])} instead of {milliseconds(found['not_announced_ms'])}"
        sentences.append(f"Bursts of {name} take {took} if they are announced to the switches: {times}.")
    return " ".join(sentences)


def unfinished_sentence(traffic: Mapping[str, Any]) -> str:
    """Return one sentence per tenant with flows that are unfinished at the end of the run; empty if there are none."""
    return " ".join(
        f"{name}: {_still_open(classes['all'])}."
        for name, classes in traffic.items()
        if classes["all"].get("unfinished")
    )


def _still_open(figures: Mapping[str, Any]) -> str:
    count, rate_bps = figures["unfinished"], figures.get("unfinished_rate_bps")
    who = "1 flow is" if count == 1 else f"{count} flows are"
    if rate_bps is None:
        return f"{who} unfinished at the end of the run"
    each = f"{rate(rate_bps)} each on average" if count > 1 else rate(rate_bps)
    return f"{who} unfinished at the end of the run, with {size(figures['unfinished_bytes'])} delivered at {each}"


def _flows_sentence(name: str, figures: Mapping[str, Any]) -> str:
    done = f"{name}: {figures['completed']} of {figures['started']} flows complete"
    if figures["mean_fct_ms"] is None:
        return f"{name}: {_still_open(figures)}." if figures.get("unfinished") else f"{done}."
    return f"{_done_sentence(done, figures)}{f' {_still_open(figures)}.' if figures.get('unfinished') else ''}"


def _done_sentence(done: str, figures: Mapping[str, Any]) -> str:
    mean, slowest = (milliseconds(figures[f"{name}_fct_ms"]) for name in ("mean", "p99"))
    took = f"in {mean} on average, {slowest} at the 99th percentile"
    if figures.get("mean_slowdown") is None:
        return f"{done}, {took}."
    return f"{done}, {took}: {figures['mean_slowdown']:.2f} times as long as the idle network allows."


_FABRICS = {
    "custom": "a custom network",
    "clos2": "2-layer Clos",
    "clos3": "3-layer Clos",
    "leaf_spine": "leaf-spine",
    "star": "one switch",
}


def fabric(kind: str, bisection: str = "") -> str:
    """Name a network, as in `3-layer Clos with an oversubscription of 4:1`."""
    name = _FABRICS.get(kind, kind)
    return f"{name} with an oversubscription of {oversubscription(bisection)}" if bisection and kind != "star" else name


def oversubscription(bisection: str) -> str:
    """Write the oversubscription of a network, the inverse of its bisection ratio; a dash if the ratio is invalid.

    Example:
        >>> oversubscription("1/4"), oversubscription("3/8"), oversubscription("1")
        ('4:1', '2.67:1', '1:1')
    """
    try:
        ratio = Fraction(bisection)
    except (ValueError, ZeroDivisionError):
        return "–"
    return f"{number(float(f'{float(1 / ratio):.3g}'))}:1" if ratio > 0 else "–"


def many(count: float, one: str, plural: str = "") -> str:
    """Write a number of things, as in `14 switches`."""
    return f"{count:,} {one if count == 1 else plural or one + 's'}"


def built(row: Mapping[str, Any]) -> str:
    """Write the numbers of switches and cables of an offered network, as in `14 switches of 16 ports, 161 cables`."""
    switches = f"{many(row['switches'], 'switch', 'switches')} of {row['ports']:,} ports"
    return f"{switches}, {many(row['cables'], 'cable')}"


SWITCH_UNITS = "switch units"
"""Unit of the cost without prices: the total size of the switches, in 2x2 crossbars."""


def cost_unit(unit: str) -> str:
    """Return the unit of a cost in the summary of `gradtide buy` as tables show it."""
    return SWITCH_UNITS if unit == "crossbars" else unit


def collective(text: str) -> str:
    """Name a collective from `KIND[+KEY=VALUE]`, as in `parameter servers, distributed`."""
    kind, *extras = text.split("+")
    title = ALGORITHMS[kind].title if kind in ALGORITHMS else kind
    return ", ".join([title, *(extra.replace("=", " ") for extra in extras)])


_LEVELS = {"none": "left alone", "buckets": "DDP's buckets", "priority": "order", "crossiter": "order, no barrier"}
_BASELINES = {"ddp": "DDP as it is", "scenario": "the scenario's own"}


def level(name: str) -> str:
    """Write a baseline, or a level with the features that it needs, as in `crossiter: order, no barrier`."""
    return _BASELINES.get(name) or (f"{name}: {_LEVELS[name]}" if name in _LEVELS else name)


def amount(value: float) -> str:
    """Write a cost in whole units with commas, as in `20,480`."""
    return f"{value:,.0f}" if value >= 100 else number(value)


_BOUNDS = {
    "hidden": "compute continues during it",
    "late rank": "a rank is late, and the others wait for it",
    "queued": "it waits behind earlier transfers",
    "unknown": "its bytes are not recorded, or do not explain its time: ranks that were not recorded may be late",
    "small message": "too small to fill the network; send it together with others",
    "last": "no compute is left to hide it",
    "bandwidth": "limited by the bandwidth",
}


def bound(name: str) -> str:
    """Explain what limits a transfer of a trace; return `name` itself if it has no explanation."""
    return _BOUNDS.get(name, name)


def size(count: float, digits: int = 4) -> str:
    """Write bytes with `digits` significant digits, as in `100 MB`."""
    rounded = float(f"{count:.{digits}g}")
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if rounded >= unit:
            return f"{number(rounded / unit)} {name}"
    return f"{number(rounded)} B"


_IN_LINE = ("device", "device of the cluster", "cluster", "link rate", "engine")
"""Premises that `premises_line` names even if the user stated them."""
LONGEST_IN_LINE = 60
"""Largest number of characters of a value in `premises_line`. Longer lists of values are written as "varied"."""
MOST_ASSUMED = 3
"""Number of assumed premises that `premises_line` names before it counts the rest; a single remaining one is named."""


def premises_line(premises: Sequence[Mapping[str, Any]], where: str = "--json lists them") -> str:
    """Return the premises of an answer in one line: device, cluster, link rate and engine, then the main assumptions.

    Args:
        premises: premises of a summary, the most important first.
        where: text in brackets that names the place with all premises.
    """
    stated = [_premise(one) for one in premises if one["stated"] and one["name"] in _IN_LINE]
    # A change such as `--set KEY=…` is left out, because it is longer than the premise.
    assumed = [
        f"{_premise(one)} ({one['change']})" if one["change"] and " " not in one["change"] else _premise(one)
        for one in premises
        if not one["stated"]
    ]
    if len(assumed) > MOST_ASSUMED + 1:
        assumed[MOST_ASSUMED:] = [f"{len(assumed) - MOST_ASSUMED} more ({where})"]
    parts = [", ".join(stated)] if stated else []
    parts += [f"assumed: {', '.join(assumed)}"] if assumed else []
    return f"Premises: {'; '.join(parts)}." if parts else ""


def _premise(one: Mapping[str, Any]) -> str:
    """Write a premise as its name and value, or as its value alone if the value needs no name."""
    if len(one["value"]) > LONGEST_IN_LINE:
        return f"{one['name']} varied"
    says_itself = one["name"] in ("device", "cluster", "collective", "schedule", "compute times")
    return str(one["value"]) if says_itself else f"{one['name']} {one['value']}"


def fits(feasibility: Mapping[str, Any]) -> str:
    """Write whether a candidate fits in memory, the memory needed and available, and changes that would make it fit."""
    verdict, needed, has = (feasibility[key] for key in ("verdict", "needed_bytes", "device_bytes"))
    if needed is None or has is None:
        return str(verdict)
    text = f"{verdict}: {size(needed, 3)} of {size(has, 3)}"
    would = feasibility["would_fit"]
    return f"{text}; would fit with {' or '.join(would)}" if would else text


def answer_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the paragraphs of an answer: headline, premises and uncertainty."""
    return list(
        filter(
            None,
            (
                *summary["headline"].split("\n"),
                premises_line(summary.get("premises", ())),
                summary.get("uncertainty", {}).get("sentence", ""),
            ),
        )
    )


def answer_html(summary: Mapping[str, Any]) -> str:
    """Return an answer as HTML for notebooks: its paragraphs, and its premises as a table."""
    from html import escape

    lines = "".join(f"<p>{escape(line)}</p>" for line in answer_lines(summary))
    rows = [[one["name"], one["value"], "" if one["stated"] else one["change"]] for one in summary.get("premises", ())]
    return lines + (html_table(["premise", "value", "assumed; change it by"], rows) if rows else "")


def html_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], total: int | None = None) -> str:
    """Return a plain HTML table for notebooks. If `total` exceeds the rows, a line says how many rows are missing."""
    from html import escape  # Imported here, because the import takes a millisecond that most commands can save.

    head = "".join(f"<th>{escape(str(column))}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    rest = "" if total is None or total <= len(rows) else f"<p>{total - len(rows)} more rows</p>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def uncapitalised(sentence: str) -> str:
    """Return a sentence with a small first letter, for use after a colon; the name FIFO is kept."""
    return sentence if sentence.startswith("FIFO") else sentence[:1].lower() + sentence[1:]
