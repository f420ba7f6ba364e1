"""Every arrow of the code against the tables of ARCHITECTURE.md: layers, modules, outside packages, absences."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CRATES = ("watch", "net", "emulate", "table", "train", "trace", "py")
OUTSIDE = ("numpy", "pydantic", "typer", "rich", "jinja2", "torch", "highspy", "ray", "psutil")


# The tables


def read_tables(page):
    """Return every `<!-- table: NAME -->` of a page as a list of dicts by column."""
    tables = {}
    for name, body in re.findall(r"<!-- table: ([\w ]+) -->\n+((?:\|.*\n)+)", page):
        header, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in body.splitlines())
        tables[name] = [dict(zip(header, row, strict=True)) for row in rows]
    return tables


def names(cell):
    return {part.strip() for part in cell.split(",") if part.strip()}


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(scope="module")
def tables():
    return read_tables((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))


def sources(folder, suffix):
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob(f"*{suffix}")
    }


# Rust

_NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\br(?P<hashes>\#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\])'|&?'static\b""",
    re.DOTALL,
)


def code_of(rust):
    """Return Rust source without comments, texts, character literals and lifetimes of statics."""
    return _NO_CODE.sub(" ", rust)


def use_paths(tree):
    """Expand `a::{b, c::{d, e}}` into its paths."""
    tree = tree.strip()
    if "{" not in tree:
        return [tree]
    prefix, _, rest = tree.partition("{")
    inside, depth, parts, part = rest[: rest.rindex("}")], 0, [], ""
    for char in inside:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    parts.append(part)
    return [prefix.strip() + path for part in parts if part.strip() for path in use_paths(part)]


def module_of_file(path):
    """`crates/train/src/schedule/fifo.rs` -> `schedule`; `python/gradtide/cli/run.py` -> `cli`."""
    parts = Path(path).parts
    return Path(parts[3] if parts[0] == "crates" else parts[2]).stem


def rust_arrows(path, rust, modules):
    """Return (layers, modules) that a file imports; `modules` are all of its crate's."""
    code = code_of(rust)
    paths = []
    for tree in re.findall(r"\buse\s+([^;]+);", code):
        paths += use_paths(tree)
    paths += [match[0] for match in re.finditer(r"\b\w+(?:\s*::\s*\w+)+", re.sub(r"\buse\s+[^;]+;", " ", code))]
    own = module_of_file(path)
    layers, found = set(), set()
    for one in paths:
        first, *rest = [segment.strip() for segment in one.split("::")]
        if first.startswith("gradtide_"):
            layers.add(first.removeprefix("gradtide_"))
        elif first == "crate" and rest:
            found.add(rest[0] if rest[0] in modules else "lib")
        elif first in ("super", "self"):
            rest = [segment for segment in rest if segment not in ("super", "self")]
            found |= set(rest[:1]) & modules
        elif own == "lib" and first in modules:
            found.add(first)
    return layers, found - {own}


def rust_violations(tables, files):
    """Return what the Rust files do that the tables do not allow."""
    wrong = []
    allowed_layers = {row["layer"]: names(row["may import"]) for row in tables["layers"]}
    for path, rust in files.items():
        crate = Path(path).parts[1]
        may_import = {row["module"]: names(row["may import"]) for row in tables[f"modules of {crate}"]}
        module = module_of_file(path)
        if module not in may_import:
            wrong.append(f"{path}: module {module} is not in ARCHITECTURE.md")
            continue
        layers, modules = rust_arrows(path, rust, set(may_import))
        wrong += [f"{path}: {crate} imports {layer}" for layer in layers - allowed_layers[crate] - {crate}]
        wrong += [f"{path}: {module} imports {other}" for other in modules - may_import[module]]
    return wrong


def absences(tables, files):
    """Return what stands where it never should."""
    wrong = []
    for row in tables["absent"]:
        for place in names(row["where"]):
            for path, rust in files.items():
                if not path.startswith(place):
                    continue
                code = code_of(rust)
                for word in quoted(row["never contains"]):
                    start = r"(?<!\w)" if word[0].isalnum() else ""
                    end = r"(?!\w)" if word[-1].isalnum() else ""
                    if re.search(start + re.escape(word) + end, code):
                        wrong.append(f"{path}: {word}")
    return wrong


