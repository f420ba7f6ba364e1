"""Tables of results, and their columns."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradtide import _core, words

PS_PER_MS = 1e9
PS_PER_S = 1e12


class Table:
    """A table of named columns, which polars, pyarrow and pandas read directly (Arrow PyCapsule interface).

    Times are float64 microseconds, with the unit in the column's name.
    """

    def __init__(self, core: "_core.Table") -> None:
        self._core = core

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]]) -> "Table":
        """Return a table from columns of equal length, with values of type str, bool or int, or float with None."""
        return cls(_core.Table.from_columns(list(columns.items())))

    @classmethod
    def of_dicts(cls, rows: Sequence[Mapping[str, Any]]) -> "Table":
        """Make a table from at least one row; all rows have the same keys."""
        return cls.of({name: [row[name] for row in rows] for name in rows[0]})

    @property
    def columns(self) -> list[str]:
        """Column names, each with its unit last."""
        return self._core.columns

    def __len__(self) -> int:
        return len(self._core)

    def __getitem__(self, column: str) -> NDArray[Any]:
        return np.asarray(self._core.column(column))

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """Return every column as an array of shape (rows,); absent numbers are NaN."""
        return {name: self[name] for name in self.columns}

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dict per row; absent numbers are None."""
        lists = [self[name].tolist() for name in self.columns]
        return [
            {name: _absent(value) for name, value in zip(self.columns, row, strict=True)}
            for row in zip(*lists, strict=True)
        ]

    def to_csv(self) -> str:
        """Return the table as CSV with a header row. Times are microseconds with six decimals."""
        return self._core.to_csv()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self._core.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<gradtide.Table {len(self)} rows: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        return words.html_table(self.columns, [list(row.values()) for row in self.to_dicts()[:20]], len(self))


def numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numeric items of a row, with None for missing numbers; texts and booleans are left out."""
    return {
        name: value
        for name, value in row.items()
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    }


def _absent(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


class Series:
    """One column of a `Table`: its name and values."""

    def __init__(self, name: str, values: NDArray[Any]) -> None:
        self.name = name
        self._values = values

    def to_numpy(self) -> NDArray[Any]:
        """Return the values, shape (length,)."""
        return self._values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        # numpy < 2 does not pass `copy`, and its `array` does not accept None.
        return np.asarray(self._values, dtype=dtype) if copy is None else np.array(self._values, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<gradtide.Series {self.name}: {len(self)} values>"
