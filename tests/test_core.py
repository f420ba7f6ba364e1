"""What the core does with specs that only it sees: runs without a job, and the cost of hosts for messages."""

import json

import pytest

from gradtide import _core
from gradtide.errors import CoreRefusal
from specs import column_ps, run, spec

FLOWS = [(0, 0, 1, 125_000), (10**9, 2, 1, 125_000), (10**9, 0, 1, 40_000)]
"""Start in ps, source, destination, bytes: the last two meet at host 1."""


def without_jobs(engine, *, flows=FLOWS, **changes):
    """Return a spec of background flows on a star of 4 hosts at 1 Gbit/s and 10 us a link."""
    return {**spec([(1, 1, 1)], workers=4, engine=engine, traffic=flows, **changes), "jobs": []}


def test_a_flow_alone_takes_its_bytes_and_both_delays():
    # 125 kB at 1 Gbit/s take 1 ms; each of two links has 10 us.
    summary, output = run(without_jobs("fluid", flows=FLOWS[:1]))
    assert column_ps(output.flows, "fct_us") == [10**9 + 2 * 10**7]
    assert (summary["jobs"], summary["end_ps"]) == ([], 10**9 + 2 * 10**7)
    assert output.links.column("utilisation").max() == pytest.approx(1 / 1.02)


@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_flows_without_a_job_are_those_before_one_begins(engine):
    # A job that starts after the last flow changes nothing for them; nor do its tables lack anything without it.
    alone, output = run(without_jobs(engine))
    _, beside = run(spec([(10**9, 10**9, 10**6)], workers=4, engine=engine, traffic=FLOWS, start_ps=10**11))
    assert output.flows.to_csv() == beside.flows.to_csv()
    assert len(column_ps(output.flows, "fct_us")) == len(FLOWS)
    for table in ("iterations", "workers", "transfers", "operations"):
        assert getattr(output, table).to_csv().count("\n") == 1
    assert alone["event_count"] > 0


def test_a_run_without_a_job_tells_its_progress_and_ends_with_its_duration():
    shares = []
    flows = [(index * 10**6, index % 4, (index + 1) % 4, 10**4) for index in range(20_000)]
    output = _core.run(json.dumps(without_jobs("packet", flows=flows)), lambda share: shares.append(share) or True)
    assert json.loads(output.summary_json)["end_ps"] > 10**10
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1
    cut, output = run(without_jobs("packet", flows=flows, duration_ps=10**9 - 1))
    assert cut["end_ps"] == 10**9 - 1
    assert output.flows.to_csv().count("\n") == 1 + 1_000


def test_nothing_at_all_is_refused():
    with pytest.raises(CoreRefusal, match="neither a job nor background traffic"):
        run(without_jobs("fluid", flows=()))


# The cost of a host for each message


def comm_ps(engine, message_ps, *, algorithm="ring", workers=8, layer_bytes=80_000, **changes):
    """Return the time of one exchange."""
    given = spec([(10**9, 10**9, layer_bytes)], workers=workers, engine=engine, iterations=1, **changes)
    given["jobs"][0]["collective"] |= {"algorithm": {"kind": algorithm}}
    given["cluster"]["host"] = {"message_ps": message_ps, "stages": {}}
    return run(given)[0]["jobs"][0]["comm_ps"]


@pytest.mark.parametrize("workers", [2, 5, 8])
def test_a_ring_takes_its_bytes_delays_and_host_costs_in_every_step(workers):
    # 2(N-1) (S/N/B + 2d + h), with 8000 bits of 1 Gbit/s for each rank: 8 us, two links of 10 us, 3 us of the host.
    found = comm_ps("fluid", 3 * 10**6, workers=workers, layer_bytes=1_000 * workers)
    assert found == 2 * (workers - 1) * (8 + 2 * 10 + 3) * 10**6


def test_a_ring_of_packets_is_later_by_its_host_costs():
    # Messages of 10 kB fit into the first window of 10 segments: all that is sent waits for the host alone.
    assert comm_ps("packet", 5 * 10**6) - comm_ps("packet", 0) == 2 * 7 * 5 * 10**6


@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_a_host_is_at_one_message_at_a_time(engine):
    # Each of 8 ranks has 7 messages for the others: their host costs add up, and the bytes hide behind them.
    cost_ps = 10**9
    longer = comm_ps(engine, cost_ps, algorithm="all_to_all") - 7 * cost_ps
    # Then the last message of 10 kB: 80 us, with headers on the packet engine, and two links of 10 us.
    assert 100 * 10**6 <= longer <= (80 * 1.05 + 12 + 20) * 10**6


@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_a_host_that_adds_nothing_is_the_default(engine):
    bare = spec([(10**9, 10**9, 10**6)], workers=4, engine=engine)
    assert "host" not in bare["cluster"]
    zero = json.loads(json.dumps(bare))
    zero["cluster"]["host"] = {"message_ps": 0, "stages": {}}
    assert run(bare)[1].transfers.to_csv() == run(zero)[1].transfers.to_csv()
