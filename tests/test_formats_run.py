"""Files of other tools in scenarios and on the command line: the same run as by hand, recognised formats, refusals."""

import json
import tracemalloc

import pytest

import gradtide as gt
from file_formats import DATA, TOPOLOGY, convert
from gradtide import formats

# The same run

SCENARIO = """
[job.train]
model = {{ layers = [{{ name = "fc", forward = "10us", backward = "20us", parameters = "100kB" }}] }}
workers = 4
iterations = 2
[cluster]
topology = {{ kind = "custom", links = {links} }}
[traffic.web]
{flows}
[run]
engine = "packet"
duration = "2.1s"
"""


def test_a_converted_topology_and_flow_file_run_as_those_written_by_hand(tmp_path):
    convert(DATA / "topology.txt", tmp_path / "links.csv")
    convert(DATA / "flow.txt", tmp_path / "flows.csv", topology=DATA / "topology.txt")
    cable = '{{ a = "{}", b = "{}", rate = "{}", delay = "1us" }}'
    ends = [("s0", "h0"), ("s0", "h1"), ("s1", "h2"), ("s1", "h3"), ("s0", "s1")]
    by_hand = ", ".join(cable.format(a, b, "25Gbps" if b[0] == "h" else "100Gbps") for a, b in ends)
    rows = [("2s", 0, 2, "200kB"), ("2000001us", 1, 2, "30MB"), ("2000150.5us", 3, 0, "1500B"), ("2001ms", 2, 3, "1MB")]
    flow = '{{ start = "{}", src = "h{}", dst = "h{}", bytes = "{}" }}'
    listed = "flows = [" + ", ".join(flow.format(*row) for row in rows) + "]"
    tables = []
    for links, flows_said in ((f"[{by_hand}]", listed), ('"links.csv"', 'replay = "flows.csv"')):
        scenario = gt.Scenario.from_toml(SCENARIO.format(links=links, flows=flows_said), base_dir=tmp_path)
        tables.append(gt.run(scenario).flows.to_dicts())
    assert len(tables[0]) == 4
    assert tables[0] == tables[1]


def test_a_scenario_takes_a_topology_of_hpcc_and_a_matrix_of_htsim_as_they_are(tmp_path):
    (tmp_path / "f.cm").write_text("Nodes 4\nConnections 2\n0->2 id 1 start 2000000500000 size 9000\n"
                                   "3->0 id 2 start 2000001000001 size 100\n")  # fmt: skip
    (tmp_path / "topology.txt").write_bytes((DATA / "topology.txt").read_bytes())
    (tmp_path / "links.csv").write_bytes((DATA / "links.csv").read_bytes())
    listed = """flows = [{ start = "2000000500000ps", src = "h0", dst = "h2", bytes = "9000B" },
                         { start = "2000001000001ps", src = "h3", dst = "h0", bytes = "100B" }]"""
    tables = []
    for links, flows_said in (("links.csv", listed), ("topology.txt", 'replay = "f.cm"')):
        text = SCENARIO.format(links=f'"{links}"', flows=flows_said)
        scenario = gt.Scenario.from_toml(text, base_dir=tmp_path)
        tables.append(gt.run(scenario).flows.to_dicts())
    tables.append(gt.run(gt.Scenario.from_toml(scenario.to_toml())).flows.to_dicts())
    assert len(tables[0]) == 2
    assert tables[0] == tables[1] == tables[2]


@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("f.txt", "1\n0 1 3 100 9 2\n", "GT062", "hosts are the file's node numbers"),
        ("f.cm", "Connections 1\n0->1 id 1 start 0 size 9 prio 2\n", "GT062", "the priority of 1 flow is left out"),
        ("f.cm", "Connections 1\n0->9 id 1 start 0 size 9\n", "GT063", "unknown host 9"),
        ("f.cm", "Connections 1\n0->1 id 1 trigger 2 size 9\n", "GT063", "starts when trigger 2 fires"),
    ],
)
def test_a_scenario_refuses_a_list_of_which_something_would_be_left_out(tmp_path, name, content, code, said):
    (tmp_path / name).write_text(content)
    (tmp_path / "links.csv").write_bytes((DATA / "links.csv").read_bytes())
    with pytest.raises(gt.ScenarioError) as caught:
        gt.Scenario.from_toml(SCENARIO.format(links='"links.csv"', flows=f'replay = "{name}"'), base_dir=tmp_path)
    [fault] = caught.value.errors
    assert (fault["code"], fault["file"]) == (code, name)
    assert said in fault["msg"]


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [("0 1 25Gbps", "0 9 25Gbps", 3, "no node"), ("0 5 100Gbps", "1 5 100Gbps", 7, "second cable")],
)
def test_a_scenario_names_the_line_of_a_wrong_topology(tmp_path, old, new, line, said):
    (tmp_path / "t.txt").write_text(TOPOLOGY.replace(old, new, 1))
    with pytest.raises(gt.ScenarioError) as caught:
        gt.Scenario.from_toml(SCENARIO.format(links='"t.txt"', flows="load = 0.1"), base_dir=tmp_path)
    assert [(f["code"], f["line"]) for f in caught.value.errors if said in f["msg"]] == [("GT046", line)]


