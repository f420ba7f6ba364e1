"""Every fault that a scenario can have: its code, the path it names, its line, and the mend it offers."""

# ruff: noqa: E501 (rows of a table)

import inspect
import json
import os
import pickle
import re
from pathlib import Path

import pytest

from gradtide.codes import CODES, explain
from gradtide.counts import NOT_SUMMED
from gradtide.errors import Fault, GradtideError, ScenarioError
from gradtide.scenario import Scenario, support
from gradtide.scenario.support import COMBINATIONS, ENGINES, FEATURES, Support

MODEL = 'model = { kind = "thesis", layers = 4, size = "1MB", time = "9ms" }'
JOB = f"[job.train]\n{MODEL}\nworkers = 2\n"  # three lines
CSV = "layer,forward_us,backward_us,parameter_bytes\n"
GOOD_CSV = CSV + "conv1,1,2,100\nfc,3,4,0\nout,5,6,300\n"


def job(*lines: str) -> str:
    """A scenario whose fourth line is the first of `lines`."""
    return JOB + "\n".join(lines) + "\n"


def packet(*lines: str, run: str = "duration = '4s'") -> str:
    """A scenario of the packet engine whose fourth line is the first of `lines`."""
    return job(*lines) + f"[run]\nengine = 'packet'\n{run}\n"


def traffic(*lines: str, run: str = "duration = '4s'") -> str:
    """A scenario of the packet engine with a neighbour, whose fifth line is the first of `lines`."""
    return packet("[traffic.web]", *lines, run=run)


def pulled(*lines: str) -> str:
    """A scenario with parameter servers op by op whose fifth line is the first of `lines`."""
    return job("collective = { ps = { pull = 'start' } }", *lines)


RECV = "{ id = 0, name = 'w', kind = 'recv', inputs = [], time = 0, bytes = 9 }"
DONE = "{ id = 1, name = 'fc', kind = 'comp', inputs = [0], time = 5, updates = [0] }"


def graph(*ops: str, ps: str = "collective = { ps = { pull = 'start' } }", more: str = "") -> str:
    """A scenario whose model is a graph, with the first of `ops` on its fifth line."""
    rows = ",\n".join(ops)
    head = f"[job.a]\n{ps}\n{more}"
    tail = "\nworkers = 2"
    return f"{head}\nmodel = {{ kind = 'graph', target = 1, time_unit = 'us', ops = [\n{rows}\n] }}{tail}\n"


SIZED = "sizes = 'web-search'"
PCN = "kind = 'pcn'\nthreshold = '40pkt'"
FLOW = "start = '1ms', src = 'h0', dst = 'h1', bytes = '1kB'"

