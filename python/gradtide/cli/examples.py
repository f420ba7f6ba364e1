"""Examples of every command. They are shown in its help, and by the error about a missing argument.

A test parses every example. Files such as scenario.toml need not exist.
"""

import re
import shlex

END = " \\"
"""End of a line that the shell continues on the next line."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "gradtide run resnet50 --cluster ethernet-25g/16",
        "gradtide compare paper/gao2020-ch4 --rate 1Gbps,10Gbps",
        "gradtide presets",
    ),
    "run": (
        "gradtide run resnet50 --cluster ethernet-25g/16",
        "gradtide run llama3-8b --cluster h100-hgx/4 --parallel fsdp=32 --seq 8192",
        "gradtide run paper/gao2020-ch4 --rate 1Gbps -o out/run",
    ),
    "compare": (
        "gradtide compare resnet50 --schedule ddp --schedule p3 --rate 1Gbps,10Gbps",
        "gradtide compare llama3-8b --cluster h100-hgx/4 --parallel fsdp=32 --parallel fsdp=16,tp=2 --seq 8192",
    ),
    "sweep": (
        "gradtide sweep study.toml -o out/study -j 8",
        "gradtide sweep study.toml --engine packet --fail-if 'iteration_time_ms>950'",
    ),
    "sweep merge": ("gradtide sweep merge study.toml a.store b.store -o out/study",),
    "sweep list": ("gradtide sweep list gradtide.store --engine packet",),
    "collectives": ("gradtide collectives resnet50 --cluster ethernet-25g/16 --collectives ring,tree",),
    "tenants": (
        "gradtide tenants paper/gao2020-ch5 --seeds 3",
        "gradtide tenants scenario.toml --classes small=50kB,large=1MB",
    ),
    "tenants map": ("gradtide tenants map paper/gao2020-ch5 --job-loads 0.25,0.5 --traffic-loads 0.1,0.3",),
    "tenants policies": ("gradtide tenants policies paper/gao2020-ch5 --policy deadline --policy all-low",),
    "tenants lp": ("gradtide tenants lp paper/gao2020-ch5 --give 1% --seeds 3",),
    "buy": (
        "gradtide buy vgg16 --nodes 16 --rates 10Gbps,25Gbps",
        "gradtide buy resnet50 --nodes 32 --fabrics star,clos2 --prices prices.toml",
    ),
    "plan": (
        "gradtide plan resnet50 --cluster ethernet-10g/8 --device cpu -o plan.json",
        "gradtide plan scenario.toml --level buckets --seeds 16",
    ),
    "demo": ("gradtide demo", "gradtide demo -o out/mine -j 4"),
    "reproduce": ("gradtide reproduce gao2020/ch5/5.12", "gradtide reproduce --list"),
    "check": ("gradtide check scenario.toml --against ns3 --ns3 /opt/ns-3",),
    "profile": (
        "gradtide profile torchvision.models:resnet50 --input 32x3x224x224 -o resnet50.json",
        "gradtide profile model.py:make --input 32x128:int64 --device measure",
    ),
    "calibrate": ("gradtide calibrate times.csv --link 10Gbps -o host.toml",),
    "emulate": (
        "gradtide emulate paper/pcn -o out/pcn-emulated",
        "gradtide emulate paper/gao2020-ch4 -- python train.py",
    ),
    "bursts": (
        "gradtide bursts receiver.example.org --bytes 400kB --count 10",
        "gradtide bursts receiver.example.org --like paper/pcn",
    ),
    "bursts receive": ("gradtide bursts receive --count 6",),
    "bursts thresholds": (
        "gradtide bursts thresholds 100Mbps 13.32ms",
        "gradtide bursts thresholds 10Gbps 130us --long-flows 8",
    ),
    "report": ("gradtide report out/run", "gradtide report rank0.json.gz rank1.json.gz -o out/trace"),
    "presets": ("gradtide presets clusters", "gradtide presets models --json"),
    "order": (
        "gradtide order tictac_vgg16 --scheduler tac --rate 1Gbps",
        "gradtide order dag.json --scheduler order.json",
    ),
    "convert": ("gradtide convert trace.json.gz", "gradtide convert layers.csv layers.json"),
    "schema": ("gradtide schema > scenario.schema.json",),
    "explain": ("gradtide explain GT012",),
    "doctor": ("gradtide doctor",),
}
"""Example command lines by the name of the command; the empty name has those of `gradtide` itself."""


def example_lines(name: str, width: int) -> list[str]:
    """Return the examples of a command; those longer than `width` are divided into lines that end with `END`."""
    return [line for example in EXAMPLES[name] for line in _continued(example, width)]


def _continued(example: str, width: int) -> list[str]:
    if len(example) <= width:
        return [example]
    # Lines are divided only before options, so that an option and its value stay together.
    first, *rest = re.split(r" (?=-)", example)
    lines = [first]
    for part in rest:
        if len(lines[-1]) + 1 + len(part) + len(END) <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(f"    {part}")
    return [*(line + END for line in lines[:-1]), lines[-1]]


def words_of(example: str) -> list[str]:
    """Return the words of an example between `gradtide` and a redirection, as in `sys.argv[1:]`."""
    return shlex.split(example.partition(" > ")[0])[1:]
