"""Specs of the core for tests: one small place that knows its fields."""

import csv
import io
import json
import re
from functools import reduce
from operator import getitem

import pytest

from gradtide import _core

NEWRENO = {
    "congestion": {"kind": "newreno", "byte_counting": False},
    "ecn": False,
    "segment_bytes": 1380,
    "initial_window_segments": 10,
    "window_bytes": 32 * 1024 * 1024,
    "recovery": "sack",
    "timers": "derived",
    "min_rto_ps": None,
    "restart_after_idle": False,
}
"""The transport of a scenario that names none."""
COLUMNS = ("start_ps", "src", "dst", "bytes", "band")


def spec(  # a table  # noqa: PLR0913 - the fields of a spec
    layers,
    *,
    workers=2,
    iterations=3,
    order=None,
    fusion=0,
    chunk=None,
    credit=1,
    barrier=True,
    rate_bps=10**9,
    delay_ps=10**7,
    overhead_ps=0,
    slowdown_ppm=10**6,
    efficiency_ppm=10**6,
    host_latency_ps=0,
    start_ps=0,
    seed=0,
    engine="fluid",
    duration_ps=None,
    traffic=(),
    band=0,
    bands=None,
    sync_ps=0,
    noise_ppm=0,
    straggler=None,
):
    """Return a spec of one job.

    `layers` are (forward_ps, backward_ps, parameter_bytes[, update_ps]); `traffic` is (start_ps, src, dst, bytes[,
    band]) of one neighbour's flows, `web`; `straggler` is (worker or None, factor_ppm[, probability_ppm]).
    """
    if straggler is not None:
        worker, factor_ppm, *probability_ppm = straggler
        straggler = {
            "worker": worker,
            "factor_ppm": factor_ppm,
            "probability_ppm": probability_ppm[0] if probability_ppm else 10**6,
        }
    flows = [(*flow, 0)[:5] for flow in traffic]
    columns = zip(*flows, strict=True)
    return {
        "jobs": [
            {
                "name": "train",
                "layers": [
                    {
                        "name": f"layer{index}",
                        "forward_ps": forward,
                        "backward_ps": backward,
                        "parameter_bytes": size,
                        "update_ps": update[0] if update else 0,
                    }
                    for index, (forward, backward, size, *update) in enumerate(layers)
                ],
                "hosts": list(range(workers)),
                "iterations": iterations,
                "collective": {"algorithm": {"kind": "ring"}},
                "schedule": {
                    "order": order or {"kind": "fifo"},
                    "fusion": {"kind": "cap", "bytes": fusion},
                    "chunk_bytes": chunk,
                    "credit": credit,
                    "barrier": barrier,
                    "overhead_ps": overhead_ps,
                    "sync_ps": sync_ps,
                },
                "bands": bands or [band],
                "start_ps": start_ps,
                "compute": {
                    "overlap_slowdown_ppm": slowdown_ppm,
                    "noise_ppm": noise_ppm,
                    "straggler": straggler,
                },
            }
        ],
        "cluster": {
            "topology": {"kind": "star", "hosts": workers},
            "link": {"rate_bps": rate_bps, "delay_ps": delay_ps, "efficiency_ppm": efficiency_ppm},
            "host_latency_ps": host_latency_ps,
        },
        "traffic": [{"name": "web"} | dict(zip(COLUMNS, map(list, columns), strict=True))] if flows else [],
        "run": {"engine": engine, "seed": seed, "duration_ps": duration_ps, "timeline_iterations": 1},
    }


def run(spec):
    """Run a spec; return (summary, output)."""
    output = _core.run(json.dumps(spec))
    return json.loads(output.summary_json), output


def column_ps(table, name):
    """Return a time column in whole picoseconds, read from the CSV, which keeps them all."""
    return [int(text.replace(".", "")) for text in _column(table, name)]


PRIORITY = {"kind": "priority"}


def core_fields(spec, *place):
    """Return the keys that the core reads in the record at `place` of a spec."""
    probed = json.loads(json.dumps(spec))
    reduce(getitem, place, probed)["?"] = 0
    with pytest.raises(ValueError, match=r"unknown field `\?`") as refused:
        _core.planned(json.dumps(probed), 0)
    return set(re.findall(r"`(\w+)`", str(refused.value)))


