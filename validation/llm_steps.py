"""Measured steps of language models on 2 to 512 GPUs, compared with predictions.

    python validation/llm_steps.py [--tables DIR] [--write]   # the errors of every table; docs/validation/llm-steps.md
    python validation/llm_steps.py --fit                      # fits the constants of presets/devices.toml again

Each step is predicted twice: with what its own program is known to do (`Step`), which is what constants are fitted on,
and as a user can state it (`scenario_of`), which is how wrong answers are. `--write` also writes
python/gradtide/answer/compared.json (compared.py). llm_rows.py reads the tables; llm_fits.py predicts a step and fits.

Tables (validation/llm, or DIR with files of the same names):

- vtrain_single, vtrain_multi: GPT in fp16 with Megatron-DeepSpeed on A100 (repository VIA-Research/vTrain at
  f8dda84, data/ground_truth_*.csv, MIT-style licence of KAIST). No gradient buckets, full recomputation.
- vtrain_allreduce_a100: nccl-tests all-reduce on A100 of one node, from the same repository.
- megatron_table5: Korthikanti et al. (2022), table 5, as carried by calculon-ai/calculon at caa4b11 (Apache-2.0).
- torchtitan: Llama 3 on H100 and H200, from pytorch/torchtitan at b5bcd76, benchmarks (BSD-3).
- llm_foundry: MPT with FSDP, 2,048 tokens, with the same work for each GPU of 8 to 128, from mosaicml/llm-foundry at
  061f2c7, scripts/train/benchmarking (Apache-2.0): every series of two numbers of GPUs or more. Of its steps only the
  changes from one number to the next are compared, for `scaling_loss`.
- published: steps of dense models and of mixtures of experts on A100, H100, H200 and B200, from performance summaries
  of NeMo and Megatron-Bridge, MLPerf Training, torchtitan, fms-fsdp and llm-foundry; configurations.json has their
  models. Nothing is fitted on them, but steps of MPT on 8 to 128 GPUs are also in llm_foundry. The preset of B200 has
  no efficiency, so 0.6 is stated, that of the H100. Rows that no scenario can state are kept, with the reason.

`FITS` lists the constants and the rows on which they are fitted. Steps of Megatron are predicted with the constants
that are fitted on vTrain.
"""

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "validation")]

import compared  # noqa: E402
import pages  # noqa: E402
from llm_fits import (  # noqa: E402
    FITS,
    LEFT_OUT,
    UNSEEN,
    doublings,
    errors,
    folds,
    loss_distance,
    print_fits,
    simulated,
    with_constants,
)
from llm_rows import READERS, TABLES, Row, Step, as_stated, of_published, published, read, scenario_of  # noqa: E402

import gradtide  # noqa: E402
from gradtide import presets  # noqa: E402
from gradtide.answer.uncertainty import PRECISIONS, step_kind  # noqa: E402
from gradtide.parallel.spec import describe  # noqa: E402

ANSWERS = "answers.csv"
"""File in the folder of the tables: time of every step as a user states it (written by `--write`)."""
OURS = "ours.csv"
"""File in the folder of the tables: simulated time of every step (written by `--write`)."""
PREDICTIONS = "predictions.csv"
"""File in the folder of the tables: every measured step and both of its predictions (written by `--write`)."""
FAR = 0.25
"""The page lists published steps with a larger relative error than this."""
PAGE = ROOT / "docs" / "validation" / "llm-steps.md"


def memory_errors(steps: Iterable[Step]) -> list[float]:
    """Return the relative error of the memory of the fullest rank, for each step with measured memory."""
    return [
        describe(with_constants(step, {}), step.layout).memory.total / 2**30 / step.memory_gib - 1
        for step in steps
        if step.memory_gib
    ]


def times(folder: Path) -> dict[str, dict[str, float]]:
    """Simulate every step; return seconds by table and row."""
    return {
        table: {step.id: simulated(step, with_constants(step, {})) for step in read(folder, table)} for table in READERS
    }


class Answer(NamedTuple):
    """A measured step, and the prediction that a user gets.

    Attributes:
        table: table of the measurement.
        id: name of the row.
        ours_s: predicted time; if the row is used in a fit, the constants are those of a fit without it.
        measured_s: measured time.
        kind: the facts that distinguish kinds of answers.
        link_bps: rate of a network card.
    """

    table: str
    id: str
    ours_s: float
    measured_s: float
    kind: Mapping[str, Any]
    link_bps: int

    @property
    def error(self) -> float:
        """Signed relative error."""
        return self.ours_s / self.measured_s - 1


