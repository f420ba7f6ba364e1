"""Files of other tools: what each says comes through exactly, both ways, and what cannot is refused by name."""

import itertools
import json
import re
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradtide as gt
from file_formats import DATA, TOPOLOGY, convert
from gradtide import traffic, units


class Folder:
    """Files of one example: conversions by what is in them."""

    def __init__(self, path):
        self.path = path
        self.numbers = itertools.count()

    def through(self, text, form, into, **options):
        number = next(self.numbers)
        source, target = self.path / f"{number}.in", self.path / f"{number}.out"
        source.write_text(text, encoding="utf-8")
        done = convert(source, target, into, form, **options)
        return target.read_text(encoding="utf-8"), done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Folder(tmp_path_factory.mktemp("formats"))


many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Flows

hosts = st.integers(0, 40)
flows = st.lists(
    st.tuples(st.integers(0, 10**12), hosts, st.integers(1, 40), st.integers(1, 2**31 - 1)), min_size=1, max_size=20
)


def flow_csv(rows):
    return "start_ns,src,dst,bytes\n" + "".join(f"{t},{a},{(a + d) % 41},{n}\n" for t, a, d, n in rows)


@many
@given(rows=flows)
def test_flows_come_back_from_htsim_and_in_order_of_start_from_hpcc(folder, rows):
    rows = [row for row in rows if row[2] % 41] or [(0, 0, 1, 1)]
    text = flow_csv(rows)
    there, done = folder.through(text, "flows", "htsim-cm")
    assert there.startswith(f"Nodes {done.figures['hosts']}\nConnections {len(rows)}\n")
    assert folder.through(there, "htsim-cm", "flows")[0] == text
    there, done = folder.through(text, "flows", "hpcc-flow")
    back, _ = folder.through(there, "hpcc-flow", "flows")
    assert back == flow_csv(sorted(rows, key=lambda row: row[0]))
    assert done.figures["bytes"] == sum(row[3] for row in rows)


@pytest.mark.parametrize(
    ("start", "expected", "rounded"),
    [
        ("2", 2 * 10**9, False),
        ("2.000000001", 2 * 10**9 + 1, False),
        ("1e-3", 10**6, False),
        ("0.0", 0, False),
        # Half a nanosecond is rounded up; a picosecond less is rounded down.
        ("0.0000000005", 1, True),
        ("0.000000000499", 0, True),
        ("4.9994e-9", 5, True),
    ],
)
def test_seconds_become_nanoseconds_and_what_is_rounded_is_said(folder, start, expected, rounded):
    text, done = folder.through(f"1\n0 1 3 100 7 {start}\n", "hpcc-flow", "flows")
    assert text == f"start_ns,src,dst,bytes\n{expected},0,1,7\n"
    assert ("1 start is rounded to whole nanoseconds" in done.notes) == rounded


def test_hosts_of_a_topology_are_what_is_no_switch(tmp_path):
    done = convert(DATA / "flow.txt", tmp_path / "flows.csv", topology=DATA / "topology.txt")
    assert (tmp_path / "flows.csv").read_bytes() == (DATA / "flows.csv").read_bytes()
    assert done.notes == ["2 lines after the flows are left out, as HPCC leaves them"]
    assert any("--topology" in note for note in convert(DATA / "flow.txt").notes)
    switch = tmp_path / "flow.txt"
    switch.write_text("1\n5 1 3 100 7 0\n")
    with pytest.raises(gt.ScenarioError, match="node 5 is not a host of the topology"):
        convert(switch, tmp_path / "no.csv", topology=DATA / "topology.txt")


def test_bands_are_kept_where_there_are_any_and_else_said_to_be_left_out(folder):
    text = "start_ns,src,dst,bytes,band\n0,0,1,5,1\n"
    assert folder.through(text, "flows", "flows")[0] == text
    for into in ("htsim-cm", "hpcc-flow"):
        assert folder.through(text, "flows", into)[1].notes == ["bands are left out: the format has none"]


