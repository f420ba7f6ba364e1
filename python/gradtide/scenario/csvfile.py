"""Base class for readers of CSV files with a known header. Faults name line and field."""

import csv
from typing import Any, ClassVar

from gradtide.errors import Fault, ScenarioError, did_you_mean
from gradtide.scenario.source import Faults

MAX_FAULTS_OF_A_FILE = 20


class CsvFile:
    """A CSV text whose first line is a header. Subclasses set the class variables.

    Attributes:
        header: the expected first line, for messages.
        known: names of all allowed columns; the required columns come first.
        needed: number of required columns.
        most: maximum number of rows.
        unit: plural noun for rows, for messages.
        columns: columns of this file, in the order of the file; set by `rows`.
    """

    header: ClassVar[str]
    known: ClassVar[tuple[str, ...]]
    needed: ClassVar[int]
    most: ClassVar[int]
    unit: ClassVar[str]

    def __init__(self, text: str, name: str) -> None:
        self.lines = text.split("\n")
        self.name = name
        self.columns: list[str] = []

    def fault(
        self, line: int, code: str, msg: str, hint: str, value: Any = None, field: str = "", column: int = -1
    ) -> Fault:
        """Return a fault at a line, or at one of its fields if `column` is the field's index."""
        text = self.lines[line - 1]
        start, width = 0, len(text)
        if column >= 0 and '"' not in text:
            cells = text.split(",")
            cell = cells[column]
            start = sum(len(cell) + 1 for cell in cells[:column]) + len(cell) - len(cell.lstrip())
            width = len(cell.strip())
        return Fault(code, field, msg, value, hint, self.name, line, text, start, max(1, width))

    def uneven(self, line: int, cells: list[str]) -> Fault | None:
        """Return a fault if a row has more or fewer fields than the header; otherwise None."""
        if len(cells) == len(self.columns):
            return None
        msg = f"the row has {len(cells)} fields, the header {len(self.columns)}"
        return self.fault(line, "GT033", msg, "add or delete fields")

    def rows(self) -> list[tuple[int, list[str]]]:
        """Read the header, and return line number and fields of each row below it.

        Raises:
            ScenarioError: if the header is missing or wrong, if a line is not valid CSV, or if there are too many rows.
        """
        rows: list[tuple[int, list[str]]] = []
        for number, line in enumerate(self.lines, 1):
            if not line.strip():
                continue
            if len(rows) > self.most:
                msg = f"{self.name} has more than {self.most:,} {self.unit}"
                raise ScenarioError([Fault("GT050", "", msg, None, f"merge {self.unit}", self.name)])
            try:
                cells = next(csv.reader([line], strict=True, skipinitialspace=True))
            except (csv.Error, StopIteration) as error:
                msg = f"not valid CSV: {error}"
                fault = Fault("GT033", "", msg, line[:80], "check the quotes", self.name, number, line)
                raise ScenarioError([fault]) from None
            rows.append((number, [cell.strip() for cell in cells]))
        if not rows:
            fault = Fault("GT005", "", f"{self.name} is empty", None, f"its first line is {self.header}", self.name)
            raise ScenarioError([fault])
        self._read_header(*rows[0])
        return rows[1:]

    def _read_header(self, line: int, columns: list[str]) -> None:
        if not set(columns) & set(self.known):
            raise ScenarioError([self.fault(line, "GT032", "the first line is not the header", f"write {self.header}")])
        faults, seen = Faults(), set[str]()
        for index, column in enumerate(columns):
            at = (column or None, column, index)
            if column not in self.known:
                hint = did_you_mean(column, self.known, f"write {self.header}")
                faults.append(self.fault(line, "GT032", f"unknown column `{column}`", hint, *at))
            elif column in seen:
                faults.append(self.fault(line, "GT032", f"the column `{column}` occurs twice", "delete one", *at))
            seen.add(column)
        for column in self.known[: self.needed]:
            if column not in columns:
                faults.append(self.fault(line, "GT032", f"the column `{column}` is missing", f"write {self.header}"))
        if faults:
            raise ScenarioError(faults)
        self.columns = columns