def user_times(folder: Path) -> dict[tuple[str, str], float]:
    """Predict every measured step as a user states it; return seconds by table and row.

    The prediction of a row on which constants are fitted is by the fit that left out its configuration. The host's time
    is fitted, too, but it belongs to a program and is in no preset.
    """
    without = json.loads((folder / LEFT_OUT).read_text(encoding="utf-8"))
    found: dict[tuple[str, str], float] = {}
    for one in FITS:
        tables = [read(folder, table) for table in one.tables]
        for (_, left_out), fitted in zip(folds(tables, one.folds), without[one.name], strict=True):
            constants = {name: value for name, value in fitted.items() if name != "host_us"}
            for table, steps in zip(one.tables, left_out, strict=True):
                for step in map(as_stated, steps):
                    found[table, step.id] = simulated(step, with_constants(step, constants))
    for step in read(folder, "megatron_table5"):
        found["megatron_table5", step.id] = float(gradtide.run(scenario_of(step)).iteration_time)
    for row in published(folder):
        found["published", row["id"]] = float(gradtide.run(of_published(row)).iteration_time)
    return found


def answers(folder: Path) -> list[Answer]:
    """Return every measured step with the result of `user_times` for the present page."""
    with (folder / ANSWERS).open(newline="", encoding="utf-8") as text:
        ours = {(row["table"], row["id"]): float(row["ours_s"]) for row in csv.DictReader(text)}

    def answer(table: str, name: str, measured_s: float, scenario: gradtide.Scenario) -> Answer:
        kind = step_kind(scenario, scenario.jobs[0])
        return Answer(table, name, ours[table, name], measured_s, kind, scenario.link_rate_bps)

    found = [
        answer(table, step.id, step.measured_s, scenario_of(step)) for table in READERS for step in read(folder, table)
    ]
    rows = published(folder)
    return found + [answer("published", row["id"], float(row["measured_s"]), of_published(row)) for row in rows]


def kept(folder: Path) -> dict[str, dict[str, float]]:
    """Return the result of `times` for the present page."""
    found: dict[str, dict[str, float]] = {table: {} for table in READERS}
    with (folder / OURS).open(newline="", encoding="utf-8") as text:
        for row in csv.DictReader(text):
            found[row["table"]][row["id"]] = float(row["ours_s"])
    return found


def tables(folder: Path, ours: Mapping[str, Mapping[str, float]]) -> str:
    """Return the tables of the page."""
    with (TABLES / UNSEEN).open(newline="", encoding="utf-8") as text:
        unseen = {row["table"]: row["mean_absolute_error_percent"] for row in csv.DictReader(text)}
    lines = [
        "<!-- table: errors -->",
        "",
    ]
    rows = [("table", "steps", "mean absolute error, %", "largest", "closed form", "unseen")]
    for table in READERS:
        steps = read(folder, table)
        if not steps:
            continue
        found = [abs(ours[table][step.id] / step.measured_s - 1) for step in steps]
        closed = f"{100 * fmean(map(abs, errors(steps, {}))):.1f}"
        mean, largest = f"{100 * fmean(found):.1f}", f"{100 * max(found):.0f}"
        rows.append((table, f"{len(found)}", mean, largest, closed, unseen.get(table, closed)))
    lines.append(pages.aligned(rows))
    memory = [abs(error) for error in memory_errors(read(folder, "torchtitan"))]
    if memory:
        error = f"{100 * fmean(memory):.0f} %"
        lines += ["", f"Torchtitan's memory of the fullest rank is predicted with a mean error of {error}.", ""]
    pairs = doublings(folder)
    if pairs:
        loss = presets.accelerator("H100").scaling_loss
        ours, without = (f"{100 * loss_distance(pairs, one):.1f}" for one in (loss, 0.0))
        change = f"{100 * (median(pair.measured for pair in pairs) - 1):.1f}"
        lines += [
            f"In {len(pairs)} doublings of the number of GPUs of MPT, the median step takes {change} % longer. The "
            f"mean absolute error of the predicted change is {ours} percentage points, and {without} without "
            "`scaling_loss`.",
            "",
        ]
    return "\n".join(lines)


