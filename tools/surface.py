"""Lists the interface that users may rely on in this version, in a file of tests/surface per version.

Run from anywhere, before a release: python tools/surface.py. tests/test_surface.py compares every version's list with
today's code. The list of a released version is never written again.
"""

import ast
import inspect
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SURFACE = ROOT / "tests" / "surface"
sys.path.insert(0, str(ROOT / "python"))

import typer  # noqa: E402

import gradtide as gt  # noqa: E402
from gradtide import cli, codes, files  # noqa: E402
from gradtide.cli import ends  # noqa: E402

Facts = dict[str, Any]

REQUIRED = "required"
THINGS = ("command", "document", "folder", "python", "scenario")
"""Kinds of facts that have a line for each thing in the file; the others have one line."""
TYPES = {bool: "true or false", int: "number", float: "number", str: "text", list: "list", type(None): "null"}


def main() -> None:
    """Write the list of this version."""
    version = ".".join(gt.__version__.split(".")[:2])
    (SURFACE / f"{version}.json").write_text(text(surface()), encoding="utf-8", newline="\n")


def surface() -> Facts:
    """Return the interface that users may rely on: names, and the properties that must stay."""
    with tempfile.TemporaryDirectory() as samples:
        make_samples(Path(samples))
        return {**names(), **commands(), **ends_of_commands(), **scenario_keys(), **of_files(Path(samples))}


def text(facts: Facts) -> str:
    """Return facts as JSON with a line for each name, command, table of keys, document or kind of folder."""
    lines: dict[str, list[str]] = {}
    for name, what in sorted(facts.items()):
        kind, _, rest = name.partition(" ")
        thing = re.split(r"[^\w/-]", rest.removeprefix("gradtide."))[0] if kind in THINGS else ""
        lines.setdefault(f"{kind} {thing}", []).append(json.dumps({name: what}, ensure_ascii=False)[1:-1])
    return "{\n" + ",\n".join(", ".join(line) for line in lines.values()) + "\n}\n"


# Python


def names() -> Facts:
    """Return the public names, their parameters, and the members of classes."""
    found: Facts = {}
    for name in gt.__all__:
        thing = getattr(gt, name)
        thing = type(thing).__call__ if inspect.ismodule(thing) else thing
        if inspect.isclass(thing):
            bases = [base.__name__ for base in thing.__mro__[1:] if issubclass(base, BaseException)]
            found[f"python {name}"] = "class of " + ", ".join(bases) if bases else "class"
            found |= _members(name, thing)
        elif callable(thing):
            found[f"python {name}"] = "function"
            found |= _parameters(name, thing)
        else:
            found[f"python {name}"] = type(thing).__name__
    return found | _names_of_torch()


def _names_of_torch() -> Facts:
    """Return the public names of `gradtide.torch`, and parameters of its functions, without PyTorch."""
    trees = [ast.parse(path.read_bytes()) for path in sorted((ROOT / "python" / "gradtide" / "torch").glob("*.py"))]
    lists = [node.value for tree in trees for node in tree.body if isinstance(node, ast.Assign)
             and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"]  # fmt: skip
    (public,) = map(ast.literal_eval, lists)
    found: Facts = {f"python torch.{name}": "name" for name in public}
    for node in (node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)):
        if node.name not in public:
            continue
        places = [*node.args.posonlyargs, *node.args.args]
        defaults = [None] * (len(places) - len(node.args.defaults)) + node.args.defaults
        given = [("place", *one) for one in zip(places, defaults, strict=True)]
        given += [("name", *one) for one in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)]
        for by, one, default in given:
            shown = REQUIRED if default is None else f"default {ast.unparse(default)}"
            found[f"python torch.{node.name}({one.arg})"] = f"by {by}, {shown}"
    return found


def _members(name: str, thing: type) -> Facts:
    found: Facts = {}
    for one in sorted(dir(thing)):
        member = inspect.getattr_static(thing, one)
        if one.startswith("_") or not getattr(_home(thing, one), "__module__", "").startswith("gradtide"):
            continue
        inner = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if inspect.isfunction(inner):
            found[f"python {name}.{one}"] = "method"
            found |= _parameters(f"{name}.{one}", inner)
        else:
            found[f"python {name}.{one}"] = "value"
    for field in getattr(thing, "__dataclass_fields__", {}):
        if not field.startswith("_"):
            found[f"python {name}.{field}"] = "value"
    return found


