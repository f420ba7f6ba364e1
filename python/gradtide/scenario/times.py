"""Reads a user's times of the ops of a parallel job (`compute.times`), and writes such times as CSV."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gradtide import units
from gradtide.errors import Fault, ScenarioError
from gradtide.parallel.costs import Costs
from gradtide.parallel.spec import Described
from gradtide.parallel.times import OwnTime, OwnTimes, op_names
from gradtide.recognise import expecting
from gradtide.scenario.csvfile import MAX_FAULTS_OF_A_FILE, CsvFile
from gradtide.scenario.keys.job import OpTime, OpTimes
from gradtide.scenario.keys.types import parse_name
from gradtide.scenario.source import Failure, Loc, Source, read_text

_COLUMNS = ("op", "forward_us", "backward_us", "recompute_us", "update_us")
_HEADER = "op,forward_us,backward_us[,recompute_us][,update_us]"
_PS_PER_US = 1_000_000


@dataclass(frozen=True)
class Given:
    """A user's table of op times, and the locations of its rows.

    Attributes:
        table: the rows, as in a resolved scenario.
        at_row: returns a fault at a row, from index, message and hint.
        at_all: returns a fault of the whole table, from message and hint.
    """

    table: OpTimes
    at_row: Callable[[int, str, str], Fault]
    at_all: Callable[[str, str], Fault]

    def own(self, costs: Costs) -> OwnTimes:
        """Return the times of every op of the model in `costs`.

        Raises:
            ScenarioError: if an op has no row or two rows, or if a row names an unknown op.
        """
        own, problems = OwnTimes.read(self.table.source, [_seconds(row) for row in self.table.rows], costs)
        if problems:
            faults = (
                self.at_all(one.msg, one.hint) if one.row is None else self.at_row(one.row, one.msg, one.hint)
                for one in problems[:MAX_FAULTS_OF_A_FILE]
            )
            raise ScenarioError(list(faults))
        return own


def read_times(given: str | OpTimes, source: Source, loc: Loc, base_dir: Path) -> Given:
    """Read `compute.times`, which is a table or the name of a CSV file.

    Raises:
        ScenarioError: if the file cannot be read, or is not a table of op times.
    """
    if isinstance(given, OpTimes):

        def at_row(index: int, msg: str, hint: str) -> Fault:
            return source.fault("GT056", (*loc, "rows", index), msg, hint)

        return Given(given, at_row, lambda msg, hint: source.fault("GT056", loc, msg, hint))
    text = read_text(base_dir / given, given, Failure(source, loc, given))
    file = _TimesFile(text, given)
    with expecting(text, given, "a table of times of ops", "op-times"):
        rows, lines = file.times()
    table = OpTimes.model_construct(source=Path(given).name, rows=rows)
    return Given(table, lambda index, *why: file.fault(lines[index], "GT056", *why), partial(_of_file, given))


def _of_file(name: str, msg: str, hint: str) -> Fault:
    return Fault("GT056", "", msg, None, hint, name)


def _seconds(row: OpTime) -> OwnTime:
    times = (row.forward_ps, row.backward_ps, row.recompute_ps, row.update_ps)
    return OwnTime(row.op, *(None if ps is None else ps / units.PS_PER_SECOND for ps in times))  # type: ignore[arg-type]


class _TimesFile(CsvFile):
    header, known, needed, most, unit = _HEADER, _COLUMNS, 3, 1_000_000, "rows"

    def times(self) -> tuple[list[OpTime], list[int]]:
        """Return the rows and their line numbers."""
        rows: list[OpTime] = []
        lines: list[int] = []
        faults: list[Fault] = []
        for line, cells in self.rows():
            if len(faults) >= MAX_FAULTS_OF_A_FILE:
                break
            if (wrong := self.uneven(line, cells)) is not None:
                faults.append(wrong)
                continue
            read: dict[str, Any] = {}
            for place, (column, cell) in enumerate(zip(self.columns, cells, strict=True)):
                try:
                    name = column.replace("_us", "_ps")
                    read[name] = parse_name(cell) if column == "op" else units.parse_decimal_us(cell)
                except units.UnitError as error:
                    faults.append(self.fault(line, error.code, error.msg, error.hint, cell, column, place))
            lines.append(line)
            rows.append(OpTime.model_construct(**read))
        if faults:
            raise ScenarioError(faults)
        return rows, lines


def ops_csv(described: Described, own: OwnTimes | None) -> str:
    """Return the times of every op of a parallel job as a CSV file for `compute.times`.

    Args:
        described: times and sizes of the job's ops.
        own: the user's times; without them, the optimizer's time per op is not known and has no column.
    """
    has_recompute = any(op.recompute_ps for kind in described.kinds for op in kind.ops)
    has_updates = own is not None and own.has_updates
    columns = _COLUMNS[:3] + (("recompute_us",) if has_recompute else ()) + (("update_us",) if has_updates else ())
    lines = [",".join(columns)]
    for block, kind in described.blocks:
        ops = described.kinds[kind].ops
        names = op_names(block, [op.name for op in ops])
        updates = own.updates(names) if own is not None else []
        for index, (name, op) in enumerate(zip(names, ops, strict=True)):
            times = [op.forward_ps, op.backward_ps]
            times += [op.recompute_ps] if has_recompute else []
            times += [round(updates[index] * units.PS_PER_SECOND)] if has_updates else []
            lines.append(",".join([name, *map(_us, times)]))
    return "\n".join(lines) + "\n"


def _us(time_ps: int) -> str:
    whole, rest = divmod(time_ps, _PS_PER_US)
    return f"{whole}.{rest:06}".rstrip("0").rstrip(".")
