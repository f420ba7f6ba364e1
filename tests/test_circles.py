"""Files of the Rust crates and of the Python package do not import one another in circles."""

from pathlib import Path

import pytest

import scripts

ROOT = Path(__file__).resolve().parent.parent
circles = scripts.load("tools/circles.py")


def found_in(source: Path) -> set[tuple[str, ...]]:
    """Return the circles under the folder `src` of a crate, each file by its path from there."""
    found = circles.circles(circles.Crate(source).imports())
    return {tuple(path.relative_to(source).as_posix() for path in circle) for circle in found}


@pytest.mark.parametrize("crate", sorted(path.parent.name for path in ROOT.glob("crates/*/src")))
def test_a_crate_has_no_circle(crate: str) -> None:
    assert found_in(ROOT / "crates" / crate / "src") == set()


def test_the_python_package_has_no_circle_even_through_imports_inside_functions() -> None:
    package = circles.Package(ROOT / "python/gradtide")
    assert len(package.files) > 200
    assert circles.circles(package.imports()) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.py": "from p import b", "b.py": "def f():\n    from p.a import x"}, {("a.py", "b.py")}),
        ({"a.py": "from .b import x", "b.py": "import p.a"}, {("a.py", "b.py")}),
        ({"a.py": "from p import x", "__init__.py": '_NAMES = {"a": "x"}'}, {("__init__.py", "a.py")}),
        ({"a/__init__.py": "from p.a import c", "a/c.py": "from p.a import d"}, {("a/__init__.py", "a/c.py")}),
        ({"a.py": "from p import b", "b.py": "if TYPE_CHECKING:\n    from p.a import x"}, set()),
    ],
)  # fmt: skip
def test_a_circle_in_python_is_found(tmp_path: Path, files: dict[str, str], expected: set[tuple[str, ...]]) -> None:
    source = tmp_path / "p"
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text, encoding="utf-8")
    found = circles.circles(circles.Package(source).imports())
    assert {tuple(path.relative_to(source).as_posix() for path in circle) for circle in found} == expected


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
