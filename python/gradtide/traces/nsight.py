"""Converts exports of Nsight Systems (`nsys export --type sqlite`) to events in Kineto's JSON format.

The reader of Kineto files processes these events further: it matches kernels to calls, derives transfers and steps, and
reports gaps. This module maps rows of the export to events, one process at a time:

    CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY, _MEMSET    kernels and copies, with `correlation`
    CUPTI_ACTIVITY_KIND_RUNTIME                     calls of the runtime and the driver, with `correlation`
    NVTX_EVENTS: a step (`STEP`)                    marks of steps on the host
    NVTX_EVENTS: ncclAllReduce …                    records of transfers, with bytes where NCCL's payload is exported
    NVTX_EVENTS: aten::mm, autograd::… (emit_nvtx)  operators
    TARGET_INFO_SESSION_START_TIME, MPI_RANKS       start of the recording on the machine's clock; rank

Source: "SQLite Schema Reference" of the Nsight Systems Analysis Guide, schemas up to 3.28.1 (2026.4), and the notes on
its versions, exporter/export_schema_version_notes.txt. An export has only tables that have rows, and older exports lack
columns, so a missing table or column is an error only if its data are indispensable.
"""

import json
import os
import re
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from gradtide import inputs
from gradtide.errors import TraceError

MAGIC = b"SQLite format 3\0"
"""Magic bytes of an SQLite database (sqlite.org/fileformat.html, 1.3)."""
_FILE_HEADER_BYTES = 100

STEP = re.compile(r"(?i)((?:profiler|train|training|global)?[ _\-]?(?:step|iteration|iter|batch))[ _#:=\-]*(\d{1,18})")
"""Matches the whole name of an NVTX range that marks a step, e.g. `iteration 12`."""

EVENTS_AT_ONCE = 5000
PID_BITS = 24
"""Number of low bits of a `globalTid` that hold the thread id; they are 0 in a `globalPid` (examples of the guide)."""

_KERNELS, _CALLS, _RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_COPIES, _SETS, _GRAPHS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_UNREAD = ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "UCP_SUBMIT_EVENTS")
"""Tables of transfers over other libraries. They are not read; the report counts their rows as a gap."""

_NO_DEVICE = 1 << 31
"""Larger than any device number or rank; used as a sort key."""

_RANGE_TYPES = (59, 60, 70, 71)
"""Values of `eventType` for NVTX ranges: push/pop and start/end, recorded (59, 60) or imported from a text (70, 71)."""

_COPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
"""Names of CUpti_ActivityMemcpyKind in Kineto (libkineto/src/CuptiActivity.cpp)."""

_NCCL_CALL = re.compile(r"nccl(AllReduce|Broadcast|Reduce|AllGather|ReduceScatter|AlltoAll|Gather|Scatter|Send|Recv)")
_NCCL_GROUP = {"ncclGroupStart": 1, "ncclGroupEnd": -1}
_OPERATOR = re.compile(r"[A-Za-z_]\w*::\w|Optimizer\.step#|record_param_comms")
"""Prefixes of PyTorch operators and of the optimizer's step (`torch.autograd.profiler.emit_nvtx`)."""

_SIZE, _COMMUNICATOR, _RANKS = "Message size [bytes]", "NCCL communicator ID", "No. of ranks"
"""Names of fields in NCCL's NVTX payloads (NVIDIA/nccl src/include/nvtx_payload_schemas.h)."""
_SIZES_OF_INPUT = ("AllReduce", "Broadcast", "Reduce", "AllGather", "Send", "Recv")
"""Calls whose payload states the size of the rank's input; ReduceScatter states its output (NCCL collectives.cc)."""
_HEADER = struct.Struct("<qqQQ")
"""Header of a payload in `binaryData`: domain, schema, size of the payload, and a second size, which is ignored.

The layout is that of GindaChen/nsys-ai, module on NCCL communicators. Payloads of another size than stated are skipped.
"""


@dataclass(frozen=True)
class Process:
    """A process that ran kernels. It is one rank of the job.

    Attributes:
        path: path of the export.
        pid: `globalPid` of the process; `None` if the export has no such column.
        rank: MPI rank; `None` if MPI was not traced.
    """

    path: Path
    pid: int | None
    rank: int | None

    def chunks(self) -> Iterator[bytes]:
        """Yield the events of the process as Kineto JSON.

        Raises:
            TraceError: if the export is damaged, or lacks a table or column that is needed.
        """
        with _opened(self.path) as export:
            yield from _document(export, self.pid)


