"""The report of `gradtide run`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.report import parallel, pieces, timeline
from gradtide.report.folder import Row, entry, grouped, number, objects, read_table, read_text
from gradtide.report.timeline import milliseconds, size


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a run."""
    path = run_dir / "summary.json"
    jobs = objects(path, summary, "jobs")
    tables = {
        name: pieces.by_job(read_table(run_dir, f"{name}.csv", required=name != "bandwidth"))
        for name in ("iterations", "transfers", "operations", "bandwidth")
    }
    links = read_table(run_dir, "links.csv")
    rates = {row["rate_bps"] for row in links}
    rate = rates.pop() if len(rates) == 1 else None
    # On the packet engine, an iteration lasts from backward pass to backward pass; else from forward to forward pass.
    packets = summary.get("engine") == "packet"
    measured = ", measured from one backward pass to the next" if packets else ""
    views = []
    for index, name in enumerate(list(jobs)[: caps.jobs]):
        mine = {key: table.get(name, []) for key, table in tables.items()}
        if "parallel" in jobs[name]:
            views.append(parallel.job(path, name, jobs[name], mine["operations"], f"t{index}", caps))
        else:
            views.append(_job(path, name, jobs[name], mine, rate, f"t{index}", caps, measured))
    columns: pieces.Columns = {
        "job": lambda job: job[0],
        "model": lambda job: entry(path, job[1], "model", str),
        "#workers": lambda job: entry(path, job[1], "workers", int),
        "#iteration time, ms": lambda job: pieces.ms(number(path, job[1], "iteration_time_ms.mean")),
        "#compute share, %": lambda job: pieces.percent(number(path, job[1], "utilisation")),
        "#exposed, ms": lambda job: pieces.ms(number(path, job[1], "waterfall_ms.exposed")),
        "#communication / compute": lambda job: f"{number(path, job[1], 'rho'):.3f}",
    }
    several = jobs.items() if len(jobs) > 1 else ()
    overview = pieces.listing("Jobs", columns, several, cap=caps.rows, where="summary.json")
    first = views[0]["what"] if len(views) == 1 else f"{len(jobs)} jobs" if jobs else "background flows without a job"
    traffic = objects(path, summary, "traffic")
    dropped = f"{len(views)} of {len(jobs)} jobs are drawn; the table above has them all."
    return "run.html.j2", {
        "title": f"gradtide run: {', '.join(pieces.clip(name, 30) for name in list(jobs or traffic)[:3])}",
        "what": first if rate is None else f"{first}, {pieces.rate(rate)} links",
        "jobs": views,
        "many": len(jobs) > 1,
        "overview": overview,
        "dropped": dropped if len(views) < len(jobs) else "",
        "traffic": [_tenant(path, name, traffic[name], caps) for name in list(traffic)[: caps.jobs]],
        "bursts": bursts_table(run_dir, caps),
        "probed": pieces.probed({"": read_table(run_dir, "queues.csv", required=False)}, ["transfer"], caps),
        "links": links_table(links, caps, has_queues=packets),
        "warnings": [pieces.clip(text, 200) for text in summary.get("warnings", []) if isinstance(text, str)],
        "scenario": resolved_scenario(run_dir, caps),
    }


def links_table(rows: Sequence[Row], caps: pieces.Caps, *, has_queues: bool) -> dict[str, Any]:
    """Return the table of links, with statistics of their queues if the engine has queues."""
    columns: pieces.Columns = {
        "link": lambda row: row["link"],
        "#rate": lambda row: pieces.rate(row["rate_bps"]),
        "#sent": lambda row: size(row["bytes"]),
        "#busy, ms": lambda row: milliseconds(row["busy_us"]),
        "#utilisation, %": lambda row: pieces.percent(row["utilisation"]),
    }
    if has_queues:
        columns |= {
            "#dropped packets": lambda row: pieces.plain(row["drops"]),
            "#marked packets": lambda row: pieces.plain(row["ce_marks"]),
            "#longest queue, packets": lambda row: pieces.plain(row["max_queue_packets"]),
        }
    cap, label = min(caps.rows, 64), "Links"
    if len(rows) > cap:
        # For a large network, the table has only the busiest links.
        rows, label = sorted(rows, key=lambda row: -row["utilisation"]), "Links, the busiest first"
    return pieces.listing(label, columns, rows, cap=cap, where="links.csv")


