"""A run as a Perfetto trace: a process per worker, a thread per resource, arrows for gradients, a counter per queue.

The protobuf wire format is written by hand (https://protobuf.dev/programming-guides/encoding/): three wire types
suffice, and a dependency on the protobuf package could conflict with the user's version of it. Field numbers are those
of `protos/perfetto/trace/perfetto_trace.proto`, in ascending order as libraries write them.
"""

import struct
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradtide.report.folder import Row, entry, grouped, mesh_of, read_json, read_rows, read_table
from gradtide.report.pieces import by_job
from gradtide.words import simulated

MAX_WORKERS = 64
"""Largest number of workers of a job in the trace. Viewers are slow with more, and workers are mostly identical."""

_SEQUENCE = 1  # TracePacket.trusted_packet_sequence_id: one writer
_SLICE_BEGIN, _SLICE_END, _COUNTER = 1, 2, 4  # TrackEvent.Type

MAX_QUEUES = 256
"""Largest number of queues in the trace. `queues.csv` has all queues."""


class _Fixed(int):
    """An integer of wire type I64 (fixed64)."""


_Flows = dict[int, list[_Fixed]]
"""Arrows that begin or end at a slice: {field number of TrackEvent: ids of the arrows}."""


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative int64 take ten bytes, as two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _message(fields: Mapping[int, Any]) -> bytes:
    """Encode a message from its fields by number: numbers, texts, messages, or lists of them for a repeated field."""
    out = bytearray()
    for number, values in fields.items():
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, (_Fixed, float)):
                packed = struct.pack("<d" if isinstance(value, float) else "<Q", value)
                out += _varint(number << 3 | 1) + packed
            elif isinstance(value, int):
                out += _varint(number << 3) + _varint(value)
            else:
                data = value.encode("utf-8") if isinstance(value, str) else _message(value)
                out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return bytes(out)


def _packet(body: Mapping[int, Any], timestamp_ns: int | None = None) -> bytes:
    """Encode a TracePacket (Trace.packet 1) with timestamp (8) and trusted_packet_sequence_id (10)."""
    stamp = {} if timestamp_ns is None else {8: timestamp_ns}
    return _message({1: {**stamp, 10: _SEQUENCE, **body}})


def _thread(track: int, parent: int, pid: int, tid: int, name: str) -> bytes:
    """Encode a TrackDescriptor (60): uuid 1, thread 4 {pid 1, tid 2, thread_name 5}, parent_uuid 5."""
    return _packet({60: {1: track, 4: {1: pid, 2: tid, 5: name}, 5: parent}})


def _slice(
    track: int, start_ns: int, end_ns: int, name: str, kind: str, arguments: Mapping[str, Any], flows: Mapping[int, Any]
) -> bytes:
    """Encode both ends of a slice as TrackEvents (11): type 9, track_uuid 11, category 22, name 23, flows 47 and 48.

    `arguments` become debug_annotations (4): int_value 4, double_value 5, string_value 6, name 10.
    """
    number = {int: 4, float: 5, str: 6}
    notes = [{number[type(value)]: value, 10: key} for key, value in arguments.items()]
    begin = {4: notes, 9: _SLICE_BEGIN, 11: track, 22: kind, 23: name, **flows}
    return _packet({11: begin}, start_ns) + _packet({11: {9: _SLICE_END, 11: track}}, end_ns)


def _queues(rows: list[Row], first_track: int) -> bytes:
    """Encode a counter track per link, a TrackDescriptor (60): uuid 1, name 2, counter 8 {unit_name 6}.

    Values are TrackEvents (11): type 9, track_uuid 11, counter_value 30. Unchanged values are omitted.
    """
    out = bytearray()
    of_link = list(grouped(rows, lambda row: row["link"]).items())
    for number, (link, own) in enumerate(of_link[:MAX_QUEUES]):
        track, last = first_track + number, None
        out += _packet({60: {1: track, 2: f"queue before {link}", 8: {6: "packets"}}})
        for row in own:
            if row["queue_packets"] != last:
                last = row["queue_packets"]
                out += _packet({11: {9: _COUNTER, 11: track, 30: last}}, round(row["time_us"] * 1000))
    return bytes(out)


def _lanes(rows: list[Row]) -> list[int]:
    """Return the lane of each row, so that rows in the same lane do not overlap; rows must be sorted by start."""
    free: list[float] = []
    lanes = []
    for row in rows:
        lane = next((i for i, until in enumerate(free) if until <= row["start_us"]), len(free))
        free[lane : lane + 1] = [row["end_us"]]
        lanes.append(lane)
    return lanes