def _home(thing: type, name: str) -> type | None:
    return next((one for one in thing.__mro__ if name in vars(one)), None)


def _parameters(name: str, function: Callable[..., Any]) -> Facts:
    found = {}
    for one, parameter in inspect.signature(function).parameters.items():
        if one in ("self", "cls"):
            continue
        default = parameter.default
        is_free = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        shown = "any" if is_free else REQUIRED if default is parameter.empty else f"default {default!r}"
        by = "by name" if parameter.kind is parameter.KEYWORD_ONLY else "by place"
        found[f"python {name}({one})"] = f"{by}, {shown}"
    return found


# Commands


def commands() -> Facts:
    """Return commands with their arguments and options."""
    found: Facts = {}

    def add(name: str, command: Any) -> None:
        found[f"command {name}"] = "command"
        for param in command.params:
            if param.param_type_name == "argument":
                shown = REQUIRED if param.required else "optional"
                found[f"command {name} {(param.metavar or param.name).upper()}"] = shown
                continue
            takes = "flag" if param.is_flag else "value"
            default = None if callable(param.default) else param.default
            repeats = ", repeatable" if param.multiple else ""
            for one in param.opts:
                found[f"command {name} {one}"] = f"{takes}, default {default!r}{repeats}"
        for below in getattr(command, "commands", {}):
            add(f"{name} {below}", command.commands[below])

    root = typer.main.get_command(cli.app)
    for name in root.list_commands(None):  # type: ignore[attr-defined]
        add(name, root.commands[name])  # type: ignore[attr-defined]
    return found


def ends_of_commands() -> Facts:
    """Return exit codes, kinds of errors, and codes of faults."""
    return {
        **{f"exit code {code}": "exit code" for code in ends.EXIT_CODES},
        **{f"error kind {kind}": f"exit code {code}" for kind, (code, _) in ends.KINDS.items()},
        **{f"error key {key}": "key" for key in ends.KEYS_OF_AN_ERROR},
        **{f"fault {code}": "code" for code in codes.CODES},
    }


# Scenarios


def scenario_keys() -> Facts:
    """Return the keys of a scenario file with their types and defaults."""
    schema = gt.schema()
    found: Facts = {}

    def walk(node: dict[str, Any], path: str, inside: tuple[str, ...]) -> None:
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            if name not in inside:
                walk(schema["$defs"][name], path, (*inside, name))
            return
        for one in [*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())]:
            walk(one, path, inside)
        for value in [*node.get("enum", ()), *([node["const"]] if "const" in node else ())]:
            found[f"scenario {path} = {json.dumps(value)}"] = "value"
        if "type" in node and "enum" not in node and "const" not in node:
            found[f"scenario {path}: {node['type']}"] = "form"
        for key, below in node.get("properties", {}).items():
            here = f"{path}.{key}".removeprefix(".")
            found[f"scenario {here}"] = REQUIRED if key in node.get("required", ()) else "key"
            if "default" in below:
                found[f"scenario {here} by default"] = below["default"]
            walk(below, here, inside)
        if isinstance(node.get("additionalProperties"), dict):
            walk(node["additionalProperties"], f"{path}.NAME", inside)
        if isinstance(node.get("items"), dict):
            walk(node["items"], f"{path}[]", inside)

    walk(schema, "", ())
    return found


# Files


def of_files(samples: Path) -> Facts:
    """Return the files of folders, the columns of tables, and the keys of JSON documents."""
    found: Facts = {}
    for path in sorted(samples.rglob("*")):
        inside = path.relative_to(samples)
        if path.suffix == ".csv" and len(inside.parts) > 1:
            kind = _schema(path.parent)
            found[f"folder {kind} {path.name}"] = "table"
            header = path.read_text(encoding="utf-8").partition("\n")[0]
            found |= {f"folder {kind} {path.name}: {column}": "column" for column in header.split(",")}
        elif path.suffix == ".json" and len(inside.parts) > 1 and path.name != files.VERSIONS:
            found[f"folder {_schema(path.parent)} {path.name}"] = "document"
        if path.suffix == ".json":
            document = json.loads(path.read_bytes())
            if "schema" in document:
                found |= {f"document {key}": value for key, value in _keys(document, document["schema"])}
    return found


