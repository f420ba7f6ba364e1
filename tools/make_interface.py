"""Writes the tables of docs/reference/interface.md from the command line's own options and the package's own names.

Run from anywhere: python tools/make_interface.py. A test runs it and compares.
"""

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "interface.md"
sys.path.insert(0, str(ROOT / "python"))

import typer  # noqa: E402

import gradtide  # noqa: E402
from gradtide import cli  # noqa: E402
from gradtide.cli import ends  # noqa: E402
from gradtide.studies.rows import StudyRows  # noqa: E402
from gradtide.studies.run import run  # noqa: E402
from gradtide.studies.run_folder import summary  # noqa: E402


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def page(text: str) -> str:
    """Return the page with every part between `<!-- made: NAME -->` and `<!-- end -->` made again."""
    parts = {"commands": commands, "exit codes": exit_codes, "kinds": kinds, "names": names, "summary": summary_keys}

    def made(match: re.Match[str]) -> str:
        return f"<!-- made: {match[1]} -->\n\n{parts[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- made: ([\w ]+) -->\n.*?<!-- end -->", made, text, flags=re.DOTALL)


SHARED_BY = 3
"""An argument or option that this many commands have with one meaning is listed once, before the commands."""


def commands() -> str:
    """Return what the arguments and options mean that commands share, then the names of each command's own.

    Each command's help explains its own.
    """
    found = list(_commands(typer.main.get_command(cli.app), ""))
    rows = {name: _option_rows(command) for name, command in found}
    counts = Counter(row for own in rows.values() for row in own)
    shared = [row for row, count in counts.items() if count >= SHARED_BY]
    sections = [f"### Shared arguments and options\n\n{_list(shared)}"]
    for name, command in found:
        usage = " ".join(["gradtide", name, *(_argument(param) for param in _arguments(command))])
        own = ", ".join(row[0] for row in rows[name] if row not in shared)
        summary = command.help.split("\n\n")[0]
        sections.append(f"### {name}\n\n    {usage}\n\n{summary}" + (f" {own}." if own else "") + "\n")
    return "\n".join(sections)


def _commands(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield every command with its name, as in `tenants map`."""
    for name in group.list_commands(None):
        command = group.commands[name]
        yield prefix + name, command
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")


def _arguments(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "argument"]


def _option_rows(command: Any) -> list[tuple[str, str]]:
    arguments = _arguments(command)
    rows = [(_argument(param), param.help or "") for param in arguments]
    return rows + [(_option(param), param.help + _default(param)) for param in command.params if param not in arguments]


def _argument(param: Any) -> str:
    text = (param.metavar or param.name or "").upper()
    return text if param.required else f"[{text}]"


def _option(param: Any) -> str:
    value = "" if param.is_flag else f" {param.metavar or 'N' if param.name != 'engine' else 'NAME'}"
    return ", ".join(f"`{one}{value if one.startswith('--') else ''}`" for one in param.opts)


def _default(param: Any) -> str:
    is_given = param.default not in (None, False, ()) and not param.is_flag
    return f" Default: {param.default}." if is_given else ""


def exit_codes() -> str:
    """Return the table of exit codes."""
    return _list([(str(code), meaning) for code, meaning in ends.EXIT_CODES.items()])


def kinds() -> str:
    """Return the table of kinds of error documents."""
    return _list([(f"`{kind}`", f"{meaning} (exit code {code})") for kind, (code, meaning) in ends.KINDS.items()])


def names() -> str:
    """Return a section per public name: its signature, what it does, and the members of a class."""
    of_all = ", ".join(f"`{name}`" for name in _members(StudyRows))
    sections = [f"Every result of a study also has {of_all}.\n"]
    for name in gradtide.__all__:
        thing = getattr(gradtide, name)
        # A module that is a command, too.
        thing = type(thing).__call__ if inspect.ismodule(thing) else thing
        if inspect.isclass(thing):
            members = ", ".join(f"`{one}`" for one in _members(thing))
            has = f"\nMembers: {members}.\n" if members else ""
            sections.append(f"### gradtide.{name}\n\n{_first(thing)}\n{has}")
        elif callable(thing):
            sections.append(f"### gradtide.{name}\n\n    gradtide.{name}{_signature(thing)}\n\n{_first(thing)}\n")
    return "\n".join(sections)


def _members(thing: type) -> list[str]:
    _, _, attributes = inspect.cleandoc(thing.__doc__ or "").partition("Attributes:\n")
    found = re.findall(r"^ {4}(\w+): ", attributes, re.MULTILINE)
    inherited = _own_members(StudyRows) if issubclass(thing, StudyRows) and thing is not StudyRows else []
    for cls in reversed([cls for cls in thing.__mro__ if cls.__module__.startswith("gradtide")]):
        found += [name for name in _own_members(cls) if name not in found]
    return [name for name in found if name not in inherited]


def _own_members(cls: type) -> list[str]:
    found = []
    for name, member in vars(cls).items():
        inner = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if name.startswith("_"):
            continue
        if inspect.isfunction(inner):
            found.append(f"{name}{_signature(inner)}")
        elif isinstance(inner, property) or hasattr(inner, "func"):
            found.append(name)
    return found


def _signature(function: Any) -> str:
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls")
    ]
    return str(inspect.Signature(parameters))


def _first(thing: Any) -> str:
    return " ".join(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].split())


def summary_keys() -> str:
    """Return the summary of a small run, as `--json` prints it, without what was measured."""
    layer = {"name": "fc", "forward": "1ms", "backward": "2ms", "parameters": "1MB"}
    job = {"model": {"layers": [layer]}, "workers": 2, "iterations": 2}
    document = summary(run({"job": {"train": job}}))
    document["cost"].update(cpu_s=None, wall_s=None, peak_rss_mb=None)
    return "```json\n" + json.dumps(document, indent=2) + "\n```\n"


def _list(rows: list[tuple[str, str]]) -> str:
    """Return one line per name, which also fits a phone."""
    return "".join(f"- {name}: {meaning}\n" for name, meaning in rows)


if __name__ == "__main__":
    main()