def processes(path: Path) -> list[Process]:
    """Return the processes of an export that ran kernels, sorted by their first device, then by `globalPid`.

    Raises:
        TraceError: if the file is not an export, is damaged, or has no kernels.
        InputError: if the file is too large.
        OSError: if the file cannot be opened.
    """
    with inputs.open_file(path) as file:
        inputs.check_size(file)
        _check_whole(file.read(_FILE_HEADER_BYTES), os.fstat(file.fileno()).st_size)
    with _opened(path) as export:
        if not any(table in export.tables for table in (_KERNELS, _CALLS, _RANGES, _COPIES, _SETS)):
            raise TraceError("it is a database of SQLite, but no export of Nsight Systems")
        pid, device = export.column(_KERNELS, "globalPid"), export.column(_KERNELS, "deviceId")
        devices: dict[int | None, int] = {}
        if _KERNELS in export.tables:
            for one, number in export.each(f"SELECT DISTINCT {pid}, {device} FROM {_KERNELS}"):
                one, number = (value if isinstance(value, int) else None for value in (one, number))
                devices[one] = min(devices.get(one, _NO_DEVICE), _NO_DEVICE if number is None else number)
        if not devices:
            raise TraceError("it has no kernels; record with nsys profile --trace=cuda,nvtx")
        ranks: dict[int, int] = {}
        if {"globalTid", "rank"} <= export.tables.get("MPI_RANKS", set()):
            for tid, rank in export.each("SELECT globalTid, rank FROM MPI_RANKS"):
                if isinstance(tid, int) and isinstance(rank, int) and 0 <= rank < _NO_DEVICE:
                    ranks[_process(tid)] = rank
        found = sorted(devices, key=lambda one: (devices[one], one or 0))
        return [Process(path, one, None if one is None else ranks.get(_process(one))) for one in found]


def _check_whole(head: bytes, size: int) -> None:
    """Check that a database is not truncated, because SQLite reads missing pages as zeros.

    Raises:
        TraceError: if the file has fewer pages than its header states.
    """
    if len(head) == _FILE_HEADER_BYTES:
        page_bytes, changes, pages, counted_at = struct.unpack_from(">16xH6xII60xI", head)
        page_bytes = (1 << 16) if page_bytes == 1 else page_bytes
        # SQLite before 3.7.0 does not update the number of pages (sqlite.org/fileformat.html, 1.3.7).
        if changes != counted_at or pages * page_bytes <= size:
            return
    raise TraceError("the database is damaged or cut off: its end is missing; export or copy it again")


def _process(serialized: int) -> int:
    return serialized >> PID_BITS


