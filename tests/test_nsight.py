"""Exports of Nsight Systems: files that are written by the documented schema, none of them recorded.

Source: "SQLite Schema Reference" of the Nsight Systems Analysis Guide, schema 3.28.1 (2026.4); names of payload fields
are those of NVIDIA/nccl src/include/nvtx_payload_schemas.h.
"""

import contextlib
import random
import sqlite3
import struct
from pathlib import Path

import pytest

import gradtide as gt
from gradtide import traces
from gradtide.traces import nsight

MS = 1_000_000
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TABLES = {
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, "
    "globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, "
    "graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcDeviceId INTEGER, dstDeviceId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "value INTEGER NOT NULL, bytes INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, "
    "text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, jsonText TEXT, "
    "binaryData TEXT",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL, "
    "type INTEGER, name TEXT, offset INTEGER",
    "MPI_RANKS": "globalTid INTEGER NOT NULL, rank INTEGER NOT NULL",
}


class Export:
    """Writes an export. Times are in nanoseconds."""

    def __init__(self, path: Path, *without: str) -> None:
        self.path, self.without = path, without
        self.rows: dict[str, list[dict]] = {}
        self.strings: dict[str, int] = {}

    def add(self, table: str, **row) -> None:
        self.rows.setdefault(table, []).append(row)

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def kernel(self, name, start, length, correlation, stream=7, device=0, pid=99) -> None:
        number = self.string(name)
        row = {"start": start, "end": start + length, "deviceId": device, "contextId": 1, "streamId": stream}
        row |= {"correlationId": correlation, "globalPid": pid << 24, "demangledName": number}
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", **row, shortName=self.string(name.split("(")[0]))

    def call(self, start, correlation, tid=1, pid=99) -> None:
        row = {"start": start, "end": start + 5000, "eventClass": 0, "globalTid": pid << 24 | tid}
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            **row,
            correlationId=correlation,
            nameId=self.string("cudaLaunchKernel_v7000"),
            returnValue=0,
        )

    def range(self, name, start, end, tid=1, pid=99, kind=59, is_registered=False, **payload) -> None:
        text = {"textId": self.string(name)} if is_registered else {"text": name}
        row = {"start": start, "end": end, "eventType": kind, "globalTid": pid << 24 | tid, "domainId": 0}
        self.add("NVTX_EVENTS", **{**row, **text, **payload})

    def write(self) -> Path:
        self.path.unlink(missing_ok=True)
        with sqlite3.connect(self.path) as file:
            for table in [*self.rows, "StringIds", "META_DATA_EXPORT", "TARGET_INFO_SESSION_START_TIME"]:
                if table not in self.without:
                    file.execute(f"CREATE TABLE IF NOT EXISTS {table} ({TABLES.get(table, 'start INTEGER')})")
            if "StringIds" not in self.without:
                file.executemany("INSERT INTO StringIds VALUES (?, ?)", [(n, text) for text, n in self.strings.items()])
            file.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.28.1')")
            file.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1760000000000000000, '', '')")
            for table, rows in self.rows.items():
                for row in rows if table not in self.without else ():
                    places = ", ".join("?" * len(row))
                    file.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", list(row.values()))
        file.close()
        return self.path


def step(export: Export, number: int, name="ProfilerStep#{}", *, pid=99, device=0, late=0, **how) -> None:
    """Add a step of 13.00 ms, of which the device computes 9.00 and an all-reduce of 3.00 is exposed, one hidden."""
    at, of = 100 * MS + 13 * MS * number, {"pid": pid}
    is_open = how.pop("is_open", False)
    export.range(name.format(number), at, None if is_open else at + 12_990_000, pid=pid, **how)
    kernels = [
        ("sgemm_fwd", 100_000, 2 * MS, 7),
        ("sgemm_bwd", 2_100_000, 3 * MS, 7),
        (ALL_REDUCE, 5_100_000, 3 * MS, 20),
        ("sgemm_bwd", 5_100_000, 3 * MS, 7),
        (ALL_REDUCE, 8_100_000, 3 * MS, 20),
        ("adam", 11_100_000, MS, 7),
    ]
    launches = [60_000, 2_000_000, 4_980_000, 5_060_000, 7_980_000, 8_200_000]
    for place, ((kernel, start, length, stream), launch) in enumerate(zip(kernels, launches, strict=True)):
        correlation = 10 * number + place + 1
        export.call(at + launch, correlation, **of)
        if stream == 20:
            export.range("ncclAllReduce", at + launch - 5000, at + launch + 10_000, **of, **export_payload(4 * MS))
        export.kernel(kernel, at + start + late * (kernel == "sgemm_fwd"), length, correlation, stream, device, pid)