# id, TOML, code, loc, line, fragment of the hint
CASES: list[tuple[str, str, str, str, int | None, str]] = [
    # the file itself
    ("text without quotes", "[cluster]\nlink = { rate = 10Gbps }", "GT001", "", 2, "quote"),
    ("value without quotes", "[run]\nduration = 12s", "GT001", "", 2, 'as in "12s"'),
    ("capital boolean", job("schedule = { barrier = True }"), "GT001", "", 4, "quotes"),
    ("capital boolean alone", "[job.a.schedule]\nbarrier = True", "GT001", "", 2, "true"),
    ("cut off in a table", '[job.train]\nmodel = { kind = "thesis", layers', "GT001", "", 2, "cut off"),
    ("cut off in a header", "[job.train", "GT001", "", 1, "cut off"),
    ("key written twice", "[run]\nseed = 1\nseed = 2\n", "GT001", "", 3, "fix"),
    ("control character", "[run]\nseed = 1\x01\n", "GT001", "", 2, "fix"),
    ("bracket bomb", "x = " + "[" * 50_000, "GT001", "", None, ""),
    ("number of 5000 digits", "[run]\nseed = " + "9" * 5000, "GT001", "", None, "digits"),
    ("only a comment", "# nothing yet\n", "GT005", "", None, "[job.train]"),
    ("no job", "[run]\nseed = 1\n", "GT010", "job", None, "[job.train]"),
    (
        "no job and no hosts",
        '[traffic]\nweb = { sizes = "web-search", load = 0.1 }\n[run]\nengine = "fluid"\nduration = "1s"\n',
        "GT010",
        "cluster.topology.hosts",
        None,
        "hosts = 8",
    ),
    # keys and types
    ("unknown table", job("[clutser]"), "GT012", "clutser", 4, "`cluster`"),
    (
        "unknown key",
        job("[cluster.link]", "rate_gpbs = 10"),
        "GT012",
        "cluster.link.rate_gpbs",
        5,
        "`rate`, with",
    ),
    ("key of another table", job("[run]", 'order = "fifo"'), "GT012", "run.order", 5, "job.NAME.schedule"),
    (
        "unknown key, inline",
        job("schedule = { fusoin = '1MB' }"),
        "GT012",
        "job.train.schedule.fusoin",
        4,
        "fusion",
    ),
    ("unknown key, nothing near", job("zzz = 1"), "GT012", "job.train.zzz", 4, "known fields are model"),
    (
        "unknown key in model",
        "[job.a]\nworkers = 2\nmodel = { kind = 'thesis', sise = '1MB' }",
        "GT012",
        "job.a.model.sise",
        3,
        "`size`",
    ),
    (
        "unknown key in a layer",
        "[job.a]\nworkers = 2\n[[job.a.model.layers]]\nname = 'x'\nforward = '1us'\n"
        "backward = '1us'\nparameters = '1B'\nbakward = 1",
        "GT012",
        "job.a.model.layers[0].bakward",
        8,
        "backward",
    ),
    ("no model", "[job.train]\nworkers = 2\n", "GT010", "job.train.model", 1, 'model = "resnet50"'),
    ("no workers", f"[job.train]\n{MODEL}\n", "GT010", "job.train.workers", 1, "workers = 8"),
    (
        "layer without time",
        "[job.a]\nworkers = 2\nmodel = { layers = [{ name = 'x', forward = '1us', parameters = '1B' }] }",
        "GT010",
        "job.a.model.layers[0].backward",
        3,
        "backward =",
    ),
    ("workers as text", f"[job.a]\n{MODEL}\nworkers = '8'", "GT011", "job.a.workers", 3, "workers = 8"),
    ("workers as float", f"[job.a]\n{MODEL}\nworkers = 8.0", "GT011", "job.a.workers", 3, "workers = 8"),
    ("workers as boolean", f"[job.a]\n{MODEL}\nworkers = true", "GT011", "job.a.workers", 3, "workers = 8"),
    (
        "barrier as text",
        job("schedule = { barrier = 'no' }"),
        "GT011",
        "job.train.schedule.barrier",
        4,
        "false",
    ),
    (
        "barrier as number",
        job("schedule = { barrier = 1 }"),
        "GT011",
        "job.train.schedule.barrier",
        4,
        "false",
    ),
    ("model as number", "[job.a]\nworkers = 2\nmodel = 50", "GT011", "job.a.model", 3, "resnet50"),
    ("model as list", "[job.a]\nworkers = 2\nmodel = ['a']", "GT011", "job.a.model", 3, "resnet50"),
    ("schedule as text", job("schedule = 'priority'"), "GT011", "job.train.schedule", 4, "schedule = {"),
    ("jobs as a list", "[[job]]\nworkers = 2", "GT011", "job", 1, "[job.train]"),
    ("hosts as text", f"[job.a]\n{MODEL}\nhosts = 'h0'", "GT011", "job.a.hosts", 3, 'hosts = ["h0"'),
    ("host as number", f"[job.a]\n{MODEL}\nhosts = [0]", "GT011", "job.a.hosts[0]", 3, "hosts = "),
    (
        "rate as boolean",
        job("[cluster]", "link = { rate = true }"),
        "GT011",
        "cluster.link.rate",
        5,
        "10Gbps",
    ),
    ("order as number", job("schedule = { order = 1 }"), "GT011", "job.train.schedule.order", 4, "fifo"),
    ("a date", job("start = 2026-01-01"), "GT011", "job.train.start", 4, "10us"),
    (
        "efficiency as text",
        job("[cluster]", "link = { efficiency = '95%' }"),
        "GT011",
        "cluster.link.efficiency",
        5,
        "without quotes",
    ),
    ("priority as float", job("priority = 1.5"), "GT011", "job.train.priority", 4, "high"),
    (
        "nested too deeply",
        job("priority = { adaptive = { a = " + "[" * 40 + "]" * 40 + " } }"),
        "GT011",
        "job.train.priority.adaptive",
        4,
        "flatten",
    ),
    (
        "unknown order",
        job("schedule = { order = 'priorty' }"),
        "GT013",
        "job.train.schedule.order",
        4,
        '"priority"',
    ),
    ("an engine that is gone", job("[run]", "engine = 'pipe'"), "GT013", "run.engine", 5, 'engine = "fluid"'),
    ("unknown engine", job("[run]", "engine = 'pipes'"), "GT013", "run.engine", 5, "fluid, packet"),
    (
        "unknown collective",
        job("collective = { kind = 'rign' }"),
        "GT013",
        "job.train.collective.kind",
        4,
        '"ring"',
    ),
    (
        "unknown topology",
        job("[cluster.topology]", "kind = 'mesh'"),
        "GT013",
        "cluster.topology.kind",
        5,
        "leaf_spine",
    ),
    ("unknown band", job("priority = 'hihg'"), "GT013", "job.train.priority", 4, '"high"'),
    (
        "unknown table kind",
        "[job.a]\nworkers = 2\nmodel = { kind = 'theses' }",
        "GT013",
        "job.a.model.kind",
        3,
        '"thesis"',
    ),
    # numbers
    ("no worker", f"[job.a]\n{MODEL}\nworkers = 0", "GT014", "job.a.workers", 3, "at least 1"),
    ("negative workers", f"[job.a]\n{MODEL}\nworkers = -1", "GT014", "job.a.workers", 3, "at least 1"),
    ("no iteration", job("iterations = 0"), "GT014", "job.train.iterations", 4, "at least 1"),
    ("negative seed", job("[run]", "seed = -1"), "GT014", "run.seed", 5, "at least 0"),
    ("band 8", job("priority = 8"), "GT014", "job.train.priority", 4, "at most 7"),
    (
        "efficiency 0",
        job("[cluster]", "link = { efficiency = 0 }"),
        "GT014",
        "cluster.link.efficiency",
        5,
        "above 0",
    ),
    (
        "efficiency 1.2",
        job("[cluster]", "link.efficiency = 1.2"),
        "GT014",
        "cluster.link.efficiency",
        5,
        "at most 1",
    ),
    (
        "efficiency nan",
        job("[cluster]", "link.efficiency = nan"),
        "GT014",
        "cluster.link.efficiency",
        5,
        "at most 1",
    ),
    (
        "slowdown below 1",
        job("compute.overlap_slowdown = 0.5"),
        "GT014",
        "job.train.compute.overlap_slowdown",
        4,
        "from 1 to 100",
    ),
    (
        "slowdown inf",
        job("compute.overlap_slowdown = inf"),
        "GT014",
        "job.train.compute.overlap_slowdown",
        4,
        "to 100",
    ),
    (
        "one synthetic layer",
        "[job.a]\nworkers = 2\nmodel = { kind = 'thesis', layers = 1 }",
        "GT014",
        "job.a.model.layers",
        3,
        "at least 2",
    ),
    (
        "synthetic layers of no byte",
        "[job.a]\nworkers = 2\nmodel = { kind = 'thesis', size = '1B' }",
        "GT014",
        "job.a.model",
        3,
        '"450B"',
    ),
    ("seed over 64 bits", job("[run]", "seed = 99999999999999999999"), "GT014", "run.seed", 5, "2^64"),
    (
        "odd ports",
        job("[cluster]", "topology = { kind = 'clos2', ports = 3 }"),
        "GT014",
        "cluster.topology.ports",
        5,
        "even",
    ),
    (
        "bisection 2",
        job("[cluster]", "topology = { kind = 'clos2', ports = 4, bisection = '2/1' }"),
        "GT014",
        "cluster.topology.bisection",
        5,
        "1/4",
    ),
    (
        "bisection of a part of a switch",
        job("[cluster]", "topology = { kind = 'clos3', ports = 16, bisection = '1/3' }"),
        "GT044",
        "cluster.topology.bisection",
        5,
        'bisection = "1/4" or bisection = "3/8"',
    ),
    (
        "bisection of a part of a spine",
        job("[cluster]", "topology = { kind = 'leaf_spine', leaves = 2, hosts_per_leaf = 6, bisection = 0.25 }"),
        "GT044",
        "cluster.topology.bisection",
        5,
        'bisection = "1/6" or bisection = "1/3"',
    ),
    (
        "leaves of no whole number of hosts",
        job("[cluster]", "topology = { kind = 'leaf_spine', leaves = 3, hosts = 10, spines = 1 }"),
        "GT014",
        "cluster.topology.hosts",
        5,
        "hosts = 9",
    ),
    (
        "leaves without hosts",
        job("[cluster]", "topology = { kind = 'leaf_spine', leaves = 3, spines = 1 }"),
        "GT010",
        "cluster.topology.hosts_per_leaf",
        5,
        "hosts_per_leaf = 8",
    ),
    (
        "hosts and hosts per leaf",
        job("[cluster]", "topology = { kind = 'leaf_spine', leaves = 3, hosts = 6, hosts_per_leaf = 3 }"),
        "GT016",
        "cluster.topology.hosts",
        5,
        "leave `hosts` out",
    ),
    (
        "leaves of too many hosts",
        job("[cluster]", "topology = { kind = 'leaf_spine', leaves = 9999999999, hosts_per_leaf = 2, spines = 1 }"),
        "GT050",
        "cluster.topology.leaves",
        5,
        "at most 1,000,000",
    ),
    (
        "spines with more cables than the core can number",
        job("[cluster]", "topology = { kind = 'leaf_spine', leaves = 2, hosts_per_leaf = 2, spines = 9999999999 }"),
        "GT050",
        "cluster.topology.spines",
        5,
        "at most 1,000,000,000",
    ),
    (
        "spines and bisection",
        job("[cluster]", "topology = { kind = 'leaf_spine', leaves = 3, hosts = 6, spines = 1, bisection = 1 }"),
        "GT016",
        "cluster.topology.bisection",
        5,
        "one of them",
    ),
    (
        "more workers than a Clos network has hosts",
        job("[cluster]", "topology = { kind = 'clos2', ports = 4 }").replace("workers = 2", "workers = 9"),
        "GT042",
        "cluster.topology.ports",
        5,
        "clos2 of 4 ports has 8 hosts",
    ),
    (
        "a million hosts and more",
        job("[cluster]", "topology = { kind = 'clos3', ports = 1024 }"),
        "GT050",
        "cluster.topology.ports",
        5,
        "1,000,000",
    ),
    (
        "a network in two parts",
        job("[cluster.topology]", "kind = 'custom'", "links = [{ a = 'h0', b = 's' }, { a = 'h1', b = 't' }]"),
        "GT045",
        "cluster.topology.links",
        6,
        "joins the parts",
    ),
    (
        "a cable twice",
        job("[cluster.topology]", "kind = 'custom'", "links = [{ a = 'h0', b = 's' }, { a = 's', b = 'h0' }]"),
        "GT046",
        "cluster.topology.links[1].a",
        6,
        "raise its `rate`",
    ),
    (
        "a cable to an unknown switch",
        job("[cluster.topology]", "kind = 'custom'", "switches = ['s']", "links = [{ a = 'h0', b = 't' }]"),
        "GT046",
        "cluster.topology.links[0].b",
        7,
        "`switches` does not name it",
    ),
    (
        "a cable to a host beyond the last",
        job(
            "[cluster.topology]",
            "kind = 'custom'",
            "hosts = 2",
            "links = [{ a = 'h0', b = 's' }, { a = 'h1', b = 's' }, { a = 'h2', b = 's' }]",
        ),
        "GT046",
        "cluster.topology.links[2].a",
        7,
        "h0 to h1",
    ),
    (
        "a host with two cables",
        job("[cluster.topology]", "kind = 'custom'", "links = [", "{ a = 'h0', b = 's' },", "{ a = 't', b = 'h0' }]"),
        "GT046",
        "cluster.topology.links[1].b",
        8,
        "a host has one cable",
    ),
    (
        "a switch with a host's name",
        job(
            "[cluster.topology]",
            "kind = 'custom'",
            "switches = ['s', 'h0']",
            "links = [{ a = 'h0', b = 's' }, { a = 'h1', b = 's' }]",
        ),
        "GT046",
        "cluster.topology.switches[1]",
        6,
        "s0",
    ),
    (
        "a cable of no rate",
        job("[cluster.topology]", "kind = 'custom'", "links = [{ a = 'h0', b = 's', rate = '0Gbps' }]"),
        "GT026",
        "cluster.topology.links[0].rate",
        6,
        "10Gbps",
    ),
    (
        "cables that are a number",
        job("[cluster]", "topology = { kind = 'custom', links = 3 }"),
        "GT011",
        "cluster.topology.links",
        5,
        "links = [{",
    ),
    (
        "fabric link of a star",
        job("[cluster]", "topology = { kind = 'star', fabric_link = { rate = '1Gbps' } }"),
        "GT015",
        "cluster.topology.fabric_link",
        5,
        "hosts",
    ),
    # collectives and placement
    (
        "group beyond the ranks",
        job("collective = { kind = 'butterfly_layered', group = 3 }"),
        "GT048",
        "job.train.collective.group",
        4,
        "at most 2",
    ),
    (
        "shards of uneven groups",
        job("collective = { kind = 'hierarchical', inside = 'sharded', group = 4 }").replace("rkers = 2", "rkers = 6"),
        "GT048",
        "job.train.collective.group",
        4,
        "group = 3",
    ),
    (
        "servers without workers",
        job("collective = { ps = { servers = 2 } }"),
        "GT048",
        "job.train.collective.ps.servers",
        4,
        "more workers",
    ),
    (
        "one host for a server and a worker",
        f"[job.train]\n{MODEL}\nhosts = ['h0']\ncollective = {{ ps = {{ pull = 'start' }} }}",
        "GT048",
        "job.train.collective.ps.servers",
        4,
        "more workers",
    ),
    (
        "hosts without room for servers",
        pulled("hosts = ['h0', 'h1', 'h2', 'h3']"),
        "GT016",
        "job.train.workers",
        3,
        "leave one",
    ),
    (
        "shards of a pull at once",
        job("collective = { ps = { servers = 1, shards = 'bytes' } }"),
        "GT015",
        "job.train.collective.ps.shards",
        4,
        "equal parts",
    ),
    ("task of a ring", job("task = 'inference'"), "GT015", "job.train.task", 4, "leave it out"),
    (
        "exchange by servers that are pulled from",
        job("task = 'exchange'\ncollective = { ps = { pull = 'start' } }").replace("rkers = 2", "rkers = 3"),
        "GT015",
        "job.train.task",
        4,
        '"inference"',
    ),
    *(
        (
            f"gradients by {kind}",
            job(f"collective = {{ kind = '{kind}' }}") + "\n[run]\nengine = 'fluid'\n",
            "GT049",
            "job.train.collective.kind",
            4,
            'task = "exchange"',
        )
        for kind in NOT_SUMMED
    ),
    (
        "disorder of a ring",
        job("schedule = { disorder = 0.1 }"),
        "GT015",
        "job.train.schedule.disorder",
        4,
        "leave it out",
    ),
    (
        "folded order of a ring",
        job("schedule = { order = 'tac_folded' }"),
        "GT015",
        "job.train.schedule.order",
        4,
        "parameter servers",
    ),
    (
        "a turn without a list",
        job("schedule = { order = 'priority', in_turn = true }"),
        "GT015",
        "job.train.schedule.in_turn",
        4,
        'write order = "file"',
    ),
    (
        "a turn of pulls",
        pulled("schedule = { in_turn = true }"),
        "GT015",
        "job.train.schedule.in_turn",
        5,
        "one transfer after the other",
    ),
    ("first pull in", pulled("schedule = { order = 'fifo' }"), "GT015", "job.train.schedule.order", 5, '"tac_folded"'),
    (
        "Caramel of pulls",
        pulled("schedule = { order = 'caramel' }"),
        "GT015",
        "job.train.schedule.order",
        5,
        '"optimal"',
    ),
    (
        "fusion of pulls",
        pulled("schedule = { fusion = '1MB' }"),
        "GT015",
        "job.train.schedule.fusion",
        5,
        "transfer of its own",
    ),
    (
        "buckets of pulls",
        pulled("schedule = { buckets = [4] }"),
        "GT015",
        "job.train.schedule.buckets",
        5,
        "transfer of its own",
    ),
    (
        "chunks of pulls",
        pulled("schedule = { chunk = '1MB' }"),
        "GT015",
        "job.train.schedule.chunk",
        5,
        "transfer of its own",
    ),
    (
        "depth of pulls",
        pulled("schedule = { depth = 2 }"),
        "GT015",
        "job.train.schedule.depth",
        5,
        "transfer of its own",
    ),
    (
        "pulls without barrier",
        pulled("schedule = { barrier = false }"),
        "GT015",
        "job.train.schedule.barrier",
        5,
        "has ended",
    ),
    (
        "syncer of pulls",
        pulled("schedule = { sync = '1us' }"),
        "GT015",
        "job.train.schedule.sync",
        5,
        "no transfer waits",
    ),
    (
        "queues of pulls",
        pulled("schedule = { order = 'priority', queues = 2 }"),
        "GT015",
        "job.train.schedule.queues",
        5,
        "rank of its own",
    ),
    (
        "disorder above one",
        pulled("schedule = { disorder = 1.5 }"),
        "GT014",
        "job.train.schedule.disorder",
        5,
        "from 0 to 1",
    ),
    (
        "remainder of pulls",
        job("collective = { ps = { pull = 'start' }, remainder = 'dropped' }"),
        "GT015",
        "job.train.collective.remainder",
        4,
        "transfer of its own",
    ),
    (
        "pulls without number",
        pulled("iterations = 100000").replace("workers = 2", "workers = 50"),
        "GT050",
        "job.train.iterations",
        5,
        "transfers.csv",
    ),
    # graphs of ops
    (
        "order of layers",
        "[job.a]\nmodel = 'vgg16'\nworkers = 2\ncompute.order = 'random'",
        "GT015",
        "job.a.compute.order",
        4,
        "",
    ),
    (
        "order of what is pulled",
        graph(RECV, DONE, more="compute = { order = 'random' }"),
        "GT015",
        "job.a.compute.order",
        3,
        "leave it out",
    ),
    (
        "queues of ops",
        graph(RECV, DONE, ps="schedule = { order = 'priority', queues = 2 }"),
        "GT015",
        "job.a.schedule.queues",
        2,
        "rank of its own",
    ),
    (
        "nothing updated in a ring",
        graph(RECV, DONE.replace(", updates = [0]", ""), ps=""),
        "GT074",
        "job.a.model.ops",
        4,
        '"updates"',
    ),
    (
        "updated and never read",
        graph(RECV, RECV.replace("id = 0, name = 'w'", "id = 2, name = 'v'"), DONE.replace("[0] }", "[0, 2] }"), ps=""),
        "GT074",
        "job.a.model.ops[2].updates",
        7,
        "forward pass",
    ),
    (
        "recv without bytes",
        graph(RECV.replace(", bytes = 9", ""), DONE),
        "GT074",
        "job.a.model.ops[0].bytes",
        5,
        "4096",
    ),
    ("nothing updated", graph(RECV, DONE.replace(", updates = [0]", "")), "GT074", "job.a.model.ops", 4, "inference"),
    (
        "updated twice",
        graph(RECV, DONE, DONE.replace("id = 1", "id = 2").replace("inputs = [0]", "inputs = [1]")),
        "GT074",
        "job.a.model.ops[2].updates[0]",
        7,
        "adds them up",
    ),
    (
        "inference without its end",
        graph(RECV, DONE, more="task = 'inference'"),
        "GT074",
        "job.a.model.inference_target",
        4,
        "forward pass",
    ),
    (
        "graph without unit",
        graph(RECV, DONE).replace(", time_unit = 'us'", ""),
        "GT010",
        "job.a.model.time_unit",
        4,
        "ns",
    ),
    (
        "graph whose ops are no list",
        graph(RECV, DONE).replace("ops = [\n", "ops = { x = [\n").replace("\n] }", "\n] } }"),
        "GT011",
        "job.a.model.ops",
        4,
        "bytes = 4096",
    ),
    (
        "graph with a cycle",
        graph(RECV, DONE.replace("inputs = [0]", "inputs = [0, 1]")),
        "GT072",
        "job.a.model.ops[1].inputs",
        6,
        "remove",
    ),
    (
        "graph that takes no time",
        graph(RECV, DONE.replace("time = 5", "time = 0")),
        "GT036",
        "job.a.model.ops",
        4,
        "times",
    ),
    (
        "two recvs of one name",
        graph(RECV, DONE.replace("[0],", "[0, 2],"), RECV.replace("id = 0", "id = 2")),
        "GT034",
        "job.a.model.ops[2].name",
        7,
        "rename",
    ),
    ("group of a ring", job("collective = { group = 2 }"), "GT015", "job.train.collective.group", 4, "hierarchical"),
    (
        "inside of a butterfly",
        job("collective = { kind = 'butterfly', inside = 'ring' }"),
        "GT015",
        "job.train.collective.inside",
        4,
        "hierarchical",
    ),
    (
        "reduction of a broadcast",
        job("task = 'exchange'\ncollective = { kind = 'broadcast', reduction_rate = '1GB/s' }"),
        "GT015",
        "job.train.collective.reduction_rate",
        5,
        "does not add",
    ),
    (
        "group of no ranks",
        job("collective = { kind = 'hierarchical', group = 0 }"),
        "GT014",
        "job.train.collective.group",
        4,
        '"leaf"',
    ),
    (
        "group of a word",
        job("collective = { kind = 'hierarchical', group = 'rack' }"),
        "GT011",
        "job.train.collective.group",
        4,
        '"leaf"',
    ),
    ("unknown collective", job("collective.kind = 'rign'"), "GT013", "job.train.collective.kind", 4, '"ring"'),
    ("unknown placement", job("placement = 'spred'"), "GT013", "job.train.placement", 4, '"spread"'),
    ("placement of a number", job("placement = 3"), "GT011", "job.train.placement", 4, '"spread"'),
    (
        "placement on an unknown host",
        job("placement = ['h0', 'h5']", "[cluster]", "topology.hosts = 4"),
        "GT040",
        "job.train.placement[1]",
        4,
        "h0 to h3",
    ),
    (
        "placement and hosts",
        job("placement = ['h0', 'h1']", "hosts = ['h0', 'h1']"),
        "GT016",
        "job.train.placement",
        4,
        "one of them",
    ),
    (
        "placement of other workers",
        job("placement = ['h0', 'h1', 'h2']"),
        "GT016",
        "job.train.workers",
        3,
        "one of the two",
    ),
    ("empty hosts", f"[job.a]\n{MODEL}\nhosts = []", "GT014", "job.a.hosts", 3, '["h0", "h1"]'),
    # keys against keys
    (
        "queues with fifo",
        job("schedule = { queues = 8 }"),
        "GT015",
        "job.train.schedule.queues",
        4,
        '"priority"',
    ),
    (
        "buckets of another model",
        job("schedule = { buckets = [1, 1] }"),
        "GT014",
        "job.train.schedule.buckets",
        4,
        "every layer once",
    ),
    (
        "buckets and fusion",
        job("schedule = { buckets = [4], fusion = '1MB' }"),
        "GT016",
        "job.train.schedule.buckets",
        4,
        "one of them",
    ),
    (
        "empty bucket",
        job("schedule = { buckets = [0, 4] }"),
        "GT014",
        "job.train.schedule.buckets[0]",
        4,
        "at least 1",
    ),
    (
        "order file with fifo",
        job("schedule = { file = 'o.csv' }"),
        "GT015",
        "job.train.schedule.file",
        4,
        '"file"',
    ),
    (
        "efficiency for given times",
        job("compute = { efficiency = 0.5 }"),
        "GT015",
        "job.train.compute.efficiency",
        4,
        "leave",
    ),
    (
        "ports of a star",
        job("[cluster]", "topology = { ports = 8 }"),
        "GT015",
        "cluster.topology.ports",
        5,
        "hosts",
    ),
    (
        "threshold of red",
        job("[cluster.queue]", "threshold = '40pkt'", "kind = 'red'", "min = '5pkt'", "max = '15pkt'"),
        "GT015",
        "cluster.queue.threshold",
        5,
        "any other kind",
    ),
    (
        "weights of strict bands",
        job("[cluster.queue]", "kind = 'strict'", "bands = 2", "weights = [2, 1]"),
        "GT015",
        "cluster.queue.weights",
        7,
        '"drr"',
    ),
    ("ends of no red", job("[cluster.queue]", "min = '5pkt'"), "GT015", "cluster.queue.min", 5, '"red"'),
    (
        "mark_at of no mark",
        job("[cluster.queue]", "mark_at = 'dequeue'"),
        "GT015",
        "cluster.queue.mark_at",
        5,
        "marked",
    ),
    (
        "load of a replay",
        traffic("replay = 'f.csv'", "load = 0.3"),
        "GT015",
        "traffic.web.load",
        6,
        "own",
    ),
    (
        "workers against hosts",
        f"[job.a]\n{MODEL}\nhosts = ['h0', 'h1']\nworkers = 3",
        "GT016",
        "job.a.workers",
        4,
        "leave one",
    ),
    (
        "ps against ring",
        job("collective = { kind = 'ring', ps = {} }"),
        "GT016",
        "job.train.collective.ps",
        4,
        "leave",
    ),
    (
        "sizes against replay",
        traffic("replay = 'f.csv'", "sizes = 'web-search'"),
        "GT016",
        "traffic.web.replay",
        5,
        "keep one",
    ),
    (
        "load against arrivals",
        traffic("sizes = 'web-search'", "load = 0.3", "arrivals = { rate = '1/s' }"),
        "GT016",
        "traffic.web.load",
        6,
        "keep one",
    ),
    (
        "file against ranking",
        job("schedule = { order = 'file', file = 'o', ranking = [] }"),
        "GT016",
        "job.train.schedule.ranking",
        4,
        "keep one",
    ),
    (
        "order without file",
        job("schedule = { order = 'file' }"),
        "GT010",
        "job.train.schedule.file",
        4,
        "order.csv",
    ),
    (
        "clos without ports",
        job("[cluster]", "topology = { kind = 'clos3' }"),
        "GT010",
        "cluster.topology.ports",
        5,
        "ports = 16",
    ),
    (
        "traffic without sizes",
        traffic("load = 0.3"),
        "GT010",
        "traffic.web.sizes",
        4,
        "web-search",
    ),
    (
        "traffic without load",
        traffic("sizes = 'web-search'"),
        "GT010",
        "traffic.web.arrivals",
        4,
        "load",
    ),
    ("name with a blank", f"[job.'my job']\n{MODEL}\nworkers = 2", "GT018", "job.my job", 1, "letters"),
    (
        "blank layer name",
        "[job.a]\nworkers = 2\nmodel = { layers = [{ name = ' ', forward = '1us', backward = '1us', "
        "parameters = '1B' }] }",
        "GT018",
        "job.a.model.layers[0].name",
        3,
        "printable",
    ),
    # units
    ("bare rate", job("[cluster]", "link = { rate = 10 }"), "GT020", "cluster.link.rate", 5, '"10Gbps"'),
    (
        "bare rate in quotes",
        job("[cluster]", "link = { rate = '10' }"),
        "GT020",
        "cluster.link.rate",
        5,
        '"10Gbps"',
    ),
    ("bare delay", job("[cluster]", "link = { delay = 0 }"), "GT020", "cluster.link.delay", 5, '"10us"'),
    ("bare fusion", job("schedule = { fusion = 0 }"), "GT020", "job.train.schedule.fusion", 4, '"25MB"'),
    ("bare duration, float", job("[run]", "duration = 1.5"), "GT020", "run.duration", 5, '"10us"'),
    ("10G", job("[cluster]", "link = { rate = '10G' }"), "GT021", "cluster.link.rate", 5, '"10Gbps"'),
    ("depth in words", job("schedule = { depth = 'deep' }"), "GT011", "job.train.schedule.depth", 4, '"adaptive"'),
    ("depth of a true", job("schedule = { depth = true }"), "GT011", "job.train.schedule.depth", 4, '"adaptive"'),
    ("depth of none", job("schedule = { depth = 0 }"), "GT014", "job.train.schedule.depth", 4, "depth = 4"),
    ("credit of none", job("schedule = { credit = 0 }"), "GT014", "job.train.schedule.credit", 4, "1"),
    (
        "first bucket among own ones",
        job("schedule = { buckets = [4], first_fusion = '1MiB' }"),
        "GT016",
        "job.train.schedule.first_fusion",
        4,
        "keep one",
    ),
    (
        "first bucket of a cycle",
        job("schedule = { cycle = '5ms', first_fusion = '1MiB' }"),
        "GT016",
        "job.train.schedule.first_fusion",
        4,
        "keep one",
    ),
    (
        "cycle of what adapts",
        job("schedule = { fusion = 'adaptive', cycle = '5ms' }"),
        "GT016",
        "job.train.schedule.cycle",
        4,
        "as a size",
    ),
    (
        "cycle of an order that plans",
        job("schedule = { order = 'caramel', cycle = '5ms' }"),
        "GT016",
        "job.train.schedule.cycle",
        4,
        'order = "fifo"',
    ),
    ("25M", job("schedule = { fusion = '25M' }"), "GT021", "job.train.schedule.fusion", 4, '"25MB"'),
    ("mbps", job("[cluster]", "link = { rate = '10mbps' }"), "GT021", "cluster.link.rate", 5, '"10Mbps"'),
    (
        "time for a rate",
        job("[cluster]", "link = { rate = '10us' }"),
        "GT021",
        "cluster.link.rate",
        5,
        "Gbps",
    ),
    (
        "size for a time",
        job("[cluster]", "link = { delay = '10MB' }"),
        "GT021",
        "cluster.link.delay",
        5,
        "us, ms",
    ),
    (
        "unknown time unit",
        job("compute = { scale_to = '9 days' }"),
        "GT021",
        "job.train.compute.scale_to",
        4,
        "min",
    ),
    ("exponent", job("compute = { scale_to = '1e3s' }"), "GT021", "job.train.compute.scale_to", 4, "units"),
    (
        "words for a rate",
        job("[cluster]", "link = { rate = 'ten Gbps' }"),
        "GT022",
        "cluster.link.rate",
        5,
        "plain",
    ),
    ("empty rate", job("[cluster]", "link = { rate = '' }"), "GT022", "cluster.link.rate", 5, "10Gbps"),
    ("nan for a time", job("start = 'nan'"), "GT022", "job.train.start", 4, "plain decimal"),
    ("inf for a time", job("start = 'infs'"), "GT022", "job.train.start", 4, "plain decimal"),
    (
        "ratio of words",
        job("[cluster]", "topology = { kind = 'clos2', ports = 4, bisection = 'half' }"),
        "GT022",
        "cluster.topology.bisection",
        5,
        "1/4",
    ),
    (
        "ratio by zero",
        job("[cluster]", "topology = { kind = 'clos2', ports = 4, bisection = '1/0' }"),
        "GT022",
        "cluster.topology.bisection",
        5,
        "1/4",
    ),
    (
        "negative delay",
        job("[cluster]", "link = { delay = '-1us' }"),
        "GT023",
        "cluster.link.delay",
        5,
        "10us",
    ),
    ("214 days", job("[run]", "duration = '5136h'"), "GT024", "run.duration", 5, "213 days"),
    (
        "size over 64 bits",
        job("schedule = { chunk = '99999999TB' }"),
        "GT024",
        "job.train.schedule.chunk",
        4,
        "2^64",
    ),
    (
        "half a byte",
        job("schedule = { chunk = '4b' }"),
        "GT025",
        "job.train.schedule.chunk",
        4,
        "nearest is 1 bytes",
    ),
    (
        "half a packet",
        job("[cluster]", "queue = { capacity = '1.5pkt' }"),
        "GT025",
        "cluster.queue.capacity",
        5,
        "2",
    ),
    ("rate 0", job("[cluster]", "link = { rate = '0Gbps' }"), "GT026", "cluster.link.rate", 5, "above 0"),
    (
        "chunk 0",
        job("schedule = { chunk = '0B' }"),
        "GT026",
        "job.train.schedule.chunk",
        4,
        "leave the key out",
    ),
    ("duration 0", job("[run]", "duration = '0s'"), "GT026", "run.duration", 5, "above 0"),
    ("scale to 0", job("compute = { scale_to = '0s' }"), "GT026", "job.train.compute.scale_to", 4, "above 0"),
    # inline models
    (
        "no layers",
        "[job.a]\nworkers = 2\nmodel = { layers = [] }",
        "GT035",
        "job.a.model.layers",
        3,
        "at least one",
    ),
    (
        "layer twice",
        "[job.a]\nworkers = 2\n[[job.a.model.layers]]\nname = 'x'\nforward = '1us'\nbackward = '1us'\n"
        "parameters = '1B'\n[[job.a.model.layers]]\nname = 'x'\nforward = '1us'\nbackward = '1us'\nparameters = '1B'",
        "GT034",
        "job.a.model.layers[1].name",
        9,
        "rename",
    ),
    (
        "no compute",
        "[job.a]\nworkers = 2\nmodel = { layers = [{ name = 'x', forward = '0s', backward = '0s', "
        "parameters = '1B' }] }",
        "GT036",
        "job.a.model.layers[0].forward",
        3,
        "microseconds",
    ),
    (
        "ranking without a layer",
        job("schedule = { order = 'file', ranking = ['layer0'] }"),
        "GT037",
        "job.train.schedule.ranking",
        4,
        '"layer1"',
    ),
    (
        "ranking of a stranger",
        job("schedule = { order = 'file', ranking = ['layer9'] }"),
        "GT037",
        "job.train.schedule.ranking[0]",
        4,
        'layers are "layer0"',
    ),
    # hosts
    (
        "unknown host",
        job("[cluster]", "topology = { hosts = 2 }", "[job.b]", MODEL, "hosts = ['h1', 'h2']"),
        "GT040",
        "job.b.hosts[1]",
        8,
        "h0 to h1",
    ),
    ("host of another name", f"[job.a]\n{MODEL}\nhosts = ['node1']", "GT040", "job.a.hosts[0]", 3, "h0, h1"),
    ("host twice", f"[job.a]\n{MODEL}\nhosts = ['h0', 'h0']", "GT041", "job.a.hosts[1]", 3, "own"),
    (
        "too few hosts",
        job("[cluster]", "topology = { hosts = 1 }"),
        "GT042",
        "cluster.topology.hosts",
        5,
        "hosts = 2",
    ),
    # size of the run
    ("10^9 iterations", job("iterations = 1000000000"), "GT050", "job.train.iterations", 4, "100,000"),
    ("10^7 workers", f"[job.a]\n{MODEL}\nworkers = 10000000", "GT050", "job.a.workers", 3, "1,000,000"),
    (
        "10^7 layers",
        "[job.a]\nworkers = 2\nmodel = { layers = 10000000, size = '1TB' }",
        "GT050",
        "job.a.model",
        3,
        "100,000",
    ),
    (
        "chunks of a byte",
        job("iterations = 2000", "schedule = { chunk = '1B' }"),
        "GT050",
        "job.train.schedule.chunk",
        5,
        "larger chunks",
    ),
    (
        "duration of too many iterations",
        job("[run]", "duration = '1h'"),
        "GT050",
        "run.duration",
        5,
        "shorten",
    ),
    (
        "end of the clock",
        "[job.a]\nworkers = 2\niterations = 1000\nmodel = { kind = 'thesis', time = '100h' }",
        "GT051",
        "job.a",
        1,
        "106 days",
    ),
    (
        "end of the clock at 1 bps",
        job("[cluster]", "link = { rate = '1bps' }"),
        "GT051",
        "job.train",
        1,
        "rate",
    ),
    # neighbours' flows
    ("traffic as text", packet("[traffic]", "web = 'web-search'"), "GT011", "traffic.web", 5, "gradtide schema"),
    ("misspelt key of traffic", traffic(SIZED, "laod = 0.3"), "GT012", "traffic.web.laod", 6, "`load`"),
    ("misspelt sizes", traffic("sises = 'web-search'", "load = 0.3"), "GT012", "traffic.web.sises", 5, "`sizes`"),
    (
        "unknown per",
        traffic(SIZED, "arrivals = { rate = '1/s', per = 'node' }"),
        "GT013",
        "traffic.web.arrivals.per",
        6,
        "host, cluster",
    ),
    (
        "arrivals without rate",
        traffic(SIZED, "arrivals = { per = 'host' }"),
        "GT010",
        "traffic.web.arrivals.rate",
        6,
        '"23/s"',
    ),
    (
        "bare rate of flows",
        traffic(SIZED, "arrivals = { rate = 23 }"),
        "GT020",
        "traffic.web.arrivals.rate",
        6,
        '"23/s"',
    ),
    (
        "no flows per second",
        traffic(SIZED, "arrivals.rate = '0/s'"),
        "GT026",
        "traffic.web.arrivals.rate",
        6,
        "above 0",
    ),
    ("load 2", traffic(SIZED, "load = 2"), "GT014", "traffic.web.load", 6, "at most 1"),
    ("load in percent", traffic(SIZED, "load = '30%'"), "GT011", "traffic.web.load", 6, "without quotes"),
    (
        "burst without silence",
        traffic(SIZED, "load = 0.1", "burst = { on = '1ms' }"),
        "GT010",
        "traffic.web.burst.off",
        7,
        '"90ms"',
    ),
    (
        "burst of no length",
        traffic(SIZED, "load = 0.1", "burst = { on = '0s', off = '1s' }"),
        "GT026",
        "traffic.web.burst.on",
        7,
        "above 0",
    ),
    (
        "burst of an incast",
        traffic("incast = { dst = 'h0', bytes = '1MB', every = '1ms' }", "burst = { on = '1ms', off = '1ms' }"),
        "GT015",
        "traffic.web.burst",
        6,
        "time of its own",
    ),
    (
        "digest without replay",
        traffic(SIZED, "load = 0.1", "replay_sha256 = 'ab'"),
        "GT015",
        "traffic.web.replay_sha256",
        7,
        "leave it out",
    ),
    (
        "unknown flow sizes",
        traffic("sizes = 'web-serch'", "load = 0.3"),
        "GT060",
        "traffic.web.sizes",
        5,
        '"web-search"',
    ),
    (
        "flow sizes of no kind",
        traffic("sizes = 'zzz'", "load = 0.3"),
        "GT060",
        "traffic.web.sizes",
        5,
        "cache-follower",
    ),
    ("no CDF file", traffic("sizes = 'no-such.cdf'", "load = 0.3"), "GT002", "traffic.web.sizes", 5, "relative"),
    ("no list of flows", traffic("replay = 'no-such.csv'"), "GT002", "traffic.web.replay", 5, "relative"),
    ("empty cdf", traffic("cdf = []", "load = 0.3"), "GT061", "traffic.web.cdf", 5, "at least one"),
    (
        "cdf that falls",
        traffic("cdf = [{ bytes = '1kB', cdf = 0.5 }, { bytes = '1B', cdf = 1 }]", "load = 0.3"),
        "GT061",
        "traffic.web.cdf[1].bytes",
        5,
        "sort",
    ),
    (
        "cdf that ends early",
        traffic("cdf = [{ bytes = '1kB', cdf = 0.5 }]", "load = 0.3"),
        "GT061",
        "traffic.web.cdf[0].cdf",
        5,
        "all flows",
    ),
    (
        "cdf of no bytes",
        traffic("cdf = [{ bytes = '0B', cdf = 1 }]", "load = 0.3"),
        "GT061",
        "traffic.web.cdf[0].bytes",
        5,
        "at least 1",
    ),
    (
        "cdf above 1",
        traffic("cdf = [{ bytes = '1kB', cdf = 100 }]", "load = 0.3"),
        "GT014",
        "traffic.web.cdf[0].cdf",
        5,
        "from 0 to 1",
    ),
    (
        "cdf as text",
        traffic("cdf = [{ bytes = '1kB', cdf = '1' }]", "load = 0.3"),
        "GT011",
        "traffic.web.cdf[0].cdf",
        5,
        "0.15",
    ),
    ("empty flows", traffic("flows = []"), "GT063", "traffic.web.flows", 5, "at least one"),
    (
        "flow to itself",
        traffic("flows = [{ " + FLOW.replace("h0", "h1") + " }]"),
        "GT063",
        "traffic.web.flows[0].dst",
        5,
        "another host",
    ),
    (
        "flows after the end of the run",
        traffic("flows = [{ " + FLOW.replace("1ms", "4s") + " }]"),
        "GT065",
        "traffic.web.flows",
        5,
        "lengthen",
    ),
    (
        "burst of a picosecond",
        traffic(SIZED, "load = 0.9", "burst = { on = '1ps', off = '1000h' }"),
        "GT050",
        "traffic.web.load",
        6,
        "lower the rate",
    ),
    (
        "flow from nowhere",
        traffic("flows = [{ " + FLOW.replace("h0", "h7") + " }]"),
        "GT040",
        "traffic.web.flows[0].src",
        5,
        "h0 to h1",
    ),
    (
        "flow of no bytes",
        traffic("flows = [{ " + FLOW.replace("1kB", "0B") + " }]"),
        "GT026",
        "traffic.web.flows[0].bytes",
        5,
        "above 0",
    ),
    (
        "flow of an exabyte",
        traffic("flows = [{ " + FLOW.replace("1kB", "1000000TB") + " }]"),
        "GT014",
        "traffic.web.flows[0].bytes",
        5,
        "at most",
    ),
    (
        "flow without start",
        traffic("flows = [{ src = 'h0', dst = 'h1', bytes = '1B' }]"),
        "GT010",
        "traffic.web.flows[0].start",
        5,
        '"1ms"',
    ),
    (
        "flow in a band of another queue",
        traffic("flows = [{ " + FLOW + ", band = 3 }]"),
        "GT014",
        "traffic.web.flows[0].band",
        5,
        "0 to 2",
    ),
    (
        "incast at nobody",
        traffic("incast = { dst = 'h9', bytes = '1MB', every = '1ms' }"),
        "GT040",
        "traffic.web.incast.dst",
        5,
        "h0 to h1",
    ),
    (
        "incast of too many",
        traffic("incast = { dst = 'h0', senders = 2, bytes = '1MB', every = '1ms' }"),
        "GT042",
        "traffic.web.incast.senders",
        5,
        "1 other",
    ),
    (
        "incast after the end",
        traffic("incast = { dst = 'h0', bytes = '1MB', every = '1ms', start = '5s' }"),
        "GT065",
        "traffic.web.incast.start",
        5,
        "lengthen",
    ),
    (
        "incast without end",
        traffic("incast = { dst = 'h0', bytes = '1MB', every = '0s' }"),
        "GT026",
        "traffic.web.incast.every",
        5,
        "above 0",
    ),
    (
        "bursts of nobody",
        traffic("bursts = { src = [], dst = 'h0', bytes = '1MB', count = 2, idle = '1ms' }"),
        "GT063",
        "traffic.web.bursts.src",
        5,
        "at least one",
    ),
    (
        "bursts to oneself",
        traffic("bursts = { src = ['h0'], dst = 'h0', bytes = '1MB', count = 2, idle = '1ms' }"),
        "GT063",
        "traffic.web.bursts.src[0]",
        5,
        "another host",
    ),
    (
        "bursts of a host twice",
        traffic("bursts = { src = ['h1', '1'], dst = 'h0', bytes = '1MB', count = 2, idle = '1ms' }"),
        "GT063",
        "traffic.web.bursts.src[1]",
        5,
        "one burst at a time",
    ),
    (
        "bursts at nobody",
        traffic("bursts = { src = ['h1'], dst = 'h9', bytes = '1MB', count = 2, idle = '1ms' }"),
        "GT040",
        "traffic.web.bursts.dst",
        5,
        "h0 to h1",
    ),
    (
        "bursts after the end",
        traffic("bursts = { src = ['h1'], dst = 'h0', bytes = '1MB', count = 2, idle = '1ms', start = '5s' }"),
        "GT065",
        "traffic.web.bursts.start",
        5,
        "lengthen",
    ),
    (
        "bursts that never come to their first byte",
        traffic("bursts = { src = ['h1'], dst = 'h0', bytes = '1MB', count = 2, idle = '1ms', setup = '5s' }"),
        "GT065",
        "traffic.web.bursts.setup",
        5,
        "lengthen",
    ),
    (
        "arrivals of bursts",
        traffic("bursts = { src = ['h1'], dst = 'h0', bytes = '1MB', count = 2, idle = '1ms' }", "load = 0.1"),
        "GT015",
        "traffic.web.load",
        6,
        "a time of its own",
    ),
    (
        "announced to switches that do not heed",
        traffic("incast = { dst = 'h0', bytes = '1MB', every = '1ms' }", "announce = true"),
        "GT015",
        "traffic.web.announce",
        6,
        'kind = "pcn"',
    ),
    ("job announced to nobody", packet("announce = '10pkt'"), "GT015", "job.train.announce", 4, 'kind = "pcn"'),
    ("announced neither yes nor no", packet("announce = 1"), "GT020", "job.train.announce", 4, "1000pkt"),
    (
        "announced what no packet says",
        packet(f"[cluster.queue]\n{PCN}\nannounced = '12pkt'"),
        "GT014",
        "cluster.queue.announced",
        7,
        "multiple of 5",
    ),
    (
        "announced beyond four bits",
        packet(f"[cluster.queue]\n{PCN}\nannounced = '80pkt'"),
        "GT014",
        "cluster.queue.announced",
        7,
        "75pkt",
    ),
    (
        "announced above the threshold",
        packet(f"[cluster.queue]\n{PCN}\nannounced = '45pkt'"),
        "GT014",
        "cluster.queue.announced",
        7,
        "lower it",
    ),
    (
        "a tenant's announcement above the threshold",
        packet("announce = '60pkt'", f"[cluster.queue]\n{PCN}\nannounced = '5pkt'"),
        "GT014",
        "job.train.announce",
        4,
        "lower it",
    ),
    (
        "pcn without threshold",
        packet("[cluster.queue]\nkind = 'pcn'\nannounced = '5pkt'"),
        "GT010",
        "cluster.queue.threshold",
        4,
        "40pkt",
    ),
    ("pcn without announced", packet(f"[cluster.queue]\n{PCN}"), "GT010", "cluster.queue.announced", 4, "10pkt"),
    (
        "announced without pcn",
        packet("[cluster.queue]", "announced = '5pkt'"),
        "GT015",
        "cluster.queue.announced",
        5,
        'kind = "pcn"',
    ),
    (
        "incast every picosecond",
        traffic("incast = { dst = 'h0', bytes = '1B', every = '1ps' }"),
        "GT050",
        "traffic.web.incast",
        5,
        "1,000,000,000",
    ),
    (
        "10^9 flows per second",
        traffic(SIZED, "arrivals = { rate = '1000000/ms' }"),
        "GT050",
        "traffic.web.arrivals",
        6,
        "lower the rate",
    ),
    (
        "10^9 bytes at a load",
        traffic("cdf = [{ bytes = '1B', cdf = 1 }]", "load = 1"),
        "GT050",
        "traffic.web.load",
        6,
        "lower the rate",
    ),
    ("traffic without duration", traffic(SIZED, "load = 0.3", run=""), "GT010", "run.duration", 7, '"12s"'),
    (
        "traffic on one host",
        packet("[traffic.web]", SIZED, "load = 0.3").replace("workers = 2", "workers = 1"),
        "GT042",
        "cluster.topology.hosts",
        None,
        "hosts = 2",
    ),
    ("name of traffic", packet("[traffic.'a b']", SIZED, "load = 0.3"), "GT018", "traffic.a b", 4, "letters"),
    # bands, queues and lengths
    ("setting as text", job("priority = { adaptive = 'slack' }"), "GT011", "job.train.priority.adaptive", 4, "{"),
    (
        "unknown policy",
        job("priority = { adaptive = { policy = 'deadlin' } }"),
        "GT013",
        "job.train.priority.adaptive.policy",
        4,
        '"deadline"',
    ),
    (
        "unknown setting",
        job("priority = { adaptive = { margins = 1 } }"),
        "GT012",
        "job.train.priority.adaptive.margins",
        4,
        "margin",
    ),
    (
        "tolerance below 0",
        job("priority = { adaptive = { tolerance = -0.1 } }"),
        "GT014",
        "job.train.priority.adaptive.tolerance",
        4,
        "0 to 1000",
    ),
    (
        "margin of a fixed policy",
        job("priority = { adaptive = { policy = 'all-low', margin = 0.1 } }"),
        "GT015",
        "job.train.priority.adaptive.margin",
        4,
        '"deadline"',
    ),
    (
        "window of a fixed policy",
        job("priority = { adaptive = { policy = 'all-low', window = '64kB' } }"),
        "GT015",
        "job.train.priority.adaptive.window",
        4,
        '"deadline"',
    ),
    (
        "tolerance of what never turns",
        job("priority = { adaptive = { policy = 'background', tolerance = 0.1 } }"),
        "GT015",
        "job.train.priority.adaptive.tolerance",
        4,
        '"deadline"',
    ),
    (
        "no chunk under way",
        job("priority = { adaptive = { credit = 0 } }"),
        "GT014",
        "job.train.priority.adaptive.credit",
        4,
        "1",
    ),
    (
        "window below a segment",
        job("priority = { adaptive = { window = '1kB' } }"),
        "GT014",
        "job.train.priority.adaptive.window",
        4,
        "a few segments",
    ),
    (
        "no window",
        job("priority = { adaptive = { window = '0B' } }"),
        "GT026",
        "job.train.priority.adaptive.window",
        4,
        "above 0",
    ),
    (
        "price of what sees nothing",
        job("priority = { adaptive = { policy = 'deadline', price = 1 } }"),
        "GT015",
        "job.train.priority.adaptive.price",
        4,
        '"oracle"',
    ),
    (
        "tolerance of an oracle",
        job("priority = { adaptive = { policy = 'oracle', tolerance = 0.1 } }"),
        "GT015",
        "job.train.priority.adaptive.tolerance",
        4,
        '"deadline"',
    ),
    (
        "price below 0",
        job("priority = { adaptive = { policy = 'oracle', price = -1 } }"),
        "GT014",
        "job.train.priority.adaptive.price",
        4,
        "0 to 1000",
    ),
    (
        "policy without bands",
        packet("priority = { adaptive = { policy = 'deadline' } }", "[cluster]", "queue = { kind = 'fifo' }"),
        "GT015",
        "job.train.priority",
        4,
        "pfifo_fast",
    ),
    ("noise above one half", job("compute.noise = 0.6"), "GT014", "job.train.compute.noise", 4, "0 to 0.5"),
    ("noise with a unit", job("compute.noise = '5%'"), "GT011", "job.train.compute.noise", 4, "without quotes"),
    (
        "straggler without factor",
        job("compute.straggler = { worker = 1 }"),
        "GT010",
        "job.train.compute.straggler.factor",
        4,
        "factor = 1.5",
    ),
    (
        "straggler that is faster",
        job("compute.straggler = { factor = 0.5 }"),
        "GT014",
        "job.train.compute.straggler.factor",
        4,
        "from 1 to 100",
    ),
    (
        "straggler that is no worker",
        job("compute.straggler = { worker = 8, factor = 2.0 }"),
        "GT014",
        "job.train.compute.straggler.worker",
        4,
        "workers are 0 to 1",
    ),
    (
        "straggler never slow",
        job("compute.straggler = { factor = 2.0, probability = 0.0 }"),
        "GT014",
        "job.train.compute.straggler.probability",
        4,
        "above 0",
    ),
    (
        "misspelt key of a straggler",
        job("compute.straggler = { wroker = 1, factor = 2.0 }"),
        "GT012",
        "job.train.compute.straggler.wroker",
        4,
        "worker",
    ),
    ("sync without unit", job("schedule.sync = 20"), "GT020", "job.train.schedule.sync", 4, "10us"),
    ("list of no bands", job("priority = []"), "GT014", "job.train.priority", 4, '["high", "low"]'),
    ("unknown band in a list", job("priority = ['high', 'lwo']"), "GT013", "job.train.priority[1]", 4, '"low"'),
    ("band 8 in a list", job("priority = [0, 8]"), "GT014", "job.train.priority[1]", 4, "at most 7"),
    ("list in a list of bands", job("priority = [[0], 1]"), "GT011", "job.train.priority[0]", 4, "high"),
    (
        "more bands than layers",
        job("priority = [" + "0," * 2000 + "]"),
        "GT014",
        "job.train.priority",
        4,
        "at most one band for each layer",
    ),
    (
        "band of another queue in a list",
        packet("priority = ['high', 3]"),
        "GT014",
        "job.train.priority[1]",
        4,
        "0 to 2",
    ),
    (
        "list of bands for a neighbour",
        traffic(SIZED, "load = 0.1", "priority = ['high']"),
        "GT011",
        "traffic.web.priority",
        7,
        "high",
    ),
    (
        "too many iterations of workers that differ",
        "[job.a]\nworkers = 1000\nmodel = 'vgg16'\niterations = 30000\ncompute = { noise = 0.1 }",
        "GT050",
        "job.a.iterations",
        4,
        "workers.csv",
    ),
    ("band of another queue", packet("priority = 3"), "GT014", "job.train.priority", 4, "0 to 2"),
    (
        "band of one band",
        packet("priority = 1", "[cluster]", "queue.kind = 'fifo'"),
        "GT014",
        "job.train.priority",
        4,
        "only band 0",
    ),
    (
        "low on one band",
        packet("priority = 'low'", "[cluster]", "queue.kind = 'fifo'"),
        "GT015",
        "job.train.priority",
        4,
        "pfifo_fast",
    ),
    (
        "low traffic on one band",
        traffic(SIZED, "load = 0.1", "priority = 'low'", "[cluster]", "queue = { kind = 'ecn', threshold = '9pkt' }"),
        "GT015",
        "traffic.web.priority",
        7,
        "pfifo_fast",
    ),
    (
        "strict without bands",
        job("[cluster]", "queue = { kind = 'strict' }"),
        "GT010",
        "cluster.queue.bands",
        5,
        "bands =",
    ),
    (
        "ecn without threshold",
        job("[cluster]", "queue = { kind = 'ecn' }"),
        "GT010",
        "cluster.queue.threshold",
        5,
        '"40pkt"',
    ),
    (
        "nine bands",
        job("[cluster]", "queue = { kind = 'strict', bands = 9 }"),
        "GT014",
        "cluster.queue.bands",
        5,
        "at most 8",
    ),
    (
        "threshold beyond capacity",
        job("[cluster]", "queue = { kind = 'ecn', threshold = '40pkt', capacity = '30pkt' }"),
        "GT014",
        "cluster.queue.threshold",
        5,
        "lower",
    ),
    (
        "drr without weights",
        job("[cluster]", "queue = { kind = 'drr' }"),
        "GT010",
        "cluster.queue.weights",
        5,
        "[4, 2, 1]",
    ),
    (
        "drr of no band",
        job("[cluster.queue]", "kind = 'drr'", "weights = []"),
        "GT014",
        "cluster.queue.weights",
        6,
        "1 to 8",
    ),
    (
        "drr of nine bands",
        job("[cluster.queue]", "kind = 'drr'", "weights = [1, 1, 1, 1, 1, 1, 1, 1, 1]"),
        "GT014",
        "cluster.queue.weights",
        6,
        "1 to 8",
    ),
    (
        "a band of no weight",
        job("[cluster.queue]", "kind = 'drr'", "weights = [1, 0]"),
        "GT014",
        "cluster.queue.weights[1]",
        6,
        "at least 1",
    ),
    (
        "red without max",
        job("[cluster.queue]", "kind = 'red'", "min = '5pkt'"),
        "GT010",
        "cluster.queue.max",
        4,
        "15pkt",
    ),
    (
        "red with its ends the wrong way round",
        job("[cluster.queue]", "kind = 'red'", "min = '15pkt'", "max = '5pkt'"),
        "GT014",
        "cluster.queue.min",
        6,
        "lower it",
    ),
    (
        "red beyond capacity",
        job("[cluster]", "queue = { kind = 'red', min = '5pkt', max = '15pkt', capacity = '10pkt' }"),
        "GT014",
        "cluster.queue.max",
        5,
        "lower it",
    ),
    (
        "certain beyond certainty",
        job("[cluster.queue]", "kind = 'red'", "min = '5pkt'", "max = '15pkt'", "max_probability = 1.5"),
        "GT014",
        "cluster.queue.max_probability",
        8,
        "at most 1",
    ),
    (
        "buffer without a unit",
        job("[cluster.queue]", "capacity = 1000"),
        "GT020",
        "cluster.queue.capacity",
        5,
        "1000pkt",
    ),
    ("buffer in litres", job("[cluster.queue]", "capacity = '4l'"), "GT021", "cluster.queue.capacity", 5, "kpkt"),
    ("buffer of no bytes", job("[cluster.queue]", "capacity = '0MB'"), "GT026", "cluster.queue.capacity", 5, "above 0"),
    (
        "shared buffer of no size",
        packet("[cluster.switch_buffer]", "alpha = 1"),
        "GT010",
        "cluster.switch_buffer.capacity",
        4,
        "4MB",
    ),
    (
        "shared buffer that lets nothing in",
        packet("[cluster]", "switch_buffer = { capacity = '4MB', alpha = 0 }"),
        "GT014",
        "cluster.switch_buffer.alpha",
        5,
        "at most 1024",
    ),
    ("probe of no step", packet("[run.probe]", "links = ['h0']"), "GT010", "run.probe.every", 4, "100us"),
    ("probe without pause", packet("[run.probe]", "every = '0us'"), "GT026", "run.probe.every", 5, "above 0"),
    (
        "probe of no link",
        packet("[run.probe]", "every = '1ms'", "links = ['s-h99']"),
        "GT013",
        "run.probe.links[0]",
        6,
        "s-h0",
    ),
    (
        "probe of a link twice",
        packet("[run.probe]", "every = '1ms'", "links = ['h0', 'h0']"),
        "GT015",
        "run.probe.links[1]",
        6,
        "delete one",
    ),
    (
        "probe of a stranger's windows",
        packet("[run.probe]", "every = '1ms'", "cwnd = ['tram']"),
        "GT013",
        "run.probe.cwnd[0]",
        6,
        "train",
    ),
    (
        "probe of a job's flow",
        packet("[run.probe]", "every = '1ms'", "cwnd = ['train.3']"),
        "GT013",
        "run.probe.cwnd[0]",
        6,
        "NAME.NUMBER",
    ),
    (
        "queue of 10^12 packets",
        job("[cluster]", "queue.capacity = '1000000000kpkt'"),
        "GT014",
        "cluster.queue.capacity",
        5,
        "at most",
    ),
    (
        "queue of no packet",
        job("[cluster]", "queue.capacity = '0pkt'"),
        "GT026",
        "cluster.queue.capacity",
        5,
        "above 0",
    ),
    (
        "segment beyond a packet",
        job("[cluster]", "transport.segment = '64KiB'"),
        "GT014",
        "cluster.transport.segment",
        5,
        '"65481B"',
    ),
    (
        "no such recovery",
        job("[cluster]", "transport.recovery = 'prr'"),
        "GT013",
        "cluster.transport.recovery",
        5,
        "ns3.30",
    ),
    (
        "no initial window",
        job("[cluster]", "transport.initial_cwnd = 0"),
        "GT014",
        "cluster.transport.initial_cwnd",
        5,
        "at least 1",
    ),
    (
        "window below a segment",
        job("[cluster]", "transport.window = '1kB'"),
        "GT014",
        "cluster.transport.window",
        5,
        "a few segments",
    ),
    (
        "hystart without cubic",
        packet("[cluster]", "transport = { kind = 'newreno', hystart = true }"),
        "GT015",
        "cluster.transport.hystart",
        5,
        'for kind = "cubic"',
    ),
    (
        "byte counting without cubic",
        packet("[cluster]", "transport = { kind = 'ideal', byte_counting = true }"),
        "GT015",
        "cluster.transport.byte_counting",
        5,
        'for kind = "cubic"',
    ),
    (
        "dctcp without marks",
        packet("[cluster]", "transport.kind = 'dctcp'"),
        "GT015",
        "cluster.transport.kind",
        5,
        'kind = "ecn"',
    ),
    (
        "cubic+ecn without marks",
        packet("[cluster]", "transport.kind = 'cubic+ecn'"),
        "GT015",
        "cluster.transport.kind",
        5,
        'or kind = "cubic"',
    ),
    (
        "ecn without marks",
        packet("[cluster]", "transport.ecn = true", "queue.kind = 'fifo'"),
        "GT015",
        "cluster.transport.ecn",
        5,
        'threshold = "65pkt"',
    ),
    (
        "dctcp without ecn",
        packet("[cluster]", "transport = { kind = 'dctcp', ecn = false }"),
        "GT016",
        "cluster.transport.ecn",
        5,
        'or write kind = "newreno"',
    ),
    (
        "ecn twice, not the same",
        packet("[cluster]", "transport = { kind = 'cubic+ecn', ecn = false }"),
        "GT016",
        "cluster.transport.ecn",
        5,
        'or write kind = "cubic"',
    ),
    (
        "ideal with ecn",
        packet("[cluster]", "transport = { kind = 'ideal', ecn = true }"),
        "GT015",
        "cluster.transport.ecn",
        5,
        "does not react to marks",
    ),
    (
        "gain of newreno",
        packet("[cluster]", "transport.gain = 0.1"),
        "GT015",
        "cluster.transport.gain",
        5,
        "dctcp",
    ),
    (
        "efficiency of packets",
        packet("[cluster]", "link.efficiency = 0.9"),
        "GT015",
        "cluster.link.efficiency",
        5,
        "simulated",
    ),
    ("warm-up without traffic", packet(run="warmup = '1s'"), "GT015", "run.warmup", 7, "leave it out"),
    (
        "warm-up of the whole run",
        traffic(SIZED, "load = 0.1", run="duration = '4s'\nwarmup = '3s'\ncooldown = '1s'"),
        "GT052",
        "run.warmup",
        10,
        "shorten",
    ),
    (
        "cool-down beyond the run",
        job("[traffic.web]", f"flows = [{{ {FLOW} }}]", "[run]", "duration = '1s'", "cooldown = '2s'"),
        "GT052",
        "run.cooldown",
        8,
        "shorten",
    ),
    # traces
    (
        "kineto",
        "[job.a]\nworkers = 2\nmodel = 'rank0.pt.trace.json.gz'",
        "GT038",
        "job.a.model",
        3,
        "gradtide convert",
    ),
    ("perfetto", "[job.a]\nworkers = 2\nmodel = 'run.pftrace'", "GT090", "job.a.model", 3, "Kineto"),
    ("no Chakra traces", "[job.a]\nworkers = 2\nmodel = 'et/*.et'", "GT038", "job.a.model", 3, "gradtide convert"),
]