FLOW_FAULTS = [
    ("htsim-cm", "Connections 1\n0->1 id 1 trigger 3 size 9\n", 2, "trigger", "starts when trigger 3 fires"),
    ("htsim-cm", "Connections 1\n0->1 id 1 start 0\n", 2, "size", "has no size"),
    ("htsim-cm", "Connections 1\n0->1 id 1 start 0 size 0\n", 2, "size", "never ends"),
    ("htsim-cm", "Connections 1\n0->1 id 1 size 9\n", 2, "start", "has no start"),
    ("htsim-cm", "Connections 1\n0->1 id 1 start\n", 2, "start", "`start` has no value"),
    ("htsim-cm", "Connections 1\n0->1 id 1 start nan size 9\n", 2, "start", '"nan" is not a time'),
    ("htsim-cm", "Connections 1\n0->1 id 1 start -5 size 9\n", 2, "start", '"-5" is not a time'),
    ("htsim-cm", "Connections 1\n0->0 id 1 start 0 size 9\n", 2, "dst", "to itself"),
    ("htsim-cm", "Nodes 1\nConnections 1\n0->1 id 1 start 0 size 9\n", 3, "", "there is no node 1"),
    ("htsim-cm", "Connections 1\n0->1 id 1 start 0 size 9 speed 3\n", 2, "", 'unknown word "speed"'),
    ("htsim-cm", "Connections 1\n0->1 id 1 start 0 size 9\nfailure switch_type TOR\n", 3, "failure", "a link fails"),
    ("htsim-cm", "Connections 2\n0->1 id 1 start 0 size 9\n", 1, "Connections", "is 2 flows, but 1 follow"),
    ("htsim-cm", "Connections 0\n", None, "", "has no flows"),
    ("htsim-cm", "what\n", 1, "", "does not begin a line"),
    ("hpcc-flow", "", 1, "", "not the number of flows"),
    ("hpcc-flow", "2\n0 1 3 100 9 0\n", 1, "", "line 1 counts 2 flows and 1 follow"),
    ("hpcc-flow", "1\n0 1 3 100 9\n", 2, "", "has 5 fields"),
    ("hpcc-flow", "1\n0 1 3 100 0 0\n", 2, "size", '"0" is not such a number'),
    ("hpcc-flow", "1\n0 1 3 100 1.5 0\n", 2, "size", '"1.5" is not such a number'),
    ("hpcc-flow", "1\n0 1 3 100 9999999999999999 0\n", 2, "size", "is not such a number"),
    ("hpcc-flow", "1\n0 1 3 100 9 nan\n", 2, "start", '"nan" is not a time'),
    ("hpcc-flow", "1\n0 1 3 100 9 inf\n", 2, "start", '"inf" is not a time'),
    ("hpcc-flow", "1\n0 1 3 100 9 1e99\n", 2, "start", '"1e99" is not a time'),
    ("hpcc-flow", "1\n0 1 3 100 9 -1\n", 2, "start", '"-1" is not a time'),
    ("hpcc-flow", "1\n-1 1 3 100 9 0\n", 2, "src", '"-1" is not such a number'),
    ("hpcc-flow", "1\n1 1 3 100 9 0\n", 2, "dst", "to itself"),
    ("flows", "start_ns,src,dst,bytes\n0,0,1,x\n", 2, "bytes", '"x" is not a whole number'),
    ("flows", "start_ns,src,dst,bytes\n", None, "", "has no flows"),
    ("flows", "", None, "", "is empty"),
]


@pytest.mark.parametrize(("form", "text", "line", "field", "said"), FLOW_FAULTS)
def test_a_wrong_flow_is_refused_by_line_and_field_and_nothing_is_written(tmp_path, form, text, line, field, said):
    source, target = tmp_path / "in.txt", tmp_path / "out.csv"
    source.write_text(text)
    target.write_text("as it was")
    with pytest.raises(gt.ScenarioError) as caught:
        convert(source, target, "flows", form)
    [fault] = caught.value.errors
    assert (fault["line"], fault["loc"]) == (line, field)
    assert said in fault["msg"]
    assert fault["hint"]
    assert fault["file"] == str(source)
    assert target.read_text() == "as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.csv"]


