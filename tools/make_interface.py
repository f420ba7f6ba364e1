"""Writes the tables of docs/reference/interface.md from the options of the command line and the names of the package.

Run from anywhere: python tools/make_interface.py. A test runs it and compares.
"""

import inspect
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
    """Return the page with every part between `<!-- made: NAME -->` and `<!-- end -->` replaced."""
    parts = {"commands": commands, "exit codes": exit_codes, "kinds": kinds, "names": names, "summary": summary_keys}

    def made(match: re.Match[str]) -> str:
        return f"<!-- made: {match[1]} -->\n\n{parts[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- made: ([\w ]+) -->\n.*?<!-- end -->", made, text, flags=re.DOTALL)


OF_STUDIES = ("jobs", "progress", "keep", "limits", "keys")
"""Parameters that all studies have; the page explains them once, before the signatures."""

LONGEST_DEFAULT = 20
"""Default values with more characters are only in the help of the function."""

SHARED_BY = 3
"""An argument or option that at least this number of commands have with the same meaning is listed once."""


def commands() -> str:
    """Return a list of the arguments and options that several commands share, and a list of all commands.

    Options of only one command appear by name; `gradtide COMMAND --help` explains them.
    """
    found = list(_commands(typer.main.get_command(cli.app), ""))
    rows = {name: _option_rows(command) for name, command in found}
    counts = Counter(row for own in rows.values() for row in own)
    shared = [row for row, count in counts.items() if count >= SHARED_BY]
    lines = []
    for name, command in found:
        usage = " ".join(["gradtide", name, *(_argument(param) for param in _arguments(command))])
        options = rows[name][len(_arguments(command)) :]
        own = ", ".join(row[0] for row in options if row not in shared)
        own = re.sub(r" [^`]+`", "`", own)  # without the kind of value
        summary = command.help.split("\n\n")[0]
        lines.append(f"- `{usage}`: {summary}" + (f" {own}." if own else ""))
    return f"### Shared arguments and options\n\n{_list(shared)}\n### All commands\n\n" + "\n".join(lines) + "\n"


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
    return _list([(f"exit code {code}", meaning) for code, meaning in ends.EXIT_CODES.items()])


def kinds() -> str:
    """Return the table of kinds of error documents."""
    return _list([(f"`{kind}`", f"{meaning} (exit {code})") for kind, (code, meaning) in ends.KINDS.items()])


def names() -> str:
    """Return a line per public name: its signature, what it does, and the members of a class."""
    of_all = ", ".join(f"`{name}`" for name in _members(StudyRows))
    lines = [
        "A signature that ends in `…` also has the parameters of all studies: `jobs=1` (runs at once), "
        "`progress=None`, `keep=None`, `limits=None` ([limits](limits.md#limits)) and `**keys` (short names of the "
        "scenario's keys). A default `…` is given by Python's `help`. A function without a sentence does the same as "
        "its command (`sweep_list`: `sweep list`), and returns the result.\n",
        f"Every result of a study also has {of_all}.\n",
    ]
    commands = {name.replace(" ", "_"): name for name, _ in _commands(typer.main.get_command(cli.app), "")}
    del commands["report"]  # The command also reports on traces.
    for name in gradtide.__all__:
        thing = getattr(gradtide, name)
        # The module of a command can be called as a function.
        thing = type(thing).__call__ if inspect.ismodule(thing) else thing
        if inspect.isclass(thing):
            members = ", ".join(f"`{one}`" for one in _members(thing))
            lines.append(f"- `gradtide.{name}`: {_first(thing)}" + (f" Members: {members}." if members else ""))
        elif callable(thing):
            meaning = f"Return the result of `gradtide {commands[name]}`." if name in commands else _first(thing)
            lines.append(f"- `gradtide.{name}{_signature(thing)}`: {meaning}")
    return "\n".join(lines) + "\n"


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
    """Return the signature of a function, without types, long default values and the parameters `OF_STUDIES`."""
    parameters = {
        name: parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls")
    }
    is_study = parameters.keys() >= set(OF_STUDIES)
    kept = [one for name, one in parameters.items() if not (is_study and name in OF_STUDIES)]
    for index, one in enumerate(kept):
        if one.default is not one.empty and len(repr(one.default)) > LONGEST_DEFAULT:
            kept[index] = one.replace(default=...)
    text = str(inspect.Signature(kept)).replace("Ellipsis", "…")
    return f"{text[:-1]}, …)" if is_study else text


def _first(thing: Any) -> str:
    return " ".join(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0].split())


def summary_keys() -> str:
    """Return a list of the keys of a small run's summary: one entry per table, or per list of tables."""
    layer = {"name": "fc", "forward": "1ms", "backward": "2ms", "parameters": "1MB"}
    job = {"model": {"layers": [layer]}, "workers": 2, "iterations": 2}
    return "".join(f"- {line}\n" for line in _keys("", summary(run({"job": {"NAME": job}}))))


def _keys(path: str, table: dict[str, Any]) -> Iterator[str]:
    """Yield one line with the keys of a table whose values are no tables, then lines for each table in it."""
    tables = {key: _first_table(value) for key, value in table.items()}
    plain = [f"`{key}`" for key in table if not tables[key]]
    if plain:
        yield (f"`{path}`: " if path else "") + ", ".join(plain)
    for key, inner in tables.items():
        if inner and not path.endswith("parts[]"):
            inner_path = f"{path}.{key}" if path else key
            yield from _keys(inner_path + ("[]" if isinstance(table[key], list) else ""), inner)


def _first_table(value: Any) -> dict[str, Any]:
    """Return a table, or the first table of a list, or else an empty one."""
    first = value[0] if isinstance(value, list) and value else value
    return first if isinstance(first, dict) else {}


def _list(rows: list[tuple[str, str]]) -> str:
    """Return rows as a Markdown list, which fits narrow screens better than a table."""
    return "".join(f"- {name}: {meaning}\n" for name, meaning in rows)


if __name__ == "__main__":
    main()