def export_payload(size: int) -> dict:
    """Return the payload of an all-reduce as NVTX has it: a header, the communicator, bytes, the operation."""
    payload = struct.pack("<QQi4x", 0xABCD, size, 0)
    return {"domainId": 3, "binaryData": struct.pack("<qqQQ", 3, 17, len(payload), 32 + len(payload)) + payload}


def schemas(export: Export) -> None:
    for index, (name, offset) in enumerate([("NCCL communicator ID", None), ("Message size [bytes]", 8)]):
        export.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=3, schemaId=17, idx=index, name=name, offset=offset)


def ok(path: Path, steps=3, **how) -> Export:
    export = Export(path, *how.pop("without", ()))
    schemas(export)
    for number in range(1, steps + 1):
        step(export, number, **how)
    return export


def check(found: gt.Trace, sizes=(4 * MS, 4 * MS), ranks=1) -> None:
    result = found.waterfall()
    for row in result.summary["ranks"]:
        assert row["span_ms"] == pytest.approx(13.0, abs=0.01)
        assert row["compute_ms"] == pytest.approx(9.0, abs=0.01)
        assert row["exposed_ms"] == pytest.approx(3.0, abs=0.01)
    assert len(result.summary["ranks"]) == ranks
    assert [(one["collective"], one["bytes"]) for one in result.rows] == [("all_reduce", size) for size in sizes]


NAMES = ["ProfilerStep#{}", "step {}", "Step_{}", "iteration {}", "iter{}", "train_step:{}", "Batch {}"]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_has_its_times_bytes_and_marks(tmp_path, name):
    found = traces.read(ok(tmp_path / "a.sqlite", name=name).write())
    assert found.format == "nsight"
    assert (found.steps, found.steps_found_by) == ([1, 2], "marks")
    assert found.summary()["version"] == "3.28.1"
    assert found.summary()["left_out"] == []
    check(found)


def test_ranges_that_start_and_end_and_registered_names_are_read(tmp_path):
    check(traces.read(ok(tmp_path / "a.sqlite", kind=60, is_registered=True).write()))


def test_two_processes_of_a_file_are_two_ranks_in_the_order_of_their_devices(tmp_path):
    export = ok(tmp_path / "a.sqlite", pid=500, device=0)
    for number in (1, 2, 3):
        # Correlations of another process begin at 1 again.
        step(export, number, pid=400, device=1)
    export.call(0, 12, pid=77)  # a process that runs no kernel
    found = traces.read(export.write())
    assert found.rank_numbers == [0, 1]
    check(found, ranks=2)
    kernels = [(row["rank"], row["name"]) for row in found.ops.to_dicts()]
    assert {kernels.count((rank, "adam")) for rank in (0, 1)} == {3}
    for pid, rank in ((500, 5), (400, 2)):
        export.add("MPI_RANKS", globalTid=pid << 24 | 1, rank=rank)
    assert traces.read(export.write()).rank_numbers == [2, 5]


def test_the_rank_is_in_the_name_of_a_file_of_one_process(tmp_path):
    for rank in (3, 1):
        ok(tmp_path / f"rank{rank}.sqlite").write()
    assert traces.read(tmp_path).rank_numbers == [1, 3]
    # What is an export is told by its content.
    (tmp_path / "rank3.sqlite").rename(tmp_path / "rank2.db")
    assert traces.read([tmp_path / "rank1.sqlite", tmp_path / "rank2.db"]).rank_numbers == [1, 2]
    (tmp_path / "a.json").write_text("{}")
    refused([tmp_path / "rank1.sqlite", tmp_path / "a.json"], "give one format")


def test_a_step_that_is_cut_off_is_left_out(tmp_path):
    export = ok(tmp_path / "a.sqlite")
    step(export, 4, is_open=True)
    export.rows["CUPTI_ACTIVITY_KIND_KERNEL"] = export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][:-4]
    found = traces.read(export.write())
    assert found.steps == [1, 2, 3]
    check(found)


def test_ranges_that_only_look_like_steps_are_none(tmp_path):
    export = ok(tmp_path / "a.sqlite")
    for number in (1, 2, 3):
        at = 100 * MS + 13 * MS * number
        for part in range(4):
            export.range(f"batch {part}", at + part * MS, at + (part + 1) * MS)  # repeats
        export.range(f"iteration {3 * number}", at, at + MS)  # covers less
        export.range(f"step {number} of 3", at, at + MS)
        export.range("step", at, at + MS)
    found = traces.read(export.write())
    assert found.steps == [1, 2]
    check(found)


