"""Writes every generated file: names and tables of what the core registers, and the pages of docs/reference.

    python tools/generate.py          writes every target
    python tools/generate.py --check  names the targets that differ, and exits 1 if one does

Build the core first. A test runs the check.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tools")]

from gradtide import _core  # noqa: E402

CONTROLS: list[dict[str, Any]] = json.loads(_core.congestion_controls())
ABOUT: dict[str, dict[str, Any]] = {name: json.loads(text) for name, text in _core.collective_algorithms()}

_HEAD = '''\
"""The collective algorithms: names and properties. Made by tools/generate.py from the core."""

from typing import Literal

from gradtide.collective import Algorithm

CollectiveKind = Literal[
{names}
]
"""Names of the algorithms, the values of `collective.kind`."""

ALGORITHMS: dict[CollectiveKind, Algorithm] = {
{entries}
}
'''


def transports(_: str) -> str:
    """Return the module of the congestion controls' names, parameters and reactions to marks."""
    controls = {control["algorithm"]["kind"]: control for control in CONTROLS}
    shorts = [f"{kind}+ecn" for kind, control in controls.items() if control["ecn"] == "classic"]
    meanings = " ".join(f"{kind}: {control['summary']}." for kind, control in controls.items())
    quoted = " and ".join(f'"{short}"' for short in shorts)
    meaning = wrap(f"Congestion control. {meanings} {quoted} are short for `ecn = true`.", 112, drop_whitespace=False)
    return f'''\
"""Congestion controls of the packet engine. Made by tools/generate.py from crates/net/src/packet/tcp/congestion."""

from typing import Literal

TransportKind = Literal[
{_lines(f'"{kind}",' for kind in [*controls, *shorts])}
]
"""Values of `cluster.transport.kind`."""

MEANING = (
{_lines(map(_literal, meaning))}
)
"""What `cluster.transport.kind` is."""

PARAMETERS: dict[str, dict[str, bool | int]] = {{
{_lines(f'"{kind}": {_parameters(control["algorithm"])},' for kind, control in controls.items())}
}}
"""Parameters of each congestion control, with their defaults."""

ECN: dict[str, Literal["ignored", "classic", "scalable"]] = {{
{_lines(f'"{kind}": "{control["ecn"]}",' for kind, control in controls.items())}
}}
"""Reaction to ECN marks: none; that of RFC 3168, if `ecn` is true; that of RFC 8257, always."""
'''


def packet_page(page: str) -> str:
    """Return docs/models/packet.md with the table of congestion controls."""
    rows = [f"| `{one['algorithm']['kind']}` | {one['summary']} | {one['window']} |" for one in CONTROLS]
    return _made(page, "congestion controls", ["| kind | what it is | window |", "|---|---|---|", *rows])


def algorithms(_: str) -> str:
    """Return the module with the names and properties of all algorithms."""
    names = "\n".join(f'    "{name}",' for name in ABOUT)
    return _HEAD.replace("{names}", names).replace("{entries}", "\n".join(map(_entry, ABOUT, ABOUT.values())))


def _entry(name: str, one: dict[str, Any]) -> str:
    keys = ", ".join(f'"{key}"' for key in one["keys"])
    given = [f'"{one["title"]}"', f'"{one["operation"]}"']
    given += [f"keys=({keys}{',' if len(one['keys']) == 1 else ''})"] if keys else []
    given += [f"{flag}=True" for flag in ("is_ring", "uses_all_cards", "needs_even_nodes") if one[flag]]
    return f'    "{name}": Algorithm({", ".join(given)}),'


def collectives_page(page: str) -> str:
    """Return the page with a new table of algorithms."""
    lines = ["| algorithm | does | steps | bytes that a rank sends | source |", "|---|---|---|---|---|"]
    for name, one in ABOUT.items():
        for row in one["rows"]:
            form = f", `{row['form']}`" if row["form"] else ""
            cells = (f"`{name}`{form}", row["does"], row["steps"], row["bytes"], row["source"])
            lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    return _made(page, "algorithms", lines)


TARGETS = {
    "python/gradtide/algorithms.py": algorithms,
    "python/gradtide/transports.py": transports,
    "docs/models/collectives.md": collectives_page,
    "docs/models/packet.md": packet_page,
}
"""Function that makes each file from its present text."""


def made() -> Iterator[tuple[Path, str]]:
    """Yield every generated file and its text. The pages read the package, so the package's own files come first."""
    for name, make in TARGETS.items():
        path = ROOT / name
        yield path, make(path.read_text(encoding="utf-8") if path.exists() else "")
    import make_formats
    import make_interface
    import reference_scenario

    for tool in (make_formats, make_interface):
        yield tool.PAGE, tool.page(tool.PAGE.read_text(encoding="utf-8"))
    for name, page in reference_scenario.pages().items():
        yield ROOT / "docs/reference" / name, page


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(f"    {part}" for part in parts)


def _literal(text: str) -> str:
    return repr(text) if '"' in text else f'"{text}"'


def _parameters(algorithm: dict[str, Any]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in algorithm.items() if name != "kind") + "}"


def _made(page: str, part: str, lines: list[str]) -> str:
    """Return a page with the part between `<!-- made: PART -->` and `<!-- end -->` replaced."""
    text = "\n".join([f"<!-- made: {part} -->", "", *lines, "", "<!-- end -->"])
    made, count = re.subn(rf"<!-- made: {part} -->\n.*?<!-- end -->", lambda _: text, page, flags=re.DOTALL)
    assert count == 1, f"one part of the page is made: {part}"
    return made


def main() -> int:
    """Write the files, or check them."""
    is_check = sys.argv[1:] == ["--check"]
    differing = 0
    for path, text in made():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            differing += 1
            if is_check:
                print(f"{path.relative_to(ROOT)}: run python tools/generate.py")
            else:
                path.write_text(text, encoding="utf-8")
    return int(is_check and differing > 0)


if __name__ == "__main__":
    sys.exit(main())