def tables_of_kinds(folder: Path) -> str:
    """Return the tables of errors as a user states steps: by kind, and published steps with an error above `FAR`."""
    found = answers(folder)
    lines = [
        "<!-- table: kinds -->",
        "",
        "| models, device, precision | on one node | on several nodes |",
        "|---|---|---|",
    ]
    cells: dict[str, dict[str, list[str]]] = {}
    for row in compared.steps(found):
        if row["what"] == "step":
            device = row["device"] if row["efficiency"] is None else f"{row['device']} (stated {row['efficiency']:g})"
            of = f"{row['family']}, {device}, {PRECISIONS.get(row['precision'], row['precision'])}"
            error = f"{row['parallelism']} {100 * row['mean_error']:.1f} ({100 * row['largest']:.0f}; {row['count']})"
            cells.setdefault(of, {"one": [], "several": []})[row["nodes"]].append(error)
    for of, by_nodes in cells.items():
        lines.append(f"| {of} | {', '.join(by_nodes['one'])} | {', '.join(by_nodes['several'])} |")
    by_family = {
        name: [abs(one.error) for one in found if one.table == "published" and one.kind["family"] == name]
        for name in ("dense", "moe")
    }
    said = [f"{100 * fmean(one):.1f} % for {len(one)} {name} steps" for name, one in by_family.items() if one]
    lines += ["", f"Over all published steps, the mean absolute error is {', '.join(said)}.", ""]
    lines += [f"These published steps have a prediction that is off by more than {100 * FAR:.0f} %:", ""]
    lines += ["<!-- table: published -->", "", "| step | from | error, % |", "|---|---|---:|"]
    rows = {row["id"]: row for row in published(folder)}
    for one in found:
        if one.table == "published" and abs(one.error) > FAR:
            row = rows[one.id]
            lines.append(
                f"| {_published_step(row)}, {row['gpus']} {row['device']} | {row['source']} | {100 * one.error:+.1f} |"
            )
    left_out = len(published(folder, "no"))
    lines += ["", f"No scenario can state {left_out} other published steps; `published.csv` says which and why."]
    lines += ["", "<!-- table: collectives -->", ""]
    lines += ["| collectives inside a node of 8 | rows | mean absolute error, % | largest |", "|---|---:|---:|---:|"]
    for row in compared.collectives():
        mean, largest = f"{100 * row['mean_error']:.1f}", f"{100 * row['largest']:.0f}"
        lines.append(f"| {row['device']} | {row['count']} | {mean} | {largest} |")
    return "\n".join(lines) + "\n"


def _published_step(row: Row) -> str:
    return f"{row['model']}, {PRECISIONS.get(row['precision'], row['precision'])}, seq {row['seq']}"


def predictions(folder: Path) -> str:
    """Return `PREDICTIONS`: every measured step with its predictions, by table and row."""
    by_program, rows = kept(folder), {row["id"]: row for row in published(folder)}
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("table", "id", "step", "measured_s", "as_its_program_s", "as_stated_s", "as_stated_error_percent"))
    for one in answers(folder):
        row = rows[one.id] if one.table == "published" else None
        name = f"{_published_step(row)}, {row['gpus']} {row['device']}, {row['source']}" if row else ""
        program_s = by_program.get(one.table, {}).get(one.id)
        program = "" if program_s is None else f"{program_s:.4f}"
        times = (f"{one.measured_s:.4f}", program, f"{one.ours_s:.4f}", f"{100 * one.error:+.1f}")
        lines.writerow((one.table, one.id, name, *times))
    return text.getvalue()


def summed_up(found: Iterable[Answer]) -> str:
    """Return the row of README's table."""
    by_name: dict[str, list[float]] = {"dense models": [], "mixtures of experts": [], "GPTs": []}
    for one in found:
        name = "mixtures of experts" if one.kind["family"] == "moe" else "dense models"
        by_name["GPTs" if one.table == "vtrain_single" else name].append(abs(one.error))
    dense, moe, gpts = ((len(same), f"{100 * fmean(same):.0f} %") for same in by_name.values())
    count = dense[0] + moe[0] + gpts[0]
    return (
        f"| {README_STARTS} {count} | {dense[0]} of dense models {dense[1]} off on average, {moe[0]} of mixtures of "
        f"experts {moe[1]}, {gpts[0]} of GPTs on one node that wait for their host {gpts[1]}; "
        "[kind by kind](docs/validation/llm-steps.md#as-a-user-states-them), other kinds were never compared |"
    )


README_STARTS = "steps of language models that others measured:"


def write_page(folder: Path) -> None:
    """Write the time of every step, and replace the tables of the page and of README."""
    ours = times(folder)
    rows = [f"{table},{name},{time_s:.6f}\n" for table, found in ours.items() for name, time_s in found.items()]
    (folder / OURS).write_text("table,id,ours_s\n" + "".join(rows), encoding="utf-8")
    lines = [f"{table},{name},{time_s:.6f}\n" for (table, name), time_s in user_times(folder).items()]
    (folder / ANSWERS).write_text("table,id,ours_s\n" + "".join(lines), encoding="utf-8")
    (folder / PREDICTIONS).write_text(predictions(folder), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition("<!-- table: errors -->")
    _, between, rest = rest.partition("\n## As a user states them")
    text, _, rest = rest.partition("<!-- table: kinds -->")
    _, _, after = rest.partition("\n## Limits")
    ours_of_kinds = tables_of_kinds(folder)
    PAGE.write_text(
        f"{before}{tables(folder, kept(folder))}{between}{text}{ours_of_kinds}\n## Limits{after}", encoding="utf-8"
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    starts = f"| {README_STARTS}"
    lines = [summed_up(answers(folder)) if line.startswith(starts) else line for line in readme.split("\n")]
    (ROOT / "README.md").write_text("\n".join(lines), encoding="utf-8")
    compared.FILE.write_text(compared.text_of(answers(folder)), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=Path, default=TABLES, help="folder of the tables")
    parser.add_argument("--fit", action="store_true", help="fit constants and print them")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    given = parser.parse_args()
    if given.fit:
        print_fits(given.tables)
    elif given.write:
        write_page(given.tables)
    else:
        print(tables(given.tables, times(given.tables)))
