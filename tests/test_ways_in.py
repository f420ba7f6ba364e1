"""A limit of a quantity holds on every way in: a key, a dict, a file of ours and one of another tool."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide.scenario import opdag, prices

LAYER = '{ name = "x", forward = "1us", backward = "1us", parameters = "1kB" }'
HEAD = f"[job.a]\nmodel = {{ layers = [{LAYER}] }}\nworkers = 2\n"
TWO = '[{ a = "h0", b = "s" }, { a = "h1", b = "s" }]'


def load(text: str, folder: Path) -> None:
    gt.Scenario.from_toml(text, base_dir=folder)


def cluster(links: str, link: str = "") -> str:
    return f'{HEAD}[cluster]\n{link}\ntopology = {{ kind = "custom", links = {links} }}\n[run]\nengine = "fluid"\n'


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return name


def key_rate(rate: str, folder: Path) -> None:
    load(f'{HEAD}[cluster]\nlink = {{ rate = "{rate}" }}\n[run]\nengine = "fluid"\n', folder)


def inherited_rate(rate: str, folder: Path) -> None:
    load(cluster(TWO, f'link = {{ rate = "{rate}" }}'), folder)


def list_rate(rate: str, folder: Path) -> None:
    load(cluster(f'[{{ a = "h0", b = "s", rate = "{rate}" }}, {{ a = "h1", b = "s" }}]'), folder)


def file_rate(rate: str, folder: Path) -> None:
    name = written(folder, "l.csv", f"a,b,rate,delay\nh0,s,{rate},1us\nh1,s,1Gbps,1us\n")
    load(cluster(f'"{name}"'), folder)


def hpcc_rate(rate: str, folder: Path) -> None:
    name = written(folder, "t.txt", f"3 1 2\n2\n0 2 {rate} 1us 0\n1 2 1Gbps 1us 0\n")
    load(cluster(f'"{name}"'), folder)


def fabric_rate(rate: str, folder: Path) -> None:
    topology = 'kind = "leaf_spine", leaves = 2, hosts_per_leaf = 1, spines = 1'
    text = f'[cluster]\ntopology = {{ {topology}, fabric_link = {{ rate = "{rate}" }} }}\n'
    load(f'{HEAD}{text}[run]\nengine = "fluid"\n', folder)


def node_rate(rate: str, folder: Path) -> None:
    load(f'{HEAD}[cluster]\nnode = {{ gpus = 2, scale_up = {{ rate = "{rate}" }} }}\n[run]\nengine = "fluid"\n', folder)


def replaced_rate(rate: str, folder: Path) -> None:
    gt.Scenario.from_toml(f'{HEAD}[run]\nengine = "fluid"\n').replace(link_rate=rate)


def graph_rate(rate: str, folder: Path) -> None:
    class Graph:
        """What `from_networkx` asks of a graph."""

        def is_directed(self) -> bool:
            return False

        def nodes(self, data: str) -> Any:
            return [("h0", None), ("h1", None), ("s", None)]

        def edges(self, data: bool) -> Any:
            return [("h0", "s", {"rate": rate}), ("h1", "s", {})]

    layer = {"name": "x", "forward": "1us", "backward": "1us", "parameters": "1kB"}
    data = {"job": {"a": {"model": {"layers": [layer]}, "workers": 2}}, "run": {"engine": "fluid"}}
    gt.Scenario.from_dict({**data, "cluster": {"topology": gt.from_networkx(Graph())}})


def price_rate(rate: str, folder: Path) -> None:
    name = written(folder, "p.toml", f'[[switch]]\nports = 2\nrate = "{rate}"\nprice = 1\n')
    prices.read_prices(folder / name)


def converted_links(rate: str, folder: Path) -> None:
    gt.convert(folder / written(folder, "l.csv", f"a,b,rate,delay\nh0,s,{rate},1us\nh1,s,1Gbps,1us\n"))


def converted_hpcc(rate: str, folder: Path) -> None:
    gt.convert(folder / written(folder, "t.txt", f"3 1 2\n2\n0 2 {rate} 1us 0\n1 2 1Gbps 1us 0\n"))


Way = Callable[[str, Path], None]
RATES: list[Way] = [key_rate, list_rate, file_rate, hpcc_rate, fabric_rate, node_rate, replaced_rate, graph_rate]
RATES += [price_rate, converted_links, converted_hpcc]
RUN_RATES = [one for one in RATES if one not in (price_rate, converted_links, converted_hpcc)]
"""Ways to a link of a run, for which the engine has a limit of its own."""


def first_of(way: Way, value: str, folder: Path) -> dict[str, Any]:
    with pytest.raises(gt.ScenarioError) as caught:
        way(value, folder)
    return caught.value.errors[0]


@pytest.mark.parametrize("way", RATES)
@pytest.mark.parametrize(("rate", "code"), [("18446744073709551616bps", "GT024"), ("0bps", "GT026"), ("10G", "GT021"),
                                            ("-1Gbps", "GT023"), ("10", "GT020")])  # fmt: skip
def test_a_rate_that_no_link_has_is_refused_on_every_way_in(way: Way, rate: str, code: str, tmp_path: Path) -> None:
    assert first_of(way, rate, tmp_path)["code"] == code


@pytest.mark.parametrize("way", [*RUN_RATES, inherited_rate])
def test_a_rate_that_the_engine_cannot_count_is_refused_where_it_stands(way: Way, tmp_path: Path) -> None:
    fault = first_of(way, "100Tbps", tmp_path)
    assert fault["code"] == "GT014"
    assert fault["loc"].endswith("rate")
    if way in (file_rate, hpcc_rate):
        assert (fault["file"], fault["line"]) == (("l.csv", 2) if way is file_rate else ("t.txt", 3))
    way("17Tbps", tmp_path)


def list_delay(delay: str, folder: Path) -> None:
    load(cluster(f'[{{ a = "h0", b = "s", delay = "{delay}" }}, {{ a = "h1", b = "s" }}]'), folder)


def key_delay(delay: str, folder: Path) -> None:
    load(f'{HEAD}[cluster]\nlink = {{ delay = "{delay}" }}\n[run]\nengine = "fluid"\n', folder)


def file_delay(delay: str, folder: Path) -> None:
    name = written(folder, "l.csv", f"a,b,rate,delay\nh0,s,1Gbps,{delay}\nh1,s,1Gbps,1us\n")
    load(cluster(f'"{name}"'), folder)


def hpcc_delay(delay: str, folder: Path) -> None:
    name = written(folder, "t.txt", f"3 1 2\n2\n0 2 1Gbps {delay} 0\n1 2 1Gbps 1us 0\n")
    load(cluster(f'"{name}"'), folder)


@pytest.mark.parametrize("way", [key_delay, list_delay, file_delay, hpcc_delay])
@pytest.mark.parametrize(("delay", "code"), [("31536000s", "GT024"), ("8640000s", "GT051"), ("-1s", "GT023")])
def test_a_delay_beyond_the_clock_is_refused_on_every_way_in(way: Way, delay: str, code: str, tmp_path: Path) -> None:
    assert first_of(way, delay, tmp_path)["code"] == code


def key_layer(layer: str, folder: Path) -> None:
    time, size = layer.split()
    row = f'{{ name = "x", forward = "{time}us", backward = "1us", parameters = "{size}B" }}'
    load(f"[job.a]\nmodel = {{ layers = [{row}] }}\nworkers = 2\n", folder)


def csv_layer(layer: str, folder: Path) -> None:
    time, size = layer.split()
    name = written(folder, "m.csv", f"layer,forward_us,backward_us,parameter_bytes\nx,{time},1,{size}\n")
    load(f'[job.a]\nmodel = "{name}"\nworkers = 2\n', folder)


def json_layer(layer: str, folder: Path) -> None:
    time, size = layer.split()
    row = f'{{"name": "x", "forward_us": {time}, "backward_us": 1, "parameter_bytes": {size}}}'
    name = written(folder, "m.json", f'{{"schema": "gradtide.model/1", "name": "m", "layers": [{row}]}}')
    load(f'[job.a]\nmodel = "{name}"\nworkers = 2\n', folder)


def graph_layer(layer: str, folder: Path) -> None:
    time, size = (int(one) for one in layer.split())
    recv = {"id": 0, "name": "w", "kind": "recv", "inputs": [], "time": 0, "bytes": size}
    ops = [recv, {"id": 1, "name": "f", "kind": "comp", "inputs": [0], "time": 1000 * time, "updates": [0]}]
    name = written(folder, "g.json", json.dumps({"time_unit": "ns", "target": 1, "ops": ops}))
    servers = 'collective = { ps = { pull = "start" } }'
    load(f'[job.a]\nmodel = "{name}"\nworkers = 2\n{servers}\n[run]\nengine = "fluid"\n', folder)


@pytest.mark.parametrize("way", [key_layer, csv_layer, json_layer, graph_layer])
@pytest.mark.parametrize("layer", [f"1 {2**64}", f"{10**17} 9", f"1 {10**16}"])
def test_a_layer_beyond_the_limits_is_refused_on_every_way_in(way: Way, layer: str, tmp_path: Path) -> None:
    way("1 9", tmp_path)
    assert first_of(way, layer, tmp_path)["hint"]


def flow_scenario(traffic: str, folder: Path) -> None:
    load(
        f'[traffic.w]\n{traffic}\n[cluster]\ntopology = {{ hosts = 2 }}\n[run]\nengine = "fluid"\nduration = "1s"\n',
        folder,
    )


def key_flow(flow: str, folder: Path) -> None:
    start_ns, size = flow.split()
    flow_scenario(f'flows = [{{ start = "{start_ns}ns", src = "h0", dst = "h1", bytes = "{size}B" }}]', folder)


def csv_flow(flow: str, folder: Path) -> None:
    start_ns, size = flow.split()
    name = written(folder, "f.csv", f"start_ns,src,dst,bytes\n{start_ns},0,1,{size}\n")
    flow_scenario(f'replay = "{name}"', folder)


def htsim_flow(flow: str, folder: Path) -> None:
    start_ns, size = flow.split()
    text = f"Nodes 2\nConnections 1\n0->1 id 1 start {int(start_ns) * 1000} size {size}\n"
    flow_scenario(f'replay = "{written(folder, "f.cm", text)}"\nreplay_start_unit = "ps"', folder)


def converted_flow(flow: str, folder: Path) -> None:
    start_ns, size = flow.split()
    gt.convert(folder / written(folder, "f.csv", f"start_ns,src,dst,bytes\n{start_ns},0,1,{size}\n"))


def converted_hpcc_flow(flow: str, folder: Path) -> None:
    start_ns, size = flow.split()
    gt.convert(folder / written(folder, "f.txt", f"1\n0 1 3 100 {size} {start_ns}e-9\n"))


@pytest.mark.parametrize("way", [key_flow, csv_flow, htsim_flow, converted_flow, converted_hpcc_flow])
@pytest.mark.parametrize("flow", [f"0 {10**15 + 1}", "0 0", f"{2**64} 9"])
def test_a_flow_beyond_the_limits_is_refused_on_every_way_in(way: Way, flow: str, tmp_path: Path) -> None:
    way("1 9", tmp_path)
    assert first_of(way, flow, tmp_path)["hint"]


def test_more_hosts_than_a_run_has_are_refused_on_every_way_in(tmp_path: Path) -> None:
    many = "[traffic.w]\nreplay = 'f.cm'\n[run]\nengine = 'fluid'\nduration = '1s'\n"
    written(tmp_path, "f.cm", "Nodes 2000000\nConnections 1\n0->1 id 1 start 0 size 9\n")
    written(tmp_path, "l.csv", "a,b\nh0,s\nh1999999,s\n")
    for text in (many, cluster('"l.csv"'), f"{HEAD}[cluster]\ntopology = {{ hosts = 2000000 }}\n"):
        assert first_of(load, text, tmp_path)["code"] == "GT050"


def test_an_order_beyond_the_limits_is_refused(tmp_path: Path) -> None:
    dag = opdag.op_dag({"ops": [{"id": 0, "kind": "recv", "inputs": [], "time": 5},
                                {"id": 1, "kind": "comp", "inputs": [0], "time": 5}], "target": 1})  # fmt: skip
    path = tmp_path / written(tmp_path, "o.json", f'{{"priority": {{"0": {2**63}}}}}')
    with pytest.raises(gt.ScenarioError) as caught:
        opdag.load_ranks(path, dag)
    assert caught.value.errors[0]["line"] == 1