def bursts_table(run_dir: Path, caps: pieces.Caps) -> dict[str, Any]:
    """Return the table of bursts of a run or an emulation, with the queue of the slowest link of each burst's path."""

    def time_ms(name: str) -> Callable[[Row], str]:
        return lambda row: "–" if row[name] is None else pieces.ms(row[name])

    rows = read_table(run_dir, "bursts.csv", required=False)
    columns: pieces.Columns = {
        "from, to": lambda row: f"h{row['src']}, h{row['dst']}",
        "#at, s": lambda row: f"{row['at_us'] / 1e6:.3f}",
        "announced": lambda row: "yes" if row["announced"] else "no",
        "#queue at the start, packets": lambda row: pieces.plain(row["start_queue_packets"]),
        "#longest queue, packets": lambda row: pieces.plain(row["longest_queue_packets"]),
        "#mean wait, ms": lambda row: "–" if row["mean_wait_us"] is None else pieces.ms(row["mean_wait_us"] / 1e3),
        "#drops": lambda row: pieces.plain(row["queue_drops"]),
        "#burst, ms": time_ms("burst_ms"),
        "#with setup, ms": time_ms("completion_ms"),
    }
    if any(row["retransmits"] is not None for row in rows):
        columns["#retransmits"] = lambda row: pieces.plain(row["retransmits"])
    return pieces.listing("Bursts", columns, rows, cap=caps.rows, where="bursts.csv")


def _tenant(path: Path, name: str, classes: Mapping[str, Any], caps: pieces.Caps) -> dict[str, Any]:
    figures = {f"{name}_fct_ms": f"{name}, ms" for name in ("mean", "p50", "p90", "p99")}
    if all("mean_slowdown" in of for of in classes.values() if isinstance(of, Mapping)):
        figures |= {"mean_slowdown": "slowdown, mean", "p99_slowdown": "slowdown, p99"}

    def cell(size_class: str, figure: str) -> dict[str, str]:
        value = entry(path, classes, f"{size_class}.{figure}", (int, float, type(None)))
        text = "–" if value is None else pieces.ms(value) if figure in figures else str(value)
        if figure == "unfinished_rate_bps" and value is not None:
            text = pieces.rate(value)
        return pieces.cell(text, key=f"traffic.{name}.{size_class}.{figure}")

    is_open = any(isinstance(of, Mapping) and of.get("unfinished") for of in classes.values())
    more = {"unfinished": "unfinished", "unfinished_rate_bps": "mean rate of these"} if is_open else {}
    label = f"Completion times of the flows of {pieces.clip(name)}"
    columns = ("flows", "#started", "#completed", *(f"#{word}" for word in (*more.values(), *figures.values())))
    rows = [[of, *(cell(of, figure) for figure in ("started", "completed", *more, *figures))] for of in classes]
    table = pieces.table(label, columns, rows, cap=caps.rows, where="summary.json")
    return {"name": pieces.clip(name), "table": table}


def resolved_scenario(run_dir: Path, caps: pieces.Caps) -> str:
    """Return the scenario of a run folder as text, cut to `caps.scenario` characters."""
    scenario = read_text(run_dir / "scenario.resolved.toml")
    if len(scenario) <= caps.scenario:
        return scenario
    return scenario[: caps.scenario] + f"\n… {len(scenario) - caps.scenario} more characters in scenario.resolved.toml"


