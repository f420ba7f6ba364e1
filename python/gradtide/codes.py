"""The table of error codes for faulty inputs. The module is long because it has an example of every code.

A code is a stable id and is never reused for another fault. `explain` returns the entry of a code. The reference page
is generated from this table, and a test produces each code from its example.
"""

import textwrap
from typing import NamedTuple


class Code(NamedTuple):
    """A fault: its title, a text with the reason and the fix, an example with the fault, and the corrected example."""

    title: str
    text: str
    bad: str
    good: str


CODES: dict[str, Code] = {
    "GT001": Code(
        "the file is not valid TOML or JSON",
        "Other faults are reported once this one is fixed. Frequent causes: a text without quotes, a key written "
        "twice, a bracket that is never closed, a file that was cut off.",
        "link = { rate = 10Gbps }",
        'link = { rate = "10Gbps" }',
    ),
    "GT002": Code(
        "a file cannot be read",
        "It does not exist, is a directory, a FIFO, a device or a socket, or may not be read. "
        "A path inside a scenario is relative to the scenario file, not to the current directory.",
        'model = "no-such-file.csv"',
        'model = "resnet50.csv"                # beside the scenario file',
    ),
    "GT003": Code(
        "the file is not UTF-8 text",
        "Files of scenarios, models and orders are UTF-8 without NUL bytes. Save the file "
        "as UTF-8 in your editor. A byte order mark at the start is accepted.",
        "(a file saved as UTF-16)",
        "(the same file saved as UTF-8)",
    ),
    "GT004": Code(
        "the file is too large",
        "Files of more than 10 MB are refused before they are read. A scenario has a few kilobytes, a layer table "
        "a few hundred. A list of flows may have 300 MB, a trace 4 GB. Check that you named the right file; "
        "--max-input SIZE reads it all the same.",
        "gradtide run trace-of-2-GB.toml",
        "gradtide run scenario.toml",
    ),
    "GT005": Code(
        "the file is empty",
        "The file contains no key, perhaps only comments. A scenario needs at least one job or one tenant with "
        "background traffic.",
        "# nothing yet",
        '[job.train]\nmodel = "resnet50"\nworkers = 8',
    ),
    "GT006": Code(
        "there is no such scenario or preset",
        "A scenario is the path of a TOML or JSON file, or a preset such as paper/gao2020-ch4. `gradtide presets` "
        "lists the presets.",
        "gradtide run paper/gao2020",
        "gradtide run paper/gao2020-ch4",
    ),
    "GT007": Code(
        "the file is of another format",
        "The message names the format, recognised by the beginning of the file, "
        "and says where gradtide takes such a file, or what to write in its place. docs/reference/formats.md lists "
        "the formats that gradtide reads.",
        'links = "net.graphml"',
        'links = "net.csv"                     # a,b,rate,delay',
    ),
    "GT010": Code(
        "a needed key is missing",
        "The key has no default, because none would be right for everyone. The message names the key and gives an "
        "example.",
        "[job.train]\nworkers = 8",
        '[job.train]\nmodel = "resnet50"\nworkers = 8',
    ),
    "GT011": Code(
        "a value has the wrong type",
        "The key needs a table, list, text, whole number or boolean. Whole numbers have no quotes "
        "and no decimal point. true and false have no quotes.",
        'workers = "8"',
        "workers = 8",
    ),
    "GT012": Code(
        "unknown field",
        "A misspelt key is refused because its default would otherwise apply silently. The "
        "message offers the nearest key; `gradtide schema` lists all keys.",
        "[cluster.link]\nrate_gpbs = 10",
        '[cluster.link]\nrate = "10Gbps"',
    ),
    "GT013": Code(
        "unknown value",
        "The key accepts only certain words. The message offers the nearest word and lists all words.",
        'schedule = { order = "fifi" }',
        'schedule = { order = "fifo" }',
    ),
    "GT014": Code(
        "a number is out of range",
        "The message gives the range.",
        "workers = 0",
        "workers = 8",
    ),
    "GT015": Code(
        "a key has no effect in this scenario",
        "The key does nothing in combination with other values: for instance `queues` without priority order, "
        "or `device` for a model with its own times. It is refused so that the result never differs from what the "
        "file seems to say.",
        'schedule = { order = "fifo", queues = 8 }',
        'schedule = { order = "priority", queues = 8 }',
    ),
    "GT016": Code(
        "two keys contradict each other",
        "Both set the same property: they disagree, or only one of them can apply. Delete one of them.",
        'workers = 3\nhosts = ["h0", "h1"]',
        'hosts = ["h0", "h1"]',
    ),
    "GT017": Code(
        "--set names no key that can be set",
        "`--set` takes PATH=VALUE, where PATH is job.NAME.KEY, cluster.KEY, traffic.NAME.KEY or run.KEY. The "
        "job must exist in the scenario. Nothing can be set inside a text or a list.",
        "--set job.tain.iterations=8",
        "--set job.train.iterations=8",
    ),
    "GT018": Code(
        "a name has characters that are not allowed",
        "Names of jobs and tenants become parts of file names and dotted paths, so they consist of up to 64 letters, "
        "digits, - and _. Names of layers and files have up to 200 printable characters.",
        '[job."my job"]',
        "[job.my-job]",
    ),
    "GT020": Code(
        "a number has no unit",
        "10 could mean 10 Gbit/s or 10 MB/s. B is byte, b is bit; k, M, G are powers of ten and Ki, Mi, Gi of two.",
        'link = { rate = 10, delay = "10us" }',
        'link = { rate = "10Gbps", delay = "10us" }',
    ),
    "GT021": Code(
        "unknown unit",
        'The unit does not belong to this kind of quantity. "10G" does not say whether it means bits or bytes. '
        "Letter case matters: B is byte, b is bit.",
        'rate = "10G"',
        'rate = "10Gbps"',
    ),
    "GT022": Code(
        "the text is not a number with a unit",
        "A quantity is a plain decimal number followed by a unit. Exponents, thousands separators, NaN and "
        "infinity are refused.",
        'delay = "ten microseconds"',
        'delay = "10us"',
    ),
    "GT023": Code(
        "a quantity is negative",
        "Times, rates and sizes cannot be less than 0.",
        'delay = "-10us"',
        'delay = "10us"',
    ),
    "GT024": Code(
        "a quantity is too large",
        "Times are counted in picoseconds in 64 bits, so they end at 213 days. Sizes and rates end at 2^64.",
        'duration = "1000000h"',
        'duration = "12s"',
    ),
    "GT025": Code(
        "a size or rate is not whole",
        "A size must be a whole number of bytes, and a rate a whole number of bits per second. Only times are "
        "rounded: half up, to a picosecond.",
        'fusion = "1.5B"',
        'fusion = "2B"',
    ),
    "GT026": Code(
        "a quantity is zero where it cannot be",
        "A link without rate never delivers, a run without duration has no iteration, and chunks of zero bytes "
        "never end.",
        'link = { rate = "0Gbps" }',
        'link = { rate = "10Gbps" }',
    ),
    "GT030": Code(
        "unknown model",
        "A model is a preset, the path of a layer table (.csv) or model file (.json), or an inline table. "
        "`gradtide presets models` lists the presets.",
        'model = "resnet5"',
        'model = "resnet50"',
    ),
    "GT031": Code(
        "unknown device",
        "The device turns floating-point operations into times. `gradtide presets devices` lists the devices.",
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
        "Results and order files refer to layers by name, so each needs its own.",
        "conv,1,2,100\nconv,1,2,100",
        "conv1,1,2,100\nconv2,1,2,100",
    ),
    "GT035": Code(
        "a model has no layers",
        "There would be nothing to simulate.",
        "model = { layers = [] }",
        'model = { layers = [{ name = "fc", forward = "1ms", backward = "2ms", parameters = "4MB" }] }',
    ),
    "GT036": Code(
        "a model computes nothing",
        "Every forward and backward time is zero. Often the columns are "
        "in another order, or the times are in seconds instead of microseconds.",
        "conv1,0,0,4096",
        "conv1,12.5,25,4096",
    ),
    "GT037": Code(
        "an order file is wrong",
        "An order file (or `schedule.ranking`) names every layer that has parameters exactly once, most urgent "
        "first. It has one name per line and no header.",
        "conv1\nconv1",
        "conv1\nfc",
    ),
    "GT038": Code(
        "a trace gives no model",
        "gradtide makes a model from one step of a trace, which needs all-reduces of gradients with their sizes; a "
        "step that sends more than gradients becomes a graph of all ranks. With gloo, record it with "
        "record_shapes=True.",
        'model = "trace.json.gz"  # of one process alone',
        'model = "traces/rank*.json.gz"  # of a job that reduces its gradients',
    ),
    "GT039": Code(
        "a configuration of a language model is wrong",
        "gradtide reads config.json files of Hugging Face's transformers, for the families that "
        "docs/own-model.md lists. For another model write a profile of it: gradtide profile.",
        '{ "model_type": "gpt2", "n_embd": 64 }',
        '{ "model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 512,\n  "vocab_size": 100 }',
    ),
    "GT040": Code(
        "unknown host",
        "A topology with n hosts names them h0 to h(n-1).",
        'topology = { kind = "star", hosts = 2 }\nhosts = ["h1", "h2"]',
        'topology = { kind = "star", hosts = 3 }\nhosts = ["h1", "h2"]',
    ),
    "GT041": Code(
        "a host is named twice",
        "Each worker of a job needs its own host.",
        'hosts = ["h0", "h0"]',
        'hosts = ["h0", "h1"]',
    ),
    "GT042": Code(
        "the cluster has too few hosts",
        "A job needs one host per worker. Leave `hosts` of a star out: it then has as many as the jobs need.",
        'workers = 8\ntopology = { kind = "star", hosts = 4 }',
        'workers = 8\ntopology = { kind = "star", hosts = 8 }',
    ),
    "GT044": Code(
        "a bisection ratio needs a fraction of a switch",
        "The number of switches above an edge switch must be whole: (k/2) x bisection in a Clos network of k-port "
        "switches, n x bisection in a leaf-spine network with n hosts per leaf and equal link rates. The message names "
        "the nearest ratios that fit.",
        'topology = { kind = "clos2", ports = 16, bisection = "1/3" }',
        'topology = { kind = "clos2", ports = 16, bisection = "3/8" }',
    ),
    "GT045": Code(
        "the network is not connected",
        "Cables must connect all hosts and switches. The message names nodes that h0 cannot reach.",
        'links = [{ a = "h0", b = "s0" }, { a = "h1", b = "s1" }]',
        'links = [{ a = "h0", b = "s0" }, { a = "h1", b = "s1" }, { a = "s0", b = "s1" }]',
    ),
    "GT046": Code(
        "a cable is wrong",
        "A cable joins two different nodes, and no two cables join the same pair. Hosts are h0, h1, … without "
        "gaps, with one cable each; any other name is a switch. If `hosts` or `switches` are given, cables use "
        "only those. The first line of an HPCC topology counts nodes, switches and links; its links may not lose "
        "packets.",
        'links = [{ a = "h0", b = "s0" }, { a = "h2", b = "s0" }]',
        'links = [{ a = "h0", b = "s0" }, { a = "h1", b = "s0" }]',
    ),
    "GT047": Code(
        "a list of cables has the wrong header",
        "The first line names the columns a and b. Add rate and delay if they differ from cluster.link.",
        "from,to,speed",
        "a,b,rate,delay",
    ),
    "GT048": Code(
        "the ranks do not suit the collective",
        "A group of a collective cannot have more ranks than the job. Sharded collectives need groups of equal size, "
        "and trees as many ranks on each node. Parameter servers are some of the job's `workers`, and at least one "
        "other worker must remain.",
        'workers = 6\ncollective = { kind = "hierarchical", inside = "sharded", group = 4 }',
        'workers = 8\ncollective = { kind = "hierarchical", inside = "sharded", group = 4 }',
    ),
    "GT049": Code(
        "the collective does not sum gradients",
        "Training needs the sum of all workers' gradients on every worker. Only all-reduces and parameter servers "
        'give it. If the bytes of a job are not gradients, write task = "exchange": any collective may then carry '
        "them.",
        'collective = { kind = "all_to_all" }',
        'collective = { kind = "ring" }',
    ),
    "GT050": Code(
        "the run would be too big",
        "One run cannot hold so many workers, layers, iterations, chunks or background flows in memory. The "
        "message gives the limit.",
        "iterations = 1000000000",
        "iterations = 100",
    ),
    "GT051": Code(
        "the run would outlast the simulated clock",
        "A run may last 106 simulated days: half of what 64 bits of picoseconds count. The number of iterations "
        "times the longest possible iteration exceeds this.",
        'model = { kind = "thesis", time = "100h" }\niterations = 1000',
        'model = { kind = "thesis", time = "900ms" }\niterations = 1000',
    ),
    "GT052": Code(
        "warm-up and cool-down leave nothing to count",
        "A background flow counts if it starts after `run.warmup` and before the last `run.cooldown` of the run. "
        "Together, the two must be shorter than `run.duration`.",
        'run = { duration = "4s", warmup = "2s", cooldown = "2s" }',
        'run = { duration = "12s", warmup = "2s", cooldown = "2s" }',
    ),
    "GT053": Code(
        "the run would exceed its memory or time limit",
        "gradtide estimates memory and time before it simulates; `gradtide run --estimate` prints both. The defaults "
        "allow 80 % of free memory and one hour. The message names the largest part: make it smaller, or raise "
        "--max-memory and --max-time. The estimate may be wrong by a factor of two or three.",
        'arrivals = { rate = "9000000/s" }',
        'arrivals = { rate = "9000000/s" }      # --max-memory 500GB --max-time 10h',
    ),
    "GT054": Code(
        "a limit of memory or time was reached",
        "Estimates can be wrong, and reading a trace or searching an order has no estimate. Every command therefore "
        "measures its memory and time while it runs, and ends when they exceed --max-memory or --max-time. Default: 80 "
        "% of the memory that was free at the start, and one hour. The exit code is 3. A study shows the results of "
        "its finished runs. With -o DIR these runs are kept, and the same command with a larger limit continues.",
        "gradtide compare s.toml -o out --max-time 1h",
        "gradtide compare s.toml -o out --max-time 3h",
    ),
    "GT055": Code(
        "a model cannot be divided over this mesh",
        "The number of workers must be tp x cp x fsdp x dp x pp, the ranks of the mesh. tp divides the heads of "
        "attention, pp the layers, and ep divides cp x fsdp x dp and the experts. A model with experts needs `ep`. The "
        "message names the key that does not fit, and values that fit.",
        'model = "llama3-8b"\nparallel = { fsdp = 4, tp = 12 }',
        'model = "llama3-8b"\nparallel = { fsdp = 4, tp = 8 }',
    ),
    "GT056": Code(
        "times of ops do not fit the model",
        "With `compute.times`, every op of the model needs one row, under the op's name or its block's. The ops.csv "
        "of a run folder names them all; `*` stands for any number.",
        "op,forward_us,backward_us\nlayers.0.attention,1200,2400",
        "op,forward_us,backward_us\nembed,10,20\nlayers.*.attn,1200,2400\nlayers.*.mlp,2000,4000\nhead,900,1800",
    ),
    "GT057": Code(
        "the model does not fit on its device",
        "Without `parallel`, every worker has the whole model in memory: parameters, gradients, the states of Adam, "
        "and the activations of its mini-batch. The message names two meshes over which the model fits on the cluster, "
        "if there are any, or how many GPUs it takes.",
        'model = "llama3-70b"\nworkers = 128\ncompute = { device = "H100", seq = 4096 }',
        'model = "llama3-70b"\nparallel = { fsdp = 128 }\ncompute = { device = "H100", seq = 4096 }',
    ),
    "GT060": Code(
        "unknown flow sizes",
        "Flow sizes are a preset, or the path of a CDF file with a suffix or a slash. `gradtide presets flow` "
        "lists the presets.",
        'sizes = "web-serch"',
        'sizes = "web-search"',
    ),
    "GT061": Code(
        "a flow-size distribution is wrong",
        "A CDF has one point per line: a size in whole bytes, and the share of flows that are at most this large, "
        "in percent or from 0 to 1. Neither column may fall, and the last share is 100 or 1. A header bytes,cdf "
        "and comment lines with # are allowed. HPCC is stricter: its first share is 0 and each point rises.",
        "4000 0\n10000 15\n1000000 90",
        "4000 0\n10000 15\n1000000 90\n30000000 100",
    ),
    "GT062": Code(
        "a list of flows has the wrong shape",
        "A list of flows starts with the header start_ns,src,dst,bytes[,band], in any order of columns, and has "
        "at least one flow. Convert a list of another tool with `gradtide convert`, which says what it would "
        "leave out.",
        "time,from,to,size",
        "start_ns,src,dst,bytes",
    ),
    "GT063": Code(
        "a flow of a list is wrong",
        "The message names file, line and field. start_ns is a whole number of nanoseconds; bytes is at least 1. "
        "src and dst are two different hosts, written h0 or 0. band must exist in the queue. htsim and HPCC lists "
        "have their own fields; what gradtide cannot represent, such as a flow that waits for others, is refused.",
        "1000,h0,h0,4096",
        "1000,h0,h1,4096",
    ),
    "GT064": Code(
        "a replayed file has changed",
        "A resolved scenario identifies a long list of flows by path and SHA-256, and the file at that path has "
        "changed, so this would be another run. Restore the file, or delete `replay_sha256` to use the new one.",
        'replay = "flows.csv"                   # edited since\nreplay_sha256 = "875275…"',
        'replay = "flows.csv"                   # as it was\nreplay_sha256 = "875275…"',
    ),
    "GT065": Code(
        "no background flow of a tenant starts within the run",
        "Every flow starts at or after `run.duration`, which leaves no background traffic. Often the times "
        "have another unit than the column.",
        'run.duration = "1s"\nincast = { dst = "h0", bytes = "1MB", every = "1s", start = "5s" }',
        'run.duration = "10s"\nincast = { dst = "h0", bytes = "1MB", every = "1s", start = "5s" }',
    ),
    "GT066": Code(
        "a table of transfer times is wrong",
        "gradtide calibrate reads the output of nccl-tests as it is, or a CSV file with the columns bytes and time_us, "
        "and perhaps depth, collective and ranks. A fit needs whole transfers of three sizes, the largest at least 16 "
        "times the smallest. Transfers in several parts are sends from one rank to another.",
        "bytes,time_us\n1000,21.5\n2000,22.1",
        "bytes,time_us\n1000,21.5\n100000,120\n10000000,10020",
    ),
    "GT070": Code(
        "an op of a DAG is invalid",
        "Each op needs its own id. A recv has no inputs, because it starts without waiting.",
        '{ "id": 3, "kind": "recv", "inputs": [1], "time": 5 }',
        '{ "id": 3, "kind": "recv", "inputs": [], "time": 5 }',
    ),
    "GT071": Code(
        "there is no such op",
        "Inputs, targets, updates and the keys of an order file must be ids of ops in the DAG. An order file "
        "names only transfers that the target needs.",
        '{ "ops": [{ "id": 0, "kind": "recv", "inputs": [], "time": 5 }], "target": 1 }',
        '{ "ops": [{ "id": 0, "kind": "recv", "inputs": [], "time": 5 }], "target": 0 }',
    ),
    "GT072": Code(
        "ops wait for each other",
        "The inputs of these ops form a cycle, so none of them could start. The message names each op before the "
        "one that it waits for.",
        '{ "id": 3, "kind": "comp", "inputs": [4], "time": 5 }\n{ "id": 4, "kind": "comp", "inputs": [3], "time": 5 }',
        '{ "id": 3, "kind": "comp", "inputs": [], "time": 5 }\n{ "id": 4, "kind": "comp", "inputs": [3], "time": 5 }',
    ),
    "GT073": Code(
        "an order leaves transfers out",
        "An order file gives a rank to every transfer that the target needs. A smaller rank is sent earlier.",
        '{ "priority": { "0": 0 } }             # the target needs 0 and 1',
        '{ "priority": { "0": 1, "1": 0 } }',
    ),
    "GT074": Code(
        "a graph of ops lacks what a run needs",
        "Every recv needs `bytes`, which parameter servers send. For training, the op that completes a gradient "
        "lists its recv in `updates`, and no other op does. For inference, `inference_target` names the last op. "
        "A scenario takes compute times from the graph, in its `time_unit`, and transfer times from the network.",
        '{ "id": 0, "kind": "recv", "inputs": [], "time": 5 }',
        '{ "id": 0, "kind": "recv", "inputs": [], "time": 5, "bytes": 4096 }',
    ),
    "GT080": Code(
        "a plan cannot be read",
        "A plan is written by `gradtide plan -o plan.json`. Its schema is gradtide.plan/1, and every key is "
        "required. The message names what is wrong. A file that is cut off is GT001.",
        '{ "schema": "gradtide.plan/1", "level": "crossitter" }',
        "gradtide plan scenario.toml -o plan.json",
    ),
    "GT081": Code(
        "a plan is for another model",
        "A plan names layers and their bytes. Both must match the model: every layer of the plan exists, and "
        "every layer with parameters is in one bucket with equal bytes.",
        "gradtide run resnet50.toml --plan plan-of-resnet101.json",
        "gradtide run resnet50.toml --plan plan-of-resnet50.json",
    ),
    "GT082": Code(
        "a plan is for another number of workers",
        "A plan for 8 workers may be slower than the default for 64, because an exchange takes longer with more "
        "workers. Make a plan for this number of workers. The network may differ from that of the plan.",
        "gradtide run scenario.toml --plan plan.json --workers 64",
        "gradtide plan scenario.toml --workers 64 -o plan.json",
    ),
    "GT090": Code(
        "a feature is not built yet",
        "The scenario is valid, but this version does not model one of its features. The message names the value and "
        "the values that are available. gradtide never runs something else silently.",
        'traffic.web.priority = { adaptive = { policy = "deadline" } }',
        'traffic.web.priority = "high"',
    ),
    "GT091": Code(
        "the other simulator lacks a feature",
        "`gradtide check` runs a scenario in ns-3, too. The program for ns-3 has background flows and at most one "
        "data-parallel job, with a ring all-reduce, on the packet engine's networks. The message names other features "
        "that the scenario uses. Remove them, or compare a simpler scenario; `--set` changes single keys.",
        'collective = { kind = "halving_doubling" }      # for gradtide check',
        'collective = { kind = "ring" }',
    ),
    "GT100": Code(
        "nothing is varied",
        "A key of [sweep.grid] or [sweep.zip] has a list of at least one value, and [sweep.sample] at least one key. "
        "An empty list would leave a study without runs.",
        '[sweep.grid]\n"cluster.link.rate" = []',
        '[sweep.grid]\n"cluster.link.rate" = ["1Gbps", "10Gbps"]',
    ),
    "GT101": Code(
        "zipped keys have lists of different lengths",
        "The keys of [sweep.zip] change together: their first values make one point, their second values the "
        "next. For every combination of values, write the keys in [sweep.grid].",
        '[sweep.zip]\n"job.train.workers" = [2, 4]\n"job.train.compute.batch" = [32]',
        '[sweep.zip]\n"job.train.workers" = [2, 4]\n"job.train.compute.batch" = [32, 64]',
    ),
    "GT102": Code(
        "the bounds of a sampled key are wrong",
        "A sampled key has `min` and `max`: two numbers, or two rates, times or sizes with their units, the smaller "
        "one first. With log = true they are above 0. Texts such as names of models cannot be sampled; list them in "
        "[sweep.grid].",
        '[sweep.sample]\npoints = 64\n"cluster.link.rate" = { min = "10Gbps" }',
        '[sweep.sample]\npoints = 64\n"cluster.link.rate" = { min = "10Gbps", max = "100Gbps" }',
    ),
    "GT103": Code(
        "a key is varied twice",
        "A key has one value in each run, so it stands in one of [sweep.grid], [sweep.zip] and [sweep.sample]. "
        "`seeds` varies run.seed. An option such as `--set` sets a key for all runs.",
        '[sweep]\nscenario = "base.toml"\nseeds = 5\ngrid = { "run.seed" = [1, 2] }',
        '[sweep]\nscenario = "base.toml"\nseeds = 5',
    ),
    "GT104": Code(
        "the study has too many runs",
        "A study has at most a million runs: the product of the number of values of each grid key, the points of the "
        "zip, the points of the sample, and the seeds. A sample of a few hundred points covers many keys better than a "
        "coarse grid; several studies can share one store.",
        '[sweep.sample]\npoints = 2000000\n"run.seed" = { min = 1, max = 9 }',
        '[sweep.sample]\npoints = 2000\n"run.seed" = { min = 1, max = 9 }',
    ),
    "GT105": Code(
        "the runs of the study have no such figure",
        "`figure` is the figure by which a study ranks its points, and `against` is the second objective of its Pareto "
        "front. Both are columns of rows.csv with numbers; `against` may also be a key that varies over numbers. The "
        "figures are known before any run, because they follow from the jobs and flows.",
        '[sweep]\nscenario = "base.toml"\nfigure = "iteration_time"',
        '[sweep]\nscenario = "base.toml"\nfigure = "jobs.train.iteration_time_ms.mean"',
    ),
    "GT106": Code(
        "Ray cannot be used",
        "`--executor ray` needs the package Ray and a cluster that runs; gradtide never starts one. Without --address "
        "it takes the cluster of RAY_ADDRESS, or the one of this machine. The command runs on a node of the cluster, "
        "with the same versions of Ray and Python. The exit code is 3, and finished runs are kept.",
        "gradtide sweep s.toml -o out --executor ray --address 10.0.0.1:6379      # nothing runs there",
        "ray start --head --port 6379\ngradtide sweep s.toml -o out --executor ray --address 10.0.0.1:6379",
    ),
    "GT107": Code(
        "a worker has another version of gradtide",
        "A store holds runs of one version, and a worker with another version of gradtide would give other figures. "
        "Install the same gradtide on every node of the cluster. The exit code is 3, and finished runs are kept.",
        "gradtide --version      # prints gradtide 0.1.0 on a worker, and gradtide 0.2.0 on the driver",
        "gradtide --version      # prints gradtide 0.2.0 on all nodes",
    ),
    "GT108": Code(
        "a run was lost with its worker three times",
        "If a worker or its node fails, each of its runs starts again on another worker. A run that is lost three "
        "times, each after one retry by Ray itself, ends the study, because it probably makes the workers fail, often "
        "for lack of memory. The message names the run; the exit code is 3, and finished runs are kept.",
        '"job.train.workers" = [8, 100000]      # on nodes of 4 GB',
        '"job.train.workers" = [8, 1000]',
    ),
}


def explain(code: str) -> str:
    """Return the entry of a code as plain text: the title, an explanation, a wrong example and the fixed example.

    Raises:
        KeyError: if there is no such code.
    """
    entry = CODES[code.strip().upper()]
    return "\n".join(
        [
            f"{code.strip().upper()}: {entry.title}",
            "",
            *textwrap.wrap(entry.text, 88),
            "",
            "wrong:",
            *(f"    {line}" for line in entry.bad.splitlines()),
            "",
            "fixed:",
            *(f"    {line}" for line in entry.good.splitlines()),
            "",
        ]
    )