@pytest.mark.parametrize(
    ("without", "sizes"),
    [
        (("NVTX_PAYLOAD_SCHEMA_ENTRIES",), (None, None)),
        (("NVTX_EVENTS",), None),
        (("CUPTI_ACTIVITY_KIND_RUNTIME",), None),
    ],
)
def test_a_missing_table_costs_what_it_holds(tmp_path, without, sizes):
    export = ok(tmp_path / "a.sqlite")
    export.without = without
    found = traces.read(export.write())
    [row] = found.ranks.to_dicts()
    assert row["compute_us"] == pytest.approx(3 * 9000)
    assert row["exposed_us"] == pytest.approx(3 * 3000)
    assert row["transfers"] == 6
    if sizes is not None:
        check(found, sizes)
    else:
        assert without == ("CUPTI_ACTIVITY_KIND_RUNTIME",) or found.steps_found_by != "marks"
        assert {one["bytes"] for one in found.collectives.to_dicts()} == {None}


def test_a_payload_that_is_not_as_documented_says_nothing(tmp_path):
    export = ok(tmp_path / "a.sqlite")
    for row in export.rows["NVTX_EVENTS"]:
        if "binaryData" in row:
            row["binaryData"] = row["binaryData"][:-1]
    check(traces.read(export.write()), (None, None))
    for row in export.rows["NVTX_EVENTS"]:
        if "binaryData" in row:
            row["binaryData"], row["jsonText"] = None, '{"Message size [bytes]": 77}'
    check(traces.read(export.write()), (77, 77))


def test_a_payload_that_is_stored_as_text_is_read(tmp_path):
    path = ok(tmp_path / "a.sqlite").write()
    with sqlite3.connect(path) as file:
        file.execute("UPDATE NVTX_EVENTS SET binaryData = CAST(binaryData AS TEXT)")
    file.close()
    check(traces.read(path))


def test_sizes_are_of_the_input_of_a_rank(tmp_path):
    export = Export(tmp_path / "a.sqlite")
    export.kernel("compute", 0, 500, 50)
    export.range("ncclCommInitRank", 1, 2, jsonText='{"NCCL communicator ID": 7, "No. of ranks": 4, "Rank": 0}')
    kinds = {"ReduceScatter": 4000, "AllGather": 1000, "AlltoAll": None}
    for communicator in (7, 8):
        for kind in kinds:
            at = 1000 * (len(export.rows["CUPTI_ACTIVITY_KIND_KERNEL"]) + 1)
            said = f'{{"NCCL communicator ID": {communicator}, "Message size [bytes]": 1000}}'
            export.range(f"nccl{kind}", at, at + 90, jsonText=said)
            export.call(at + 50, at)
            export.kernel(
                "ncclDevKernel_" + ("SendRecv" if kind == "AlltoAll" else kind) + "(x)", at + 200, 300, at, 20
            )
    rows = traces.read(export.write()).collectives.to_dicts()
    assert [(row["group"], row["collective"], row["bytes"]) for row in rows] == [
        ("7", "reduce_scatter", 4000),
        ("7", "all_gather", 1000),
        ("7", "all_to_all", None),
        ("8", "reduce_scatter", None),
        ("8", "all_gather", 1000),
        ("8", "all_to_all", None),
    ]


def test_messages_and_calls_of_a_group_belong_to_the_kernel_that_its_end_launches(tmp_path):
    export = Export(tmp_path / "a.sqlite")
    schemas(export)
    export.kernel("compute", 0, 500, 50)
    at = 1000
    for calls, kernel in ((["ncclSend"], "ncclDevKernel_SendRecv(x)"), (["ncclAllReduce"] * 3, ALL_REDUCE)):
        export.range("ncclGroupStart", at, at + 10)
        for place, call in enumerate(calls):
            export.range(call, at + 20 + 10 * place, at + 25 + 10 * place, **export_payload(1000))
        export.range("ncclGroupEnd", at + 100, at + 200)
        export.call(at + 150, at)
        export.kernel(kernel, at + 300, 1000, at, 20)
        at += 5000
    found = traces.read(export.write())
    assert [(row["collective"], row["bytes"]) for row in found.collectives.to_dicts()] == [
        ("send", 1000),
        ("all_reduce", 3000),
    ]
    assert not found.summary()["left_out"]


def test_operators_of_emit_nvtx_tell_the_passes(tmp_path):
    export = ok(tmp_path / "a.sqlite")
    for number in (1, 2, 3):
        at = 100 * MS + 13 * MS * number
        export.range("aten::mm, seq = 3, op_id = 9", at + 50_000, at + 90_000)
        name = "autograd::engine::evaluate_function: MmBackward0, op_id = 10"
        export.range(name, at + 1_900_000, at + 5_070_000)
        export.range("Optimizer.step#Adam.step, op_id = 11", at + 8_150_000, at + 8_300_000)
    [row] = traces.read(export.write()).step()["ranks"]
    assert {part: ns / 1e6 for part, ns in row["passes"].items() if ns} == {
        "forward_ns": 2.0,
        "backward_ns": 6.0,
        "update_ns": 1.0,
    }