def _job(
    path: Path,
    name: str,
    facts: Mapping[str, Any],
    tables: Mapping[str, list[Row]],
    rate: int | None,
    ident: str,
    caps: pieces.Caps,
    measured: str,
) -> dict[str, Any]:
    key, tile = f"jobs.{name}", pieces.tile
    model, workers = entry(path, facts, "model", str), entry(path, facts, "workers", int)
    all_of, every = f"All figures of job {pieces.clip(name)}", pieces.flat(facts, key, key + ".")
    mean, low, high = (number(path, facts, f"iteration_time_ms.{k}") for k in ("mean", "min", "max"))
    compute_ms, comm_ms = number(path, facts, "compute_ms"), number(path, facts, "comm_ms")
    count = entry(path, facts, "iterations", int)
    waterfall = pieces.waterfall_of(path, facts)
    varies = high - low > 1e-6 * mean
    spread = f"{pieces.ms(low)} to {pieces.ms(high)} ms in" if varies else "the same in all"
    spread += f" {count} iterations{measured}"
    share = pieces.percent(number(path, facts, "utilisation"))
    waits = pieces.ms(waterfall["exposed"])
    exposed = f"{pieces.percent(waterfall['exposed'] / mean)} % of the iteration: compute waits for a gradient"
    is_pulled = any(row.get("direction") for row in tables["transfers"])
    barrier = "wait for pushes and other workers" if is_pulled else "wait at barrier"
    if waterfall["barrier"] > 0:
        exposed += f"; {pieces.ms(waterfall['barrier'])} ms more {'for pushes' if is_pulled else 'at the barrier'}"
    utilisation = f"of the iteration: {pieces.ms(compute_ms)} ms, in which workers compute"
    rho = f"{pieces.ms(comm_ms)} ms on an idle network / {pieces.ms(compute_ms)} ms"
    asynchrony = None
    if "asynchrony" in facts:
        asynchrony = _asynchrony(path, facts, key, caps)
        spread += f"; each is {workers} of the workers' own"
    efficiency = pieces.percent(number(path, facts, "scaling_efficiency"))
    over = f"over one worker without a network: a scaling efficiency of {efficiency} %"
    speed_up = f"{number(path, facts, 'speed_up'):.4g}"
    buckets = entry(path, facts, "buckets", int)
    what = (
        f"{pieces.clip(name, 40)}: {pieces.clip(model, 40)} on {words.workers(workers)}, "
        f"{size(number(path, facts, 'parameter_bytes'))} of gradients in {words.buckets(buckets)}"
    )
    return {
        "is_parallel": False,
        "name": pieces.clip(name),
        "what": what,
        "figures": [
            tile("Iteration time", pieces.ms(mean), "ms", "", spread, f"{key}.iteration_time_ms.mean"),
            tile("Compute share", share, "%", "compute", utilisation, f"{key}.utilisation"),
            tile("Speed-up", speed_up, "x", "", over, f"{key}.speed_up"),
            tile("Exposed communication", waits, "ms", "exposed", exposed, f"{key}.waterfall_ms.exposed"),
            tile("Communication / compute", f"{number(path, facts, 'rho'):.2f}", "", "transfer", rho, f"{key}.rho"),
            *([asynchrony["tile"]] if asynchrony else []),
        ],
        "waterfall": pieces.waterfall(waterfall, f"{key}.waterfall_ms", barrier),
        "timeline": pieces.drawn_timeline(
            timeline.window(tables["operations"], tables["transfers"]),
            label=f"Timeline of one iteration of job {pieces.clip(name)}",
            ident=ident,
            cap=caps.rows,
        ),
        "slack": slack_chart(tables["transfers"], caps),
        "bandwidth": _bandwidth_chart(tables["bandwidth"], rate, mean, compute_ms, caps),
        "iterations": _iteration_chart(tables["iterations"], caps) if varies else None,
        "asynchrony": asynchrony and asynchrony["table"],
        "all": pieces.table(all_of, ("key", "#value"), every, cap=caps.rows, where="summary.json"),
    }


def _asynchrony(path: Path, facts: Mapping[str, Any], key: str, caps: pieces.Caps) -> dict[str, Any]:
    """Return the staleness of asynchronous workers: a tile for the job, and a table with a row per worker."""
    workers: Mapping[str, Any] = entry(path, facts, "asynchrony.workers", dict)

    def cell(worker: str, figure: str, show: Callable[[float], str]) -> dict[str, str]:
        where = f"asynchrony.workers.{worker}"
        is_absent = entry(path, facts, f"{where}.{figure.partition('.')[0]}", object) is None
        text = "–" if is_absent else show(number(path, facts, f"{where}.{figure}"))
        return pieces.cell(text, key=f"{key}.{where}.{figure}")

    figures: dict[str, tuple[str, Callable[[float], str]]] = {
        "#iterations": ("iterations", "{:.0f}".format),
        "#iterations/s": ("iterations_per_s", words.number),
        "#iteration, ms": ("iteration_time_ms", pieces.ms),
        "#held back, ms": ("bound_wait_ms", pieces.ms),
        "#behind, iterations": ("staleness_iterations.mean", words.number),
        "#at most": ("staleness_iterations.max", "{:.0f}".format),
        "#updates": ("staleness_updates.mean", words.number),
        "#at most ": ("staleness_updates.max", "{:.0f}".format),
    }
    rows = [[worker, *(cell(worker, *figure) for figure in figures.values())] for worker in workers]
    label = "Workers that are not in step"
    table = pieces.table(label, ("worker", *figures), rows, cap=caps.rows, where="summary.json")
    mean, most = (number(path, facts, f"asynchrony.staleness_iterations.{one}") for one in ("mean", "max"))
    note = f"mean number of iterations by which the slowest worker is behind; {most:.0f} at most"
    where = f"{key}.asynchrony.staleness_iterations.mean"
    return {"table": table, "tile": pieces.tile("Staleness", words.number(mean), "", "", note, where)}