def test_a_trigger_that_nothing_waits_for_changes_nothing(folder):
    text = (
        "Nodes 2\nConnections 1\nTriggers 1\n0->1 id 1 start 0.005 size 9 send_done_trigger 1\ntrigger id 1 oneshot\n"
    )
    assert folder.through(text, "htsim-cm", "flows")[0] == "start_ns,src,dst,bytes\n5,0,1,9\n"


@pytest.mark.parametrize(("into", "most"), [("htsim-cm", 2**31 - 1), ("hpcc-flow", 2**32 - 1)])
def test_a_flow_that_the_other_tool_cannot_read_is_not_written(folder, into, most):
    folder.through(f"start_ns,src,dst,bytes\n0,0,1,{most}\n", "flows", into)
    with pytest.raises(gt.ScenarioError, match=f"reads at most {most:,}"):
        folder.through(f"start_ns,src,dst,bytes\n0,0,1,{most + 1}\n", "flows", into)


def test_all_faults_of_a_file_are_told_at_once_up_to_a_limit(tmp_path):
    source = tmp_path / "flow.txt"
    source.write_text("1000\n" + "0 0 3 100 9 0\n" * 1000)
    with pytest.raises(gt.ScenarioError) as caught:
        convert(source)
    assert [fault["line"] for fault in caught.value.errors] == list(range(2, 22))


# Sizes

points = st.tuples(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=12), st.lists(st.integers(1, 10**9), min_size=13, max_size=13)
)


def cdf_of(rises, shares):
    """Sizes and shares that rise with every point, from a share of 0 to 1; shares have 9 decimals."""
    sizes = list(itertools.accumulate([0, *rises]))
    cuts = sorted({0, 10**9, *shares[: len(sizes) - 2]})
    pairs = list(zip(sizes, [*cuts[: len(sizes) - 1], 10**9], strict=False))
    return [(size, Fraction(cut, 10**9)) for size, cut in pairs if cut != 10**9] + [(sizes[-1], Fraction(1))]


@many
@given(drawn=points)
def test_a_distribution_comes_back_exactly_from_each_dialect(folder, drawn):
    expected = cdf_of(*drawn)
    text = "bytes,cdf\n" + "".join(f"{size},{units.format_decimal(share)}\n" for size, share in expected)
    assert traffic.read_points(text, "x") == expected
    for into, options in (("cdf-percent", {}), ("cdf-hpcc", {}), ("cdf-ns2", {"packet_bytes": 1})):
        there, _ = folder.through(text, "cdf", into, **options)
        assert folder.through(there, into, "cdf", **options)[0] == text


def test_the_web_search_distribution_of_hpcc_has_the_mean_of_the_thesis():
    # Shares are floats: each of the 12 terms is off by at most 2^-53 of the sum.
    assert convert(DATA / "web_search.txt").figures["mean_bytes"] == pytest.approx(1_711_250, rel=2e-15)


def test_values_of_ns2_are_packets_if_it_is_said_so(tmp_path):
    with pytest.raises(ValueError, match="--packet 1460B"):
        convert(DATA / "CDF_search.tcl")
    convert(DATA / "CDF_search.tcl", tmp_path / "cdf.csv", packet_bytes=1460)
    lines = (tmp_path / "cdf.csv").read_text().splitlines()
    assert lines[:3] == ["bytes,cdf", "8760,0", "8760,0.15"]
    convert(tmp_path / "cdf.csv", tmp_path / "again.tcl", packet_bytes=1460)
    assert (tmp_path / "again.tcl").read_bytes() == (DATA / "CDF_search.tcl").read_bytes()
    done = convert(DATA / "web_search.txt", tmp_path / "web.tcl", packet_bytes=1460)
    assert done.notes == ["11 sizes are rounded to whole packets"]