@pytest.mark.parametrize(("text", "code", "loc", "line", "hint"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_fault_names_code_path_line_and_fix(text: str, code: str, loc: str, line: int | None, hint: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_toml(text, name="s.toml").check_built()
    faults = {(e["code"], e["loc"], e["line"]): e for e in caught.value.errors}
    assert (code, loc, line) in faults, str(caught.value)
    fault = faults[code, loc, line]
    assert hint in fault["hint"]
    assert fault["file"] == "s.toml"
    assert fault["msg"]
    json.dumps(caught.value.errors)
    assert len(caught.value.errors) == 1, str(caught.value)


def test_there_are_many_distinct_cases() -> None:
    assert len({(c[2], c[3]) for c in CASES}) >= 45


FLOWS = b"start_ns,src,dst,bytes\n"

# Faults of the files that a scenario names: name, content, model or order, code, file line, field, hint
FILE_CASES: list[tuple[str, str, bytes, str, int | None, str, str]] = [
    ("no header", "m.csv", b"conv1,1,2,3\n", "GT032", 1, "", "layer,forward_us"),
    ("misspelt column", "m.csv", b"layer,forward_us,backwards_us,parameter_bytes\na,1,2,3\n", "GT032", 1, "backwards_us",
     "`backward_us`"),
    ("column twice", "m.csv", b"layer,layer,forward_us,backward_us,parameter_bytes\n", "GT032", 1, "layer", "delete"),
    ("no rows", "m.csv", CSV.encode(), "GT035", None, "", "at least one"),
    ("empty", "m.csv", b"", "GT005", None, "", "layer,forward_us"),
    ("short row", "m.csv", CSV.encode() + b"a,1,2,3\nb,1,2\n", "GT033", 3, "", "add or delete"),
    ("word for a time", "m.csv", CSV.encode() + b"a,1,2,3\n\nb,x,2,3\n", "GT033", 4, "forward_us", "microseconds"),
    ("unit in a time", "m.csv", CSV.encode() + b"a,1us,2,3\n", "GT033", 2, "forward_us", "plain"),
    ("negative time", "m.csv", CSV.encode() + b"a,-1,2,3\n", "GT033", 2, "forward_us", "start at 0"),
    ("negative bytes", "m.csv", CSV.encode() + b"a,1,2,-3\n", "GT033", 2, "parameter_bytes", "whole"),
    ("float bytes", "m.csv", CSV.encode() + b"a,1,2,3.0\n", "GT033", 2, "parameter_bytes", "whole"),
    ("time over 213 days", "m.csv", CSV.encode() + b"a,99999999999999,2,3\n", "GT024", 2, "forward_us", "213 days"),
    ("no name", "m.csv", CSV.encode() + b",1,2,3\n", "GT018", 2, "layer", "printable"),
    ("name twice", "m.csv", CSV.encode() + b"a,1,2,3\na,1,2,3\n", "GT034", 3, "layer", "rename"),
    ("no compute", "m.csv", CSV.encode() + b"a,0,0,3\n", "GT036", 2, "forward_us", "order"),
    ("open quote", "m.csv", CSV.encode() + b'"a,1,2,3\n', "GT033", 2, "", "quotes"),
    ("not UTF-8", "m.csv", "layer,é\n".encode("latin-1"), "GT003", 3, "job.a.model", "UTF-8"),
    ("NUL", "m.csv", CSV.encode() + b"a\0,1,2,3\n", "GT003", 3, "job.a.model", "binary"),
    ("not JSON", "m.json", b'{"schema": "gradtide.model/1",', "GT001", 1, "", "cut off"),
    ("key twice", "m.json", b'{"a": 1, "a": 2}', "GT001", None, "", "delete"),
    ("JSON NaN", "m.json", b'{"a": NaN}', "GT001", None, "", "plain number"),
    ("no schema", "m.json", b'{"layers": []}', "GT032", None, "", "gradtide.model/1"),
    ("other schema", "m.json", b'{\n"schema": "gradtide.model/9"}', "GT032", 2, "schema", "gradtide.model/1"),
    ("a list", "m.json", b"[]", "GT032", None, "", "gradtide.model/1"),
    ("no family", "m.json", b'{\n"model_type": "lama"}', "GT039", 2, "model_type", "did you mean llama"),
    ("a field left out", "m.json", b'{"model_type": "gpt2"}', "GT039", None, "n_embd", "whole configuration"),
    ("a trace of nothing", "m.json", b'{"traceEvents": []}', "GT038", 3, "job.a.model", "training step"),
    ("a trace cut off", "m.json", b'{"schemaVersion": 1, "traceEvents": [{"ph"', "GT038", 3, "job.a.model", "convert"),
    ("a trace of one process", "m.json", b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, '
     b'"dur": 2}]}', "GT038", 3, "job.a.model", "training step"),
    ("an empty Chakra trace", "m.et", b"", "GT038", 3, "job.a.model", "training step"),
    ("no gzip", "m.json.gz", b"\x1f\x8bnot", "GT038", 3, "job.a.model", "training step"),
    ("no layers", "m.json", b'{"schema": "gradtide.model/1", "name": "m", "layers": []}', "GT035", 1, "layers", "one"),
    ("layers is text", "m.json", b'{"schema": "gradtide.model/1", "name": "m", "layers": "x"}', "GT032", 1, "layers",
     "add"),
    ("unknown field", "m.json", b'{"schema": "gradtide.model/1", "name": "m", "layers": [\n{"name": "a", "forward_us": 1,'
     b' "backward_us": 2, "parameter_bytes": 3, "forwrad_us": 3}]}', "GT032", 2, "layers[0].forwrad_us", "forward_us"),
    ("half a layer", "m.json", b'{"schema": "gradtide.model/1", "name": "m", "layers": [\n{"name": "a", "forward_us": 1}'
     b"]}", "GT033", 2, "layers[0].parameter_bytes", "every layer has"),
    ("layer is a number", "m.json", b'{"schema": "gradtide.model/1", "name": "m", "layers": [1]}', "GT033", 1,
     "layers[0]", "write"),
    ("bytes as float", "m.json", b'{"schema": "gradtide.model/1", "name": "m", "layers": [\n{"name": "a", "forward_us": 1,'
     b' "backward_us": 2, "parameter_bytes": 3.5}]}', "GT033", 2, "layers[0].parameter_bytes", "4096"),
    ("order twice", "o.csv", b"conv1\nconv1\nout\n", "GT037", 2, "", "delete"),
    ("order of a stranger", "o.csv", b"conv1\nuot\n", "GT037", 2, "", '"out"'),
    ("flows without header", "f.csv", b"1,0,1,5\n", "GT062", 1, "", "start_ns,src,dst,bytes"),
    ("empty list of flows", "f.csv", b"# nothing\n", "GT062", None, "", "first line"),
    ("header alone", "f.csv", FLOWS, "GT062", None, "", "after the header"),
    ("misspelt flow column", "f.csv", b"start_ns,src,dest,bytes\n", "GT062", 1, "dest", "start_ns"),
    ("flow column twice", "f.csv", b"start_ns,src,dst,dst,bytes\n", "GT062", 1, "dst", "delete"),
    ("short flow", "f.csv", FLOWS + b"1,0,1\n", "GT063", 2, "", "start_ns,src"),
    ("flow in microseconds", "f.csv", FLOWS + b"\n1us,0,1,5\n", "GT063", 3, "start_ns", "whole number"),
    ("negative flow", "f.csv", FLOWS + b"1,0,1,5\n1,0,1,-5\n", "GT063", 3, "bytes", "whole number"),
    ("flow of no bytes", "f.csv", FLOWS + b"1,0,1,0\n", "GT063", 2, "bytes", "from 1"),
    ("flow beyond the clock", "f.csv", FLOWS + b"99999999999999999,0,1,5\n", "GT063", 2, "start_ns", "from 0"),
    ("flow to itself", "f.csv", FLOWS + b"1,0,h0,5\n", "GT063", 2, "dst", "another host"),
    ("flow to nobody", "f.csv", FLOWS + b"1,0,h2,5\n", "GT063", 2, "dst", "h0 to h1"),
    ("flow from a word", "f.csv", FLOWS + b"1,node0,1,5\n", "GT063", 2, "src", "h0 to h1"),
    ("flow in band 3", "f.csv", b"start_ns,src,dst,bytes,band\n1,0,1,5,3\n", "GT063", 2, "band", "0 to 2"),
    ("flows after the end", "f.csv", FLOWS + b"4000000000,0,1,5\n", "GT065", 8, "traffic.web.replay", "the unit"),
    ("flows not in UTF-8", "f.csv", FLOWS + b"\xff", "GT003", 8, "traffic.web.replay", "UTF-8"),
    ("no points", "s.cdf", b"# nothing\n", "GT061", None, "", "4000 15"),
    ("header of a CDF", "s.cdf", b"size,share\n1,1\n", "GT061", 1, "", "bytes,cdf"),
    ("point of three fields", "s.cdf", b"1 0\n5 1 100\n", "GT061", 2, "", "bytes and percent"),
    ("size with a unit", "s.cdf", b"1 0\n5kB 100\n", "GT061", 2, "bytes", "whole number"),
    ("size of an exabyte", "s.cdf", b"1 0\n1000000000000001 100\n", "GT061", 2, "bytes", "up to"),
    ("share with a sign", "s.cdf", b"1 -1\n5 100\n", "GT061", 1, "cdf", "percent"),
    ("sizes that fall", "s.cdf", b"5 0\n\n1 100\n", "GT061", 3, "bytes", "sort"),
    ("shares that fall", "s.cdf", b"1 50\n2 40\n5 100\n", "GT061", 2, "cdf", "at most"),
    ("shares up to 90", "s.cdf", b"bytes,cdf\n1,0\n5,90\n", "GT061", 3, "cdf", "100"),
    ("flows of no bytes", "s.cdf", b"0 100\n", "GT061", 1, "bytes", "at least 1"),
    ("order without one", "o.csv", b"conv1\n", "GT037", 4, "job.a.schedule.file", '"out"'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "code", "line", "loc", "hint"),
    [c[1:] for c in FILE_CASES],
    ids=[c[0] for c in FILE_CASES],
)
def test_a_fault_of_a_named_file_points_into_that_file(
    tmp_path: Path, name: str, content: bytes, code: str, line: int | None, loc: str, hint: str
) -> None:
    (tmp_path / "good.csv").write_text(GOOD_CSV)
    (tmp_path / name).write_bytes(content)
    model = name if name.startswith("m.") else "good.csv"
    text = f'[job.a]\nworkers = 2\nmodel = "{model}"\n'
    if name == "o.csv":
        text += 'schedule = { order = "file", file = "o.csv" }\n'
    if name in ("f.csv", "s.cdf"):
        text += '[run]\nengine = "packet"\nduration = "4s"\n[traffic.web]\n'
        text += 'replay = "f.csv"\n' if name == "f.csv" else 'sizes = "s.cdf"\nload = 0.1\n'
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        Scenario.load(tmp_path / "s.toml")
    fault = caught.value.errors[0]
    assert (fault["code"], fault["line"], fault["loc"]) == (code, line, loc), str(caught.value)
    assert hint in fault["hint"]
    in_scenario = loc.startswith(("job.", "traffic."))
    assert fault["file"] == (str(tmp_path / "s.toml") if in_scenario else name)


def load_fault(path: str | Path) -> dict[str, object]:
    with pytest.raises(ScenarioError) as caught:
        Scenario.load(path)
    assert len(caught.value.errors) == 1
    return caught.value.errors[0]


@pytest.mark.linux
def test_a_scenario_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text("")
    assert load_fault(tmp_path / "clutser.toml")["hint"] == "did you mean cluster.toml?"
    assert load_fault(tmp_path / "clutser.toml")["code"] == "GT002"
    assert load_fault(tmp_path / "cluster.toml")["code"] == "GT005"
    assert "directory" in str(load_fault(tmp_path)["msg"])
    (tmp_path / "utf16.toml").write_text(JOB, encoding="utf-16")
    assert load_fault(tmp_path / "utf16.toml")["code"] == "GT003"
    (tmp_path / "nul.toml").write_bytes(b"[job]\n\0")
    assert load_fault(tmp_path / "nul.toml")["code"] == "GT003"
    (tmp_path / "big.toml").write_bytes(b"#" * 10_000_001)
    assert load_fault(tmp_path / "big.toml")["code"] == "GT004"
    assert load_fault("bad\0name.toml")["code"] == "GT002"
    assert load_fault("x" * 5000)["code"] in ("GT002", "GT006")
    (tmp_path / "list.json").write_text("[1]")
    assert load_fault(tmp_path / "list.json")["code"] == "GT011"
    os.mkfifo(tmp_path / "pipe.toml")
    assert load_fault(tmp_path / "pipe.toml")["code"] == "GT002"


@pytest.mark.linux
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(JOB)
    path.chmod(0)
    assert load_fault(path)["code"] == "GT002"


def test_an_unknown_preset_offers_the_nearest() -> None:
    fault = load_fault("paper/gao2020-ch6")
    assert fault["code"] == "GT006"
    assert "paper/gao2020-ch" in str(fault["hint"])
    assert "paper/gao2020-ch4" in str(load_fault("nothing-like-it")["hint"])
    assert load_fault("paper/../../errors")["code"] == "GT006"


def test_an_unknown_model_or_device_lists_those_that_begin_so_or_all() -> None:
    pytest.importorskip("gradtide.roofline")
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_toml('[job.a]\nmodel = "resnet5"\nworkers = 2')
    assert caught.value.errors[0]["code"] == "GT030"
    assert '"resnet50"' in caught.value.errors[0]["hint"]
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_toml('[job.a]\nmodel = "resnet50"\nworkers = 2\ncompute.device = "v10"')
    assert caught.value.errors[0]["code"] == "GT031"
    assert caught.value.errors[0]["line"] == 4
    assert "V100" in caught.value.errors[0]["hint"]


def test_all_faults_of_a_file_are_found_at_once() -> None:
    text = (
        "[job.train]\n"
        'model = { kind = "thesis", layers = 1 }\n'
        "wrokers = 2\n"
        'schedule = { order = "fifi", fusion = 25 }\n'
        "\n"
        "[job.other]\n"
        f"{MODEL}\n"
        'hosts = ["h0", "h0"]\n'
        "iterations = 1000000000\n"
        "[cluster]\n"
        'topology = { kind = "star", ports = 4 }\n'
        'link = { rate = "10G", delay = "-1us" }\n'
        "[traffic.web]\n"
        "load = 0.5\n"
        "[run]\n"
        'engine = "pip"\n'
    )
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_toml(text, name="many.toml")
    assert [(e["code"], e["line"]) for e in caught.value.errors] == [
        ("GT014", 2), ("GT012", 3), ("GT013", 4), ("GT020", 4), ("GT041", 8), ("GT050", 9), ("GT015", 11),
        ("GT021", 12), ("GT023", 12), ("GT010", 13), ("GT010", 15), ("GT013", 16),
    ]  # fmt: skip


GOLDEN = """\
error[GT012]: unknown field `rate_gpbs`
  --> cluster.toml:7   cluster.link.rate_gpbs
 7 | rate_gpbs = 10
   | ^^^^^^^^^ did you mean `rate`, with a unit, as in rate = "10Gbps"?
help: gradtide explain GT012"""


def test_a_block_looks_as_the_interface_says() -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_toml(job("", "", "[cluster.link]", "rate_gpbs = 10"), name="cluster.toml")
    assert str(caught.value) == GOLDEN
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, GradtideError)
    assert caught.value.errors[0]["input"] == 10
    assert str(pickle.loads(pickle.dumps(caught.value))) == GOLDEN


def test_a_dict_has_paths_but_no_lines() -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict({"job": {"a": {"model": {"kind": "thesis"}, "workers": "2"}}})
    assert str(caught.value) == (
        'error[GT011]: expected a whole number, found the text "2"\n'
        "  --> <dict>   job.a.workers\n"
        "   = write workers = 8\n"
        "help: gradtide explain GT011"
    )
    assert caught.value.errors[0]["line"] is None


def test_json_has_lines_too(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"job": {"a": {\n  "model": {"kind": "thesis"},\n  "wor\\u006bers": 0}}}')
    fault = load_fault(path)
    assert (fault["code"], fault["loc"], fault["line"]) == ("GT014", "job.a.workers", 3)


def test_a_dict_that_holds_itself_is_refused() -> None:
    data: dict[str, object] = {}
    data["job"] = data
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict(data)
    assert caught.value.errors[0]["code"] == "GT011"


def test_set_is_named_as_the_file() -> None:
    base = Scenario.load("paper/gao2020-ch4")
    with pytest.raises(ScenarioError) as caught:
        base.set({"cluster.link.rate": "10", "run.seed": "-1"})
    assert str(caught.value).startswith(
        "error[GT020]: the number 10 has no unit\n"
        "  --> --set   cluster.link.rate\n"
        "   | cluster.link.rate=10\n"
        "   |                   ^^ write a rate with its unit"
    )
    assert {e["file"] for e in caught.value.errors} == {"--set"}


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("job.tain.workers", "job.train"),
        ("link.rate", "cluster.link.rate"),
        ("rate", "write job.NAME"),
        ("", "write job.NAME"),
        ("job.train", "write job.NAME"),
        ("run..seed", "run.seed"),
        ("run.seed.x", "set run.seed itself"),
    ],
)
def test_a_path_of_set_that_names_nothing(path: str, hint: str) -> None:
    base = Scenario.load("paper/gao2020-ch4").set({"run.seed": 1})
    with pytest.raises(ScenarioError) as caught:
        base.set({path: "1"})
    assert caught.value.errors[0]["code"] == "GT017"
    assert hint in caught.value.errors[0]["hint"]


