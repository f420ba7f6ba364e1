"""Writes the tables of a study, `rows.csv` and `points.csv`, in pieces to limit memory.

`rows.csv` has a row per run: its number, the values of the varied keys, the seed, the state (with the reason if the run
failed or was refused), whether the run fits in device memory, and every figure of the run by its path in
`summary.json`. `points.csv` has a row per point, in the order of the ranking.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from gradtide.results import Table
from gradtide.studies.sweep.settings import quantity

PIECE = 4096
"""Number of rows that are in memory at a time."""

Row = dict[str, Any]
Rows = Callable[[], Iterable[Row]]
"""Function that returns the rows of a table; a table is read twice, first for its columns and then for its content."""


def numbers(row: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns, except run and seed, in which a row has a number, a rate, a time or a size."""
    return [name for name, value in row.items() if name not in ("run", "seed") and quantity(value) is not None]


def columns(rows: Rows) -> dict[str, type]:
    """Return the type of each column of a table, by name; numeric columns with missing values have type float."""
    kinds: dict[str, set[type]] = {}
    counts: dict[str, int] = {}
    total = 0
    for total, row in enumerate(rows(), 1):  # noqa: B007 - `total` is used below
        for name, value in row.items():
            # Integer columns of `Table` are unsigned, so negative integers are written as floats.
            kinds.setdefault(name, set()).add(float if type(value) is int and value < 0 else type(value))
            counts[name] = counts.get(name, 0) + 1
    return {name: _kind(found | (set() if counts[name] == total else {type(None)})) for name, found in kinds.items()}


def _kind(found: set[type]) -> type:
    if len(found) == 1 and found <= {bool, int, float, str}:
        return next(iter(found))
    return float if found <= {int, float, type(None)} else str


def pieces(rows: Rows, kinds: Mapping[str, type]) -> Iterator[Table]:
    """Yield the table in pieces of `PIECE` rows; all pieces have the columns and types in `kinds`."""
    begun = iter(rows())
    while piece := list(islice(begun, PIECE)):
        yield Table.of({name: [_cell(row.get(name), kind) for row in piece] for name, kind in kinds.items()})


def _cell(value: Any, kind: type) -> Any:
    if kind is str:
        return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return float(value) if kind is float and value is not None else value


def write(rows: Rows, path: Path, *, as_parquet: bool = False) -> None:
    """Write a table to `path` as CSV; with `as_parquet`, also as Parquet beside it, if pyarrow is installed."""
    kinds = columns(rows)
    parquet = _Parquet(path.with_suffix(".parquet") if as_parquet and has_parquet() else None)
    with path.open("w", encoding="utf-8", newline="") as csv, parquet:
        for number, piece in enumerate(pieces(rows, kinds)):
            text = io.StringIO(piece.to_csv())
            header = text.readline()
            csv.write((header if number == 0 else "") + text.read())
            parquet.write(piece)


def has_parquet() -> bool:
    """Whether pyarrow is installed, which is needed to write Parquet."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return False
    return True


class _Parquet:
    """Writes a table as Parquet, piece by piece; if `path` is `None`, it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._ends = ExitStack()
        self._writer: Any = None

    def __enter__(self) -> "_Parquet":
        return self

    def write(self, piece: Table) -> None:
        if self._path is None:
            return
        import pyarrow
        from pyarrow import parquet

        table = pyarrow.table(piece)
        if self._writer is None:
            # pyarrow is given an open file, because it would interpret some paths as URIs.
            file = self._ends.enter_context(self._path.open("wb"))
            self._writer = self._ends.enter_context(parquet.ParquetWriter(file, table.schema))
        self._writer.write_table(table)

    def __exit__(self, *how: Any) -> None:
        self._ends.__exit__(*how)
