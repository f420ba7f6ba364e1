"""Writes python/gradtide/answer/compared.json: how wrong answers of each kind were when somebody compared them.

    python validation/compared.py          # from the tables and pages that are there; nothing is simulated
    python validation/compared.py --check  # end with 1 if the file says something else

`python validation/llm_steps.py --write` writes it, too. A row has the facts of a kind, its figures and its page:

- step: measured steps of language models, grouped by `gradtide.answer.uncertainty.step_kind` (llm_steps.py)
- links of steps: the slowest and the fastest network card beside which steps on several nodes were measured
- compute: published throughput of one device, without the figure that calibrates it (docs/models/compute.md)
- collective: collectives inside a node that no fit has seen (clusters.py)
- flows, servers: real Linux queues and gloo (docs/validation/testbed.md, testbed-servers.md)
- engine: network engines against other simulators, which are no measurements (docs/validation/ns3.md, simgrid.md)
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE)]

import clusters  # noqa: E402
from pages import PAGES, ROOT, cases_of, rows_of  # noqa: E402

from gradtide import presets  # noqa: E402
from gradtide.answer.uncertainty import node_kind  # noqa: E402

FILE = ROOT / "python" / "gradtide" / "answer" / "compared.json"
LLM_STEPS = "docs/validation/llm-steps.md"
DIGITS = 5
Row = dict[str, Any]


def row(kind: Row, errors: Sequence[float], source: str, **more: Any) -> Row:
    """Return a row of a kind, from relative errors with or without their sign."""
    found = [abs(error) for error in errors]
    figures = {"count": len(found), "mean_error": round(fmean(found), DIGITS), "largest": round(max(found), DIGITS)}
    return {**kind, **figures, "source": source, **more}


def steps(answers: Iterable[Any]) -> list[Row]:
    """Return a row for each kind of steps, and the range of links; `answers` are those of llm_steps.py."""
    by_kind: dict[str, list[Any]] = {}
    for one in answers:
        by_kind.setdefault(json.dumps(one.kind), []).append(one)
    several = [one.link_bps for same in by_kind.values() for one in same if one.kind["nodes"] == "several"]
    rows = [
        row(same[0].kind, [one.error for one in same], LLM_STEPS) for _, same in sorted(by_kind.items(), key=_by_name)
    ]
    return [*rows, {"what": "links of steps", "bps": [min(several), max(several)], "source": LLM_STEPS}]


def _by_name(item: tuple[str, list[Any]]) -> str:
    return item[0]


def compute() -> list[Row]:
    """Return a row for each device whose throughput with a model was published beside the one that calibrates it."""
    by_kind: dict[tuple[str, str], list[float]] = {}
    text = (ROOT / "docs" / "models" / "compute.md").read_text(encoding="utf-8")
    for device, model, _, published, ours, _, _ in _table(text, "checks"):
        sample = presets.model(model.strip("`")).sample
        models = "image models" if "image" in sample else "models other than image models"
        # Of times, which are the inverse of throughput.
        by_kind.setdefault((models, device.strip("`")), []).append(float(published) / float(ours) - 1)
    return [
        row({"what": "compute", "models": models, "device": device}, errors, "docs/models/compute.md")
        for (models, device), errors in by_kind.items()
    ]


def _table(page: str, mark: str) -> list[list[str]]:
    lines = re.search(rf"<!-- table: {mark} -->\n+((?:\|.*\n)+)", page)
    assert lines is not None, mark
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1].splitlines()[2:]]


def collectives() -> list[Row]:
    """Return a row for each node whose collectives were measured beside those that its figures are fitted on."""
    tables, found = clusters.read(clusters.TABLES), []
    for name, device in (("a100-hgx", "A100"), ("h200-hgx", "H200")):
        unseen = [one for one in tables[f"{device} busbw"] if device == "A100" or one.algorithm.startswith("NVLS")]
        errors = clusters.node_of(name).errors(unseen)
        found.append(row(node_kind(name), errors, LLM_STEPS, device=device))
    return found


def testbed() -> list[Row]:
    """Return the rows of flows on Linux queues and of parameter servers; the latter's page has no mean."""
    page = (PAGES / "testbed.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(?:small|medium|large) flows .*", page, flags=re.MULTILINE)
    errors = [int(figure) / 100 for line in lines for figure in re.findall(r"\(([+-]\d+) %\)", line)]
    servers = (PAGES / "testbed-servers.md").read_text(encoding="utf-8")
    lengths = re.search(r"from ([\d.]+) % shorter to ([\d.]+) % longer than predicted", servers)
    assert lengths is not None
    shorter, longer = (float(text) / 100 for text in lengths.groups())
    least = servers.split("<!-- servers.py writes from here -->")[1].split("<!-- to here -->")[0]
    count = 2 * sum(line[:3].strip("| ").isdigit() for line in least.splitlines() if line.startswith("|"))
    largest = max(1 / (1 - shorter) - 1, 1 - 1 / (1 + longer))
    figures = {"count": count, "mean_error": None, "largest": round(largest, DIGITS)}
    return [
        row({"what": "flows"}, errors, "docs/validation/testbed.md"),
        {"what": "servers", **figures, "source": "docs/validation/testbed-servers.md"},
    ]