NOT_BUILT = [
    ("run.probe", {"every": "1ms"}, "packet"),
]


@pytest.mark.parametrize(("path", "value", "available"), NOT_BUILT, ids=[f"{p}={v}" for p, v, _ in NOT_BUILT])
def test_what_is_not_built_is_understood_but_not_run(path: str, value: object, available: str) -> None:
    scenario = Scenario.load("paper/gao2020-ch4").set({path: value})
    assert Scenario.from_toml(scenario.to_toml()) == scenario
    with pytest.raises(ScenarioError) as caught:
        scenario.spec()
    (fault,) = caught.value.errors
    assert fault["code"] == "GT090"
    assert "is not built yet" in fault["msg"]
    assert available in fault["hint"]


NO_MEANING = [
    ("cluster.queue", {"kind": "ecn", "threshold": "40pkt", "mark_at": "dequeue"}, "pfifo_fast"),
    ("cluster.queue", {"kind": "pcn", "threshold": "40pkt", "announced": "10pkt"}, "pfifo_fast"),
    ("cluster.queue.capacity", "60pkt", "pfifo_fast"),
    ("cluster.switch_buffer", {"capacity": "4MB"}, "packet"),
    ("cluster.transport.kind", "dctcp", "newreno"),
]


@pytest.mark.parametrize(("path", "value", "instead"), NO_MEANING, ids=[f"{p}={v}" for p, v, _ in NO_MEANING])
def test_what_has_no_meaning_for_the_engine_is_not_run(path: str, value: object, instead: str) -> None:
    scenario = Scenario.load("paper/gao2020-ch4").set({path: value})
    assert Scenario.from_toml(scenario.to_toml()) == scenario
    with pytest.raises(ScenarioError) as caught:
        scenario.spec()
    (fault,) = caught.value.errors
    assert fault["code"] == "GT015"
    assert 'has no effect with engine = "fluid"' in fault["msg"]
    assert instead in fault["hint"]


