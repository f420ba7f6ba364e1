"""Things of the field that gradtide does not model, by the names that papers and tools give them.

A misspelt name is answered with the nearest known one, and a name of this table never is: PCN is no misspelling of PFC.
The table says what gradtide has in its place, and which page describes that. What gradtide has is not here; a test
compares the table with every vocabulary of a scenario. The module is longer than 600 lines because it is a table.
"""

import re
from functools import cache
from typing import NamedTuple

from gradtide.transports import PARAMETERS

MAX_NAME = 100
"""Characters of a name that is looked for."""


class Lacking(NamedTuple):
    """Something that gradtide does not model.

    Attributes:
        kind: which vocabulary it would belong to.
        title: what it is called in a sentence.
        names: its names as regular expressions over lower-case letters and digits: "gptoss.*" is gpt_oss.
        instead: what gradtide has in its place.
        page: documentation of that.
    """

    kind: str
    title: str
    names: tuple[str, ...]
    instead: str
    page: str


_PACKET = "docs/models/packet.md"
_FABRICS = "docs/models/fabrics.md"
_COLLECTIVES = "docs/models/collectives.md"
_COMPUTE = "docs/models/compute.md"
_CONFIGURATIONS = "docs/own-model.md"
_PARALLEL = "docs/models/parallel.md"
_ORDERED = "docs/models/orders.md"

*_CONTROLS, _LAST_CONTROL = PARAMETERS
_TRANSPORTS = f"transports are {', '.join(_CONTROLS)} and {_LAST_CONTROL}"
_QUEUES = "queues drop, mark (ecn, red) or announce (pcn), and nothing pauses a link"
_DISCIPLINES = "queue disciplines are pfifo_fast, fifo, strict, drr, ecn, red and pcn"
_ROUTES = "a flow keeps its route, chosen by ecmp, dmodk or spread"
_TOPOLOGIES = 'write its switches and cables with kind = "custom"; presets are star, leaf_spine, clos2 and clos3'
_IN_HOSTS = "hosts sum, by ring, tree, halving_doubling, butterfly or hierarchical"
_NCCL = "a collective is the algorithm that the scenario names; NCCL's protocols and channels are not modelled"
_MOVES = "collectives are all-reduces, all_gather, reduce_scatter, all_to_all, broadcast and point_to_point"
_EXPERTS = "mixtures of experts are mixtral, qwen2_moe, qwen3_moe, deepseek_v2 and deepseek_v3"
_PRECISIONS = "precisions are bf16, fp16, float8 and fp32"
_TIMES = "profile your model where it runs, or give its layers and their times as a CSV file"
_ORDERS = "orders are fifo, priority, tic, tac, caramel, edf and optimal, or a file of yours"
_ENGINES = "engines are fluid and packet; `gradtide check` compares a scenario with ns-3"