@pytest.mark.parametrize(
    ("form", "text", "line", "said"),
    [
        ("cdf", "", None, "has no points"),
        ("cdf", "bytes,cdf\n", None, "has no points"),
        ("cdf", "bytes,cdf\n5,nan\n", 2, '"nan" is not a share'),
        ("cdf", "bytes,cdf\n5,inf\n", 2, '"inf" is not a share'),
        ("cdf", "bytes,cdf\n-5,1\n", 2, '"-5" is not a number of bytes'),
        ("cdf", "bytes,cdf\n9999999999999999,1\n", 2, "is not a number of bytes"),
        ("cdf-percent", "0 0\n5 60\n4 100\n", 3, "4 bytes follow 5"),
        ("cdf-percent", "0 0\n5 60\n6 50\n", 3, "the shares fall"),
        ("cdf-percent", "0 0\n5 60\n", 2, "the last share is 60"),
        ("cdf-percent", "0 0 0\n", 1, "the line has 3 fields"),
        ("cdf-ns2", "", None, "has no points"),
        ("cdf-ns2", "1 1\n", 1, "the line has 2 fields"),
        ("cdf-ns2", "nan 1 1\n", 1, '"nan" is not a size'),
        ("cdf-ns2", "1e40 1 1\n", 1, '"1e40" is not a size'),
        ("cdf-ns2", "1 x 1\n", 1, '"x" is not a number'),
        ("cdf-ns2", "1 1 nan\n", 1, '"nan" is not a share'),
        ("cdf-ns2", "1 1 0.5\n", 1, "the last share is 0.5"),
        ("cdf-ns2", "5 1 0.5\n4 1 1\n", 2, "bytes follow"),
    ],
)
def test_a_wrong_distribution_is_refused_by_line(tmp_path, form, text, line, said):
    source = tmp_path / "in.txt"
    source.write_text(text)
    options = {"packet_bytes": 1} if form == "cdf-ns2" else {}
    with pytest.raises(gt.ScenarioError) as caught:
        convert(source, tmp_path / "out.csv", "cdf", form, **options)
    [fault] = caught.value.errors
    assert (fault["code"], fault["line"]) == ("GT061", line)
    assert said in fault["msg"]
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("text", ["5 10\n6 100\n", "0 0\n5 50\n5 100\n", "0 0\n5 50\n6 50\n7 100\n", "5 100\n"])
def test_what_hpcc_does_not_draw_from_is_not_written_for_it(folder, text):
    with pytest.raises(gt.ScenarioError, match="HPCC's format does not allow"):
        folder.through(text, "cdf-percent", "cdf-hpcc")
    folder.through(text, "cdf-percent", "cdf-ns2", packet_bytes=1)


# Networks

rates = st.integers(1, 4 * 10**11)
delays = st.integers(0, 10**9)


@many
@given(
    leaves=st.lists(st.lists(st.tuples(rates, delays), min_size=1, max_size=4), min_size=1, max_size=4),
    trunk=st.tuples(rates, delays),
)
def test_a_network_comes_back_from_hpcc(folder, leaves, trunk):
    rows, host = ["a,b,rate,delay"], 0
    for leaf, cables in enumerate(leaves):
        for rate, delay in cables:
            rows.append(f"h{host},s{leaf},{units.format_rate(rate)},{units.format_time(delay)}")
            host += 1
        if len(leaves) > 1:
            rows.append(f"s{leaf},s{len(leaves)},{units.format_rate(trunk[0])},{units.format_time(trunk[1])}")
    text = "\n".join(rows) + "\n"
    there, done = folder.through(text, "links", "hpcc-topology")
    assert there.startswith(f"{host + done.figures['switches']} {done.figures['switches']} {len(rows) - 1}\n")
    assert folder.through(there, "hpcc-topology", "links")[0] == text


