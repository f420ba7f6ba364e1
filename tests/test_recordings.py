"""Recordings of strangers, read as they are: the figures of each.

They stay outside the project: `GRADTIDE_FIELD` names the folder that holds `traces/` and `real/`. What is in them is
drawn and written in every version's spelling in crates/trace/tests/versions.rs.
"""

import os
from pathlib import Path

import pytest

import gradtide as gt
from gradtide import traces

FIELD = Path(os.environ.get("GRADTIDE_FIELD", "."))

pytestmark = pytest.mark.skipif("GRADTIDE_FIELD" not in os.environ, reason="GRADTIDE_FIELD names no folder")

MB = 1_000_000
REFUSED = {"repeat2": "both of rank 0", "rank_minus1": "-1 is no rank"}
SPANS_MS = {"host_bound": 100.0, "host_bound_nomarks": 100.0, "nccl_cpu_only": 12.99}
COMPUTED_MS = {"group_of_one.json": 12.0, "nccl_cpu_only": 0.26}
KINDS = {
    "alltoall_sendrecv": "all_to_all",
    "deepep": "all_to_all",
    "deepep_bare": "all_to_all",
    "pp_named": "send",
    "pp_noargs": "send",
}
BYTES: dict[str, list[int | None]] = {
    "args_on_call_only": [4 * MB, 40 * MB],
    "shifted_pairs": [4 * MB, 40 * MB],
    "shifted_control": [4 * MB, 40 * MB],
    "cuda_graph": [None, None],
    "deepep": [None, None],
    "deepep_bare": [None, None],
}
NO_TRANSFERS = ("group_of_one.json", "nccl_cpu_only")


@pytest.mark.parametrize("case", sorted(path.name for path in FIELD.glob("traces/*")))
def test_a_case_has_its_figures(case):
    path = FIELD / "traces" / case
    if case in REFUSED:
        with pytest.raises(gt.TraceError, match=REFUSED[case]):
            gt.from_kineto(path)
        return
    found = gt.from_kineto(path).waterfall()
    row = found.summary["ranks"][0]
    sends = case not in NO_TRANSFERS
    assert row["span_ms"] == pytest.approx(SPANS_MS.get(case, 13.0), abs=0.01)
    assert row["compute_ms"] == pytest.approx(COMPUTED_MS.get(case, 9.0), abs=0.01)
    assert row["exposed_ms"] == pytest.approx(3.0 if sends else 0.0, abs=0.01)
    kind = KINDS.get(case, "all_reduce")
    sizes = BYTES.get(case, [4 * MB, 4 * MB])
    assert [(one["collective"], one["bytes"]) for one in found.rows] == [(kind, size) for size in sizes if sends]


@pytest.mark.parametrize(
    ("name", "transfers", "exposed_ms", "overlapped_ms"),
    [
        ("hta/negative_queue_length_values_check_rank0.json.gz", 80, 184.571, 3.299),
        ("hta/timeline_analysis_sampled_rank-0.json.gz", 10, 336.033, 60.166),
        ("hta/cpu_only_rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 10, 1102.98, 0.0),
        ("hta/nccl_parser_config_nccl_data.json.gz", 21, 39.191, 7.686),
        ("hta/trace_diff_control_control.json.gz", 60, 86.554, 76.981),
        ("hta/amd_trace_mi250_minitoy_train_ROCm6_2_kineto.json.gz", 0, 0.0, 0.0),
        ("param/linear_kineto.json.gz", 0, 0.0, 0.0),
    ],
)
def test_a_real_recording_has_its_figures(name, transfers, exposed_ms, overlapped_ms):
    [row] = gt.from_kineto(FIELD / "real" / name).ranks.to_dicts()
    assert row["transfers"] == transfers
    assert row["exposed_us"] / 1e3 == pytest.approx(exposed_ms, abs=0.01)
    assert row["overlapped_us"] / 1e3 == pytest.approx(overlapped_ms, abs=0.01)


def test_steps_of_an_old_version_follow_the_launches_of_its_kernels():
    # Recorded in 2022, where a kernel's External id repeats its correlation. The host waits for the device in each
    # step, so both count the same: ProfilerStep#1009 to #1013 last 75.473, 76.940, 76.212, 76.727 and 78.473 ms.
    trace = gt.from_kineto(FIELD / "real" / "hta" / "trace_diff_control_control.json.gz")
    spans_ms = [trace.step(number)["ranks"][0]["span_ns"] / 1e6 for number in trace.steps]
    assert spans_ms == pytest.approx([75.473, 76.940, 76.212, 76.727, 78.473], abs=0.1)


@pytest.mark.parametrize(
    ("name", "rank", "nodes", "transfers"),
    [
        ("linear_et", 0, 196, {}),
        ("1.0.3-chakra.0.0.4_resnet_1gpu_et", 0, 3186, {}),
        ("resnet_et", 0, 3186, {}),
        ("1.1.0-chakra.0.0.4_resnet_2gpu_et", 1, 3216, {"all_reduce": 306_684_384, "broadcast": 638_712}),
    ],
)
def test_an_execution_trace_has_its_operators_and_transfers(name, rank, nodes, transfers):
    # Three steps of DDP: 25,557,032 parameters of ResNet-50, 4 bytes each. A group of one sends nothing.
    trace = traces.read(FIELD / "real" / "param" / f"{name}.json.gz")
    assert (trace.format, trace.rank_numbers, trace.has_times) == ("pytorch-et", [rank], False)
    assert len(trace.ops) == nodes
    rows = trace.collectives.to_dicts()
    assert {kind: sum(row["bytes"] for row in rows if row["collective"] == kind) for kind in transfers} == transfers
    assert {row["collective"] for row in rows} == set(transfers)
    assert all(row["group_ranks"] == "0 1" for row in rows)