LACKING = (
    # Congestion control and flow control
    Lacking("transport", "DCQCN", ("dcqcn.*",), _TRANSPORTS, _PACKET),
    Lacking("transport", "TIMELY", ("timely",), _TRANSPORTS, _PACKET),
    Lacking("transport", "HPCC", ("hpcc.*",), _TRANSPORTS, _PACKET),
    Lacking("transport", "Swift", ("swift",), _TRANSPORTS, _PACKET),
    Lacking("transport", "PowerTCP", (".*powertcp",), _TRANSPORTS, _PACKET),
    Lacking("transport", "BBR", (r"(tcp)?bbr(v?\d)?",), _TRANSPORTS, _PACKET),
    Lacking("transport", "TCP Vegas", ("(tcp)?vegas",), _TRANSPORTS, _PACKET),
    Lacking("transport", "TCP Westwood", ("(tcp)?westwood(plus)?",), _TRANSPORTS, _PACKET),
    Lacking("transport", "TCP Illinois", ("(tcp)?illinois",), _TRANSPORTS, _PACKET),
    Lacking("transport", "TCP BIC", ("(tcp)?bic",), _TRANSPORTS, _PACKET),
    Lacking(
        "transport", "TCP for long fast links", ("highspeed(tcp)?", "scalable(tcp)?", "hstcp"), _TRANSPORTS, _PACKET
    ),
    Lacking("transport", "L4S", ("(tcp)?prague", "l4s", "dualpi2"), _TRANSPORTS, _PACKET),
    Lacking("transport", "Multipath TCP", ("mptcp", "multipathtcp"), _TRANSPORTS, _PACKET),
    Lacking("transport", "deadlines of flows", ("d2tcp", "d3", "pdq"), _TRANSPORTS, _PACKET),
    Lacking("transport", "LEDBAT", ("ledbat.*",), _TRANSPORTS, _PACKET),
    Lacking("transport", "QUIC", ("quic",), _TRANSPORTS, _PACKET),
    Lacking("transport", "UDP", ("udp",), 'kind = "ideal" has a window that never changes', _PACKET),
    Lacking("transport", "RDMA", ("rdma", "roce", "rocev2?", "irn", "goback0", "gobackn"), _TRANSPORTS, _PACKET),
    Lacking("transport", "InfiniBand's credits", ("infiniband", "ib", "ibverbs"), _TRANSPORTS, _PACKET),
    Lacking("transport", "Ultra Ethernet's transport", ("uec", "uet", "nscc", "rccc"), _TRANSPORTS, _PACKET),
    Lacking("transport", "SRD", ("srd", "efa"), _TRANSPORTS, _PACKET),
    Lacking("transport", "Falcon", ("falcon",), _TRANSPORTS, _PACKET),
    Lacking(
        "transport",
        "transport driven by the receiver",
        ("ndp", "eqds", "expresspass", "phost", "dcpim"),
        _TRANSPORTS,
        _PACKET,
    ),
    Lacking("transport", "Homa", ("homa",), _TRANSPORTS, _PACKET),
    Lacking("transport", "pFabric", ("pfabric",), _TRANSPORTS, _PACKET),
    Lacking("transport", "notifications by the switch or receiver", ("cnps?", "qcn", "fncc"), _TRANSPORTS, _PACKET),
    Lacking("queue", "PFC", ("pfc", "priorityflowcontrol", "pause(frames?)?", "lossless", "cbfc"), _QUEUES, _PACKET),
    Lacking(
        "queue",
        "active queue management other than RED",
        ("(fq)?codel", "cake", "pie", "fqpie", "blue", "ared"),
        _DISCIPLINES,
        _PACKET,
    ),
    Lacking("queue", "fair queueing by flow", ("fq", "sfq", "wfq", "fairqueue(ing)?", "afq"), _DISCIPLINES, _PACKET),
    Lacking("queue", "WRED", ("wred",), _DISCIPLINES, _PACKET),
    Lacking("queue", "PRIO", ("prio",), '"pfifo_fast" and "strict" have strict bands', _PACKET),
    Lacking("queue", "classful shaping", ("htb", "hfsc", "cbq", "tbf", "qfq", "ets"), _DISCIPLINES, _PACKET),
    Lacking("queue", "weighted round robin", ("d?wrr", "roundrobin"), '"drr" shares a link by weights', _PACKET),
    Lacking("queue", "multi-queue disciplines", ("mqprio", "taprio", "mq", "multiq"), _DISCIPLINES, _PACKET),
    Lacking("queue", "programmable queues", ("pifo", "sppifo", "aifo", "pcq"), _DISCIPLINES, _PACKET),
    Lacking(
        "queue", "packet trimming", ("trim(ming)?", "composite(queue)?", "cut(payload)?", "lossyecn"), _QUEUES, _PACKET
    ),
    Lacking("recovery", "proportional rate reduction", ("prr",), "recovery is sack or ns3.30", _PACKET),
    Lacking("recovery", "RACK and tail loss probes", ("rack(tlp)?", "tlp"), "recovery is sack or ns3.30", _PACKET),
    Lacking("recovery", "NewReno without SACK", ("fack", "dsack", "reno"), "recovery is sack or ns3.30", _PACKET),
    # Routes
    Lacking(
        "routing", "packet spraying", (r"(packet|random|rand)?spray(ing|ed)?", "rps", "oblivious"), _ROUTES, _FABRICS
    ),
    Lacking("routing", "flowlets", ("flowlets?", "letflow"), _ROUTES, _FABRICS),
    Lacking(
        "routing",
        "load balancing by congestion",
        ("conga", "hula", "drill", "presto", "clove", "hermes", "conweave"),
        _ROUTES,
        _FABRICS,
    ),
    Lacking(
        "routing",
        "routes that change during a flow",
        ("plb", "prr", "flowbender", "reps", "strack", "seqbalance"),
        _ROUTES,
        _FABRICS,
    ),
    Lacking(
        "routing",
        "adaptive routing",
        ("adaptive(routing)?", "ar", "ugal[lg]?", "dlb", "valiant", "vlb"),
        _ROUTES,
        _FABRICS,
    ),
    Lacking("routing", "weighted ECMP", ("w(eighted)?(cmp|ecmp)", "ucmp"), _ROUTES, _FABRICS),
    # Networks
    Lacking(
        "topology", "a torus", (r"(\dd)?torus(\dd)?", "mesh(2d|3d)?", r"\dd(torus|mesh)", "grid"), _TOPOLOGIES, _FABRICS
    ),
    Lacking("topology", "a hypercube", ("hypercube", "hyperx", "flattenedbutterfly"), _TOPOLOGIES, _FABRICS),
    Lacking("topology", "a Dragonfly network", ("dragonfly(plus)?", "megafly"), _TOPOLOGIES, _FABRICS),
    Lacking(
        "topology",
        "an expander network",
        ("slimfly", "polarfly", "xpander", "jellyfish", "expander"),
        _TOPOLOGIES,
        _FABRICS,
    ),
    Lacking("topology", "a network through servers", ("bcube", "dcell", "ficonn"), _TOPOLOGIES, _FABRICS),
    Lacking("topology", "a ring of hosts", ("ring", "fullyconnected", "fullmesh", "complete"), _TOPOLOGIES, _FABRICS),
    Lacking("topology", "rails", ("rail(optimi[sz]ed|only|s)?",), _TOPOLOGIES, _FABRICS),
    Lacking(
        "topology",
        "an optical circuit switch",
        ("ocs", "optical", "rotornet", "opera", "sirius"),
        _TOPOLOGIES,
        _FABRICS,
    ),
    # Collectives
    Lacking(
        "collective",
        "sums in the network",
        ("nvls(tree)?", "collnet(chain|direct)?", "sharp", "switchml", "atp", "innetwork"),
        _IN_HOSTS,
        _COLLECTIVES,
    ),
    Lacking("collective", "PAT", ("pat",), _IN_HOSTS, _COLLECTIVES),
    Lacking("collective", "Swing and Bine trees", ("swing", "bine"), _IN_HOSTS, _COLLECTIVES),
    Lacking("collective", "Bruck's algorithm", ("bruck",), _IN_HOSTS, _COLLECTIVES),
    Lacking(
        "collective",
        "collectives over several dimensions",
        ("blueconnect", "themis", "plink", "blink"),
        '"hierarchical" sums in two levels',
        _COLLECTIVES,
    ),
    Lacking(
        "collective",
        "synthesised collectives",
        ("sccl", "taccl", "tacos", "teccl", "msccl(pp)?", "forestcoll"),
        _IN_HOSTS,
        _COLLECTIVES,
    ),
    Lacking("collective", "NCCL's protocols", ("ll", "ll128", "simple"), _NCCL, _COLLECTIVES),
    Lacking(
        "collective",
        "gather, scatter and reduce",
        ("gather", "scatter", "reduce", "alltoallv", "barrier"),
        _MOVES,
        _COLLECTIVES,
    ),
    Lacking("collective", "gossip", ("gossip", "adpsgd", "localsgd", "diloco"), _IN_HOSTS, _COLLECTIVES),
    Lacking(
        "collective",
        "compressed gradients",
        ("powersgd", "topk", "dgc", "qsgd", "signsgd", "compression", "compressed", "onebit(adam)?"),
        "a transfer has the bytes of its gradients",
        _COLLECTIVES,
    ),
    # Orders of transfers
    Lacking(
        "order",
        "coflow scheduling",
        ("coflows?", "varys", "aalo", "baraat", "sincronia", "echelonflow"),
        _ORDERS,
        _ORDERED,
    ),
    Lacking("order", "shortest job first", ("srpt", "sjf", "lifo", "las", "pias"), _ORDERS, _ORDERED),
    Lacking(
        "order",
        "schedulers of whole clusters",
        ("crux", "cassini", "muri", "tiresias", "gandiva", "pollux", "optimus", "slurm"),
        "a scenario names the jobs and their hosts",
        "docs/models/fabrics.md",
    ),
    Lacking(
        "order",
        "other systems' schedules",
        ("byteps", "poseidon", "geryon", "wfbp", "mgwfbp", "dear", "pace", "tictac"),
        _ORDERS,
        "docs/comparing.md",
    ),
    # Models
    Lacking("model", "Llama 4", (r"llama4.*",), _EXPERTS, _CONFIGURATIONS),
    Lacking("model", "gpt-oss", ("gptoss.*",), _EXPERTS, _CONFIGURATIONS),
    Lacking(
        "model",
        "state space models",
        (r"(falcon)?mamba\d?.*", "jamba", "zamba.*", "rwkv.*", "bamba", "recurrentgemma", "nemotronh"),
        _TIMES,
        _CONFIGURATIONS,
    ),
    Lacking("model", "Gemma", (r"(pali|code)?gemma\d?.*",), _TIMES, _CONFIGURATIONS),
    Lacking("model", "Phi", (r"phi(\d.*|moe|msft)?",), _TIMES, _CONFIGURATIONS),
    Lacking("model", "Falcon", (r"falcon\d*b?",), _TIMES, _CONFIGURATIONS),
    Lacking("model", "OPT", (r"opt\d*[bm]?",), _TIMES, _CONFIGURATIONS),
    Lacking("model", "BLOOM", (r"bloomz?.*",), _TIMES, _CONFIGURATIONS),
    Lacking("model", "MPT and DBRX", (r"mpt\d*b?", "dbrx"), _TIMES, _CONFIGURATIONS),
    Lacking(
        "model",
        "GPT-J and its relatives",
        (r"gptj.*", r"gptneo", "gptbigcode", "codegen", "starcoder2?"),
        _TIMES,
        _CONFIGURATIONS,
    ),
    Lacking(
        "model",
        "encoders",
        (
            r"(distil|al|ro|de|modern|mobile|big|xlmro)berta?.*",
            "xlmroberta.*",
            "electra",
            "ernie.*",
            "xlnet",
            r"megatronbert",
        ),
        "encoders are bert_base and bert_large",
        _COMPUTE,
    ),
    Lacking(
        "model",
        "encoder and decoder",
        (r"(m|um|long|flan|switch|byt|code)?t5.*", "bart", "mbart", "pegasus", "whisper.*", "nllb.*", "marian"),
        _TIMES,
        _CONFIGURATIONS,
    ),
    Lacking(
        "model",
        "Grok, Kimi and others",
        (
            r"grok\d?.*",
            "kimi.*",
            r"(chat)?glm\d*.*",
            "minimax.*",
            "olmo.*",
            "granite.*",
            r"cohere\d?",
            "commandr.*",
            "internlm.*",
            "baichuan.*",
            r"yi\d*b?",
            "arctic",
            "snowflakearctic",
            "nemotron",
            "stablelm.*",
            "exaone.*",
            "hunyuan.*",
            r"smollm.*",
            "ernie45.*",
            "dots1",
            "longcat.*",
            "stepfun",
            r"qwen35?next",
            r"qwen[23]?(5)?vl.*",
            r"mllama.*",
            r"gpt[45].*",
            "claude",
            "gemini",
        ),
        _TIMES,
        _CONFIGURATIONS,
    ),
    Lacking(
        "model",
        "vision transformers",
        (r"(data2vec)?(vit|deit|swin|beit|dinov?2?).*", "clip.*", "siglip.*", "sam", "convnext.*", "maxvit.*"),
        _TIMES,
        _CONFIGURATIONS,
    ),
    Lacking(
        "model",
        "diffusion models",
        ("stablediffusion.*", "sd(15|xl|3)", "unet.*", "dit(xl)?.*", "flux.*", "sora", "ddpm"),
        _TIMES,
        _CONFIGURATIONS,
    ),
    Lacking(
        "model",
        "a family of transformers",
        (
            "afmoe",
            "apertus",
            "arcee",
            "aria",
            "bitnet",
            "blenderbot",
            "cwm",
            "deepseek",
            "deepseekv32",
            "deepseekvl",
            "diffllama",
            "emu3",
            "falconh1",
            "flexolmo",
            "fuyu",
            "gotocr2",
            "helium",
            "hymba",
            "idefics",
            "internvl",
            "jais",
            "jetmoe",
            "lfm2",
            "lfm2moe",
            "ling",
            "llava",
            "llavanext",
            "minicpm",
            "minicpm3",
            "ministral",
            "ministral3",
            "mistral3",
            "mistral4",
            "moonshot",
            "mosaicgpt",
            "openelm",
            "persimmon",
            "pixtral",
            "qwen",
            "qwen25omni",
            "qwen35",
            "qwen35moe",
            "qwen3omnimoe",
            "seedoss",
            "solar",
            "vaultgemma",
            "xglm",
        ),
        _TIMES,
        _CONFIGURATIONS,
    ),
    # Presets have its layers; a configuration of it is no language model that is divided over ranks.
    Lacking("family", "BERT", ("bert",), _TIMES, _CONFIGURATIONS),
    Lacking(
        "model", "recommendation models", ("dlrm.*", "ncf", "widedeep", "deepfm", "dcnv?2?"), _TIMES, _CONFIGURATIONS
    ),
    Lacking(
        "model",
        "other networks of images",
        (
            r"densenet\d*",
            r"mobilenet.*",
            r"efficientnet.*",
            r"squeezenet.*",
            r"shufflenet.*",
            r"wideresnet.*",
            r"resnext.*",
            r"regnet.*",
            "nasnet.*",
            "lenet5?",
            r"inceptionv4",
            r"resnet(18|34|200|269)",
            r"vgg1[13]",
            "xception",
            "yolo.*",
            "ssd",
            "maskrcnn",
            "fasterrcnn",
            "retinanet",
        ),
        _TIMES,
        _CONFIGURATIONS,
    ),
    Lacking(
        "model",
        "recurrent networks",
        ("(bi)?lstm.*", "gru", "gnmt.*", "rnn", "rnnt", "deepspeech2?", "seq2seq"),
        _TIMES,
        _CONFIGURATIONS,
    ),
    # Devices
    Lacking("device", "TPUs", (r"tpu.*", r"v[2-6][pe]", "trillium", "ironwood"), _TIMES, _COMPUTE),
    Lacking("device", "Gaudi", (r"(intel|habana)?gaudi\d?.*", r"hl\d+.*", "hpu"), _TIMES, _COMPUTE),
    Lacking(
        "device",
        "Trainium and Inferentia",
        (r"(aws)?trainium\d?.*", r"trn\d.*", r"inferentia\d?", r"inf\d"),
        _TIMES,
        _COMPUTE,
    ),
    Lacking("device", "Ascend", (r"(huawei)?ascend.*", r"910[abc]?", "npu"), _TIMES, _COMPUTE),
    Lacking(
        "device",
        "Cerebras, Groq and Graphcore",
        (
            "cerebras.*",
            r"wse\d?",
            r"cs[123]",
            "groq.*",
            "lpu",
            "graphcore",
            "ipu.*",
            "sambanova.*",
            r"sn\d\dl?",
            "tenstorrent.*",
            "wormhole",
            "blackhole",
            "dojo",
            "mtia.*",
            "maia.*",
            "cambricon.*",
            r"mlu\d*",
            "biren.*",
            r"br100",
            "kunlun.*",
        ),
        _TIMES,
        _COMPUTE,
    ),
    Lacking("device", "Intel's GPUs", ("pontevecchio", r"max1[15]50", "xpu", "arc.*", "pvc"), _TIMES, _COMPUTE),
    Lacking("device", "Apple's GPUs", (r"m[1-5](pro|max|ultra)?", "mps"), _TIMES, _COMPUTE),
    Lacking(
        "device",
        "other GPUs of AMD",
        (r"mi\d+[axp]*(?<!mi300x)", "instinct.*", "radeon.*", r"rx\d+.*"),
        _TIMES,
        _COMPUTE,
    ),
    Lacking(
        "device",
        "other GPUs of NVIDIA",
        (
            r"gb[23]00.*",
            "gh200",
            r"b[13]00.*",
            "h800",
            "h20",
            r"a(2|10|10g|16|30|40|800|5000|6000)",
            r"l(4|20|40)",
            r"k[24]0",
            r"m(40|60)",
            r"p(4|40|6000)",
            r"(geforce)?(rtx|gtx).*",
            "titan.*",
            r"quadro.*",
            r"rubin.*",
            r"vr200.*",
            r"jetson.*",
            r"orin.*",
            "nvl(36|72)",
        ),
        _TIMES,
        _COMPUTE,
    ),
    Lacking(
        "cluster",
        "racks and clouds by their names",
        (
            r".*nvl(36|72)",
            r"dgx.*",
            "superpod.*",
            r"p[345](d|de|e|en)?\d*(xlarge)?",
            r"nd.*v[45].*",
            r"a3(mega|ultra|high)?",
            "frontier",
            "perlmutter",
            "eos",
            "selene",
            "summit",
            "elcapitan",
            "aurora",
            "leonardo",
        ),
        "write the rate, GPUs and network cards of its nodes as keys of `cluster`",
        "docs/models/nodes.md",
    ),
    # Precisions
    Lacking("precision", "TF32", ("tf32",), _PRECISIONS, _PARALLEL),
    Lacking(
        "precision",
        "numbers of four and six bits",
        (r"(nv|mx)?fp[46].*", r"mx.*", "int4", "nf4"),
        _PRECISIONS,
        _PARALLEL,
    ),
    Lacking("precision", "whole numbers", ("int8", "uint8"), _PRECISIONS, _PARALLEL),
    Lacking("precision", "double precision", ("fp64", "float64", "double"), _PRECISIONS, _PARALLEL),
    # Divisions of a model
    Lacking(
        "parallel",
        "DualPipe and zero-bubble pipelines",
        (
            "dualpipe.*",
            "zerobubble.*",
            r"zb(h1|h2|v|1p)",
            "chimera",
            "hanayo",
            "pipedream.*",
            "looped.*",
            "breadthfirst",
        ),
        "pipelines are 1f1b, gpipe and interleaved",
        _PARALLEL,
    ),
    Lacking(
        "parallel",
        "Ulysses",
        ("ulysses", "usp", "deepspeedulysses", "striped", "zigzag"),
        "context parallelism is ring or all-gather",
        _PARALLEL,
    ),
    Lacking(
        "parallel",
        "offloading",
        ("offload.*", "zerooffload", "zeroinfinity"),
        "states of a rank stay on its device",
        _PARALLEL,
    ),
    # Simulators
    Lacking(
        "engine",
        "other simulators as engines",
        (
            r"ns[23].*",
            "htsim",
            "omnet(pp)?",
            "inet",
            "simgrid",
            "astrasim.*",
            "simai",
            "garnet",
            "analytical",
            "congestion(un)?aware",
            "booksim",
            "sst",
            "netbench",
            "parsimon",
            "m3",
            "deepqueuenet",
        ),
        _ENGINES,
        "docs/comparison.md",
    ),
    Lacking(
        "engine",
        "the engine pipe",
        ("pipe",),
        'engine = "fluid" gives a job alone on a star the same times, where `delay` is that of one cable: half of the '
        "way from host to host",
        "docs/models/fluid.md",
    ),
    # Flow sizes
    Lacking(
        "sizes",
        "this distribution",
        (
            "(fb|facebook)?hadoop.*",
            "alistorage.*",
            "googlerpc.*",
            "(fb)?memcached.*",
            "ali.*",
            "vl2",
            "enterprise",
            "imc10",
            "fbhdp.*",
            "solar.*",
            "storage",
        ),
        "give its CDF as a file: lines of bytes and percent",
        "docs/models/traffic.md",
    ),
)
"""Every thing that is known to be missing."""