def test_a_topology_of_hpcc_has_hosts_and_switches_by_number(tmp_path):
    convert(DATA / "topology.txt", tmp_path / "links.csv")
    assert (tmp_path / "links.csv").read_bytes() == (DATA / "links.csv").read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "said"),
    [
        (TOPOLOGY, "", 1, "", "not three counts"),
        ("6 2 5", "6 2", 1, "", "not three counts"),
        ("6 2 5", "6 2 -5", 1, "", "not three counts"),
        ("6 2 5", "6 2 50", 1, "", "line 1 counts 50 links and 8 follow"),
        ("0 5\n", "0 9\n", 2, "", '"9" is not the number of a node'),
        ("0 5\n", "0 0\n", 2, "", "the number of different switches is 1, and line 1 counts 2"),
        ("0 1 25Gbps", "0 9 25Gbps", 3, "dst", 'there is no node "9"'),
        ("0 1 25Gbps", "0 1 25G", 3, "rate", '"G" is not a unit of rate'),
        ("0 1 25Gbps", "0 1 0Gbps", 3, "rate", "the value is zero"),
        ("0 1 25Gbps 1000ns", "0 1 25Gbps -1ns", 3, "delay", "cannot be negative"),
        ("0 1 25Gbps 1000ns 0.000000", "0 1 25Gbps 1000ns 0.01", 3, "error_rate", "loses 0.01 of its packets"),
        ("0 1 25Gbps 1000ns 0.000000", "0 1 25Gbps 1000ns nan", 3, "error_rate", "is not a share"),
        ("0 1 25Gbps 1000ns 0.000000", "0 1 25Gbps 1000ns", 3, "", "has 4 fields"),
        ("0 2 25Gbps", "0 1 25Gbps", 4, "a", "there is a cable between"),
        ("5 4 25Gbps", "5 3 25Gbps", 6, "a", "there is a cable between"),
        ("0 5 100Gbps", "1 5 100Gbps", 7, "a", "h0 has a second cable"),
    ],
)
def test_a_wrong_topology_is_refused_by_line_and_field(tmp_path, old, new, line, field, said):
    source = tmp_path / "topology.txt"
    assert old in TOPOLOGY
    source.write_text(TOPOLOGY.replace(old, new, 1))
    with pytest.raises(gt.ScenarioError) as caught:
        convert(source, tmp_path / "links.csv", None, "hpcc-topology")
    fault = caught.value.errors[0]
    assert said in fault["msg"]
    assert (fault["line"], fault["loc"]) == (line, field)
    assert not (tmp_path / "links.csv").exists()


def test_cables_without_rate_and_delay_are_no_topology_of_hpcc(folder):
    with pytest.raises(gt.ScenarioError, match="the cable has no rate"):
        folder.through("a,b,delay\nh0,s0,1us\nh1,s0,1us\n", "links", "hpcc-topology")


# Models

layer_names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=12)
times_us = st.integers(0, 10**12).map(lambda ps: units.format_decimal(Fraction(ps, 10**6)))


@many
@given(
    layers=st.lists(
        st.tuples(layer_names, times_us, times_us, st.integers(0, 2**63), times_us),
        min_size=1,
        max_size=8,
        unique_by=lambda layer: layer[0],
    )
)
def test_a_model_comes_back_exactly(folder, layers):
    layers = [(name, forward if index else "1", *rest) for index, (name, forward, *rest) in enumerate(layers)]
    document = {
        "schema": "gradtide.model/1",
        "name": "m",
        "layers": [dict(zip(("name", "forward_us", "backward_us", "parameter_bytes", "update_us"), layer, strict=True))
                   for layer in layers],
    }  # fmt: skip
    text = re.sub(r'("\w+_us": )"([\d.]+)"', r"\1\2", json.dumps(document))
    table, _ = folder.through(text, "model", "layers")
    back, done = folder.through(table, "layers", "model")
    assert done.notes == []
    assert folder.through(back, "model", "layers")[0] == table
    assert done.figures["parameter_bytes"] == sum(layer[3] for layer in layers)