def engines() -> list[Row]:
    """Return a row for each engine and transport that was compared with another simulator: errors of means of cases."""
    ns3, simgrid = ((PAGES / name).read_text(encoding="utf-8") for name in ("ns3.md", "simgrid.md"))
    cases: dict[str, list[list[str]]] = {}
    for case in sorted([*cases_of(ns3, "ns-3, equal"), *rows_of(ns3, "ns-3")]):
        name = re.match(r"[jkl]_(dctcp|cubic_ecn|cubic|newreno_ecn)", case[0])
        cases.setdefault("newreno" if name is None else name[1].replace("_", "+"), []).append(case)
    found = []
    for transport, same in cases.items():
        means, worst = ([abs(float(case[at])) / 100 if len(case) > at else 0.0 for case in same] for at in (4, 5))
        found.append(
            {
                "what": "engine", "engine": "packet", "transport": transport,
                "count": sum(int(case[1]) for case in same), "mean_error": round(fmean(means), DIGITS),
                "largest": round(max(worst), DIGITS), "source": "docs/validation/ns3.md", "against": "ns-3.37",
            }
        )  # fmt: skip
    sent, exchanged = rows_of(simgrid, "flows on SimGrid"), rows_of(simgrid, "exchanges on SimGrid")
    worst = [float(one[-1]) for one in (*sent, *exchanged)]
    count = sum(int(one[0].replace(",", "")) for one in sent) + sum(len(one[2].split(",")) for one in exchanged)
    page = "docs/validation/simgrid.md"
    figures = {"count": count, "mean_error": None, "largest": max(worst)}
    return [*found, {"what": "engine", "engine": "fluid", **figures, "source": page, "against": "SimGrid 3.32"}]


def rows(answers: Iterable[Any]) -> list[Row]:
    """Return all rows."""
    return [*steps(answers), *compute(), *collectives(), *testbed(), *engines()]


def text_of(answers: Iterable[Any]) -> str:
    """Return the file: JSON, a row a line."""
    return "[\n" + ",\n".join(f" {json.dumps(one)}" for one in rows(answers)) + "\n]\n"


def main() -> None:
    """Write the file, or compare it."""
    import llm_steps

    text = text_of(llm_steps.answers(llm_steps.TABLES))
    if "--check" not in sys.argv[1:]:
        FILE.write_text(text, encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != text:
        sys.exit(f"{FILE.relative_to(ROOT)} is not what the tables and pages give; run python validation/compared.py")


if __name__ == "__main__":
    main()
