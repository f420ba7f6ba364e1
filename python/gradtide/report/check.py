"""The report of `gradtide check`: a scenario in gradtide and in another simulator, flow by flow."""

import math
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.report import pieces, scatter
from gradtide.report.folder import Row, entry, read_table
from gradtide.report.run import resolved_scenario


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a comparison with another simulator."""
    path = run_dir / "summary.json"
    other = pieces.clip(entry(path, summary, "against", str), 40)
    flows = [row for row in read_table(run_dir, "flows_in_both.csv") if _is_whole(row["fct_us"], row["other_fct_us"])]
    flows.sort(key=_difference, reverse=True)
    means: pieces.Columns = {
        "": lambda one: pieces.clip(one[0], 60),
        "#compared": lambda one: one[1]["compared"],
        "#equal to the ns": lambda one: one[1]["equal"],
        "#gradtide, mean ms": lambda one: _ms(one[1]["mean_us"]),
        f"#{other}, mean ms": lambda one: _ms(one[1]["other_mean_us"]),
        "#difference of the means": lambda one: words.difference(one[1]["mean_percent"], signed=True),
        "#largest difference": lambda one: words.difference(one[1]["worst_percent"]),
        "#unfinished in both": lambda one: one[1]["unfinished"],
        "#unfinished in one": lambda one: one[1]["unfinished_in_one"],
    }
    each: pieces.Columns = {
        "flow": lambda row: f"{pieces.clip(row['traffic'], 40)}.{row['flow']}",
        "from, to": lambda row: f"h{row['src']}, h{row['dst']}",
        "#size": lambda row: words.size(row["bytes"]),
        "#start, ms": lambda row: pieces.ms(row["start_us"] / 1e3),
        "#gradtide, us": lambda row: f"{row['fct_us']:,.3f}",
        f"#{other}, us": lambda row: f"{row['other_fct_us']:,.3f}",
        "#differs by": lambda row: words.difference(100 * (row["fct_us"] / row["other_fct_us"] - 1), signed=True),
    }
    items = [*entry(path, summary, "tenants", dict).items()]
    items += [("iterations", summary["iterations"])] if summary["iterations"]["compared"] else []
    return "check.html.j2", {
        "title": f"gradtide beside {other}",
        "what": f"one scenario in gradtide and {other}",
        "reproduce": f"gradtide check scenario.resolved.toml --against {'ns3' if 'ns-3' in other else 'emulation'}",
        "other": other,
        "rests_on": [
            f"Premises: the same hosts, links and flows in both simulators, engine "
            f"{pieces.clip(summary['engine'], 20)}, seed {pieces.clip(summary['seed'], 20)}."
        ],
        "notes": [pieces.clip(note, 200) for note in summary["notes"]],
        "means": pieces.listing("Means in both", means, items, cap=caps.rows, where="summary.json"),
        "figures": pieces.listing(
            "Queues, links and bursts in both",
            {
                "": lambda one: pieces.clip(one["figure"], 80),
                "#gradtide": lambda one: pieces.plain(one["gradtide"]),
                f"#{other}": lambda one: pieces.plain(one["other"]),
            },
            summary.get("figures_in_both", []),
            cap=caps.rows,
            where="summary.json",
        ),
        "plot": _plot(flows[: 10 * caps.rows], other) if flows else None,
        "legend": scatter.legend(["the same to the nanosecond", "different"]),
        "flows": pieces.listing("Flows", each, flows, cap=caps.rows, where="flows_in_both.csv"),
        "hops": summary["packet_hops"],
        "cpu_s": {name: pieces.figure(value) for name, value in summary["cpu_s"].items()},
        "scenario": resolved_scenario(run_dir / "runs" / "gradtide", caps),
    }


def _plot(flows: list[Row], other: str) -> dict[str, Any]:
    label = f"Completion time of each flow in gradtide and in {other}, both axes logarithmic where times differ much"
    points = [
        scatter.Point(
            row["fct_us"] / 1e3,
            row["other_fct_us"] / 1e3,
            int(not _is_equal(row)),
            0,
            f"{pieces.clip(row['traffic'], 40)}.{row['flow']}, {words.size(row['bytes'])}: {row['fct_us']:,.3f} us in "
            f"gradtide, {row['other_fct_us']:,.3f} us in {other}",
        )
        for row in reversed(flows)
    ]
    both = [(max(p.x, p.y),) * 2 for p in points] + [(min(p.x, p.y),) * 2 for p in points]
    svg = scatter.draw(points, [], label=label, xlabel="gradtide, ms", ylabel=f"{other}, ms", including=both)
    return {"label": label, "svg": svg}


def _difference(row: Row) -> float:
    return 0.0 if _is_equal(row) else abs(float(row["fct_us"] / row["other_fct_us"]) - 1)


def _is_equal(row: Row) -> bool:
    return bool(round(row["fct_us"] * 1e3) == round(row["other_fct_us"] * 1e3))


def _is_whole(*times: Any) -> bool:
    return all(isinstance(time, (int, float)) and math.isfinite(time) and time > 0 for time in times)


def _ms(time_us: float | None) -> str:
    return pieces.fixed(None if time_us is None else time_us / 1e3, 6)