def encode_timeline(run_dir: Path) -> bytes:
    """Return the operations of a run folder as a Perfetto trace; equal folders give equal bytes.

    Times in the trace are nanoseconds, rounded from the run's picoseconds.
    """
    path = run_dir / "summary.json"
    jobs: Mapping[str, Any] = entry(path, read_json(path), "jobs", dict)
    operations = by_job(read_table(run_dir, "operations.csv"))
    transfers: dict[str, dict[tuple[int, int], Row]] = defaultdict(dict)
    drawn = {(row["job"], row["iteration"]) for rows in operations.values() for row in rows}
    for row in read_rows(run_dir, "transfers.csv"):
        if not row["direction"] and not row["group"] and (row["job"], row["iteration"]) in drawn:
            transfers[row["job"]][row["iteration"], row["bucket"]] = row

    out = bytearray()
    pid = flow = 0
    for job, facts in jobs.items():
        is_parallel = "parallel" in facts
        workers = (
            len(entry(path, facts, "parallel.classes", list)) if is_parallel else entry(path, facts, "workers", int)
        )
        what = simulated(mesh_of(path, facts), workers) if is_parallel else "worker"
        rows = sorted(operations.get(job, []), key=lambda row: (row["start_us"], row["end_us"]))
        for worker in range(min(workers, MAX_WORKERS)):
            pid += 1
            process = pid << 16
            # TrackDescriptor (60): uuid 1, process 3 {pid 1, process_name 6}.
            out += _packet({60: {1: process, 3: {1: pid, 6: f"{job} {what} {worker}"}}})
            # A row without a worker applies to all workers.
            mine = [row for row in rows if row["class" if is_parallel else "worker"] in (None, worker)]
            streams = ["compute", *dict.fromkeys(row["group"] for row in mine if row["group"])]
            places = (
                {x: [row for row in mine if (row["group"] or "compute") == x] for x in streams}
                if is_parallel
                else {x: [row for row in mine if row["resource"] == x] for x in ("compute", "network")}
            )
            arrows, flow = _arrows(transfers[job], mine, flow)
            tid = 0
            for resource, own in places.items():
                lanes = _lanes(own)
                for lane in range(max(lanes, default=0) + 1):
                    tid += 1
                    name = resource if lane == 0 else f"{resource} {lane + 1}"
                    out += _thread(process + tid, process, pid, pid * 1000 + tid, name)
                    for row, at in zip(own, lanes, strict=True):
                        if at == lane:
                            out += _operation(process + tid, row, transfers[job], arrows)
    out += _queues(read_table(run_dir, "queues.csv", required=False), pid + 1 << 16)
    return bytes(out)


def _operation(track: int, row: Row, transfers: Mapping[tuple[int, int], Row], arrows: Mapping[int, _Flows]) -> bytes:
    kind, index, name = row["kind"], row["index"], row["name"]
    arguments: dict[str, Any]
    if row["class"] is not None:
        label, arguments = name, {"critical": row["critical"], "exposed_us": row["exposed_us"] or 0.0}
    elif kind in ("pull", "push"):
        label, arguments = f"{kind} {name}", {"parameter": index}
    elif row["resource"] == "network":
        label = f"bucket {index}" if row["chunk"] in (None, 0) else f"bucket {index} chunk {row['chunk']}"
        arguments = {"bucket": index}
        transfer = transfers.get((row["iteration"], index))
        if transfer is not None:
            arguments["layers"] = f"{transfer['first_layer']}-{transfer['last_layer']}"
            arguments |= {key: transfer[key] for key in ("bytes", "slack_us", "margin_us")}
    else:
        label, arguments = f"{kind} {name}", {"layer": index}
    arguments["iteration"] = row["iteration"]
    start, end = (round(row[key] * 1000) for key in ("start_us", "end_us"))
    return _slice(track, start, end, label, kind, arguments, arrows.get(id(row), {}))


def _arrows(transfers: Mapping[tuple[int, int], Row], rows: list[Row], flow: int) -> tuple[dict[int, _Flows], int]:
    """Return the arrows by id() of their row: arrows that begin there (flow_ids 47), or end (terminating_flow_ids 48).

    A transfer has two arrows: from the backward op that completes its gradient, and to the forward op that needs it.
    The second value is `flow` plus the number of arrows.
    """
    compute: dict[tuple[int, str, int], Row] = {}
    first: dict[tuple[int, int], Row] = {}
    last: dict[tuple[int, int], Row] = {}
    for row in rows:
        if row["resource"] == "compute":
            compute[row["iteration"], row["kind"], row["index"]] = row
        else:
            first.setdefault((row["iteration"], row["index"]), row)
            last[row["iteration"], row["index"]] = row
    found: dict[int, _Flows] = defaultdict(lambda: {47: [], 48: []})
    for (iteration, bucket), transfer in sorted(transfers.items()):
        layer = transfer["first_layer"]
        ends = (
            (compute.get((iteration, "backward", layer)), first.get((iteration, bucket))),
            (last.get((iteration, bucket)), compute.get((iteration + 1, "forward", layer))),
        )
        for tail, head in ends:
            if tail is not None and head is not None:
                flow += 1
                found[id(tail)][47].append(_Fixed(flow))
                found[id(head)][48].append(_Fixed(flow))
    return found, flow
