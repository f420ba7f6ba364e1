"""Bad inputs to every command: each is refused with one clear error, and nothing is left behind.

Clear means: the error has its code or names the option, says in which file and line the fault stands, and shows how to
fix it. What each text says word for word is in the tests of the single readers.
"""

# ruff: noqa: E501 (rows of a table)

import re
import sys

import pytest

from gradtide import cli

JOB = """\
[job.train]
model = "resnet50"
workers = 4
"""

# id, scenario, code, fragments of the error
SCENARIOS = [
    ("empty file", "", "GT005", ("--> s.toml",)),
    ("only comment", "# nothing\n", "GT005", ("--> s.toml",)),
    ("binary", "\u0000\u0001\u0002", "GT003", ("--> s.toml",)),
    ("no job table", "[cluster]\nlink={rate='1Gbps'}\n", "GT010", ("--> s.toml", "job")),
    ("workers 0", '[job.a]\nmodel="resnet50"\nworkers=0\n', "GT014", ("--> s.toml:3", "job.a.workers")),
    ("workers -3", '[job.a]\nmodel="resnet50"\nworkers=-3\n', "GT014", ("--> s.toml:3", "job.a.workers")),
    ("workers 1e30", '[job.a]\nmodel="resnet50"\nworkers=1e30\n', "GT011", ("--> s.toml:3", "job.a.workers")),
    ("workers float", '[job.a]\nmodel="resnet50"\nworkers=2.5\n', "GT011", ("--> s.toml:3", "job.a.workers")),
    ("workers text", '[job.a]\nmodel="resnet50"\nworkers="four"\n', "GT011", ("--> s.toml:3", "job.a.workers")),
    ("workers true", '[job.a]\nmodel="resnet50"\nworkers=true\n', "GT011", ("--> s.toml:3", "job.a.workers")),
    ("workers huge", '[job.a]\nmodel="resnet50"\nworkers=99999999999\n', "GT050", ("--> s.toml:3", "job.a.workers")),
    ("model misspelt", '[job.a]\nmodel="resnet5O"\nworkers=4\n', "GT030", ("--> s.toml:2", "job.a.model")),
    ("model file missing", '[job.a]\nmodel="layers.csv"\nworkers=4\n', "GT002", ("--> s.toml:2", "job.a.model")),
    ("rate nan", JOB + "[cluster.link]\nrate=nan\n", "GT020", ("--> s.toml:5", "cluster.link.rate")),
    ("rate inf", JOB + "[cluster.link]\nrate=inf\n", "GT020", ("--> s.toml:5", "cluster.link.rate")),
    ("rate negative", JOB + '[cluster.link]\nrate="-1Gbps"\n', "GT023", ("--> s.toml:5", "cluster.link.rate")),
    ("rate zero", JOB + '[cluster.link]\nrate="0Gbps"\n', "GT026", ("--> s.toml:5", "cluster.link.rate")),
    ("rate bare G", JOB + '[cluster.link]\nrate="10G"\n', "GT021", ("--> s.toml:5", "cluster.link.rate")),
    ("rate wrong unit", JOB + '[cluster.link]\nrate="10ms"\n', "GT021", ("--> s.toml:5", "cluster.link.rate")),
    ("rate MB/S case", JOB + '[cluster.link]\nrate="10gbps"\n', "GT021", ("--> s.toml:5", "cluster.link.rate")),
    ("delay is rate", JOB + '[cluster.link]\ndelay="10Gbps"\n', "GT021", ("--> s.toml:5", "cluster.link.delay")),
    ("delay negative", JOB + '[cluster.link]\ndelay="-1us"\n', "GT023", ("--> s.toml:5", "cluster.link.delay")),
    ("delay a year", JOB + '[cluster.link]\ndelay="8760h"\n', "GT024", ("--> s.toml:5", "cluster.link.delay")),
    (
        "rate beyond the fluid engine",
        JOB + '[cluster]\nlink = { rate = "20Tbps" }\n[run]\nengine = "fluid"\n',
        "GT014",
        ("--> s.toml:5", "cluster.link.rate", "17500Gbps"),
    ),
    (
        "scale-up beyond the fluid engine",
        JOB + '[cluster.node]\ngpus = 8\nscale_up = { rate = "30TBps" }\n[run]\nengine = "packet"\n',
        "GT014",
        ("--> s.toml:6", "scale_up.rate", "17500Gbps"),
    ),
    ("efficiency 0", JOB + "[cluster.link]\nefficiency=0\n", "GT014", ("--> s.toml:5", "cluster.link.efficiency")),
    ("efficiency 2", JOB + "[cluster.link]\nefficiency=2\n", "GT014", ("--> s.toml:5", "cluster.link.efficiency")),
    (
        "efficiency text",
        JOB + '[cluster.link]\nefficiency="90%"\n',
        "GT011",
        ("--> s.toml:5", "cluster.link.efficiency"),
    ),
    ("unknown top", JOB + "[clutser]\nx=1\n", "GT012", ("--> s.toml:4", "clutser")),
    ("unknown key", JOB + '[job.train.schedul]\norder="fifo"\n', "GT012", ("--> s.toml:4", "job.train.schedul")),
    ("dup key", '[job.a]\nmodel="resnet50"\nmodel="vgg16"\nworkers=2\n', "GT001", ("--> s.toml:3",)),
    ("truncated toml", '[job.a]\nmodel = "resn', "GT001", ("--> s.toml:2",)),
    ("unclosed table", '[job.a\nmodel="resnet50"\n', "GT001", ("--> s.toml:1",)),
    (
        "order unknown",
        JOB + '[job.train.schedule]\norder="fastest"\n',
        "GT013",
        ("--> s.toml:5", "job.train.schedule.order"),
    ),
    ("chunk 0", JOB + '[job.train.schedule]\nchunk="0B"\n', "GT026", ("--> s.toml:5", "job.train.schedule.chunk")),
    (
        "chunk bits",
        JOB + '[job.train.schedule]\nchunk="8Mbit"\n',
        "GT021",
        ("--> s.toml:5", "job.train.schedule.chunk"),
    ),
    ("credit 0", JOB + "[job.train.schedule]\ncredit=0\n", "GT014", ("--> s.toml:5", "job.train.schedule.credit")),
    (
        "queues with fifo",
        JOB + "[job.train.schedule]\nqueues=3\n",
        "GT015",
        ("--> s.toml:5", "job.train.schedule.queues"),
    ),
    (
        "buckets mismatch",
        JOB + "[job.train.schedule]\nbuckets=[1,2]\n",
        "GT014",
        ("--> s.toml:5", "job.train.schedule.buckets"),
    ),
    (
        "order file none",
        JOB + '[job.train.schedule]\norder="file"\n',
        "GT010",
        ("--> s.toml:4", "job.train.schedule.file"),
    ),
    (
        "order file missing",
        JOB + '[job.train.schedule]\norder="file"\nfile="no.txt"\n',
        "GT002",
        ("--> s.toml:6", "job.train.schedule.file"),
    ),
    (
        "ring on tree key",
        JOB + '[job.train.collective]\nkind="ring"\ngroup=2\n',
        "GT015",
        ("--> s.toml:6", "job.train.collective.group"),
    ),
    (
        "all_to_all",
        JOB + '[job.train.collective]\nkind="all_to_all"\n[run]\nengine="fluid"\n',
        "",
        ("job.train.collective.kind", "all_to_all"),
    ),
    (
        "all_gather",
        JOB + '[job.train.collective]\nkind="all_gather"\n[run]\nengine="fluid"\n',
        "",
        ("job.train.collective.kind", "all_gather"),
    ),
    (
        "ps too many",
        JOB + '[job.train.collective]\nps={servers=4}\n[run]\nengine="fluid"\n',
        "GT048",
        ("--> s.toml:5", "job.train.collective.ps.servers"),
    ),
    (
        "straggler worker 9",
        JOB + "[job.train.compute]\nstraggler={worker=9,factor=2}\n",
        "GT014",
        ("--> s.toml:5", "job.train.compute.straggler.worker"),
    ),
    (
        "straggler factor 0.5",
        JOB + "[job.train.compute]\nstraggler={worker=1,factor=0.5}\n",
        "GT014",
        ("--> s.toml:5", "job.train.compute.straggler.factor"),
    ),
    ("noise 3", JOB + "[job.train.compute]\nnoise=3\n", "GT014", ("--> s.toml:5", "job.train.compute.noise")),
    (
        "device unknown",
        JOB + '[job.train.compute]\ndevice="H1000"\n',
        "GT031",
        ("--> s.toml:5", "job.train.compute.device"),
    ),
    ("batch 0", JOB + "[job.train.compute]\nbatch=0\n", "GT014", ("--> s.toml:5", "job.train.compute.batch")),
    (
        "batch huge",
        JOB + "[job.train.compute]\nbatch=10000000000\n",
        "GT014",
        ("--> s.toml:5", "job.train.compute.batch"),
    ),
    ("hosts twice", '[job.a]\nmodel="resnet50"\nhosts=["h0","h0"]\n', "GT041", ("--> s.toml:3", "job.a.hosts[1]")),
    ("host bad", '[job.a]\nmodel="resnet50"\nhosts=["a","b"]\n', "GT040", ("--> s.toml:3", "job.a.hosts[0]")),
    (
        "clos odd",
        JOB + '[cluster]\ntopology={kind="clos2",ports=7}\n[run]\nengine="fluid"\n',
        "GT014",
        ("--> s.toml:5", "cluster.topology.ports"),
    ),
    (
        "clos bisection",
        JOB + '[cluster]\ntopology={kind="clos2",ports=8,bisection="1/3"}\n[run]\nengine="fluid"\n',
        "GT044",
        ("--> s.toml:5", "cluster.topology.bisection"),
    ),
    (
        "clos too small",
        JOB + '[cluster]\ntopology={kind="clos2",ports=2}\n[run]\nengine="fluid"\n',
        "GT042",
        ("--> s.toml:5", "cluster.topology.ports"),
    ),
    (
        "bisection 0",
        JOB + '[cluster]\ntopology={kind="clos2",ports=8,bisection=0}\n[run]\nengine="fluid"\n',
        "GT014",
        ("--> s.toml:5", "cluster.topology.bisection"),
    ),
    (
        "custom disconnected",
        JOB
        + '[cluster]\ntopology={kind="custom",links=[{a="h0",b="s0"},{a="h1",b="s0"},{a="h2",b="s1"},{a="h3",b="s1"}]}\n[run]\nengine="fluid"\n',
        "GT045",
        ("--> s.toml:5", "cluster.topology.links"),
    ),
    (
        "custom self",
        JOB + '[cluster]\ntopology={kind="custom",links=[{a="h0",b="h0"}]}\n[run]\nengine="fluid"\n',
        "GT046",
        ("--> s.toml:5", "cluster.topology.links[0].b"),
    ),
    (
        "queue on fluid",
        JOB + '[cluster]\nqueue={kind="ecn",threshold="65pkt"}\n[run]\nengine="fluid"\n',
        "GT015",
        ("--> s.toml:5", "cluster.queue"),
    ),
    (
        "dctcp without ecn",
        JOB + '[cluster]\ntransport={kind="dctcp"}\n[run]\nengine="packet"\n',
        "GT015",
        ("--> s.toml:5", "cluster.transport.kind"),
    ),
    (
        "threshold above capacity",
        JOB + '[cluster]\nqueue={kind="ecn",threshold="2000pkt"}\ntransport={kind="dctcp"}\n[run]\nengine="packet"\n',
        "GT014",
        ("--> s.toml:5", "cluster.queue.threshold"),
    ),
    (
        "red min>max",
        JOB + '[cluster]\nqueue={kind="red",min="15pkt",max="5pkt"}\n[run]\nengine="packet"\n',
        "GT014",
        ("--> s.toml:5", "cluster.queue.min"),
    ),
    ("probe on pipe", JOB + '[run]\nprobe={every="1ms"}\n', "GT090", ("--> s.toml:5", "run.probe")),
    (
        "probe unknown link",
        JOB + '[run]\nengine="packet"\nprobe={every="1ms",links=["h99"]}\n',
        "GT013",
        ("--> s.toml:6", "run.probe.links[0]"),
    ),
    (
        "traffic no duration",
        JOB + '[traffic.web]\nsizes="web-search"\nload=0.3\n[run]\nengine="fluid"\n',
        "GT010",
        ("--> s.toml:7", "run.duration"),
    ),
    (
        "traffic no load",
        JOB + '[traffic.web]\nsizes="web-search"\n[run]\nengine="fluid"\nduration="1s"\n',
        "GT010",
        ("--> s.toml:4", "traffic.web.arrivals"),
    ),
    (
        "traffic load 2",
        JOB + '[traffic.web]\nsizes="web-search"\nload=2\n[run]\nengine="fluid"\nduration="1s"\n',
        "GT014",
        ("--> s.toml:6", "traffic.web.load"),
    ),
    (
        "traffic sizes unknown",
        JOB + '[traffic.web]\nsizes="web-serch"\nload=0.1\n[run]\nengine="fluid"\nduration="1s"\n',
        "GT060",
        ("--> s.toml:5", "traffic.web.sizes"),
    ),
    (
        "cdf decreasing",
        JOB
        + '[traffic.web]\ncdf=[{bytes="1kB",cdf=0.5},{bytes="2kB",cdf=0.2}]\nload=0.1\n[run]\nengine="fluid"\nduration="1s"\n',
        "GT061",
        ("--> s.toml:5", "traffic.web.cdf[1].cdf"),
    ),
    (
        "flows bad host",
        JOB
        + '[traffic.web]\nflows=[{start="1ms",src="h0",dst="h99",bytes="1kB"}]\n[run]\nengine="fluid"\nduration="1s"\n',
        "GT040",
        ("--> s.toml:5", "traffic.web.flows[0].dst"),
    ),
    (
        "flow to self",
        JOB
        + '[traffic.web]\nflows=[{start="1ms",src="h0",dst="h0",bytes="1kB"}]\n[run]\nengine="fluid"\nduration="1s"\n',
        "GT063",
        ("--> s.toml:5", "traffic.web.flows[0].dst"),
    ),
    (
        "warmup>duration",
        JOB + '[traffic.web]\nsizes="web-search"\nload=0.1\n[run]\nengine="fluid"\nduration="1s"\nwarmup="2s"\n',
        "GT052",
        ("--> s.toml:10", "run.warmup"),
    ),
    ("seed negative", JOB + "[run]\nseed=-1\n", "GT014", ("--> s.toml:5", "run.seed")),
    ("engine unknown", JOB + '[run]\nengine="ns3"\n', "GT013", ("--> s.toml:5", "run.engine")),
    (
        "iterations 1e9",
        '[job.a]\nmodel="resnet50"\nworkers=2\niterations=1000000000\n',
        "GT050",
        ("--> s.toml:4", "job.a.iterations"),
    ),
    ("timeline -1", JOB + "[run]\ntimeline=-1\n", "GT014", ("--> s.toml:5", "run.timeline")),
    ("name with space", '[job."a b"]\nmodel="resnet50"\nworkers=2\n', "GT018", ("--> s.toml:1", "job.a", "b")),
]