# The command


def test_every_format_is_recognised_by_its_content(tmp_path):
    expected = {
        "topology.txt": "hpcc-topology",
        "flow.txt": "hpcc-flow",
        "flows.csv": "flows",
        "links.csv": "links",
        "incast.cm": "htsim-cm",
        "CDF_search.tcl": "cdf-ns2",
        "web_search.txt": "cdf-percent",
    }
    assert {path.name: formats.recognised(path).name for path in DATA.iterdir()} == expected
    for text, name in (
        ("layer,forward_us,backward_us,parameter_bytes\n", "layers"),
        ("# sizes\nbytes,cdf\n", "cdf"),
        ("0 0\n5 1\n", "cdf"),
        ("0:0\n5:1.0\n", "cdf"),
        ("2 0 1\n\n0 1 1Gbps 1us 0\n", "hpcc-topology"),
        ("Connections 1\n", "htsim-cm"),
    ):
        (tmp_path / "a.dat").write_text(text)
        assert formats.recognised(tmp_path / "a.dat").name == name
    for content in (b"", b"hello\n", b"\xff\xfe\x00", b"1 2 3 4\n"):
        (tmp_path / "a.dat").write_bytes(content)
        with pytest.raises(ValueError, match="name it with --from"):
            formats.recognised(tmp_path / "a.dat")


def test_formats_convert_only_into_those_that_hold_the_same(tmp_path):
    with pytest.raises(ValueError, match="hpcc-flow holds flows, cdf sizes"):
        convert(DATA / "flow.txt", tmp_path / "a.csv", "cdf")
    with pytest.raises(ValueError, match="name one with --to"):
        convert(DATA / "flow.txt", tmp_path / "a.dat")
    with pytest.raises(ValueError, match="no format is called 'x'"):
        formats.known("x")
    with pytest.raises(ValueError, match="--packet has no effect here; it is for the format cdf-ns2"):
        convert(DATA / "flow.txt", packet_bytes=1)
    with pytest.raises(ValueError, match="--topology has no effect here"):
        convert(DATA / "incast.cm", topology=DATA / "topology.txt")
    with pytest.raises(gt.TraceError, match="cannot be written"):
        convert(DATA / "flow.txt", tmp_path / "no" / "a.csv")


def test_the_command_converts_lists_and_refuses(gradtide, tmp_path):
    code, out, err = gradtide("convert", DATA / "incast.cm", tmp_path / "a.csv", "--start-unit", "ps", "--json")
    assert code == 0
    summary = json.loads(out)
    assert summary["written"] == {"file": str(tmp_path / "a.csv"), "format": "flows"}
    assert (summary["format"], summary["flows"], summary["bytes"]) == ("htsim-cm", 4, 6_004_096)
    assert "note: 1 start is rounded to whole nanoseconds" in err
    listed = gradtide("convert", "--formats")[1]
    assert all(form.name in listed for form in formats.FORMATS)
    for arguments in (
        [DATA / "flow.txt", tmp_path / "b.csv", "--from", "htsim-cm"],
        [DATA / "flow.txt", "--rank", "0"],
        [DATA / "CDF_search.tcl"],
        [DATA / "CDF_search.tcl", "--packet", "0B"],
        [DATA / "CDF_search.tcl", "--packet", "1460"],
        [tmp_path / "no.cm"],
        ["--from", "kineto", DATA / "flow.txt"],
    ):
        code, out, err = gradtide("convert", *arguments)
        assert (code, out) == (2, ""), arguments
        assert "Traceback" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv"]


@pytest.mark.slow
@pytest.mark.parametrize("into", ["htsim-cm", "hpcc-flow"])
def test_a_long_list_of_flows_takes_no_more_memory_than_a_short_one(tmp_path, into):
    peaks = []
    for count in (4_000, 24_000):
        source, target = tmp_path / f"{count}.csv", tmp_path / f"{count}.out"
        rows = (f"{i},{i % 1000},{i % 1000 + 1},{i + 1}\n" for i in range(count))
        source.write_text("start_ns,src,dst,bytes\n" + "".join(rows))
        tracemalloc.start()
        convert(source, target, into)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # A flow takes at least its 20 bytes of text where it is kept; a tenth of that is less than any way to keep it.
    assert peaks[1] - peaks[0] < 2 * 20_000