_RELATED = (
    frozenset({"transport", "queue", "routing", "topology"}),
    frozenset({"device", "cluster"}),
)
"""Vocabularies whose things are confused: PFC is asked for as a queue, and as a transport."""


def lacking(kind: str, name: object) -> str | None:
    """Return that gradtide does not model what a name stands for, and what there is instead; `None` if unknown.

    Args:
        kind: vocabulary in which the name was written, one of those in `LACKING`; "" for any.
        name: as the user wrote it; case, blanks and punctuation do not matter.

    Example:
        >>> print(lacking("topology", "torus").partition(":")[0])
        gradtide does not model a torus
    """
    found = find(kind, name)
    if found is None:
        return None
    said = found.title if _plain(found.title).endswith(_plain(str(name))) else f"{name} ({found.title})"
    return f"gradtide does not model {said}: {found.instead} ({found.page})"


def find(kind: str, name: object) -> Lacking | None:
    """Return the entry of a name, as `lacking` takes it."""
    if not isinstance(name, str) or len(name) > MAX_NAME:
        return None
    plain = _plain(name)
    matching = [entry for entry, pattern in _patterns() if pattern.fullmatch(plain)]
    related = next((group for group in _RELATED if kind in group), {kind})
    near = [entry for entry in matching if not kind or entry.kind in related]
    return next((entry for entry in near if entry.kind == kind), near[0] if near else None)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _patterns() -> tuple[tuple[Lacking, "re.Pattern[str]"], ...]:
    return tuple((entry, re.compile("|".join(f"(?:{name})" for name in entry.names))) for entry in LACKING)
