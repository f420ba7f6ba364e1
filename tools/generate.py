"""Writes every file that is made from others: what lists the collective algorithms, and the pages of docs/reference.

Run from anywhere: python tools/generate.py, after a build if an algorithm in crates/train/src/collective/algorithms has
changed. A test makes them again and compares.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tools")]

ALGORITHMS = ROOT / "python/gradtide/algorithms.py"
COLLECTIVES = ROOT / "docs/models/collectives.md"

_HEAD = '''\
"""The collective algorithms: names and properties. Made by tools/generate.py from the core; edit that."""

from dataclasses import dataclass
from typing import Literal

CollectiveKind = Literal[
{names}
]
"""Names of the algorithms, the values of `collective.kind`."""


@dataclass(frozen=True)
class Algorithm:
    """Properties of an algorithm.

    Attributes:
        title: its name in a sentence.
        operation: what ranks end up with, as in `all_reduce`.
        keys: keys of `job.NAME.collective` that belong to it.
        is_ring: whether it is one ring all-reduce.
        uses_all_cards: whether it uses all network cards of nodes with several ranks.
        needs_even_nodes: whether every node must have the same number of ranks.
    """

    title: str
    operation: str
    keys: tuple[str, ...] = ()
    is_ring: bool = False
    uses_all_cards: bool = False
    needs_even_nodes: bool = False

    @property
    def sums(self) -> bool:
        """Whether every rank ends up with the sum over all ranks, as data-parallel training needs for gradients."""
        return self.operation == "all_reduce"

    @property
    def reduces(self) -> bool:
        """Whether ranks add what they receive to their own."""
        return self.operation in ("all_reduce", "reduce_scatter")


ALGORITHMS: dict[CollectiveKind, Algorithm] = {
{entries}
}
'''


def main() -> None:
    """Write all files."""
    for path, text in made():
        path.write_text(text, encoding="utf-8")


def made() -> Iterator[tuple[Path, str]]:
    """Yield every made file and its text; the pages read the package, so its own files come first."""
    from gradtide import _core

    about = {name: json.loads(text) for name, text in _core.collective_algorithms()}
    yield ALGORITHMS, algorithms(about)
    yield COLLECTIVES, collectives(about, COLLECTIVES.read_text(encoding="utf-8"))
    import make_formats
    import make_interface
    import reference_scenario

    for tool in (make_formats, make_interface):
        yield tool.PAGE, tool.page(tool.PAGE.read_text(encoding="utf-8"))
    for name, page in reference_scenario.pages().items():
        yield ROOT / "docs/reference" / name, page


def algorithms(about: dict[str, dict[str, Any]]) -> str:
    """Return the module with the names and properties of all algorithms."""
    names = "\n".join(f'    "{name}",' for name in about)
    return _HEAD.replace("{names}", names).replace("{entries}", "\n".join(map(_entry, about, about.values())))


def _entry(name: str, one: dict[str, Any]) -> str:
    keys = ", ".join(f'"{key}"' for key in one["keys"])
    given = [f'"{one["title"]}"', f'"{one["operation"]}"']
    given += [f"keys=({keys}{',' if len(one['keys']) == 1 else ''})"] if keys else []
    given += [f"{flag}=True" for flag in ("is_ring", "uses_all_cards", "needs_even_nodes") if one[flag]]
    return f'    "{name}": Algorithm({", ".join(given)}),'


def collectives(about: dict[str, dict[str, Any]], page: str) -> str:
    """Return the page with the table of algorithms made again."""
    lines = ["| algorithm | does | steps | bytes that a rank sends | source |", "|---|---|---|---|---|"]
    for name, one in about.items():
        for row in one["rows"]:
            form = f", `{row['form']}`" if row["form"] else ""
            cells = (f"`{name}`{form}", row["does"], row["steps"], row["bytes"], row["source"])
            lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    table = "\n".join(["<!-- made: algorithms -->\n", *lines, "\n<!-- end -->"])
    return re.sub(r"<!-- made: algorithms -->\n.*?<!-- end -->", lambda _: table, page, flags=re.DOTALL)


if __name__ == "__main__":
    main()
