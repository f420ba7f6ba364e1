"""The table of every fault that an input can have; a table, and so longer than other modules.

A code is a stable id: it is never reused for another fault. `explain` prints a code's entry. The reference page is made
from this table, and a test produces each code from the example that is shown here.
"""

import textwrap
from typing import NamedTuple


class Code(NamedTuple):
    """An entry of the table of faults.

    Attributes:
        title: the fault in a few words.
        text: a paragraph: why it is refused and what to do.
        bad: an example that has the fault.
        good: the same, fixed.
    """

    title: str
    text: str
    bad: str
    good: str


CODES: dict[str, Code] = {
    "GT001": Code(
        "the file is not valid TOML or JSON",
        "The text breaks the grammar of its format, so no key of it can be trusted. This fault is "
        "reported alone; other faults follow once it is fixed. Frequent causes: a text without "
        "quotes, a key written twice, a bracket that is never closed, a file that was cut off.",
        "link = { rate = 10Gbps }",
        'link = { rate = "10Gbps" }',
    ),
    "GT002": Code(
        "a file cannot be read",
        "The file does not exist, is a directory, or may not be read. A path inside a scenario is "
        "relative to the scenario file, not to the current directory.",
        'model = "no-such-file.csv"',
        'model = "resnet50.csv"                # beside the scenario file',
    ),
    "GT003": Code(
        "the file is not UTF-8 text",
        "Scenario files, model files and order files are UTF-8 text without NUL bytes. Save the file "
        "as UTF-8 in your editor. A byte order mark at the start is accepted.",
        "(a file saved as UTF-16)",
        "(the same file saved as UTF-8)",
    ),
    "GT004": Code(
        "the file is too large",
        "Files of more than 10 MB are refused before they are read: a scenario has a few kilobytes "
        "and a layer table some hundred. A list of flows may have 300 MB. Usually another file was named by mistake.",
        "gradtide run trace-of-2-GB.toml",
        "gradtide run scenario.toml",
    ),
    "GT005": Code(
        "the file is empty",
        "The file holds no key at all (perhaps only comments). The least that makes a scenario is one job.",
        "# nothing yet",
        '[job.train]\nmodel = "resnet50"\nworkers = 8',
    ),
    "GT006": Code(
        "there is no such scenario or preset",
        "A scenario is named by the path of a TOML or JSON file, or by a preset such as paper/gao2020-ch4. "
        "`gradtide presets` lists them.",
        "gradtide run paper/gao2020",
        "gradtide run paper/gao2020-ch4",
    ),
    "GT010": Code(
        "a needed key is missing",
        "The key has no default that could be right for everyone. The message says which key and gives an example.",
        "[job.train]\nworkers = 8",
        '[job.train]\nmodel = "resnet50"\nworkers = 8',
    ),
    "GT011": Code(
        "a value has the wrong type",
        "A table, list, text, whole number or boolean was expected and something else was found. "
        "Whole numbers have no quotes and no decimal point; true and false have no quotes.",
        'workers = "8"',
        "workers = 8",
    ),
    "GT012": Code(
        "unknown field",
        "Every key of a scenario must be one that gradtide reads: a misspelt key would otherwise "
        "silently leave a default in force. The nearest known key is offered. `gradtide schema` lists "
        "them all.",
        "[cluster.link]\nrate_gpbs = 10",
        '[cluster.link]\nrate = "10Gbps"',
    ),
    "GT013": Code(
        "unknown value",
        "The key takes one of a few words. The nearest one and the whole list are offered.",
        'schedule = { order = "fifi" }',
        'schedule = { order = "fifo" }',
    ),
    "GT014": Code(
        "a number is out of range",
        "The number is of the right type but outside what has a meaning; the message gives the range.",
        "workers = 0",
        "workers = 8",
    ),
    "GT015": Code(
        "a key has no effect here",
        "The key is known but does nothing beside the other values, for instance `queues` without "
        "priority order, or `device` for a model whose times are given. It is refused rather than "
        "ignored, so that a result never differs from what the file seems to say.",
        'schedule = { order = "fifo", queues = 8 }',
        'schedule = { order = "priority", queues = 8 }',
    ),
    "GT016": Code(
        "two keys contradict each other",
        "Both keys say the same thing in different ways, and they disagree or only one can be in force.",
        'workers = 3\nhosts = ["h0", "h1"]',
        'hosts = ["h0", "h1"]',
    ),
    "GT017": Code(
        "--set names nothing that can be set",
        "A path of `--set` is dotted: job.NAME.KEY, cluster.KEY, traffic.NAME.KEY or run.KEY, "
        "followed by = and a value. The job must exist in the scenario, and a value cannot be set "
        "inside a text or a list.",
        "--set job.tain.workers=8",
        "--set job.train.workers=8",
    ),
    "GT018": Code(
        "a name has characters that it cannot have",
        "Names of jobs and of traffic become parts of file names and of dotted paths: letters, "
        "digits, - and _, at most 64. Names of layers and files are any printable text of at most 200 "
        "characters.",
        '[job."my job"]',
        "[job.my-job]",
    ),
    "GT020": Code(
        "a number has no unit",
        "Bare numbers are refused wherever a unit belongs: 10 may be 10 Gbit/s to one reader and 10 "
        "MB/s to the next. B is byte, b is bit; k, M, G are powers of ten and Ki, Mi, Gi of two.",
        'link = { rate = 10, delay = "10us" }',
        'link = { rate = "10Gbps", delay = "10us" }',
    ),
    "GT021": Code(
        "unknown unit",
        'The text has a number but its unit is not one of this kind of quantity. "10G" does not say '
        "whether bits or bytes; letter case matters, since B is byte and b is bit.",
        'rate = "10G"',
        'rate = "10Gbps"',
    ),
    "GT022": Code(
        "the text is not a number with a unit",
        "Quantities are plain decimal numbers followed by a unit: no exponent, no thousands "
        "separator, no NaN, no infinity.",
        'delay = "ten microseconds"',
        'delay = "10us"',
    ),
    "GT023": Code(
        "a quantity is negative",
        "Times, rates and sizes start at 0.",
        'delay = "-10us"',
        'delay = "10us"',
    ),
    "GT024": Code(
        "a quantity is too large",
        "Times are counted in picoseconds in 64 bits, which ends after 213 days; sizes and rates end at 2^64 too.",
        'duration = "1000000h"',
        'duration = "12s"',
    ),
    "GT025": Code(
        "a size or rate is not whole",
        "A size must be a whole number of bytes, a rate a whole number of bits per second. (Times are "
        "rounded to the nearest picosecond instead, half up.)",
        'fusion = "1.5B"',
        'fusion = "2B"',
    ),
    "GT026": Code(
        "a quantity is zero where it cannot be",
        "A link without rate never delivers, a run without duration has no iteration, a chunk of no bytes never ends.",
        'link = { rate = "0Gbps" }',
        'link = { rate = "10Gbps" }',
    ),
    "GT030": Code(
        "unknown model",
        "A model is the name of a preset, the path of a layer table (.csv) or of a model file "
        "(.json), or an inline table. `gradtide presets models` lists the names.",
        'model = "resnet5"',
        'model = "resnet50"',
    ),
    "GT031": Code(
        "unknown device",
        "The device turns floating-point operations into times. `gradtide presets devices` lists the names.",
        'compute = { device = "V10" }',
        'compute = { device = "V100" }',
    ),
    "GT032": Code(
        "a model file has the wrong shape",
        "A layer table starts with the header "
        "layer,forward_us,backward_us,parameter_bytes[,update_us]. A model file is a JSON object with "
        '"schema": "gradtide.model/1", "name" and "layers".',
        "name,fwd,bwd,bytes",
        "layer,forward_us,backward_us,parameter_bytes",
    ),
    "GT033": Code(
        "a field of a model file is wrong",
        "The message names file, line and field. Times are plain decimal microseconds; bytes are whole numbers.",
        "conv1,12.5,25,4.5",
        "conv1,12.5,25,4500",
    ),
    "GT034": Code(
        "a layer name occurs twice",
        "Results and order files refer to layers by name, so a name stands for one layer.",
        "conv,1,2,100\nconv,1,2,100",
        "conv1,1,2,100\nconv2,1,2,100",
    ),
    "GT035": Code(
        "a model has no layers",
        "There is nothing to simulate.",
        "model = { layers = [] }",
        'model = { layers = [{ name = "fc", forward = "1ms", backward = "2ms", parameters = "4MB" }] }',
    ),
    "GT036": Code(
        "a model computes nothing",
        "Every forward and backward time is zero, so there is no compute to overlap with and no slack "
        "to measure. Often the columns of a table are in another order, or times were written in "
        "seconds in a column of microseconds.",
        "conv1,0,0,4096",
        "conv1,12.5,25,4096",
    ),
    "GT037": Code(
        "an order file is wrong",
        "An order file (or `schedule.ranking`) names every layer that has parameters exactly once, "
        "most urgent first, one name a line, without a header.",
        "conv1\nconv1",
        "conv1\nfc",
    ),
    "GT038": Code(
        "a trace gives no model",
        "A model is made of one step of a trace: its all-reduces of gradients, with their sizes, and what was computed "
        "between them. The file must be whole, recorded with record_shapes=True where the backend is gloo, and of a "
        "data-parallel job.",
        'model = "trace.json.gz"  # of one process alone',
        'model = "traces/rank*.json.gz"  # of a job that reduces its gradients',
    ),
    "GT040": Code(
        "unknown host",
        "Hosts are named h0, h1, … up to the number of hosts of the topology less one.",
        'topology = { kind = "star", hosts = 2 }\nhosts = ["h1", "h2"]',
        'topology = { kind = "star", hosts = 3 }\nhosts = ["h1", "h2"]',
    ),
    "GT041": Code(
        "a host is named twice",
        "Each worker of a job runs on a host of its own.",
        'hosts = ["h0", "h0"]',
        'hosts = ["h0", "h1"]',
    ),
    "GT042": Code(
        "the cluster has too few hosts",
        "A job needs one host per worker. Leave `hosts` of a star out to let it have as many as the jobs need.",
        'workers = 8\ntopology = { kind = "star", hosts = 4 }',
        'workers = 8\ntopology = { kind = "star", hosts = 8 }',
    ),
    "GT043": Code(
        "two jobs share a host",
        "The pipe engine gives each host one transmission queue of one job. Sharing is for the other engines (engine = "
        '"fluid" or "packet").',
        '[job.a]\nhosts = ["h0", "h1"]\n[job.b]\nhosts = ["h1", "h2"]',
        '[job.a]\nhosts = ["h0", "h1"]\n[job.b]\nhosts = ["h2", "h3"]',
    ),
    "GT044": Code(
        "a bisection ratio takes a part of a switch",
        "Above each edge switch of a Clos network of k-port switches are (k/2) x bisection others; above a leaf of n "
        "hosts, n x bisection spines, at equal link rates. That is a whole number. The message names the nearest "
        "ratios that are.",
        'topology = { kind = "clos2", ports = 16, bisection = "1/3" }',
        'topology = { kind = "clos2", ports = 16, bisection = "3/8" }',
    ),
    "GT045": Code(
        "the network is not connected",
        "Every host reaches every other one and every switch over cables. The message names nodes that h0 does not.",
        'links = [{ a = "h0", b = "s0" }, { a = "h1", b = "s1" }]',
        'links = [{ a = "h0", b = "s0" }, { a = "h1", b = "s1" }, { a = "s0", b = "s1" }]',
    ),
    "GT046": Code(
        "a cable is wrong",
        "A cable joins two nodes, and no two cables the same ones. Hosts are h0, h1, … without gaps, one cable each; "
        "any other name is that of a switch. Where `hosts` or `switches` are given, no cable leads anywhere else. "
        "In a topology of HPCC the first line counts nodes, switches and links, and no link loses packets.",
        'links = [{ a = "h0", b = "s0" }, { a = "h2", b = "s0" }]',
        'links = [{ a = "h0", b = "s0" }, { a = "h1", b = "s0" }]',
    ),
    "GT047": Code(
        "a list of cables has the wrong header",
        "The first line names the columns a and b, and then rate and delay if they differ from cluster.link.",
        "from,to,speed",
        "a,b,rate,delay",
    ),
    "GT048": Code(
        "the ranks do not suit the collective",
        "A group has at most as many ranks as the job; shards need groups that are alike; parameter servers are some "
        "of the job's `workers`, and at least one is left to be a worker.",
        'workers = 6\ncollective = { kind = "hierarchical", inside = "sharded", group = 4 }',
        'workers = 8\ncollective = { kind = "hierarchical", inside = "sharded", group = 4 }',
    ),
    "GT049": Code(
        "the collective does not sum gradients",
        "Training needs the sum of all workers' gradients on every worker. All-reduces and parameter servers give it; "
        "all-gather, reduce-scatter, all-to-all, broadcast and point-to-point do not. If a job's bytes are not "
        'gradients, write task = "exchange": any collective may carry them.',
        'collective = { kind = "all_to_all" }',
        'collective = { kind = "ring" }',
    ),
    "GT050": Code(
        "the run would be too big",
        "The number of workers, layers, iterations or background flows, or the product of iterations and the "
        "chunks of a bucket, is beyond what one run can hold in memory. The message gives the limit.",
        "iterations = 1000000000",
        "iterations = 100",
    ),
    "GT051": Code(
        "the run would outlast the simulated clock",
        "Time is counted in picoseconds in 64 bits, and a run ends within half of what they count, 106 days. "
        "Iterations times the longest possible iteration would pass it.",
        'model = { kind = "thesis", time = "100h" }\niterations = 1000',
        'model = { kind = "thesis", time = "900ms" }\niterations = 1000',
    ),
    "GT052": Code(
        "warm-up and cool-down leave nothing to count",
        "Flows count that start after `run.warmup` and before the last `run.cooldown` of the run. Together "
        "the two must be shorter than `run.duration`.",
        'run = { duration = "4s", warmup = "2s", cooldown = "2s" }',
        'run = { duration = "12s", warmup = "2s", cooldown = "2s" }',
    ),
    "GT053": Code(
        "the run would take more memory or time than it may",
        "What a run or study will take is estimated before anything is drawn or run: `gradtide run --estimate`. By "
        "default it may take 80 % of the memory that is free and an hour. The message says what most of it goes into; "
        "make that smaller, or allow more with --max-memory and --max-time. The estimate may be wrong by a factor of "
        "two or three.",
        'arrivals = { rate = "9000000/s" }',
        'arrivals = { rate = "9000000/s" }      # --max-memory 500GB --max-time 10h',
    ),
    "GT060": Code(
        "unknown flow sizes",
        "Flow sizes are the name of a preset or the path of a CDF file, which has a suffix or a slash. "
        "`gradtide presets flow` lists the names.",
        'sizes = "web-serch"',
        'sizes = "web-search"',
    ),
    "GT061": Code(
        "a flow-size distribution is wrong",
        "A CDF has one point a line: a size in whole bytes and the share of the flows that are at most so large, in "
        "percent up to 100 or as a share up to 1. Neither column falls, and the last share is 100 or 1. The "
        "header bytes,cdf may stand above, and lines that start with # are comments. Other tools take less: HPCC "
        "only what starts at 0 and rises with every point.",
        "4000 0\n10000 15\n1000000 90",
        "4000 0\n10000 15\n1000000 90\n30000000 100",
    ),
    "GT062": Code(
        "a list of flows has the wrong shape",
        "A list of flows starts with the header start_ns,src,dst,bytes[,band], the columns in any order, and has at "
        "least one line after it. A list of another tool, of which something would be left out, is converted first: "
        "gradtide convert says what.",
        "time,from,to,size",
        "start_ns,src,dst,bytes",
    ),
    "GT063": Code(
        "a flow of a list is wrong",
        "The message names file, line and field. start_ns is in whole nanoseconds, bytes from 1; src and dst are two "
        "different hosts, written h0 or 0; band is one that the queue has. Lists of htsim and HPCC have fields of "
        "their own, and what only they can say, such as a flow that waits for others, is refused.",
        "1000,h0,h0,4096",
        "1000,h0,h1,4096",
    ),
    "GT064": Code(
        "a replayed file has changed",
        "A resolved scenario names a long list of flows by its path and SHA-256, and the file at that path has another "
        "one: the run would not be the run that was resolved.",
        'replay = "flows.csv"                   # edited since\nreplay_sha256 = "875275…"',
        'replay = "flows.csv"                   # as it was\nreplay_sha256 = "875275…"',
    ),
    "GT065": Code(
        "no background flow of a tenant starts within the run",
        "Every flow starts at or after `run.duration`, so there would be no background traffic. Often the times are in "
        "another unit than the column says.",
        'run.duration = "1s"\nincast = { dst = "h0", bytes = "1MB", every = "1s", start = "5s" }',
        'run.duration = "10s"\nincast = { dst = "h0", bytes = "1MB", every = "1s", start = "5s" }',
    ),
    "GT070": Code(
        "an op of a DAG cannot be",
        "Each op has an id of its own. What is received starts without waiting for anything: a recv has no inputs.",
        '{ "id": 3, "kind": "recv", "inputs": [1], "time": 5 }',
        '{ "id": 3, "kind": "recv", "inputs": [], "time": 5 }',
    ),
    "GT071": Code(
        "there is no such op",
        "Inputs, targets, updates and the keys of an order file are ids of ops of the DAG; an order file names the "
        "transfers that the target needs, and nothing else.",
        '{ "ops": [{ "id": 0, "kind": "recv", "inputs": [], "time": 5 }], "target": 1 }',
        '{ "ops": [{ "id": 0, "kind": "recv", "inputs": [], "time": 5 }], "target": 0 }',
    ),
    "GT072": Code(
        "ops wait for each other",
        "Following the inputs of an op leads back to it, so none of these ops could ever start. The message names "
        "them, each in front of the one that it waits for.",
        '{ "id": 3, "kind": "comp", "inputs": [4], "time": 5 }\n{ "id": 4, "kind": "comp", "inputs": [3], "time": 5 }',
        '{ "id": 3, "kind": "comp", "inputs": [], "time": 5 }\n{ "id": 4, "kind": "comp", "inputs": [3], "time": 5 }',
    ),
    "GT073": Code(
        "an order leaves transfers out",
        "An order file ranks every transfer that the target needs, smaller first.",
        '{ "priority": { "0": 0 } }             # the target needs 0 and 1',
        '{ "priority": { "0": 1, "1": 0 } }',
    ),
    "GT074": Code(
        "a graph of ops does not say what a run must know",
        "Parameter servers send bytes: every recv has its own. An iteration of training pushes gradients: the op that "
        "completes one names the recv that it `updates`, and no other op does. Inference ends with the op that "
        "`inference_target` names. A scenario takes the times of computation from the graph, in its `time_unit`, and "
        "those of transfers from the network.",
        '{ "id": 0, "kind": "recv", "inputs": [], "time": 5 }',
        '{ "id": 0, "kind": "recv", "inputs": [], "time": 5, "bytes": 4096 }',
    ),
    "GT080": Code(
        "a plan cannot be read",
        "A plan is what `gradtide plan -o plan.json` writes: its schema is gradtide.plan/1, and every key is there. "
        "The message names what is not as it should be. A file that is cut off is GT001.",
        '{ "schema": "gradtide.plan/1", "level": "crossitter" }',
        "gradtide plan scenario.toml -o plan.json",
    ),
    "GT081": Code(
        "a plan is for another model",
        "A plan names layers and their bytes. Every layer that it names is one of the model's, every layer of the "
        "model that has parameters is in one of its buckets, and their bytes are equal.",
        "gradtide run resnet50.toml --plan plan-of-resnet101.json",
        "gradtide run resnet50.toml --plan plan-of-resnet50.json",
    ),
    "GT082": Code(
        "a plan is for another number of workers",
        "What is best for 8 workers may be slower than the default for 64: how long an exchange takes depends on the "
        "workers. A plan is for one job; its network may be another one than the plan was made for.",
        "gradtide run scenario.toml --plan plan.json --set job.train.workers=64",
        "gradtide plan scenario.toml --set job.train.workers=64 -o plan.json",
    ),
    "GT090": Code(
        "not built yet",
        "The scenario is understood, but this version has no engine for what it asks. The message "
        "names the value and what is available now. Nothing is run with something else in its place.",
        'traffic.web.priority = { adaptive = { policy = "deadline" } }',
        'traffic.web.priority = "high"',
    ),
}


def explain(code: str) -> str:
    """Return the entry of a code as plain text: title, paragraph, a wrong and a fixed example.

    Raises:
        KeyError: if there is no such code.
    """
    entry = CODES[code.strip().upper()]
    return "\n".join(
        [
            f"{code.strip().upper()}: {entry.title}",
            "",
            *_wrapped(entry.text),
            "",
            "wrong:",
            *(f"    {line}" for line in entry.bad.splitlines()),
            "",
            "fixed:",
            *(f"    {line}" for line in entry.good.splitlines()),
            "",
        ]
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 88)