def slack_chart(transfers: Sequence[Row], caps: pieces.Caps) -> dict[str, Any] | None:
    """Draw slack and margin of the transfers over layers; None without transfers.

    If workers pull from parameter servers, only pulls are drawn.
    """
    is_pulled = any(row.get("direction") for row in transfers)
    transfers = [row for row in transfers if row.get("direction") != "push"]
    if not transfers:
        return None
    slack = grouped(transfers, lambda row: (row["first_layer"], row["last_layer"]))
    # If adjacent buckets share a step of the line, it shows their smallest value, because that bucket delays compute.
    steps = pieces.bins(sorted(slack), 400)
    lines = []
    for name, key, token in (
        ("slack: ready until needed", "slack_us", "transfer"),
        ("margin: received until needed", "margin_us", "exposed"),
    ):
        values = [min(sum(row[key] for row in slack[s]) / len(slack[s]) / 1e3 for s in step) for step in steps]
        lines.append(pieces.line(0, name, [*values, values[-1]], width=2.4, token=token))
    per_step = len(steps[0])
    note = f" Every step shows the smallest value of {per_step} adjacent buckets." if per_step > 1 else ""
    why = (
        "All pulls are ready when an iteration begins. Layers near the input are needed first, so they have the least "
        "slack."
        if is_pulled
        else "Gradients of layers near the input are ready last and needed first, so these layers have the least "
        "slack. Layers of one bucket have equal values."
    )
    return pieces.chart(
        "Slack and margin against layer index",
        x=pieces.Axis([*(step[0][0] for step in steps), steps[-1][-1][1] + 1], "layer index, input side = 0", "layer"),
        lines=lines,
        ylabel="ms",
        stepped=True,
        band=[1, 2],
        marks=[{"y": 0, "label": "below 0: compute waits", "token": "exposed-text"}],
        legend=[{"token": "slack", "name": "queueing and sending"}],
        caption=f"{why} Values are means over the measured iterations{' of all workers' if is_pulled else ''}.{note}",
        cap=caps.rows,
    )


def _bandwidth_chart(
    rows: Sequence[Row], rate: int | None, mean: float, compute_ms: float, caps: pieces.Caps
) -> dict[str, Any] | None:
    if not rows:
        return None
    rates = [some[0] for some in pieces.bins(sorted({row["rate_bps"] for row in rows}), 200)]
    found = {(row["order"], row["barrier"], row["rate_bps"]): row["iteration_time_us"] / 1e3 for row in rows}
    kinds = list(dict.fromkeys((row["order"], row["barrier"]) for row in rows))
    marks: list[dict[str, Any]] = [{"y": compute_ms, "label": f"compute alone {pieces.ms(compute_ms)} ms"}]
    dots = []
    if rate is not None:
        marks.append({"x": rate / 1e9, "label": f"this run: {pieces.rate(rate)}", "token": "text"})
        dots.append({"x": rate / 1e9, "y": mean})
    return pieces.chart(
        "Iteration time over link rate",
        lines=[
            pieces.line(i, pieces.schedule(*kind), [found.get((*kind, r)) for r in rates])
            for i, kind in enumerate(kinds)
        ],
        ylabel="iteration time, ms",
        # The y axis is logarithmic, because with fast links all lines converge to the compute time.
        **pieces.over_rates(rates),
        ylog=True,
        marks=marks,
        dots=dots,
        caption="The same job at other link rates; both scales are logarithmic. Lines that coincide are drawn inside "
        "each other. Where all lines meet the dashed one, the network costs no time.",
        cap=caps.rows,
    )


def _iteration_chart(rows: Sequence[Row], caps: pieces.Caps) -> dict[str, Any] | None:
    if len(rows) < 2:
        return None
    bins = pieces.bins(rows, 400)
    means = [sum(row["time_us"] for row in some) / len(some) / 1e3 for some in bins]
    name = "iteration time" if len(bins[0]) == 1 else f"iteration time, means of {len(bins[0])}"
    return pieces.chart(
        "Iteration time of every iteration",
        x=pieces.Axis([some[0]["iteration"] for some in bins], "iteration", "iteration"),
        lines=[pieces.line(0, name, means, width=2)],
        ylabel="ms",
        xwhole=True,
        cap=caps.rows,
    )
