"""Texts refer to files that are in the repository, and to nothing that a reader cannot open."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOP = ("bench", "changes", "crates", "docs", "python", "scenarios", "tests", "tools", "validation")
TEXTS = {".cff", ".cc", ".j2", ".md", ".py", ".pyi", ".rs", ".toml", ".yml"}

# Tokens that look like a path from the root: `docs/models/training.md`, `crates/net/src`, `docs/decisions/11`.
PATH = re.compile(rf"(?<![\w/.:~-])(?:{'|'.join(TOP)})/[\w./-]*\w")
# Documents in capitals, as ARCHITECTURE.md; a URL is no such file.
DOCUMENT = re.compile(r"(?<![\w/.-])[A-Z][A-Z_-]+\.md\b")
DECISION = re.compile(r"\b[Dd]ecision (\d+)")
# What only those who wrote the project had: texts by number, and folders beside the repository.
OUTSIDE = re.compile(
    r"\b[Ss]eeds? 0\d\d\b|(?<!fuzz/)\b(?:seeds|oracles|briefs)/|(?<![\w.])/work/|\b[Ii]ssue #?\d+\b|\b0\d\d_[a-z]"
)

ELSEWHERE = {
    "BENCHMARKING.md": "nautilus",
    "CHANGES.md": "ns-3",
    "PERFORMANCE.md": "NCCL tests",
    "crates/net/src/packet/tcp/congestion/aimd.rs": "made by tools/trial_changes.py",
    "crates/train/src/attic.rs": "planted by tests/test_layers.py",
    "crates/train/src/collective/algorithms/star.rs": "made by tools/trial_changes.py",
    "docs/dev/architecture.md": "rust-analyzer",
    "docs/a.png": "planted by tests/test_release.py",
    "docs/b.md": "planted by tests/test_release.py",
    "docs/developer_guide/rust.md": "nautilus",
    "docs/nowhere.md": "planted by tests/test_release.py",
    "docs/performance-summary.md": "NVIDIA Megatron-Bridge",
    "python/bin/python": "planted by tests/test_release.py",
    "tools/ranvar.cc": "ns-2",
}
"""Files that texts cite and that are not here, with their project."""

PLACEHOLDER = re.compile(r"/(?:NAME|NN|name)\b|/rank$")
"""A part of a path that stands for any name."""


def texts() -> Iterator[tuple[str, int, str]]:
    """Return path, number and text of every line that somebody wrote."""
    for top in (*TOP, "."):
        files = (ROOT / top).rglob("*") if top != "." else ROOT.glob("*")
        for file in sorted(files):
            if file.suffix in TEXTS and file.is_file() and "data" not in file.parts and file != Path(__file__):
                name = str(file.relative_to(ROOT))
                for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                    yield name, number, line


LINES = list(texts())


def exists(path: str, name: str = "README.md") -> bool:
    """Whether a path leads somewhere from the root, from the file of that name, from its crate, or from docs/."""
    crate = "/".join(name.split("/")[:2])
    places = [ROOT / start / path for start in (".", Path(name).parent, crate, "docs")]
    # `docs/decisions/11` finds its page.
    return any(place.exists() or any(place.parent.glob(f"{place.name}[-.]*")) for place in places)


def test_paths_lead_to_files_of_the_repository() -> None:
    found = ((name, number, path) for name, number, line in LINES for path in PATH.findall(line))
    wrong = [
        f"{name}:{number}: {path}"
        for name, number, path in found
        if path not in ELSEWHERE and not PLACEHOLDER.search(path) and not exists(path, name)
    ]
    assert wrong == []


def test_documents_are_in_the_repository() -> None:
    known = {file.name for file in ROOT.rglob("*.md") if "target" not in file.parts} | set(ELSEWHERE)
    found = ((name, number, document) for name, number, line in LINES for document in DOCUMENT.findall(line))
    assert [f"{name}:{number}: {document}" for name, number, document in found if document not in known] == []


def test_decisions_are_there() -> None:
    known = {int(page.name[:2]) for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    found = ((name, number, int(index)) for name, number, line in LINES for index in DECISION.findall(line))
    assert [f"{name}:{number}: decision {index}" for name, number, index in found if index not in known] == []


def test_nothing_refers_to_what_only_its_authors_had() -> None:
    assert [f"{name}:{number}: {line.strip()}" for name, number, line in LINES if OUTSIDE.search(line)] == []


@pytest.mark.parametrize("text", ["the network of seed 000, ch. 5", "as in seeds/000.md", "/work/briefs", "issue #17"])
def test_such_references_would_be_found(text: str) -> None:
    assert OUTSIDE.search(text)
    assert not exists("docs/decisions/99")
    assert exists("docs/decisions/11")
