"""Writes what follows from the registrations of the core: names for Python, tables for docs.

    python tools/generate.py          writes every target
    python tools/generate.py --check  names the targets that differ, and exits 1 if one does

Build the core first. A test runs the check.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from textwrap import wrap
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

from gradtide import _core  # noqa: E402

CONTROLS: list[dict[str, Any]] = json.loads(_core.congestion_controls())


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
"""How each reacts to marks: not at all; as RFC 3168 says, if `ecn` is true; as RFC 8257 says, always."""
'''


def packet_page(page: str) -> str:
    """Return docs/models/packet.md with the table of congestion controls."""
    rows = [f"| `{one['algorithm']['kind']}` | {one['summary']} | {one['window']} |" for one in CONTROLS]
    return _made(page, "congestion controls", ["| kind | what it is | window |", "|---|---|---|", *rows])


TARGETS = {
    "docs/models/packet.md": packet_page,
    "python/gradtide/transports.py": transports,
}
"""What makes each file, of which it receives the text."""


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(f"    {part}" for part in parts)


def _literal(text: str) -> str:
    return repr(text) if '"' in text else f'"{text}"'


def _parameters(algorithm: dict[str, Any]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in algorithm.items() if name != "kind") + "}"


def _made(page: str, part: str, lines: list[str]) -> str:
    """Return a page with the part between `<!-- made: PART -->` and `<!-- end -->` made again."""
    text = "\n".join([f"<!-- made: {part} -->", "", *lines, "", "<!-- end -->"])
    made, count = re.subn(rf"<!-- made: {part} -->\n.*?<!-- end -->", lambda _: text, page, flags=re.DOTALL)
    assert count == 1, f"one part of the page is made: {part}"
    return made


def main() -> int:
    """Write or check."""
    found = {ROOT / name: make for name, make in TARGETS.items()}
    texts = {path: path.read_text(encoding="utf-8") if path.exists() else "" for path in found}
    differing = {path: made for path, make in found.items() if (made := make(texts[path])) != texts[path]}
    if sys.argv[1:] == ["--check"]:
        print("\n".join(f"{path.relative_to(ROOT)}: run python tools/generate.py" for path in differing))
        return 1 if differing else 0
    for path, made in differing.items():
        path.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
