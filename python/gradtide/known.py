"""Features that gradtide does not model, by the names that papers and tools give them.

The error for an unknown name usually suggests the nearest known name. A name in this table is not treated as misspelt:
PFC is not a misspelling of PCN. Each entry has the alternative that gradtide offers, and the page that describes it. A
test checks that no name of the table is valid in a scenario.
"""

import re
from functools import cache
from typing import NamedTuple

from gradtide.disciplines import DISCIPLINES
from gradtide.transports import PARAMETERS

MAX_NAME = 100
"""Largest number of characters of a name that is looked up."""


class Lacking(NamedTuple):
    """A feature that gradtide does not model.

    Attributes:
        kind: vocabulary to which the feature would belong, such as `transport`.
        title: name of the feature in a sentence.
        names: regular expressions for its names in lower-case letters and digits only: "gptoss.*" matches gpt_oss.
        instead: alternative that gradtide offers.
        page: documentation of the alternative.
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
*_KINDS, _LAST_KIND = DISCIPLINES
_DISCIPLINES = f"queue disciplines are {', '.join(_KINDS)} and {_LAST_KIND}"
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

_TABLE: dict[tuple[str, str, str], dict[str, str]] = {
    # Congestion control and flow control
    ("transport", _TRANSPORTS, _PACKET): {
        "DCQCN": "dcqcn.*",
        "TIMELY": "timely",
        "HPCC": "hpcc.*",
        "Swift": "swift",
        "PowerTCP": ".*powertcp",
        "BBR": r"(tcp)?bbr(v?\d)?",
        "TCP Vegas": "(tcp)?vegas",
        "TCP Westwood": "(tcp)?westwood(plus)?",
        "TCP Illinois": "(tcp)?illinois",
        "TCP BIC": "(tcp)?bic",
        "TCP for long fast links": "highspeed(tcp)? scalable(tcp)? hstcp",
        "L4S": "(tcp)?prague l4s dualpi2",
        "Multipath TCP": "mptcp multipathtcp",
        "deadlines of flows": "d2tcp d3 pdq",
        "LEDBAT": "ledbat.*",
        "QUIC": "quic",
        "RDMA": "rdma roce rocev2? irn goback0 gobackn",
        "InfiniBand's credits": "infiniband ib ibverbs",
        "Ultra Ethernet's transport": "uec uet nscc rccc",
        "SRD": "srd efa",
        "Falcon": "falcon",
        "transport driven by the receiver": "ndp eqds expresspass phost dcpim",
        "Homa": "homa",
        "pFabric": "pfabric",
        "notifications by the switch or receiver": "cnps? qcn fncc",
    },
    ("transport", 'kind = "ideal" has a window that never changes', _PACKET): {"UDP": "udp"},
    ("queue", _QUEUES, _PACKET): {
        "PFC": "pfc priorityflowcontrol pause(frames?)? lossless cbfc",
        "packet trimming": "trim(ming)? composite(queue)? cut(payload)? lossyecn",
    },
    ("queue", _DISCIPLINES, _PACKET): {
        "active queue management other than RED": "(fq)?codel cake pie fqpie blue ared",
        "fair queueing by flow": "fq sfq wfq fairqueue(ing)? afq",
        "WRED": "wred",
        "classful shaping": "htb hfsc cbq tbf qfq ets",
        "multi-queue disciplines": "mqprio taprio mq multiq",
        "programmable queues": "pifo sppifo aifo pcq",
    },
    ("queue", '"pfifo_fast" and "strict" have strict bands', _PACKET): {"PRIO": "prio"},
    ("queue", '"drr" shares a link by weights', _PACKET): {"weighted round robin": "d?wrr roundrobin"},
    ("recovery", "recovery is sack, rack or ns3.30", _PACKET): {
        "NewReno without SACK": "fack dsack reno",
        "undoing a reduction": "eifel frto undo",
    },
    # Routes
    ("routing", _ROUTES, _FABRICS): {
        "packet spraying": "(packet|random|rand)?spray(ing|ed)? rps oblivious",
        "flowlets": "flowlets? letflow",
        "load balancing by congestion": "conga hula drill presto clove hermes conweave",
        "routes that change during a flow": "plb prr flowbender reps strack seqbalance",
        "adaptive routing": "adaptive(routing)? ar ugal[lg]? dlb valiant vlb",
        "weighted ECMP": "w(eighted)?(cmp|ecmp) ucmp",
    },
    # Networks
    ("topology", _TOPOLOGIES, _FABRICS): {
        "a torus": r"(\dd)?torus(\dd)? mesh(2d|3d)? \dd(torus|mesh) grid",
        "a hypercube": "hypercube hyperx flattenedbutterfly",
        "a Dragonfly network": "dragonfly(plus)? megafly",
        "an expander network": "slimfly polarfly xpander jellyfish expander",
        "a network through servers": "bcube dcell ficonn",
        "a ring of hosts": "ring fullyconnected fullmesh complete",
        "rails": "rail(optimi[sz]ed|only|s)?",
        "an optical circuit switch": "ocs optical rotornet opera sirius",
    },
    # Collectives
    ("collective", _IN_HOSTS, _COLLECTIVES): {
        "sums in the network": "nvls(tree)? collnet(chain|direct)? sharp switchml atp innetwork",
        "PAT": "pat",
        "Swing and Bine trees": "swing bine",
        "Bruck's algorithm": "bruck",
        "synthesised collectives": "sccl taccl tacos teccl msccl(pp)? forestcoll",
        "gossip": "gossip adpsgd localsgd diloco",
    },
    ("collective", '"hierarchical" sums in two levels', _COLLECTIVES): {
        "collectives over several dimensions": "blueconnect themis plink blink",
    },
    ("collective", _NCCL, _COLLECTIVES): {"NCCL's protocols": "ll ll128 simple"},
    ("collective", _MOVES, _COLLECTIVES): {
        "gather, scatter and reduce": "gather scatter reduce alltoallv barrier",
    },
    ("collective", "a transfer has the bytes of its gradients", _COLLECTIVES): {
        "compressed gradients": "powersgd topk dgc qsgd signsgd compression compressed onebit(adam)?",
    },
    # Orders of transfers
    ("order", _ORDERS, _ORDERED): {
        "coflow scheduling": "coflows? varys aalo baraat sincronia echelonflow",
        "shortest job first": "srpt sjf lifo las pias",
    },
    ("order", "a scenario names the jobs and their hosts", "docs/models/fabrics.md"): {
        "schedulers of whole clusters": "crux cassini muri tiresias gandiva pollux optimus slurm",
    },
    ("order", _ORDERS, "docs/comparing.md"): {
        "other systems' schedules": "byteps poseidon geryon wfbp mgwfbp dear pace tictac",
    },
    # Models
    ("model", _EXPERTS, _CONFIGURATIONS): {
        "Llama 4": "llama4.*",
        "gpt-oss": "gptoss.*",
    },
    ("model", _TIMES, _CONFIGURATIONS): {
        "state space models": r"(falcon)?mamba\d?.* jamba zamba.* rwkv.* bamba recurrentgemma nemotronh",
        "Gemma": r"(pali|code)?gemma\d?.*",
        "Phi": r"phi(\d.*|moe|msft)?",
        "Falcon": r"falcon\d*b?",
        "OPT": r"opt\d*[bm]?",
        "BLOOM": "bloomz?.*",
        "MPT and DBRX": r"mpt\d*b? dbrx",
        "GPT-J and its relatives": "gptj.* gptneo gptbigcode codegen starcoder2?",
        "encoder and decoder": "(m|um|long|flan|switch|byt|code)?t5.* bart mbart pegasus whisper.* nllb.* marian",
        "Grok, Kimi and others": (
            r"grok\d?.* kimi.* (chat)?glm\d*.* minimax.* olmo.* granite.* cohere\d? commandr.* internlm.* baichuan.* "
            r"yi\d*b? arctic snowflakearctic nemotron stablelm.* exaone.* hunyuan.* smollm.* dots1 "
            "longcat.* stepfun qwen35?next qwen[23]?(5)?vl.* mllama.* gpt[45].* claude gemini"
        ),
        "vision transformers": "(data2vec)?(vit|deit|swin|beit|dinov?2?).* clip.* siglip.* sam convnext.* maxvit.*",
        "diffusion models": "stablediffusion.* sd(15|xl|3) unet.* dit(xl)?.* flux.* sora ddpm",
        "a family of transformers": (
            "afmoe apertus arcee aria bitnet blenderbot cwm deepseek deepseekv32 deepseekvl diffllama emu3 falconh1 "
            "flexolmo fuyu gotocr2 helium hymba idefics internvl jais jetmoe lfm2 lfm2moe ling llava llavanext "
            "minicpm minicpm3 ministral ministral3 mistral3 mistral4 moonshot mosaicgpt openelm persimmon pixtral "
            "qwen qwen25omni qwen35 qwen35moe qwen3omnimoe seedoss solar vaultgemma xglm"
        ),
        "recommendation models": "dlrm.* ncf widedeep deepfm dcnv?2?",
        "other networks of images": (
            r"densenet\d* mobilenet.* efficientnet.* squeezenet.* shufflenet.* wideresnet.* resnext.* regnet.* "
            "nasnet.* lenet5? inceptionv4 resnet(18|34|200|269) vgg1[13] xception yolo.* ssd maskrcnn fasterrcnn "
            "retinanet"
        ),
        "recurrent networks": "(bi)?lstm.* gru gnmt.* rnn rnnt deepspeech2? seq2seq",
    },
    ("model", "encoders are bert_base and bert_large", _COMPUTE): {
        "encoders": "(distil|al|ro|de|modern|mobile|big|xlmro)berta?.* xlmroberta.* electra ernie.* xlnet megatronbert",
    },
    # Presets have BERT's layers, but its configuration cannot be read as a language model.
    ("family", _TIMES, _CONFIGURATIONS): {"BERT": "bert"},
    # Devices
    ("device", _TIMES, _COMPUTE): {
        "TPUs": "tpu.* v[2-6][pe] trillium ironwood",
        "Gaudi": r"(intel|habana)?gaudi\d?.* hl\d+.* hpu",
        "Trainium and Inferentia": r"(aws)?trainium\d?.* trn\d.* inferentia\d? inf\d",
        "Ascend": "(huawei)?ascend.* 910[abc]? npu",
        "Cerebras, Groq and Graphcore": (
            r"cerebras.* wse\d? cs[123] groq.* lpu graphcore ipu.* sambanova.* sn\d\dl? tenstorrent.* wormhole "
            r"blackhole dojo mtia.* maia.* cambricon.* mlu\d* biren.* br100 kunlun.*"
        ),
        "Intel's GPUs": "pontevecchio max1[15]50 xpu arc.* pvc",
        "Apple's GPUs": "m[1-5](pro|max|ultra)? mps",
        "other GPUs of AMD": r"mi\d+[axp]*(?<!mi300x) instinct.* radeon.* rx\d+.*",
        "other GPUs of NVIDIA": (
            "gb[23]00.* gh200 b[13]00.* h800 h20 a(2|10|10g|16|30|40|800|5000|6000) l(4|20|40) k[24]0 m(40|60) "
            "p(4|40|6000) (geforce)?(rtx|gtx).* titan.* quadro.* rubin.* vr200.* jetson.* orin.* nvl(36|72)"
        ),
    },
    ("cluster", "write the rate, GPUs and network cards of its nodes as keys of `cluster`", "docs/models/nodes.md"): {
        "racks and clouds by their names": (
            r".*nvl(36|72) dgx.* superpod.* p[345](d|de|e|en)?\d*(xlarge)? nd.*v[45].* a3(mega|ultra|high)? frontier "
            "perlmutter eos selene summit elcapitan aurora leonardo"
        ),
    },
    # Precisions
    ("precision", _PRECISIONS, _PARALLEL): {
        "TF32": "tf32",
        "numbers of four and six bits": "(nv|mx)?fp[46].* mx.* int4 nf4",
        "whole numbers": "int8 uint8",
        "double precision": "fp64 float64 double",
    },
    # Divisions of a model
    ("parallel", "pipelines are 1f1b, gpipe and interleaved", _PARALLEL): {
        "DualPipe and zero-bubble pipelines": (
            "dualpipe.* zerobubble.* zb(h1|h2|v|1p) chimera hanayo pipedream.* looped.* breadthfirst"
        ),
    },
    ("parallel", "context parallelism is ring or all-gather", _PARALLEL): {
        "Ulysses": "ulysses usp deepspeedulysses striped zigzag",
    },
    ("parallel", "states of a rank stay on its device", _PARALLEL): {
        "offloading": "offload.* zerooffload zeroinfinity",
    },
    # Simulators
    ("engine", _ENGINES, "docs/comparison.md"): {
        "other simulators as engines": (
            "ns[23].* htsim omnet(pp)? inet simgrid astrasim.* simai garnet analytical congestion(un)?aware booksim "
            "sst netbench parsimon m3 deepqueuenet"
        ),
    },
    (
        "engine",
        'engine = "fluid" gives a job alone on a star the same times, where `delay` is that of one cable: half of the '
        "way from host to host",
        "docs/models/fluid.md",
    ): {
        "the engine pipe": "pipe",
    },
    # Flow sizes
    ("sizes", "give its CDF as a file: lines of bytes and percent", "docs/models/traffic.md"): {
        "this distribution": (
            "(fb|facebook)?hadoop.* alistorage.* googlerpc.* (fb)?memcached.* ali.* vl2 enterprise imc10 fbhdp.* "
            "solar.* storage"
        ),
    },
}
"""Unmodelled features: {(vocabulary, alternative, page): {title of the feature: its names, separated by blanks}}."""

LACKING = tuple(
    Lacking(kind, title, tuple(names.split()), instead, page)
    for (kind, instead, page), things in _TABLE.items()
    for title, names in things.items()
)
"""All entries of the table."""


_RELATED = (
    frozenset({"transport", "queue", "routing", "topology"}),
    frozenset({"device", "cluster"}),
)
"""Vocabularies that users confuse: PFC is written as a queue and as a transport."""


def lacking(kind: str, name: object) -> str | None:
    """Return a sentence which says that gradtide does not model a feature; `None` if the table has no such name.

    Args:
        kind: vocabulary in which the name was written, a `Lacking.kind`; "" for any.
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
    """Return the entry for a name in a vocabulary, as for `lacking`; `None` if the name is unknown."""
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