def dag(recvs: int, fan: int = 3) -> str:
    """Return a graph whose best order is a long search."""
    ops = [{"id": index, "kind": "recv", "time": 5 + index * 7919 % 13, "inputs": []} for index in range(recvs)]
    for index in range(recvs):
        inputs = sorted({(index * 31 + step * step * 17) % recvs for step in range(fan)})
        ops.append({"id": recvs + index, "kind": "comp", "time": 3 + index * 104729 % 17, "inputs": inputs})
    ops.append({"id": 2 * recvs, "kind": "comp", "time": 1, "inputs": list(range(2 * recvs))})
    return json.dumps({"ops": ops, "target": 2 * recvs})


def sent_bytes(spec, output):
    """Return the least and the most bytes that the hosts of a run must have sent, by its tables of transfers and flows.

    Both are the same unless the run's duration cut something off. Of that, these tables do not say how far it had come.
    """
    summary = json.loads(output.summary_json)
    duration_ps = spec["run"]["duration_ps"]
    is_cut = duration_ps is not None and summary["end_ps"] >= duration_ps
    rows = output.transfers
    bytes_of = {}
    for name, iteration, size in zip(
        rows.column("job"), rows.column("iteration").tolist(), rows.column("bytes").tolist(), strict=True
    ):
        bytes_of[name, iteration] = bytes_of.get((name, iteration), 0) + size
    least = most = 0
    # A job that goes on for others is stopped within an iteration.
    is_stopped = is_cut or len(spec["jobs"]) > 1
    for job, did in zip(spec["jobs"], summary["jobs"], strict=True):
        # An iteration sends the same bytes every time.
        sent, count = bytes_of.get((job["name"], 0), 0), did["iteration_count"]
        unmeasured = did["unmeasured"]["before"] + did["unmeasured"]["after"]
        if job.get("servers") is not None:
            # Workers that are not in step have as many iterations as each had time for.
            all_sent = sum(size for (name, _), size in bytes_of.items() if name == job["name"])
            least += all_sent
            most += all_sent + sent * (unmeasured + is_stopped)
        else:
            ranks, algorithm = len(job["hosts"]), job["collective"]["algorithm"]
            times = _core.collective_counts(json.dumps(algorithm), ranks)[2]
            # One iteration is run before the first that is measured, unless those begin with the backward pass.
            count += unmeasured + (spec["run"]["engine"] != "packet" or job.get("ops") is not None)
            rounded = _rounded(spec, job, rows) * (count + is_stopped)
            # Without a barrier, what the last iteration sends may still be under way in the next one.
            least += sent * times * (count - is_stopped) - rounded
            # Of a tree, every card carries what those of its inner nodes do.
            most += sent * (times + 2 * (algorithm["kind"] == "tree")) * (count + is_stopped) + rounded
    flows = output.flows
    is_received = (text != "" for text in _column(flows, "received_us"))
    for size, is_whole in zip(flows.column("bytes").tolist(), is_received, strict=True):
        least += size if is_whole else 0
        most += size
    return least, most


def _rounded(spec, job, rows):
    """Return by how many bytes an iteration's flows over nodes, and those of trees, may differ from what is sent.

    Each of two flows of a rank has whole bytes, and so has each of its at most 2 n rounds.
    """
    if spec["cluster"].get("node") is None and job["collective"]["algorithm"]["kind"] != "tree":
        return 0
    mine = zip(rows.column("job"), rows.column("iteration").tolist(), rows.column("bytes").tolist(), strict=True)
    chunk, ranks = job["schedule"]["chunk_bytes"], len(job["hosts"])
    exchanges = sum(-(-size // chunk) if chunk else 1 for name, at, size in mine if (name, at) == (job["name"], 0))
    return exchanges * 2 * ranks * (2 * ranks + 1)


def unconserved(spec, output):
    """Return what is wrong with the bytes of a run's links; nothing if they are those of its messages and flows."""
    least, most = sent_bytes(spec, output)
    links = list(zip(output.links.column("link"), output.links.column("bytes").tolist(), strict=True))
    # On nodes, a message goes over ports of GPUs or over network cards.
    sent = sum(size for name, size in links if re.fullmatch(r"h\d+|node\d+\.(gpu|nic)\d+->.*", name))
    received = sum(size for name, size in links if re.search(r"-h\d+$|->node\d+\.(gpu|nic)\d+$", name))
    match spec["run"]["engine"]:
        case "fluid" if not (least <= sent <= most and received == sent):
            return f"hosts sent {sent} and received {received} bytes, messages and flows have {least} to {most}"
        # Headers come on top, and what queues have refused is sent again.
        case "packet" if not least <= received <= sent:
            return f"hosts sent {sent} and received {received} bytes with headers, messages and flows have {least}"
    return ""


def _column(table, name):
    header, *rows = csv.reader(io.StringIO(table.to_csv()))
    return [row[header.index(name)] for row in rows]