def test_what_a_layer_table_has_no_column_for_is_said(tmp_path):
    source = tmp_path / "m.json"
    source.write_text(
        '{"schema": "gradtide.model/1", "name": "m", "title": "M", "layers": '
        '[{"name": "a, b", "forward_us": 1.5, "backward_us": 3, "parameter_bytes": 4, "forward_flops": 7}]}'
    )
    done = convert(source, tmp_path / "m.csv")
    assert done.notes == ["left out, because a layer table has no such columns: forward_flops, title"]
    assert (tmp_path / "m.csv").read_text() == 'layer,forward_us,backward_us,parameter_bytes\n"a, b",1.5,3,4\n'
    source.write_text(
        '{"schema": "gradtide.model/1", "name": "m", "layers": '
        '[{"name": "a", "forward_flops": 1, "activation_bytes": 3, "parameter_bytes": 4}]}'
    )
    with pytest.raises(gt.ScenarioError, match="operations but no times"):
        convert(source)


# The two dialects of htsim

UEC = "Nodes 64\nConnections 2\n1->0 id 1 start 4 size 1048576\n2->0 id 2 start 16 size 1048576\n"
STARTS = {
    "a decimal point": ("1->0 start 12.500000 size 9\n2->0 start 3000.000000 size 9\n", [12_500_000, 3 * 10**9]),
    "a word of UEC": ("1->0 id 1 msg start 4 size 9\n2->0 id 2 msg 7 start 16 size 9\n", [4 * 10**6, 16 * 10**6]),
    "a word of Broadcom": ("1->0 id 1 addon start 4000 size 9\n2->0 id 2 start 16000 size 9\n", [4000, 16_000]),
    "more than 32 bits": ("1->0 id 1 start 4000 size 9\n2->0 id 2 start 5000000000 size 9\n", [4000, 5 * 10**9]),
    "no time at all": ("1->0 id 1 start 0 size 9\n2->0 id 2 start 0.000000 size 9\n", [0, 0]),
    "our own comment": (
        "# starts are microseconds\n1->0 start 4 size 9\n2->0 start 5 size 9\n",
        [4 * 10**6, 5 * 10**6],
    ),
}


