"""The table of a study: a row per run in the order of the study, written piece by piece.

A row has the number of its run, the varied keys, the seed, why the run could not go on, and every number of the
`summary.json` that the run by itself would have, under its path there.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from gradtide.results import Table
from gradtide.studies.sweep.study import quantity

PIECE = 4096
"""Rows that are in memory at once."""

PARTS = ("jobs", "traffic", "links", "simulated_ms")
"""Parts of a summary that belong into the table; what a run cost is measured, and differs between equal runs."""

Row = dict[str, Any]
Rows = Callable[[], Iterable[Row]]
"""Begins the rows of a study anew."""


def figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a summary by their paths, as in `jobs.train.iteration_time_ms.mean`."""
    return dict(_numbers({part: summary[part] for part in PARTS if part in summary}, ""))


def _numbers(tree: Mapping[str, Any], home: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{home}{key}"
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{path}.")
        elif value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            yield path, value


def numbers(row: Mapping[str, Any]) -> list[str]:
    """Return the columns of a row that hold a number, or a text that is a rate, a time or a size."""
    return [name for name, value in row.items() if name not in ("run", "seed") and quantity(value) is not None]


def columns(rows: Rows) -> dict[str, type]:
    """Return the columns of a table and of what type they are; a number that is absent somewhere is a float."""
    kinds: dict[str, set[type]] = {}
    counts: dict[str, int] = {}
    total = 0
    for total, row in enumerate(rows(), 1):  # noqa: B007 - the number of rows is used below
        for name, value in row.items():
            # Whole numbers of a table are not negative.
            kinds.setdefault(name, set()).add(float if type(value) is int and value < 0 else type(value))
            counts[name] = counts.get(name, 0) + 1
    return {name: _kind(found | (set() if counts[name] == total else {type(None)})) for name, found in kinds.items()}


def _kind(found: set[type]) -> type:
    if len(found) == 1 and found <= {bool, int, float, str}:
        return next(iter(found))
    return float if found <= {int, float, type(None)} else str


def pieces(rows: Rows, kinds: Mapping[str, type]) -> Iterator[Table]:
    """Give the table in pieces, each with all columns."""
    begun = iter(rows())
    while piece := list(islice(begun, PIECE)):
        yield Table.of({name: [_cell(row.get(name), kind) for row in piece] for name, kind in kinds.items()})


def _cell(value: Any, kind: type) -> Any:
    if kind is str:
        return "" if value is None else str(value)
    return float(value) if kind is float and value is not None else value


def write(rows: Rows, folder: Path) -> dict[str, type]:
    """Write `rows.csv` into a folder, and `rows.parquet` if pyarrow is there; return the columns."""
    kinds = columns(rows)
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as csv, _Parquet(folder) as parquet:
        for number, piece in enumerate(pieces(rows, kinds)):
            text = io.StringIO(piece.to_csv())
            header = text.readline()
            csv.write((header if number == 0 else "") + text.read())
            parquet.write(piece)
    return kinds


def has_parquet() -> bool:
    """Return whether tables can be written as Parquet."""
    from importlib.util import find_spec

    return find_spec("pyarrow") is not None


class _Parquet:
    """`rows.parquet`, if pyarrow is there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "rows.parquet"
        self._writer: Any = None

    def __enter__(self) -> "_Parquet":
        return self

    def write(self, piece: Table) -> None:
        if not has_parquet():
            return
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.table(piece)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
