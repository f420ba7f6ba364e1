"""Perfetto traces of a run: processes, slices, arrows and lanes."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from gradtide.report import encode_timeline
from gradtide.report.folder import read_table
from report_pages import edit
from run_folders import make_run


def parse(data: bytes) -> Any:
    """Parse a trace with Perfetto's own classes."""
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace = protos.Trace()
    trace.ParseFromString(data)
    assert trace.SerializeToString() == data  # no unknown fields, and all in the order of their numbers
    return trace


def test_trace_has_a_process_per_worker_with_both_resources(slow_priority: Path) -> None:
    names: dict[str, list[str]] = {}
    processes = {}
    for packet in parse(encode_timeline(slow_priority)).packet:
        track = packet.track_descriptor
        if track.HasField("process"):
            processes[track.process.pid] = track.process.process_name
            names[track.process.process_name] = []
        elif track.HasField("thread"):
            names[processes[track.thread.pid]].append(track.thread.thread_name)
    assert names == {f"train worker {i}": ["compute", "network"] for i in range(2)}


def test_slices_are_the_operations_to_the_nanosecond(slow_priority: Path) -> None:
    operations = read_table(slow_priority, "operations.csv")
    wanted = sorted((row["resource"], round(row["start_us"] * 1000), round(row["end_us"] * 1000)) for row in operations)
    trace = parse(encode_timeline(slow_priority))
    threads = {
        p.track_descriptor.uuid: (p.track_descriptor.thread.pid, p.track_descriptor.thread.thread_name)
        for p in trace.packet
        if p.track_descriptor.HasField("thread")
    }
    found: dict[int, list[tuple[str, int, int]]] = {}
    open_since: dict[int, int] = {}
    free_at: dict[int, int] = {}
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        event, track = packet.track_event, packet.track_event.track_uuid
        if event.type == event.TYPE_SLICE_BEGIN:
            assert track not in open_since
            assert packet.timestamp >= free_at.get(track, 0)
            open_since[track] = packet.timestamp
        else:
            free_at[track] = packet.timestamp
            pid, name = threads[track]
            found.setdefault(pid, []).append((name, open_since.pop(track), packet.timestamp))
    assert not open_since
    assert len(found) == 2
    assert all(sorted(slices) == wanted for slices in found.values())


def test_transfers_carry_their_slack_and_arrows_join_backward_transfer_forward(slow_priority: Path) -> None:
    rows = {(r["iteration"], r["bucket"]): r for r in read_table(slow_priority, "transfers.csv")}
    leaves: dict[int, str] = {}
    reaches: dict[int, str] = {}
    seen = 0
    for packet in parse(encode_timeline(slow_priority)).packet:
        event = packet.track_event
        if not packet.HasField("track_event") or event.type != event.TYPE_SLICE_BEGIN:
            continue
        facts = {a.name: a for a in event.debug_annotations}
        key = facts["iteration"].int_value, facts["bucket"].int_value if "bucket" in facts else -1
        if key in rows:
            seen += 1
            assert facts["slack_us"].double_value == rows[key]["slack_us"]
            assert facts["bytes"].int_value == rows[key]["bytes"]
        for flow in event.flow_ids:
            assert flow not in leaves
            leaves[flow] = event.categories[0]
        for flow in event.terminating_flow_ids:
            assert flow not in reaches
            reaches[flow] = event.categories[0]
    assert set(leaves) == set(reaches)
    arrows = [(leaves[flow], reaches[flow]) for flow in leaves]
    assert set(arrows) == {("backward", "transfer"), ("transfer", "forward")}
    # Two recorded iterations of 18 buckets, on two workers. Transfers of the warm-up are not in transfers.csv
    # and have no arrows.
    assert seen == 2 * 2 * 18
    assert len(arrows) == 2 * seen


def test_overlapping_transfers_get_lanes_of_their_own(slow_fifo: Path, tmp_path: Path) -> None:
    shutil.copytree(slow_fifo, tmp_path / "run")
    table = tmp_path / "run" / "operations.csv"
    network = [line for line in table.read_text(encoding="utf-8").splitlines() if ",network," in line]
    edit(table, lambda text: text + network[0].replace(",transfer,0,0,", ",transfer,0,1,") + "\n")
    names = [
        p.track_descriptor.thread.thread_name
        for p in parse(encode_timeline(tmp_path / "run")).packet
        if p.track_descriptor.HasField("thread")
    ]
    assert names == ["compute", "network", "network 2"] * 2


def test_at_most_64_workers_are_traced(tmp_path: Path) -> None:
    make_run(tmp_path, layers=3, workers=100, bandwidth=False)
    processes = [p for p in parse(encode_timeline(tmp_path)).packet if p.track_descriptor.HasField("process")]
    assert len(processes) == 64