# id, files, arguments, code, fragments of the error
COMMANDS = [
    (
        "set path unknown",
        {"s.toml": JOB},
        ("run", "s.toml", "--set", "cluster.link.rat=1Gbps"),
        "GT012",
        ("--> --set", "cluster.link.rat"),
    ),
    (
        "set no equals",
        {"s.toml": JOB},
        ("run", "s.toml", "--set", "cluster.link.rate"),
        "",
        ("--set cluster.link.rate", "KEY=VALUE"),
    ),
    (
        "set twice",
        {"s.toml": JOB},
        ("run", "s.toml", "--set", "cluster.link.rate=1Gbps", "--set", "cluster.link.rate=2Gbps"),
        "",
        ("--set", "cluster.link.rate"),
    ),
    (
        "set job unknown",
        {"s.toml": JOB},
        ("run", "s.toml", "--set", "job.other.workers=2"),
        "GT017",
        ("--> --set", "job.other.workers"),
    ),
    ("seed text", {"s.toml": JOB}, ("run", "s.toml", "--seed", "x"), "", ("--seed",)),
    ("engine opt", {"s.toml": JOB}, ("run", "s.toml", "--engine", "fast"), "GT013", ("--engine",)),
    (
        "fail-if bad",
        {"s.toml": JOB},
        ("run", "s.toml", "--fail-if", "iteration_time_ms"),
        "",
        ("--fail-if", "iteration_time_ms>950"),
    ),
    (
        "fail-if unknown",
        {"s.toml": JOB},
        ("run", "s.toml", "--fail-if", "iterationtime>3"),
        "",
        ("--fail-if", "iteration_time_ms"),
    ),
    ("max-memory bad", {"s.toml": JOB}, ("run", "s.toml", "--max-memory", "10G"), "", ("--max-memory", "10GB")),
    ("max-time bad", {"s.toml": JOB}, ("run", "s.toml", "--max-time", "1"), "", ("--max-time", "10h")),
    ("max-time tiny", {"s.toml": JOB}, ("run", "s.toml", "--max-time", "1ps"), "", ("--max-time", "10h")),
    ("jobs 0", {}, ("compare", "paper/gao2020-ch4", "-j", "0"), "", ("--jobs",)),
    ("out is file", {"s.toml": JOB}, ("run", "s.toml", "-o", "s.toml"), "", ("s.toml", "folder")),
    ("out foreign", {"s.toml": JOB}, ("run", "s.toml", "-o", "."), "", ("folder",)),
    ("plan missing", {"s.toml": JOB}, ("run", "s.toml", "--plan", "p.json"), "GT002", ("--> p.json",)),
    ("plan empty", {"p.json": "", "s.toml": JOB}, ("run", "s.toml", "--plan", "p.json"), "GT001", ("--> p.json:1",)),
    (
        "plan list",
        {"p.json": "[]", "s.toml": JOB},
        ("run", "s.toml", "--plan", "p.json"),
        "GT080",
        ("--> p.json", "schema"),
    ),
    ("no file", {}, ("run", "nothing.toml"), "GT002", ("--> nothing.toml",)),
    ("dir", {}, ("run", "."), "GT002", ("--> .",)),
    ("preset unknown", {}, ("run", "paper/gao2021"), "GT006", ("--> paper/gao2021",)),
    ("typo command", {}, ("rnu", "x"), "", ("rnu", "run")),
    ("no args run", {}, ("run",), "", ("SCENARIO",)),
    ("unknown option", {}, ("run", "paper/gao2020-ch4", "--rate", "1Gbps"), "", ("--rate",)),
    ("compare empty list", {}, ("compare", "paper/gao2020-ch4", "--rate", "10Gbps,,25Gbps"), "", ("--rate",)),
    ("compare rate dup", {}, ("compare", "paper/gao2020-ch4", "--rate", "10Gbps,10Gbps"), "", ("--rate",)),
    ("compare bad rate", {}, ("compare", "paper/gao2020-ch4", "--rate", "10"), "GT020", ("--rate",)),
    ("compare workers 0", {}, ("compare", "paper/gao2020-ch4", "--workers", "0"), "GT014", ("--workers",)),
    ("compare workers x", {}, ("compare", "paper/gao2020-ch4", "--workers", "two"), "", ("--workers", "2,8")),
    ("compare sched", {}, ("compare", "paper/gao2020-ch4", "--schedule", "fastest"), "GT013", ("--schedule",)),
    (
        "compare sched opt",
        {},
        ("compare", "paper/gao2020-ch4", "--schedule", "fifo+chunky=3"),
        "",
        ("chunky=3", "chunk=1MB"),
    ),
    ("compare batch on timed", {}, ("compare", "paper/gao2020-ch4", "--batch", "32"), "", ("--batch",)),
    ("compare task no servers", {}, ("compare", "resnet50", "--task", "train"), "", ("--task",)),
    ("compare model unk", {}, ("compare", "paper/gao2020-ch4", "--model", "resnet51"), "GT030", ("--model",)),
    (
        "compare cluster unk",
        {},
        ("compare", "resnet50", "--cluster", "ethernet-26g/16"),
        "GT006",
        ("--> ethernet-26g/16",),
    ),
    ("compare cluster n", {}, ("compare", "resnet50", "--cluster", "ethernet-25g/x"), "GT006", ("--> ethernet-25g/x",)),
    (
        "compare cluster on scenario",
        {},
        ("compare", "nothing.toml", "--cluster", "ethernet-25g/16"),
        "GT002",
        ("nothing.toml",),
    ),
    (
        "compare file missing",
        {},
        ("compare", "paper/gao2020-ch4", "--schedule", "file:none.txt"),
        "GT002",
        ("--schedule",),
    ),
    ("coll unknown", {}, ("collectives", "paper/gao2020-ch4", "--collectives", "ringg"), "", ("ringg", "ring")),
    ("coll size", {}, ("collectives", "paper/gao2020-ch4", "--sizes", "1"), "", ("--sizes", "unit")),
    ("coll old", {}, ("compare", "paper/gao2020-ch4", "--collective", "rung"), "", ("gradtide collectives", "rung")),
    ("tenants no traffic", {}, ("tenants", "paper/gao2020-ch4"), "", ("traffic",)),
    ("tenants seeds 0", {}, ("tenants", "paper/gao2020-ch5", "--seeds", "0"), "", ("--seeds",)),
    ("tenants old map", {}, ("tenants", "paper/gao2020-ch4", "--map"), "", ("gradtide tenants map",)),
    ("tenants jobloads", {}, ("tenants", "paper/gao2020-ch4", "--job-loads", "0.1"), "", ("--job-loads",)),
    ("tenants map bad", {}, ("tenants", "map", "paper/gao2020-ch5", "--job-loads", "2"), "", ("--job-loads", "2")),
    (
        "tenants map x",
        {},
        ("tenants", "map", "paper/gao2020-ch5", "--job-loads", "a,b"),
        "",
        ("--job-loads", "0.125,0.25"),
    ),
    (
        "policy unknown",
        {},
        ("tenants", "policies", "paper/gao2020-ch5", "--policy", "deadlin"),
        "",
        ("deadlin", "deadline"),
    ),
    ("lp give", {}, ("tenants", "lp", "paper/gao2020-ch5", "--give", "1"), "", ("--give", "1%")),
    ("buy nodes 1", {}, ("buy", "resnet50", "--nodes", "1"), "", ("--nodes",)),
    ("buy fabric unk", {}, ("buy", "resnet50", "--nodes", "16", "--fabrics", "torus"), "", ("torus", "clos2")),
    ("buy bisection", {}, ("buy", "resnet50", "--nodes", "16", "--bisection", "2"), "", ("--bisection", "1/4")),
    ("buy coll a2a", {}, ("buy", "resnet50", "--nodes", "16", "--collectives", "all_to_all"), "", ("all_to_all",)),
    (
        "buy prices bad",
        {"p.toml": "switch = -3\n"},
        ("buy", "resnet50", "--nodes", "16", "--prices", "p.toml"),
        "GT011",
        ("--> p.toml:1", "switch"),
    ),
    ("plan one worker", {}, ("plan", "resnet50", "--workers", "1"), "", ("--workers",)),
    ("plan level", {}, ("plan", "resnet50", "--workers", "4", "--level", "max"), "", ("--level", "crossiter")),
    ("plan worth", {}, ("plan", "resnet50", "--workers", "4", "--worth", "lots"), "", ("--worth", "1%")),
    (
        "plan coll a2a",
        {},
        ("plan", "resnet50", "--workers", "4", "--collectives", "all_to_all"),
        "",
        ("--collectives", "all_to_all", "ring"),
    ),
    ("plan smallest", {}, ("plan", "resnet50", "--workers", "4", "--smallest", "1"), "", ("--smallest", "unit")),
    ("plan noise 9", {}, ("plan", "resnet50", "--workers", "4", "--noise", "9"), "", ("--noise",)),
    (
        "mesh ranks",
        {},
        ("run", "llama3-8b", "--parallel", "fsdp=16,tp=8", "--cluster", "h100-hgx/8", "--seq", "8192"),
        "GT055",
        ("--> --parallel", "the mesh has 128 ranks, and there are 64 workers"),
    ),
    (
        "mesh heads",
        {},
        ("run", "llama3-8b", "--parallel", "tp=64", "--cluster", "h100-hgx/8", "--seq", "8192"),
        "GT055",
        ("--> --parallel", "heads"),
    ),
    (
        "mesh experts",
        {},
        ("run", "mixtral-8x7b", "--parallel", "fsdp=8", "--cluster", "h100-hgx/1", "--seq", "4096"),
        "GT055",
        ("--> --parallel", "ep = 8"),
    ),
    (
        "mesh no seq",
        {},
        ("run", "llama3-8b", "--parallel", "fsdp=8", "--cluster", "h100-hgx/1"),
        "GT010",
        ("--> --seq", "`seq` is missing"),
    ),
    ("order none", {}, ("order", "none.json"), "GT002", ("--> none.json",)),
    (
        "order cyclic",
        {
            "g.json": '{"target":1,"time_unit":"us","ops":[{"id":0,"name":"a","kind":"comp","inputs":[1],"time":1},{"id":1,"name":"b","kind":"comp","inputs":[0],"time":1}]}'
        },
        ("order", "g.json"),
        "GT072",
        ("--> g.json:1", "ops[0].inputs"),
    ),
    ("order trunc", {"g.json": '{"target":1,"ops":[{"id"'}, ("order", "g.json"), "GT001", ("--> g.json:1",)),
    (
        "order nan",
        {
            "g.json": '{"target":0,"time_unit":"us","ops":[{"id":0,"name":"a","kind":"recv","inputs":[],"time":NaN,"bytes":3}]}'
        },
        ("order", "g.json"),
        "GT001",
        ("--> g.json",),
    ),
    ("reproduce unk", {}, ("reproduce", "gao2021"), "", ("gao2021", "gao2020/ch4")),
    ("explain unk", {}, ("explain", "GT999"), "", ("GT999",)),
    ("presets unk", {}, ("presets", "modelz"), "", ("modelz", "model")),
    ("convert unk", {"a.xyz": "hello"}, ("convert", "a.xyz"), "", ("a.xyz", "--from")),
    ("convert empty", {"a.json": ""}, ("convert", "a.json"), "", ("a.json", "empty")),
    ("convert chakra trunc", {"a.et": "\x08\xff\xff"}, ("convert", "a.et"), "", ("a.et", "byte 0")),
    ("report none", {}, ("report", "nofolder"), "", ("nofolder",)),
    ("report foreign", {"d/x.txt": "1"}, ("report", "d"), "", ("d holds",)),
    (
        "kineto empty events",
        {"t.json": '{"traceEvents":[]}'},
        ("report", "t.json"),
        "",
        ("t.json", "ProfilerActivity.CPU"),
    ),
    (
        "layers csv header",
        {"l.csv": "a,b\n1,2\n", "s.toml": '[job.a]\nmodel="l.csv"\nworkers=2\n'},
        ("run", "s.toml"),
        "GT032",
        ("--> l.csv:1",),
    ),
    (
        "layers csv neg",
        {
            "l.csv": "layer,forward_us,backward_us,parameter_bytes\nx,-1,2,3\n",
            "s.toml": '[job.a]\nmodel="l.csv"\nworkers=2\n',
        },
        ("run", "s.toml"),
        "GT033",
        ("--> l.csv:2", "forward_us"),
    ),
    (
        "layers csv nan",
        {
            "l.csv": "layer,forward_us,backward_us,parameter_bytes\nx,nan,2,3\n",
            "s.toml": '[job.a]\nmodel="l.csv"\nworkers=2\n',
        },
        ("run", "s.toml"),
        "GT033",
        ("--> l.csv:2", "forward_us"),
    ),
    ("json scenario bad", {"s.json": '{"job": [1]}'}, ("run", "s.json"), "GT011", ("--> s.json:1", "job")),
    ("json scenario trunc", {"s.json": '{"job": {'}, ("run", "s.json"), "GT001", ("--> s.json:1",)),
    (
        "replay bad",
        {
            "f.csv": "start_ns,src,dst,bytes\n1,0,1\n",
            "s.toml": JOB + '[traffic.w]\nreplay="f.csv"\n[run]\nengine="fluid"\nduration="1s"\n',
        },
        ("run", "s.toml"),
        "GT063",
        ("--> f.csv:2",),
    ),
    (
        "sched file dup",
        {
            "o.txt": "layer1\nlayer1\n",
            "s.toml": '[job.a]\nmodel={kind="thesis",layers=4}\nworkers=2\nschedule={order="file",file="o.txt"}\n',
        },
        ("run", "s.toml"),
        "GT037",
        ("--> o.txt:2",),
    ),
]


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """Return a function that runs a command on bad files and returns what it prints on stderr."""

    def call(files, arguments):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode("latin-1" if "\x80" <= max(text, default="") <= "\xff" else "utf-8"))
        before = sorted(tmp_path.rglob("*"))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", ["gradtide", *arguments])
        code = cli._main()
        out, err = capsys.readouterr()
        assert code == 2, out + err
        assert out == ""
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return call