ASKED = set(re.findall(r'yield "([\w ]+)"', inspect.getsource(support)))


def test_what_a_scenario_asks_for_is_in_the_tables() -> None:
    assert set(COMBINATIONS) <= ASKED <= {*FEATURES, *COMBINATIONS}


@pytest.mark.parametrize("name", sorted(set(FEATURES) - ASKED))
def test_only_what_is_refused_elsewhere_has_no_check(name: str) -> None:
    feature = FEATURES[name]
    missing = {feature.on(engine) for engine in ENGINES} - {Support.YES}
    assert not missing or re.search(r"\(GT\d{3}\)", feature.name)


@pytest.mark.parametrize(
    ("path", "value", "available"),
    [
        ("traffic.web.priority", {"adaptive": {"policy": "deadline"}}, '"high"'),
    ],
)
def test_what_the_packet_engine_has_not_built(path: str, value: object, available: str) -> None:
    scenario = Scenario.load("paper/gao2020-ch5").set({path: value})
    assert Scenario.from_toml(scenario.to_toml()) == scenario
    with pytest.raises(ScenarioError) as caught:
        scenario.spec()
    (fault,) = caught.value.errors
    assert fault["code"] == "GT090"
    assert available in fault["hint"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cluster.queue", {"kind": "ecn", "threshold": "40pkt"}),
        ("cluster.switch_buffer", {"capacity": "4MB"}),
        ("cluster.transport.kind", "cubic"),
        ("run.probe", {"every": "1ms"}),
    ],
)
def test_what_has_no_meaning_for_the_fluid_engine(path: str, value: object) -> None:
    scenario = Scenario.load("paper/zhang2017").set({path: value})
    with pytest.raises(ScenarioError) as caught:
        scenario.spec()
    (fault,) = caught.value.errors
    assert fault["code"] == ("GT090" if path == "run.probe" else "GT015")
    assert 'engine = "packet"' in fault["hint"]