def test_copies_between_devices_are_communication(tmp_path):
    export = ok(tmp_path / "a.sqlite", steps=1)
    base = {"deviceId": 0, "contextId": 1, "streamId": 30, "globalPid": 99 << 24, "bytes": 8, "correlationId": None}
    for place, (kind, source, target) in enumerate([(10, 0, 1), (8, 0, 1), (8, 0, 0), (1, None, None)]):
        ends = {"copyKind": kind, "srcDeviceId": source, "dstDeviceId": target}
        start = 500 * MS + place * MS
        export.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=start + 1000, **base, **ends)
    [row] = traces.read(export.write()).ranks.to_dicts()
    assert row["transfers"] == 2 + 2
    assert row["compute_us"] == pytest.approx(9002)


def test_what_nobody_knows_is_counted_and_its_step_left_out(tmp_path):
    export = ok(tmp_path / "a.sqlite", steps=4)
    export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][7]["end"] = 0  # of step 2
    export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][12]["demangledName"] = 999  # of step 3: no such string
    export.add("MPI_COLLECTIVES_EVENTS", start=1)
    found = traces.read(export.write())
    assert found.steps == [1]
    gaps = {gap["what"]: (gap["count"], gap["names"]) for gap in found.summary()["left_out"]}
    assert gaps["damaged"] == (2, ["kernel"])
    assert gaps["unknown_category"] == (1, ["MPI_COLLECTIVES_EVENTS"])


def test_a_model_and_the_command_take_an_export(tmp_path):
    path = ok(tmp_path / "a.sqlite", pid=5).write()
    scenario = gt.Scenario.from_dict({"job": {"a": {"model": "a.sqlite", "workers": 2}}}, tmp_path)
    assert "step 2 of rank 0" in str(scenario.to_dict())
    assert gt.convert(path)["format"] == "nsight"


# What is wrong


def refused(path: Path | list[Path], *said: str) -> None:
    with pytest.raises(gt.TraceError) as caught:
        traces.read(path)
    for part in (str(path[0] if isinstance(path, list) else path), *said):
        assert part in str(caught.value)


def test_what_an_export_lacks_is_named(tmp_path):
    path = tmp_path / "a.sqlite"
    refused(ok(path, without=("StringIds",)).write(), "StringIds")
    refused(ok(path, without=("CUPTI_ACTIVITY_KIND_KERNEL",)).write(), "no kernels", "--trace=cuda,nvtx")
    with sqlite3.connect(ok(path).write()) as file:
        file.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN end TO stop")
    file.close()
    refused(path, "CUPTI_ACTIVITY_KIND_KERNEL has no column end", "3.28.1")
    export = ok(path)
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=1)
    refused(export.write(), "--cuda-graph-trace=node")


def test_a_database_that_is_no_export_is_named(tmp_path):
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE runs (id INTEGER)")
    file.close()
    refused(path, "no export of Nsight Systems")
    with sqlite3.connect(path) as file:
        # A view may compute without end.
        file.execute(
            "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS "
            "WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start FROM n"
        )
    file.close()
    refused(path, "no export of Nsight Systems")


def test_a_damaged_export_is_read_or_refused(tmp_path):
    whole = ok(tmp_path / "a.sqlite").write().read_bytes()
    path = tmp_path / "b.sqlite"
    for place in (4096, len(whole) // 2, len(whole) - 100):
        path.write_bytes(whole[:place])
        refused(path, "damaged or cut off")
    path.write_bytes(nsight.MAGIC + b"\0" * 100)
    refused(path)
    path.write_bytes(b"")
    refused(path)


def test_any_damage_of_an_export_is_read_or_refused(tmp_path):
    whole = ok(tmp_path / "a.sqlite", steps=2).write().read_bytes()
    used = [place for place, byte in enumerate(whole) if byte]
    draw = random.Random(5)
    for _ in range(80):
        content = bytearray(whole)
        for place in draw.sample(used, draw.randrange(1, 6)):
            content[place] = draw.randrange(256)
        path = tmp_path / "b.sqlite"
        path.write_bytes(content)
        with contextlib.suppress(gt.TraceError):
            traces.read(path).summary()
    export = ok(tmp_path / "a.sqlite", steps=1)
    export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][2] |= {"start": "soon"}
    refused(export.write(), "nobody can tell in which step it is")


def test_a_report_is_named_with_the_command_that_exports_it(tmp_path):
    for name in ("a.nsys-rep", "a.qdrep", "a.json"):
        path = tmp_path / name
        path.write_bytes(b"NVIDIA Tegra Profiler Report 2026@4@1@191-264138605071v0.\n\x0bLocal (CLI)\x12\n\0\0")
        refused(path, f"nsys export --type sqlite {path}")


def test_the_size_of_an_export_is_limited(tmp_path):
    from gradtide import inputs

    path = ok(tmp_path / "a.sqlite").write()
    with inputs.allowing(1000):
        refused(path, "--max-input")
