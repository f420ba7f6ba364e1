"""Reader of run folders, for every table in docs/reference/run-folder.md.

Results are parsed, but not interpreted. Rows are dictionaries from column to parsed value, in file order. If a file or
value is missing or invalid, a `RunFolderError` names the file, line and column.
"""

import csv
import errno
import io
import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from gradtide import inputs
from gradtide.files import FOLDER_SCHEMA, VERSIONS
from gradtide.schemas import newer_version

_T = TypeVar("_T")
_K = TypeVar("_K", bound=Hashable)

Row = dict[str, Any]
"""A row of a table: {column: parsed value}."""


class RunFolderError(ValueError):
    """A file of a run folder is missing, truncated or invalid. The message names file, line and column."""


_INTEGER = re.compile(r"-?[0-9]{1,30}")
_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")


# The cache saves time because the same integers (iterations, layers, sizes) recur in millions of rows.
@lru_cache(maxsize=1 << 16)
def _integer(text: str) -> int:
    if _INTEGER.fullmatch(text) is None:
        raise ValueError("a whole number")
    return int(text)


def _number(text: str) -> float:
    if _NUMBER.fullmatch(text) is None or math.isinf(value := float(text)):
        raise ValueError("a number")
    return value


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("`true` or `false`")
    return text == "true"


_PARSERS: dict[str, Callable[[str], Any]] = {"int": _integer, "float": _number, "bool": _boolean, "str": str}

# Columns and types by file. `?`: the value may be empty. `~`: the column may be missing. Both are read as None.
_COLUMNS: dict[str, str] = {
    "iterations.csv": "job:str iteration:int start_us:float time_us:float compute_us:float comm_us:float "
    "exposed_us:float barrier_us:float slowdown_us:float alpha:float? utilisation:float",
    "transfers.csv": "job:str iteration:int bucket:int first_layer:int last_layer:int layer:str bytes:int "
    "chunks:int rank:int ready_us:float start_us:float end_us:float needed_us:float? slack_us:float? "
    "margin_us:float? ~high_percent:float? ~direction:str ~worker:int? ~group:str",
    "operations.csv": "job:str iteration:int resource:str kind:str index:int chunk:int? name:str "
    "start_us:float end_us:float ~worker:int? ~band:int? ~class:int? ~group:str ~critical:int? ~exposed_us:float?",
    "links.csv": "link:str rate_bps:int bytes:int busy_us:float utilisation:float drops:int ce_marks:int "
    "max_queue_packets:int?",
    "flows.csv": "traffic:str flow:int start_us:float src:int dst:int bytes:int band:int fct_us:float? "
    "received_us:float? delivered_bytes:int mean_rate_bps:float?",
    "queues.csv": "time_us:float link:str queue_packets:int queue_bytes:int utilisation:float drops:int ce_marks:int "
    "long_flows:int? long_flight_bytes:int?",
    "bursts.csv": "traffic:str src:int dst:int at_us:float announced:bool start_queue_packets:float? "
    "longest_queue_packets:float? mean_wait_us:float? queue_drops:float? burst_ms:float? completion_ms:float? "
    "~retransmits:int?",
    "bandwidth.csv": "job:str rate_bps:int order:str barrier:bool iteration_time_us:float exposed_us:float "
    "barrier_us:float",
    "waterfall.csv": "transfer:int collective:str group:str ranks:int bytes:int? ready_us:float start_us:float "
    "duration_us:float moving_us:float waited_us:float late_rank:float? exposed_us:float exposed_late_us:float "
    "bus_rate_bps:float? bound:str",
    "hottest.csv": "candidate:str link:str rate_bps:int bytes:int busy_us:float utilisation:float",
    "flows_in_both.csv": "traffic:str flow:int start_us:float src:int dst:int bytes:int fct_us:float? "
    "other_fct_us:float?",
    "collectives.csv": "collective:str bytes:int exchange_us:float latency_us:float bandwidth_us:float "
    "contention_us:float is_best:bool",
    "scored.csv": "level:str order:str barrier:bool collective:str depth:int buckets:int largest_bytes:int "
    "chunk_bytes:int messages:int bound_us:float scored_us:float iteration_us:float?",
    "rows.csv": "run:str job:str model:str workers:int servers:int batch:int task:str rate_bps:int schedule:str "
    "order:str barrier:bool fusion_bytes:int? chunk_bytes:int? iteration_time_us:float iteration_time_p95_us:float "
    "compute_us:float comm_us:float exposed_us:float barrier_us:float rho:float? alpha:float? utilisation:float "
    "straggler_percent:float? lower_bound_us:float above_bound_percent:float saves_percent:float gain_percent:float",
}


_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
LARGEST = 2**64
"""Upper bound of integers in a folder, because times in picoseconds and sizes in bytes have 64 bits."""


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file."""
    try:
        return inputs.text(path)
    except inputs.InputError as error:
        raise RunFolderError(f"{path}: {error}") from error
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        raise RunFolderError(f"{path}: no such file; is {path.parent} a finished run folder?") from error
    except UnicodeDecodeError as error:
        raise RunFolderError(f"{path}: byte {error.start} is not UTF-8 text; write the run folder again") from error


def refuse_other(folder: Path) -> None:
    """Raise `RunFolderError` if the folder has another schema than this version writes."""
    path = folder / VERSIONS
    schema = read_json(path).get("schema")
    newer = newer_version(schema, [FOLDER_SCHEMA])
    if newer is not None:
        raise RunFolderError(f"{path} {newer}; read it with that version, or update gradtide")
    if schema != FOLDER_SCHEMA:
        raise RunFolderError(f"{path}: key `schema` is not {FOLDER_SCHEMA}")


def read_table(folder: Path, name: str, *, required: bool = True) -> list[Row]:
    """Return all rows of a table by the table's file name."""
    return list(read_rows(folder, name, required=required))


