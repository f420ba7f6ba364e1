"""Only `gradtide.scenario.core` makes the core's input, edits it, or passes it to the core."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python/gradtide"
OWNER = PACKAGE / "scenario/core"
STUB = (PACKAGE / "_core.pyi").read_text(encoding="utf-8")
READERS = set(re.findall(r"^def (\w+)\(\w+_json: str", STUB, re.MULTILINE))
"""Functions of the core that take its input as JSON."""


def uses(python: str) -> list[str]:
    """Return the uses of the core's input in a file: calls with it, and calls that return it."""
    found = []
    for node in ast.walk(ast.parse(python)):
        if not isinstance(node, ast.Attribute):
            continue
        if node.attr in READERS and isinstance(node.value, ast.Name) and node.value.id == "_core":
            found.append(f"line {node.lineno}: _core.{node.attr}")
        elif node.attr in ("spec", "core_input"):
            found.append(f"line {node.lineno}: .{node.attr}")
    return found


def test_no_other_module_sees_the_input_of_the_core() -> None:
    files = [path for path in PACKAGE.rglob("*.py") if OWNER not in path.parents]
    assert len(files) > 100
    assert {"run", "planned", "messages", "order", "network_shape", "collective_counts"} <= READERS
    found = {str(path.relative_to(PACKAGE)): uses(path.read_text(encoding="utf-8")) for path in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("from gradtide import _core\n_core.run('{}')", "line 2: _core.run"),
        ("spec = scenario.spec()", "line 1: .spec"),
        ("parallel_model.described.spec['mesh']", "line 1: .spec"),
    ],
)
def test_a_planted_use_is_found(planted: str, found: str) -> None:
    assert uses(planted) == [found]