def check(err, code, fragments):
    for fragment in fragments:
        assert fragment in err
    # Names of ours, where the user's would stand.
    assert not re.search(r"replace\(\)|<dict>|<toml>|Traceback|object at 0x", err)
    assert err.count("error[") + err.count("rror: ") >= 1
    if code:
        assert f"error[{code}]" in err
        # Every fault shows where it is and how to fix it: under the line, or after an equals sign.
        for fault in err.split("error[")[1:]:
            assert re.search(r"^ +\| +\^+ \S|^ += \S", fault, re.MULTILINE), fault


@pytest.mark.parametrize(("text", "code", "fragments"), [pytest.param(*row[1:], id=row[0]) for row in SCENARIOS])
def test_a_bad_scenario_is_refused_with_its_line_and_fix(refused, text, code, fragments):
    check(refused({"s.toml": text}, ("run", "s.toml")), code, fragments)


@pytest.mark.parametrize(
    ("files", "arguments", "code", "fragments"), [pytest.param(*row[1:], id=row[0]) for row in COMMANDS]
)
def test_a_bad_command_is_refused_with_its_option_and_fix(refused, files, arguments, code, fragments):
    check(refused(files, arguments), code, fragments)


def test_there_are_a_hundred_bad_inputs():
    assert len(SCENARIOS) + len(COMMANDS) >= 100