@pytest.mark.parametrize("case", STARTS)
def test_the_dialect_of_htsim_is_told_by_what_only_one_has(folder, case):
    rows, expected_ps = STARTS[case]
    text, _ = folder.through(f"Nodes 4\nConnections 2\n{rows}", "htsim-cm", "flows")
    assert [line.split(",")[0] for line in text.splitlines()[1:]] == [str((ps + 500) // 1000) for ps in expected_ps]


def test_starts_that_may_be_picoseconds_or_microseconds_are_not_guessed(gradtide, tmp_path):
    source = tmp_path / "uec.cm"
    source.write_text(UEC)
    for target in (None, tmp_path / "x.csv"):
        with pytest.raises(gt.ScenarioError) as caught:
            convert(source, target)
        [fault] = caught.value.errors
        assert (fault["code"], fault["line"], fault["loc"]) == ("GT063", 3, "start")
        assert "--start-unit" in fault["hint"]
    assert convert(source, start_unit="us").figures["last_start_s"] == 16e-6
    assert convert(source, start_unit="ps").figures["last_start_s"] == 16e-12
    _, out, _ = gradtide("convert", source, "--start-unit", "us", "--json")
    assert json.loads(out)["first_start_s"] == 4e-6
    assert gradtide("convert", source, "--start-unit", "ns")[0] == 2
    assert gradtide("convert", DATA / "flow.txt", "--start-unit", "us")[0] == 2


def test_lines_of_both_dialects_contradict_each_other(folder):
    rows = "1->0 id 1 addon start 4 size 9\n2->0 id 2 start 1.5 size 9\n"
    with pytest.raises(gt.ScenarioError, match="two dialects") as caught:
        folder.through(f"Nodes 4\nConnections 2\n{rows}", "htsim-cm", "flows")
    assert caught.value.errors[0]["line"] == 3


@pytest.mark.parametrize("unit", ["ps", "us"])
def test_a_written_matrix_shows_the_unit_of_its_starts(folder, unit):
    text = "start_ns,src,dst,bytes\n0,0,1,9\n5000,1,0,9\n"
    there, done = folder.through(text, "flows", "htsim-cm", start_unit=unit)
    assert f" start {5 if unit == 'us' else 5_000_000} " in there
    assert done.notes == []
    assert folder.through(there, "htsim-cm", "flows")[0] == text
    assert "--start-unit us" in folder.through(text, "flows", "htsim-cm")[1].notes[0]


def test_nodes_of_a_matrix_are_kept(tmp_path):
    source = tmp_path / "uec.cm"
    source.write_text(UEC)
    assert convert(source, start_unit="us").figures["hosts"] == 64
    done = convert(source, tmp_path / "x.csv", start_unit="us")
    assert any("64" in note for note in done.notes)
    convert(source, tmp_path / "y.cm", start_unit="us")
    assert (tmp_path / "y.cm").read_text().startswith("Nodes 64\n")


def replayed(folder, **cluster):
    traffic = {"replay": "uec.cm", "replay_start_unit": "us"}
    data = {"traffic": {"web": traffic}, "cluster": cluster, "run": {"engine": "fluid", "duration": "1s"}}
    return gt.Scenario.from_dict(data, folder)


def test_a_replayed_matrix_gives_an_open_star_its_hosts_and_must_fit_any_other(tmp_path):
    (tmp_path / "uec.cm").write_text(UEC)
    scenario = replayed(tmp_path)
    assert scenario.to_dict()["cluster"]["topology"]["hosts"] == 64
    assert [flow["start"] for flow in scenario.to_dict()["traffic"]["web"]["flows"]] == ["4us", "16us"]
    assert gt.Scenario.from_toml(scenario.to_toml()) == scenario
    with pytest.raises(gt.ScenarioError) as caught:
        replayed(tmp_path, topology={"hosts": 8})
    [fault] = caught.value.errors
    assert (fault["code"], fault["loc"]) == ("GT042", "traffic.web.replay")
    assert "64" in fault["msg"]
    assert "8" in fault["msg"]
    assert any("64" in said and "100" in said for said in replayed(tmp_path, topology={"hosts": 100}).warnings)


def test_a_job_beside_a_replayed_matrix_has_its_hosts_among_the_nodes(tmp_path):
    (tmp_path / "uec.cm").write_text(UEC)
    layer = {"name": "x", "forward": "1us", "backward": "1us", "parameters": "1kB"}
    traffic = {"web": {"replay": "uec.cm", "replay_start_unit": "us"}}
    job = {"job": {"a": {"model": {"layers": [layer]}, "workers": 4, "iterations": 2}}, "traffic": traffic}
    job["run"] = {"engine": "fluid", "duration": "1s"}
    assert gt.Scenario.from_dict(job, tmp_path).to_dict()["cluster"]["topology"]["hosts"] == 64


def test_the_unit_of_starts_is_asked_for_in_a_scenario_and_refused_without_effect(tmp_path):
    (tmp_path / "uec.cm").write_text(UEC)
    (tmp_path / "f.csv").write_text("start_ns,src,dst,bytes\n0,0,1,9\n")
    run = {"engine": "fluid", "duration": "1s"}
    incast = {"dst": "h0", "bytes": "1B", "every": "1s"}
    for keys, code in (
        ({"replay": "uec.cm"}, "GT063"),
        ({"replay": "f.csv", "replay_start_unit": "us"}, "GT015"),
        ({"incast": incast, "replay_start_unit": "us"}, "GT015"),
    ):
        data = {"traffic": {"w": keys}, "cluster": {"topology": {"hosts": 64}}, "run": run}
        with pytest.raises(gt.ScenarioError) as caught:
            gt.Scenario.from_dict(data, tmp_path)
        assert caught.value.errors[0]["code"] == code
