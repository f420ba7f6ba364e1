"""Files of the Rust crates do not import one another in circles, beyond those that are known."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_SPEC = importlib.util.spec_from_file_location("circles", ROOT / "tools/circles.py")
assert _SPEC is not None
assert _SPEC.loader is not None
circles = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(circles)

# These are to go; a new one is a fault.
KNOWN = {("packet/mod.rs", "packet/threads.rs")}


def found_in(source: Path) -> set[tuple[str, ...]]:
    """Return the circles under the folder `src` of a crate, each file by its path from there."""
    found = circles.circles(circles.Crate(source).imports())
    return {tuple(path.relative_to(source).as_posix() for path in circle) for circle in found}


def test_network_engines_have_no_new_circle() -> None:
    assert found_in(ROOT / "crates/net/src") == KNOWN


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.rs": "use super::b::B;", "b.rs": "use crate::a::{A, x as y};"}, {("a.rs", "b.rs")}),
        ({"a.rs": "use crate::B;", "b.rs": "use super::A;", "lib.rs": "pub use {a::A, b::B};"}, {("a.rs", "b.rs")}),
        ({"a.rs": "use super::b::B;", "b.rs": "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"}, set()),
        ({"a.rs": "use super::b::B;", "b.rs": "// use super::a::A;\nuse std::fmt;"}, set()),
        ({"a/mod.rs": "mod c;\nuse c::C;", "a/c.rs": "use super::D;"}, {("a/c.rs", "a/mod.rs")}),
    ],
)  # fmt: skip
def test_a_circle_is_found(tmp_path: Path, files: dict[str, str], expected: set[tuple[str, ...]]) -> None:
    for name, text in {"lib.rs": "mod a;", **files}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert found_in(tmp_path) == expected