def test_a_replayed_file_that_changed(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("start_ns,src,dst,bytes\n1,0,1,5\n")
    text = traffic("replay = 'f.csv'", f"replay_sha256 = '{'0' * 64}'")
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_toml(text, base_dir=tmp_path)
    (fault,) = caught.value.errors
    assert (fault["code"], fault["loc"], fault["line"]) == ("GT064", "traffic.web.replay_sha256", 6)


def test_thousands_of_faults_are_shown_as_fifty() -> None:
    rows = [{"name": f"l{i}", "forward": 1} for i in range(2_000)]
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict({"job": {"a": {"model": {"layers": rows}, "workers": 2}}})
    assert len(caught.value.errors) == 200
    assert str(caught.value).count("error[GT") == 50
    assert str(caught.value).endswith("and 150 more errors")


def test_a_long_line_is_shown_around_the_offence() -> None:
    fault = Fault("GT012", "a", "m", None, "h", "f", 1, "x" * 500 + "bad" + "y" * 500, 500, 3)
    shown, carets = fault.render().split("\n")[2:4]
    assert len(shown) < 120
    assert shown[carets.index("^") : carets.index("^") + 3] == "bad"


def codes_tested() -> set[str]:
    elsewhere = {"GT002", "GT003", "GT004", "GT006", "GT011", "GT017", "GT030", "GT031", "GT047", "GT053", "GT064"}
    elsewhere |= {"GT054"}  # test_enforced.py
    elsewhere |= {"GT055", "GT057"}  # test_divided.py
    elsewhere |= {"GT056"}  # test_own_times.py
    elsewhere |= {"GT066"}  # test_calibrate.py
    elsewhere |= {"GT070", "GT071", "GT072", "GT073"}  # test_order.py
    elsewhere |= {"GT080", "GT081", "GT082"}  # test_plan.py
    elsewhere |= {"GT100", "GT101", "GT102", "GT103", "GT104", "GT105"}  # test_sweep.py
    elsewhere |= {"GT007"}  # test_recognise.py
    elsewhere |= {"GT091"}  # test_check.py
    elsewhere |= {"GT106", "GT107", "GT108"}  # test_sweep_executors.py
    return {c[2] for c in CASES} | {c[3] for c in FILE_CASES} | elsewhere


def test_the_table_holds_exactly_the_codes_in_use() -> None:
    package = Path(__file__).parent.parent / "python" / "gradtide"
    alone = [package / f"{name}.py" for name in ("errors", "estimate", "inputs", "recognise", "traffic", "units")]
    files = [
        *alone,
        package / "studies/calibrate.py",
        *sorted((package / "studies/sweep").glob("*.py")),
        *sorted((package / "scenario").rglob("*.py")),
    ]
    used = {code for file in files for code in re.findall(r'"(GT\d{3})"', file.read_text())}
    assert used == set(CODES)
    assert codes_tested() == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained(code: str) -> None:
    entry = CODES[code]
    text = explain(code.lower())
    assert text.startswith(f"{code}: {entry.title}\n")
    assert all(line.strip() in text for line in (entry.bad + "\n" + entry.good).splitlines())
    assert entry.bad != entry.good
    assert max(map(len, text.splitlines())) <= 100


def test_an_unknown_code_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        explain("GT999")
