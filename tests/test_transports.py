"""Transports end to end: the command, from a scenario file to the summary."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

SCENARIO = """
[job.train]
model = {{ layers = [{{ name = "a", forward = "1ms", backward = "2ms", parameters = "4MB" }}] }}
workers = 4
iterations = 3

[cluster]
topology = {{ kind = "star", hosts = 4 }}
queue = {queue}
transport = {transport}

[traffic.web]
flows = [
    {{ start = "0s", src = "h0", dst = "h3", bytes = "20MB" }},
    {{ start = "0s", src = "h1", dst = "h3", bytes = "20MB" }},
]

[run]
engine = "packet"
duration = "100ms"
"""
FIFO = '{ kind = "fifo", capacity = "250pkt" }'
ECN = '{ kind = "ecn", threshold = "65pkt", capacity = "250pkt" }'


def run(gradtide: Any, folder: Path, transport: str, queue: str) -> dict[str, Any]:
    """Run the scenario; return its summary."""
    file = folder / "scenario.toml"
    file.write_text(SCENARIO.format(transport=transport, queue=queue), encoding="utf-8")
    code, out, err = gradtide("run", file, "--json", "-o", folder / "run")
    assert code == 0, err
    summary: dict[str, Any] = json.loads(out)
    return summary


@pytest.mark.parametrize(
    ("transport", "queue", "marks"),
    [
        ('{ kind = "newreno" }', FIFO, False),
        ('{ kind = "newreno" }', ECN, False),
        ('{ kind = "newreno+ecn" }', ECN, True),
        ('{ kind = "cubic" }', FIFO, False),
        ('{ kind = "cubic", ecn = true }', ECN, True),
        ('{ kind = "dctcp" }', ECN, True),
        ('{ kind = "ideal" }', FIFO, False),
    ],
)
def test_every_transport_runs_and_marks_only_what_can_be_marked(
    gradtide: Any, tmp_path: Path, transport: str, queue: str, marks: bool
) -> None:
    summary = run(gradtide, tmp_path, transport, queue)
    assert summary["jobs"]["train"]["iterations"] == 3
    assert summary["traffic"]["web"]["all"]["completed"] == 2
    assert (summary["links"]["ce_marks"] > 0) == marks
    # Two flows meet at h3's port with whole windows: what does not yield fills the queue and loses.
    assert (summary["links"]["drops"] > 0) == (not marks and "ideal" not in transport)


def test_dctcp_keeps_a_shorter_queue_than_newreno_and_loses_nothing(gradtide: Any, tmp_path: Path) -> None:
    links, longest = {}, {}
    for kind in ("dctcp", "newreno"):
        (tmp_path / kind).mkdir()
        links[kind] = run(gradtide, tmp_path / kind, f'{{ kind = "{kind}" }}', ECN)["links"]
        with (tmp_path / kind / "run/links.csv").open(encoding="utf-8") as table:
            rows = [row for row in csv.DictReader(table) if row["link"].startswith("s-")]
        longest[kind] = max(int(row["max_queue_packets"]) for row in rows)
    assert links["dctcp"]["ce_marks"] > 0
    assert (links["dctcp"]["drops"], links["newreno"]["drops"] > 0) == (0, True)
    assert longest["dctcp"] < longest["newreno"] == 250


def test_the_ideal_transport_ends_when_its_bytes_have_crossed(gradtide: Any, tmp_path: Path) -> None:
    # Both flows share the last link from the first packet on: 2 x 20 MB in segments of 1380 bytes and headers of 54 at
    # 10 Gbit/s, and a handshake and a close of some 40 us each. The job's packets in between are 3 x 6 MB at most: each
    # of 3 iterations sends 6 quarters of 4 MB to h3.
    summary = run(gradtide, tmp_path, '{ kind = "ideal" }', FIFO)
    bytes_on_wire = 2 * (20_000_000 + 14_493 * 54)
    job_bytes = 3 * 6 * (1_000_000 + 725 * 54)
    least_ms, most_ms = (n * 8 / 10**10 * 1e3 for n in (bytes_on_wire, bytes_on_wire + job_bytes))
    slowest = summary["traffic"]["web"]["all"]["p99_fct_ms"]
    assert least_ms <= slowest <= most_ms + 0.2