def read_rows(folder: Path, name: str, *, required: bool = True) -> Iterator[Row]:
    """Yield the rows of a table one by one, so that callers can keep few rows of a large table.

    Columns may be in any order, and unknown columns are ignored. A missing file has no rows unless it is `required`.
    """
    path = folder / name
    if not required and not path.exists():
        return
    text = _whole_text(path)
    columns = [item.split(":") for item in _COLUMNS[name].split()]
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader)
        missing = [column for column, _ in columns if not column.startswith("~") and column not in header]
        if missing:
            raise RunFolderError(f"{path}:1: no column `{missing[0]}`; the columns are {', '.join(header)}")
        named = [(column.removeprefix("~"), kind) for column, kind in columns]
        places = [
            (column, header.index(column), _PARSERS[kind.removesuffix("?")], kind.endswith("?"))
            for column, kind in named
            if column in header
        ]
        absent = {column: None for column, _ in named if column not in header}
        before = reader.line_num
        for cells in reader:
            line, before = before + 1, reader.line_num
            if len(cells) != len(header):
                raise RunFolderError(f"{path}:{line}: {len(cells)} cells where the header has {len(header)} columns")
            row: Row = {**absent}
            for column, at, parse, may_be_empty in places:
                try:
                    row[column] = None if may_be_empty and not cells[at] else parse(cells[at])
                except ValueError as error:
                    raise RunFolderError(
                        f"{path}:{line}: column `{column}`: `{cells[at][:60]}` is not {error}"
                    ) from error
            yield row
    except csv.Error as error:
        raise RunFolderError(f"{path}:{reader.line_num}: {error}") from error


def _whole_text(path: Path) -> str:
    """Return the text of a table after checking that it is not truncated."""
    text = read_text(path)
    if not text:
        raise RunFolderError(f"{path}:1: the file is empty; a table starts with a line of column names")
    if not text.endswith("\n"):
        raise RunFolderError(f"{path}:{text.count(chr(10)) + 1}: the last line is cut off; write the run folder again")
    return text


def read_json(path: Path) -> Row:
    """Return the object in a JSON file."""

    def refuse(constant: str) -> None:
        raise RunFolderError(f"{path}: `{constant}` is not a number in JSON")

    try:
        value = json.loads(read_text(path), parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise RunFolderError(f"{path}:{error.lineno}: column {error.colno}: {error.msg}") from error
    except RunFolderError:
        raise
    except ValueError as error:
        raise RunFolderError(f"{path}: a number is too long: {error}") from error
    except RecursionError as error:
        raise RunFolderError(f"{path}: nested too deeply to be a summary") from error
    if not isinstance(value, dict):
        raise RunFolderError(f"{path}:1: an object was expected")
    return value


def entry(path: Path, value: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    """Return the value at the dotted path `key`, whose parts contain no dots, if it is of a type in `kind`."""
    found: Any = value
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise RunFolderError(f"{path}: no key `{key}`")
        found = found[part]
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise RunFolderError(f"{path}: key `{key}`: `{str(found)[:60]}` is of the wrong type")
    if isinstance(found, int) and abs(found) >= LARGEST:
        raise RunFolderError(f"{path}: key `{key}`: a number of more than 64 bits; write the run folder again")
    return found


def objects(path: Path, value: Mapping[str, Any], key: str) -> Mapping[str, Mapping[str, Any]]:
    """Return a dictionary of dictionaries at the path `key`, such as the jobs of a run by name."""
    found: Mapping[str, Any] = entry(path, value, key, dict)
    for name, inner in found.items():
        if not isinstance(inner, Mapping):
            raise RunFolderError(f"{path}: key `{key}.{name[:60]}`: an object was expected")
    return found


def finite(path: Path, row: Row, key: str) -> float | None:
    """Return the finite number at the path `key`, or `None` if it is null."""
    return None if entry(path, row, key, (int, float, type(None))) is None else number(path, row, key)


def number(path: Path, row: Mapping[str, Any], key: str) -> float:
    """Return the finite number at the path `key`."""
    value: float = entry(path, row, key, (int, float))
    if not math.isfinite(value):
        raise RunFolderError(f"{path}: key `{key}`: not a finite number")
    return float(value)


def grouped(items: Iterable[_T], key: Callable[[_T], _K]) -> dict[_K, list[_T]]:
    """Group items by key. Groups are in the order in which their keys occur first."""
    found: dict[_K, list[_T]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def are_numbers(values: Iterable[object]) -> bool:
    """Return whether all values are finite numbers."""
    return all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)


def row_of(
    path: Path,
    key: str,
    row: object,
    index: int,
    words: Iterable[str] = (),
    counts: Iterable[str] = (),
    flags: Iterable[str] = (),
) -> Row:
    """Return item `index` of the list `key`, checked to be a dictionary with these texts, integers and flags."""
    if not isinstance(row, dict):
        raise RunFolderError(f"{path}: key `{key}`: item {index} is not an object")
    for names, kind in ((words, str), (counts, int), (flags, bool)):
        for name in names:
            entry(path, row, name, kind)
    return row


def mesh_of(path: Path, facts: Mapping[str, Any]) -> Mapping[str, int] | None:
    """Return the mesh of a parallel job, as {axis: size}; None for a recorded step."""
    if entry(path, facts, "parallel.mesh", object) is None:
        return None
    mesh: Mapping[str, int] = entry(path, facts, "parallel.mesh", dict)
    return mesh