def test_rust_imports_run_downwards(tables):
    for crate in CRATES:
        files = sources(f"crates/{crate}/src", ".rs")
        assert files
        assert rust_violations(tables, files) == []


def test_nothing_stands_where_it_never_should(tables):
    assert absences(tables, sources("crates", ".rs")) == []
    for row in tables["absent"]:
        assert all((ROOT / place).exists() for place in names(row["where"])), row


def test_crates_depend_on_the_floors_below_only(tables):
    for row in tables["layers"][: len(CRATES)]:
        manifest = (ROOT / row["where"] / "Cargo.toml").read_text()
        dependencies = set(re.findall(r"^gradtide-(\w+) *=", manifest, re.MULTILINE))
        assert dependencies <= names(row["may import"]), row["layer"]


def test_every_module_of_the_tables_exists(tables):
    for row in tables["layers"]:
        folder = ROOT / row["where"] / ("" if row["layer"] == "gradtide" else "src")
        there = {
            path.stem
            for path in folder.iterdir()
            if path.suffix in (".rs", ".py") or (path.is_dir() and list(path.glob("*.[rp][sy]")))
        }
        assert there == {module["module"] for module in tables[f"modules of {row['layer']}"]}, row["layer"]


# Python


def python_arrows(path, python):
    """Return (module, is inside a function) of every import that runs; `if TYPE_CHECKING` does not."""
    arrows = []

    def visit(node, is_inside):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                visit(child, is_inside)
            return
        if isinstance(node, ast.Import):
            arrows.extend((alias.name, is_inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = [*Path(path).with_suffix("").parts[1:]]
            base = ".".join(parents[: len(parents) - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            arrows.extend((f"{module}.{alias.name}", is_inside) for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in (
            "import_module",
            "__import__",
        ):
            arrows.append(("<dynamic>", is_inside))
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, is_inside or is_function)

    visit(ast.parse(python), False)
    return arrows


def python_violations(tables, files):
    """Return what the Python files import that the tables do not allow."""
    wrong = []
    rows = {row["module"]: row for row in tables["modules of gradtide"]}
    homes = {row["package"]: names(row["only in"]) for row in tables["outside packages"]}
    for path, python in files.items():
        module = module_of_file(path)
        if module not in rows:
            wrong.append(f"{path}: module {module} is not in ARCHITECTURE.md")
            continue
        at_top = names(rows[module]["may import"])
        inside = at_top | names(rows[module]["inside functions"])
        for imported, is_inside in python_arrows(path, python):
            first, *rest = imported.split(".")
            if first == "<dynamic>" and module != "__init__":
                wrong.append(f"{path}: a dynamic import")
            elif first in homes and module not in homes[first]:
                wrong.append(f"{path}: {module} imports {first}")
            elif first == "gradtide":
                other = rest[0] if rest[0] in rows or rest[0] == "_core" else "__init__"
                if other != module and other not in (inside if is_inside else at_top):
                    where = " inside a function" if is_inside else ""
                    wrong.append(f"{path}: {module} imports {other}{where}")
    return wrong


def test_python_imports_run_downwards(tables):
    assert python_violations(tables, sources("python/gradtide", ".py")) == []


def test_public_names_are_imported_from_the_modules_of_the_table(tables):
    import gradtide

    row = next(row for row in tables["modules of gradtide"] if row["module"] == "__init__")
    modules = {module.partition(".")[0] for module, _ in gradtide._HOMES.values()}
    assert modules.union(gradtide._MODULES) == names(row["inside functions"])
    assert {*gradtide._HOMES, *gradtide._MODULES} == set(gradtide.__all__)


def test_importing_the_package_loads_nothing_that_costs_time():
    script = "import sys, gradtide; print(' '.join(sorted({name.split('.')[0] for name in sys.modules})))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "gradtide" in output.split()
    assert not set(OUTSIDE) & set(output.split())


# The map


def definitions(path):
    """Return the source of a file, or of all files of a folder."""
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def test_every_place_that_the_page_names_exists(tables):
    rows = tables["where is"]
    assert len(rows) >= 20
    for row in rows:
        path = ROOT / row["file"]
        assert path.exists(), f"ARCHITECTURE.md: where {row['where …']} {row['file']} does not exist"
        source = definitions(path)
        for name in quoted(row["name"]):
            found = re.search(
                rf"^\s*(?:pub(?:\(\w+\))? )?(?:fn|def|class|struct|enum) {name}\b|^{name}\b", source, re.MULTILINE
            )
            assert found, f"ARCHITECTURE.md: where {row['where …']} {row['file']} defines no {name}"


# The checker itself


@pytest.mark.parametrize(
    ("path", "planted", "found"),
    [
        ("crates/net/src/host_queues.rs", "use gradtide_train::spec::Spec;", "net imports train"),
        ("crates/net/src/units.rs", "fn f() { crate::host_queues::HostQueues::new() }", "units imports host_queues"),
        (
            "crates/train/src/dag.rs",
            "use crate::{\n    job::Job,\n    spec::{self, JobSpec},\n};",
            "dag imports job",
        ),
        (
            "crates/train/src/schedule/fifo.rs",
            "use super::super::run::Trace;",
            "schedule imports run",
        ),
        ("crates/train/src/bucket.rs", "use crate::messages;", "bucket imports lib"),
        ("crates/train/src/lib.rs", "use schedule::Fifo;", "lib imports schedule"),
        ("crates/train/src/attic.rs", "", "module attic is not in ARCHITECTURE.md"),
    ],
)
def test_a_planted_arrow_in_rust_is_found(tables, path, planted, found):
    assert any(found in line for line in rust_violations(tables, {path: planted}))


@pytest.mark.parametrize(
    ("path", "planted"),
    [
        ("crates/net/src/host_queues.rs", "fn f() { let t = std::time::Instant::now(); }"),
        ("crates/train/src/dag.rs", "use std::collections::HashMap;"),
        ("crates/net/src/event.rs", "struct Layered { layer: u32 }"),
        ("crates/train/src/run/mod.rs", "let network = HostQueues::new(star);"),
        ("crates/net/src/seed.rs", "static ROOT: u64 = 0;"),
        ("crates/train/src/result.rs", 'println!("{}", 1);'),
    ],
)
def test_a_planted_absence_is_found(tables, path, planted):
    assert absences(tables, {path: planted})


@pytest.mark.parametrize(
    "harmless", ["// a layer of HashMap", '"std::fs"', "fn f() -> &'static str", "let c = '\"'; // println!"]
)
def test_comments_texts_and_lifetimes_are_no_code(tables, harmless):
    assert absences(tables, {"crates/net/src/host_queues.rs": harmless}) == []


@pytest.mark.parametrize(
    ("path", "planted", "found"),
    [
        ("python/gradtide/report/run.py", "from gradtide import results", "report imports results"),
        (
            "python/gradtide/studies/run.py",
            "def f():\n    from gradtide.cli import app",
            "studies imports cli inside a function",
        ),
        ("python/gradtide/scenario/read.py", "from ..results import Table", "scenario imports results"),
        ("python/gradtide/results.py", "import gradtide.studies.run", "results imports studies"),
        ("python/gradtide/words.py", "import numpy as np", "words imports numpy"),
        (
            "python/gradtide/units.py",
            "import importlib\nimportlib.import_module('torch')",
            "a dynamic import",
        ),
        ("python/gradtide/units.py", "def f():\n    import torch", "units imports torch"),
        ("python/gradtide/errors.py", "from gradtide import run", "errors imports __init__"),
    ],
)
def test_a_planted_import_in_python_is_found(tables, path, planted, found):
    assert any(found in line for line in python_violations(tables, {path: planted}))


def test_imports_for_type_checkers_are_no_arrows(tables):
    planted = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gradtide.scenario import Scenario\n"
    assert python_violations(tables, {"python/gradtide/results.py": planted}) == []