def _schema(folder: Path) -> str:
    return str(json.loads((folder / files.SUMMARY).read_bytes())["schema"])


NAMED = {"jobs", "traffic", "groups", "files", "axes", "models", "tenants"}
"""Keys of documents whose children are named by the user, or are names of files."""


def _keys(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, below in value.items():
            is_named = path.rpartition(" ")[2].rpartition(".")[2] in NAMED
            yield from _keys(below, f"{path}{'.' if ' ' in path else ' '}{'NAME' if is_named else key}")
        return
    yield path, TYPES[type(value)]
    if isinstance(value, list):
        for below in value:
            yield from ((key, kind) for key, kind in _keys(below, f"{path}[]") if key != f"{path}[]")


# Samples

LAYERS = '{ name = "first", forward = "1ms", backward = "2ms", parameters = "4MB" }, ' * 2
JOB = f"[job.train]\nmodel = {{ layers = [{LAYERS.replace('first', 'second', 1)}] }}\nworkers = 4\niterations = 2\n"
LINK = '\n[cluster]\nlink = { rate = "10Gbps", delay = "10us" }\n'
FABRIC = '\n[cluster]\ntopology = { kind = "leaf_spine", leaves = 2, spines = 2, hosts_per_leaf = 2 }\n'
WEB = '\n[traffic.web]\nsizes = "web-search"\narrivals = { rate = "200/s" }\n'
PACKET = '\n[run]\nengine = "packet"\nduration = "60ms"\n'
SCENARIOS = {
    "star.toml": JOB + LINK,
    "uneven.toml": JOB + "compute = { noise = 0.1 }\n" + LINK,
    "fluid.toml": JOB + FABRIC + '\n[run]\nengine = "fluid"\n',
    "packet.toml": JOB + LINK + WEB + PACKET + 'probe = { every = "1ms", cwnd = ["train"] }\n',
    "tenants.toml": JOB + LINK + WEB + PACKET,
    "divided.toml": '[job.train]\nmodel = "llama3-8b"\nworkers = 8\niterations = 1\nparallel = { fsdp = 4, tp = 2 }\n'
    'compute = { device = "h100", seq = 2048, global_batch = 8 }\n\n[cluster.node]\ngpus = 4\n'
    'scale_up = { rate = "450GBps", delay = "1us" }\n',
    "layers.csv": "layer,forward_us,backward_us,parameter_bytes\nfirst,1000,2000,4000000\nsecond,1000,2000,1000000\n",
    "study.toml": '[sweep]\nscenario = "star.toml"\nseeds = 2\n\n[sweep.grid]\n'
    '"cluster.link.rate" = ["1Gbps", "10Gbps"]\n',
}
COMMANDS = [
    *(f"run {name}.toml -q -o {name}" for name in ("star", "uneven", "fluid", "packet", "divided")),
    "convert layers.csv layers.json -q",
    "tenants tenants.toml -q -o tenants",
    "compare star.toml --schedule fifo+barrier --schedule priority -q -o compare",
    "sweep study.toml -q -o sweep",
    "plan star.toml --device cpu --seeds 2 -q -o plan",
    "plan star.toml --device cpu --seeds 2 -q -o plan.json",
    "collectives star.toml --sizes 1MB -q -o collectives",
]


def make_samples(folder: Path) -> None:
    """Write scenarios, and run commands on them."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        for name, text in SCENARIOS.items():
            Path(name).write_text(text, encoding="utf-8", newline="\n")
        for command in COMMANDS:
            sys.argv = ["gradtide", *command.split()]
            with open(os.devnull, "w", encoding="utf-8") as nowhere:
                stdout, sys.stdout = sys.stdout, nowhere
                try:
                    code = cli._main()
                finally:
                    sys.stdout = stdout
            if code != 0:
                raise SystemExit(f"{command}: exit code {code}")
    finally:
        os.chdir(before)


if __name__ == "__main__":
    main()