class _Export:
    """An open export: executes queries, and lists its tables and columns."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        # Views and virtual tables (root page 0) are skipped, because a query on them may run for ever.
        names = self.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        self.tables: dict[str, set[str]] = {
            name: {row[1] for row in self.rows(f"PRAGMA table_info({_quoted(name)})")} for (name,) in names
        }

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query at once, for small results."""
        return self._connection.execute(query, values).fetchall()

    def each(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query lazily."""
        cursor = self._connection.execute(query, values)
        while rows := cursor.fetchmany(EVENTS_AT_ONCE):
            yield from rows

    def column(self, table: str, name: str, prefix: str = "") -> str:
        """Return the SQL expression of a column; NULL if the table lacks the column."""
        return f"{prefix}{_quoted(name)}" if name in self.tables.get(table, ()) else "NULL"

    def needed(self, table: str, *names: str) -> None:
        """Check that a table has the columns `names`.

        Raises:
            TraceError: if a column is missing.
        """
        missing = [name for name in names if name not in self.tables[table]]
        if missing:
            version = self.version or "unknown"
            raise TraceError(
                f"its table {table} has no column {missing[0]} (schema version {version}); "
                "export the report again with another version of nsys"
            )

    @property
    def version(self) -> str:
        """Version of the schema; empty if the export does not state it."""
        if not {"name", "value"} <= self.tables.get("META_DATA_EXPORT", set()):
            return ""
        rows = self.rows("SELECT value FROM META_DATA_EXPORT WHERE name = 'EXPORT_SCHEMA_VERSION'")
        return str(rows[0][0]) if rows else ""

    def start_ns(self) -> int:
        """Start of the recording on the machine's clock, in nanoseconds; 0 if the export does not contain it."""
        table = "TARGET_INFO_SESSION_START_TIME"
        if table not in self.tables:
            return 0
        rows = self.rows(f"SELECT {self.column(table, 'utcEpochNs')} FROM {table}")
        value = rows[0][0] if rows else None
        return value if isinstance(value, int) and value > 0 else 0


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _opened(path: Path) -> Iterator[_Export]:
    """Open an export read-only; SQLite creates no journal or other files beside it."""
    try:
        where = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(where, uri=True, check_same_thread=False)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.execute("PRAGMA trusted_schema = OFF")
            yield _Export(connection)
    except sqlite3.Error as error:
        raise TraceError(f"the database is damaged or cut off: {error}; export or copy it again") from None


def _document(export: _Export, pid: int | None) -> Iterator[bytes]:
    head = {"schemaVersion": export.version, "baseTimeNanoseconds": export.start_ns()}
    yield json.dumps(head)[:-1].encode() + b', "traceEvents": ['
    separator = b"\n"
    events: list[str] = []
    for event in _events(export, pid):
        events.append(event)
        if len(events) == EVENTS_AT_ONCE:
            yield separator + ",\n".join(events).encode()
            separator = b",\n"
            events.clear()
    yield (separator + ",\n".join(events).encode() if events else b"") + b"]}"


def _events(export: _Export, pid: int | None) -> Iterator[str]:
    if _GRAPHS in export.tables:
        where = _of_process(export, _GRAPHS, "globalPid", pid)
        if export.rows(f"SELECT 1 FROM {_GRAPHS} WHERE {where} LIMIT 1", *_values(pid, where)):
            raise TraceError(
                "it records CUDA graphs as wholes, without the kernels and copies in them; "
                "record with nsys profile --cuda-graph-trace=node"
            )
    last_ns = 0
    for table in (_KERNELS, _COPIES, _SETS):
        for event, end_ns in _device(export, table, pid):
            last_ns = max(last_ns, end_ns)
            yield event
    if _CALLS in export.tables:
        export.needed(_CALLS, "start", "correlationId")
        where = _of_process(export, _CALLS, "globalTid", pid)
        columns = f"start, {export.column(_CALLS, 'globalTid')}, correlationId"
        for start, tid, correlation in export.each(
            f"SELECT {columns} FROM {_CALLS} WHERE {where}", *_values(pid, where)
        ):
            if isinstance(correlation, int):
                yield _event("cuda_runtime", '""', _thread(tid), start, None, f'{{"correlation":{correlation}}}')
    if _RANGES in export.tables:
        yield from _ranges(export, pid, last_ns)
    for table in _UNREAD:
        if table in export.tables:
            where = _of_process(export, table, "globalTid", pid)
            for _ in export.each(f"SELECT 1 FROM {table} WHERE {where}", *_values(pid, where)):
                yield _event(table, '""', '"pid":0,"tid":0', 0, 0, "{}")


def _of_process(export: _Export, table: str, column: str, pid: int | None) -> str:
    if pid is None or column not in export.tables[table]:
        return "1"
    return f"{_quoted(column)} >> {PID_BITS} = ?"


def _values(pid: int | None, where: str) -> tuple[int, ...]:
    return (_process(cast(int, pid)),) if "?" in where else ()


def _device(export: _Export, table: str, pid: int | None) -> Iterator[tuple[str, int]]:
    """Yield the device's kernels, copies and memsets as events, each with its end time."""
    if table not in export.tables:
        return
    export.needed(table, "start", "end")
    columns = [export.column(table, name, "t.") for name in ("start", "end", "deviceId", "contextId", "streamId")]
    columns.append(export.column(table, "correlationId", "t."))
    joined = ""
    if table == _KERNELS:
        names = [name for name in ("demangledName", "shortName", "mangledName") if name in export.tables[table]]
        if not names:
            export.needed(table, "demangledName")
        if "StringIds" not in export.tables:
            raise TraceError("it has no table StringIds, so its kernels have no names; export the report again")
        export.needed("StringIds", "id", "value")
        columns += ["s.value", "NULL", "NULL", "NULL"]
        joined = f"LEFT JOIN StringIds s ON s.id = COALESCE({', '.join(f't.{name}' for name in names)}, NULL)"
        category = "kernel"
    elif table == _COPIES:
        columns += ["NULL", *(export.column(table, name, "t.") for name in ("copyKind", "srcDeviceId", "dstDeviceId"))]
        category = "gpu_memcpy"
    else:
        columns += ["'Memset (Device)'", "NULL", "NULL", "NULL"]
        category = "gpu_memset"
    where = _of_process(export, table, "globalPid", pid)
    query = f"SELECT {', '.join(columns)} FROM {table} t {joined} WHERE {where}"
    known: dict[str, str] = {}
    for start, end, device, context, stream, correlation, name, kind, source, target in export.each(
        query, *_values(pid, where)
    ):
        if table == _COPIES:
            is_between = kind == 8 and None not in (source, target) and source != target
            name = f"Memcpy {'PtoP' if is_between else _COPY_KINDS.get(kind, 'of an unknown kind')}"
        # An event without a name or an end has an unknown kind or duration; it counts as damaged.
        is_known = isinstance(name, str) and isinstance(end, int) and isinstance(start, int) and end >= start
        shown = known.get(name)
        if shown is None:
            shown = known[name] = json.dumps(name if isinstance(name, str) else "")
        place = f'"pid":{device if isinstance(device, int) else 0},"tid":"{_whole(context)}.{_whole(stream)}"'
        args = f'{{"correlation":{correlation}}}' if isinstance(correlation, int) else "{}"
        yield _event(category, shown, place, start, end if is_known else None, args), end if is_known else 0


def _whole(value: Any) -> str:
    return str(value) if isinstance(value, int) else ""


def _thread(tid: Any) -> str:
    return f'"pid":{_process(tid)},"tid":{tid & ((1 << PID_BITS) - 1)}' if isinstance(tid, int) else '"pid":0,"tid":0'


def _event(category: str, name: str, place: str, start: Any, end: Any, args: str) -> str:
    """Return an event as JSON. `name` is JSON; `start` and `end` are omitted if they are not integers."""
    ts = f',"ts":{_us(start)}' if isinstance(start, int) else ""
    dur = f',"dur":{_us(end - start)}' if isinstance(start, int) and isinstance(end, int) else ""
    return f'{{"ph":"X","cat":"{category}","name":{name},{place}{ts}{dur},"args":{args}}}'


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


@dataclass(frozen=True)
class _Range:
    start: int
    end: int
    thread: str
    name: str
    payload: dict[str, int]


def _ranges(export: _Export, pid: int | None, last_ns: int) -> Iterator[str]:
    """Yield operators, NCCL calls and step marks from the NVTX ranges."""
    export.needed(_RANGES, "start", "end", "eventType")
    text = export.column(_RANGES, "text", "t.")
    joined = ""
    if "textId" in export.tables[_RANGES] and {"id", "value"} <= export.tables.get("StringIds", set()):
        text, joined = f"COALESCE({text}, s.value)", "LEFT JOIN StringIds s ON s.id = t.textId"
    where = _of_process(export, _RANGES, "globalTid", pid)
    columns = [export.column(_RANGES, name, "t.") for name in ("globalTid", "domainId")]
    # The column is declared as TEXT but contains bytes.
    columns.append(f"CAST({export.column(_RANGES, 'binaryData', 't.')} AS BLOB)")
    described = export.column(_RANGES, "jsonText", "t.")
    if joined and "jsonTextId" in export.tables[_RANGES]:
        described = f"COALESCE({described}, (SELECT value FROM StringIds WHERE id = t.jsonTextId))"
    columns.append(described)
    query = (
        f"SELECT t.start, t.end, {text}, {', '.join(columns)} FROM {_RANGES} t {joined} "
        f"WHERE t.eventType IN {_RANGE_TYPES} AND {where}"
    )
    payloads = _Payloads(export)
    steps: dict[str, list[tuple[int, int, int, str]]] = {}
    of_nccl: list[_Range] = []
    sizes: dict[int, int] = {}
    for start, end, name, tid, domain, binary, text_of in export.each(query, *_values(pid, where)):
        if not isinstance(name, str) or not isinstance(start, int):
            continue
        # A range without an end was still open when the recording ended; it is ended with the last device event.
        end = end if isinstance(end, int) and end >= start else max(last_ns, start)
        step = STEP.fullmatch(name.strip())
        if step is not None:
            steps.setdefault(step[1].lower(), []).append((start, end, int(step[2]), _thread(tid)))
        elif name.startswith("nccl"):
            payload = payloads.read(domain, binary, text_of)
            if _COMMUNICATOR in payload and _RANKS in payload:
                sizes[payload[_COMMUNICATOR]] = payload[_RANKS]
            of_nccl.append(_Range(start, end, _thread(tid), name, payload))
        elif _OPERATOR.match(name):
            # Names of emit_nvtx include arguments: "aten::mm, seq = 3, op_id = 5".
            yield _event("cpu_op", json.dumps(name.split(",")[0]), _thread(tid), start, end, "{}")
    yield from _records(of_nccl, sizes)
    for start, end, number, thread in _chosen(steps):
        yield _event("user_annotation", f'"ProfilerStep#{number}"', thread, start, end, "{}")


def _chosen(steps: dict[str, list[tuple[int, int, int, str]]]) -> list[tuple[int, int, int, str]]:
    """Return the ranges of the name that marks steps: it repeats no step number and covers the most time."""
    once = [rows for rows in steps.values() if len({row[2] for row in rows}) == len(rows)]
    return max(once, key=lambda rows: (sum(end - start for start, end, *_ in rows), -len(rows)), default=[])


def _records(ranges: list[_Range], sizes: dict[int, int]) -> Iterator[str]:
    """Yield NCCL calls as records of transfers.

    NCCL launches calls between ncclGroupStart and ncclGroupEnd at the end of the group, so their record lasts until
    then. Calls of one kind and communicator become one record; a group of different calls has none.
    """
    depth: dict[str, int] = {}
    open_calls: dict[str, list[_Range]] = {}
    for one in sorted(ranges, key=lambda one: (one.start, -one.end)):
        change = _NCCL_GROUP.get(one.name, 0)
        depth[one.thread] = max(0, depth.get(one.thread, 0) + change)
        call = _NCCL_CALL.fullmatch(one.name)
        if call is not None:
            open_calls.setdefault(one.thread, []).append(one)
        if depth[one.thread] == 0 and (calls := open_calls.pop(one.thread, [])):
            yield from _record(calls, one.end, sizes)
    for calls in open_calls.values():
        yield from _record(calls, calls[-1].end, sizes)


def _record(calls: list[_Range], end: int, sizes: dict[int, int]) -> Iterator[str]:
    kind = calls[0].name.removeprefix("nccl")
    communicators = {one.payload.get(_COMMUNICATOR) for one in calls}
    if any(one.name != calls[0].name for one in calls) or len(communicators) > 1:
        return
    [communicator] = communicators
    ranks = None if communicator is None else sizes.get(communicator)
    args: dict[str, Any] = {"Collective name": kind}
    parts = [one.payload.get(_SIZE) for one in calls]
    known = [part for part in parts if part is not None]
    times = 1 if kind in _SIZES_OF_INPUT else ranks if kind == "ReduceScatter" else None
    if len(known) == len(parts) and times is not None:
        args |= {"In msg nelems": times * sum(known), "dtype": "Byte"}
    if communicator is not None:
        args["Process Group Name"] = f"{communicator:x}"
    if ranks is not None:
        args["Group size"] = ranks
    yield _event("cpu_op", json.dumps(calls[0].name), calls[0].thread, calls[0].start, end, json.dumps(args))


class _Payloads:
    """Parses the NVTX payloads of NCCL's ranges into fields by name."""

    def __init__(self, export: _Export) -> None:
        table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
        self._fields: dict[tuple[Any, Any], list[tuple[str, int]]] = {}
        if {"domainId", "schemaId", "idx", "name", "offset"} <= export.tables.get(table, set()):
            for domain, schema, name, offset in export.rows(
                f"SELECT domainId, schemaId, name, offset FROM {table} ORDER BY domainId, schemaId, idx"
            ):
                self._fields.setdefault((domain, schema), []).append((name, offset or 0))

    def read(self, domain: Any, binary: Any, text: Any) -> dict[str, int]:
        """Return the integer fields of a payload by name; empty if its layout is unknown."""
        if isinstance(text, str):
            try:
                fields = json.loads(text)
            except ValueError:
                return {}
            items = fields.items() if isinstance(fields, dict) else ()
            return {key: value for key, value in items if isinstance(value, int) and value >= 0}
        if not isinstance(binary, bytes) or len(binary) < _HEADER.size:
            return {}
        of, schema, size, _ = _HEADER.unpack_from(binary)
        if size != len(binary) - _HEADER.size or of != domain:
            return {}
        found = {}
        for name, offset in self._fields.get((domain, schema), []):
            form = {_SIZE: "<Q", _COMMUNICATOR: "<Q", _RANKS: "<i"}.get(name)
            if form is not None and isinstance(offset, int) and 0 <= offset <= size - struct.calcsize(form):
                found[name] = struct.unpack_from(form, binary, _HEADER.size + offset)[0]
        return found
