"""The report of an emulation: packets, lateness, links, queues, bursts, flows and iterations."""

from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.report import pieces
from gradtide.report.folder import Row, entry, number, read_table
from gradtide.report.run import bursts_table, links_table, resolved_scenario


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the template and its context for the report of an emulation."""
    path = run_dir / "summary.json"
    packets = {name: number(path, summary, f"packets.{name}") for name in ("sent", "delivered", "dropped", "marked")}
    late = {name: number(path, summary, f"lateness.{name}") for name in ("p50_us", "p99_us", "p999_us", "max_us")}
    labels = {"p50_us": "median", "p99_us": "99th percentile", "p999_us": "99.9th percentile", "max_us": "longest"}
    figures = [*((f"packets {name}", f"{value:,.0f}") for name, value in packets.items())]
    figures += [(f"packets leave late, {labels[name]}, us", f"{value:,.1f}") for name, value in late.items()]
    figures.append(("share over 100 us late, %", f"{100 * number(path, summary, 'lateness.late_share'):.3f}"))
    differing = summary.get("differing_decisions")
    if isinstance(differing, int):
        figures.append(("packets on which a replay in the simulator decides otherwise", f"{differing:,}"))
    two: pieces.Columns = {"": lambda one: one[0], "#": lambda one: one[1]}
    flows: pieces.Columns = {
        "flow": lambda row: f"{pieces.clip(row['traffic'], 40)}.{row['flow']}",
        "from, to": lambda row: f"h{row['src']}, h{row['dst']}",
        "#size": lambda row: words.size(row["bytes"]),
        "#start, ms": lambda row: pieces.ms(row["start_us"] / 1e3),
        "#arrived after, ms": lambda row: "–" if row["received_us"] is None else pieces.ms(row["received_us"] / 1e3),
        "#rate": lambda row: "–" if row["mean_rate_bps"] is None else words.rate(row["mean_rate_bps"]),
    }

    def rows(name: str) -> list[Row]:
        return read_table(run_dir, name, required=False)

    jobs = {name: job for name, job in entry(path, summary, "jobs", dict).items() if isinstance(job, dict)}
    of_jobs: pieces.Columns = {
        "job": lambda one: pieces.clip(one[0], 60),
        "#iteration time, ms": lambda one: pieces.ms(number(path, one[1], "iteration_time_ms")),
        "#iterations": lambda one: str(one[1].get("iterations")),
    }
    return "emulate.html.j2", {
        "title": f"gradtide emulate: {pieces.clip(str(summary.get('scenario')), 60)}",
        "what": f"real packets for {number(path, summary, 'duration_s'):.1f} s",
        "reproduce": "gradtide emulate scenario.resolved.toml",
        "figures": pieces.listing("Packets", two, figures, cap=caps.rows, where="summary.json"),
        "jobs": pieces.listing("Jobs", of_jobs, list(jobs.items()), cap=caps.rows, where="summary.json"),
        "bursts": bursts_table(run_dir, caps),
        "flows": pieces.listing("Flows", flows, rows("flows.csv"), cap=caps.rows, where="flows.csv"),
        "probed": pieces.probed({"": rows("queues.csv")}, ["transfer"], caps),
        "links": links_table(read_table(run_dir, "links.csv"), caps, has_queues=True),
        "scenario": resolved_scenario(run_dir, caps),
    }
