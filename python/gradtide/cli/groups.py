"""Subclasses of typer's commands: help texts, commands with subcommands, and messages of usage errors."""

import difflib
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from gradtide.cli.ends import UsageError
from gradtide.cli.examples import example_lines
from gradtide.words import shown, uncapitalised

# click's class. Some versions of typer import click, others contain a copy of it.
Command: Any = next(cls for cls in TyperGroup.__mro__ if cls.__name__ == "Command")


OPTIONS = "Options"
"""Default heading of options in a help text. Most of these options belong to a single command."""


def first_paragraph(text: str | None) -> str:
    """Return the first paragraph of a command's help on one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


def name_of(ctx: Any) -> str:
    """Return the name of a command after `gradtide`, e.g. `tenants map`."""
    return str(ctx.command_path).partition(" ")[2]


class Helped:
    """Mix-in for help texts: adds examples, groups options by heading, and wraps summaries, which click truncates."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first paragraph; `limit` is ignored, because the list of commands wraps long summaries."""
        return first_paragraph(self.help)  # type: ignore[attr-defined]

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Write the usage line with the names of the arguments."""
        formatter.write_usage(ctx.command_path, " ".join(self.collect_usage_pieces(ctx)))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the name of the command in the usage line."""
        return ["[OPTIONS]", *(argument_name(param) for param in self.get_params(ctx) if is_argument(param))]  # type: ignore[attr-defined]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the help text and, below it, the examples."""
        super().format_help_text(ctx, formatter)  # type: ignore[misc]
        with formatter.section("Examples"):
            for line in example_lines(name_of(ctx), formatter.width - formatter.current_indent):
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options in groups, and the subcommands."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], OPTIONS: []}
        for param in self.get_params(ctx):  # type: ignore[attr-defined]
            if is_argument(param):
                groups["Arguments"].append((argument_name(param), param.help or ""))
            elif (record := _option_record(param, ctx)) is not None:
                groups.setdefault(getattr(param, "rich_help_panel", None) or OPTIONS, []).append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if hasattr(self, "format_commands"):
            self.format_commands(ctx, formatter)


def is_argument(param: Any) -> bool:
    """Return whether a parameter of a command is an argument rather than an option."""
    return bool(param.param_type_name == "argument")


def argument_name(param: Any) -> str:
    """Return the name of an argument in the usage line, in brackets if it is optional."""
    name = param.metavar or param.name.upper()
    return name if param.required else f"[{name}]"


def _option_record(param: Any, ctx: Any) -> tuple[str, str] | None:
    if param.secondary_opts or not getattr(param, "help", None):
        record: tuple[str, str] | None = param.get_help_record(ctx)
        return record
    if param.hidden:
        return None
    value = "" if param.is_flag else f" {param.metavar or 'N'}"
    return ", ".join(sorted(param.opts, key=len)) + value, with_default(param)


def with_default(param: Any) -> str:
    """Return the help of an option with its default appended, unless the help already states it."""
    text = str(param.help)
    is_stated = param.is_flag or callable(param.default) or param.default in (None, "", ()) or "Default:" in text
    return text if is_stated else f"{text} Default: {param.default}."


def is_missing(error: Any) -> bool:
    """Return whether a usage error is due to a missing argument or option."""
    return type(error).__name__ == "MissingParameter"


def usage_message(error: Any) -> str:
    """Return our message for a usage error of typer: the option, its value, and how to fix it."""
    param, kind = getattr(error, "param", None), type(error).__name__
    if kind == "MissingParameter" and param is not None:
        return f"Missing argument {argument_name(param)}: {uncapitalised(param.help or 'see the help')}"
    if kind == "NoSuchOption":
        near = difflib.get_close_matches(error.option_name, error.possibilities or (), n=1, cutoff=0.7)
        return f"No such option: {error.option_name}" + (f"; did you mean {near[0]}?" if near else "")
    if kind == "BadOptionUsage":
        return str(error.message).replace("Option '", "").replace("' ", " ").replace("an argument", "a value")
    if kind == "BadParameter" and param is not None and not is_argument(param):
        name, wanted = max(param.opts, key=len), _number(param)
        return f"{name} {_given(param)}: write {wanted}" if wanted else f"{name}: {error.message}"
    found = re.fullmatch(r"Got unexpected extra arguments?\(?s?\)? \((.*)\)", str(error.message))
    if found is not None:
        return _unexpected(found[1], error.ctx)
    return str(error.format_message())


def _given(param: Any) -> str:
    """Return the value of an option from `sys.argv`, because typer's errors do not contain it."""
    for place, word in enumerate(sys.argv):
        name, _, value = word.partition("=")
        if name in param.opts:
            return shown(value or " ".join(sys.argv[place + 1 : place + 2]))
    return ""


def _number(param: Any) -> str:
    """Describe the valid values of a numeric option, e.g. `a whole number of at least 1`; empty for other options."""
    kinds: dict[Any, str] = {int: "a whole number", float: "a number"}
    kind = kinds.get(getattr(getattr(param, "type_descriptor", None), "annotation", None), "")
    if not kind:
        return ""
    if param.max is not None:
        return f"{kind} from {param.min} to {param.max}"
    return kind if param.min is None else f"{kind} of at least {param.min}"


def _unexpected(words: str, ctx: Any) -> str:
    """Return the message for unexpected arguments, with the subcommand that the first one resembles, if any."""
    below = getattr(ctx.command, "commands", {})
    near = difflib.get_close_matches(next(iter(sys.argv[2:]), ""), below, n=1)
    hint = (
        f"did you mean {ctx.command_path} {near[0]}?"
        if near
        else f"leave {shown(words)} out, or quote names with blanks"
    )
    return f"Unexpected argument: {shown(words)}; {hint}"


class Once:
    """Mix-in that rejects repeated options, of which typer would use the last, and empty values of options.

    Flags and options that collect values, such as `--set`, may be repeated. An empty value usually comes from an unset
    shell variable; as a path it would mean the current folder.
    """

    def make_parser(self, ctx: Any) -> Any:
        """Return a parser that raises `UsageError` for a repeated or empty option."""
        parser = super().make_parser(ctx)  # type: ignore[misc]
        parse_args = parser.parse_args

        def parse_once(args: list[str]) -> Any:
            opts, rest, order = parse_args(args)
            for number, param in enumerate(order):
                is_single = param.param_type_name == "option" and not (param.multiple or param.is_flag or param.count)
                if is_single and param in order[:number]:
                    names = "/".join(sorted(param.opts, key=len))
                    raise UsageError(f"{names} is given twice; leave one of the two out", max(param.opts, key=len))
                given = opts.get(param.name)
                # `--store` checks its value itself, and has another exit code for an invalid file name.
                is_checked = param.param_type_name == "option" and param.name != "store"
                if is_checked and "" in (given if isinstance(given, list) else [given]):
                    names = "/".join(sorted(param.opts, key=len))
                    raise UsageError(f"{names} is empty; write a value, or leave it out", max(param.opts, key=len))
            return opts, rest, order

        parser.parse_args = parse_once
        return parser


class OneCommand(Helped, Once, TyperCommand):
    """A command without subcommands."""


class Listed(Helped, TyperCommand):
    """A command without its options, for the list of commands. It avoids reading the signature, which is slow."""

    def __init__(self, name: str, command: Callable[..., None]) -> None:
        super().__init__(name, help=inspect.getdoc(command))


class CommandWithSubcommands(Helped, Once, TyperGroup):
    """A command that also runs without a subcommand: `tenants SCENARIO` and `tenants map SCENARIO`."""

    allow_extra_args = False
    allow_interspersed_args = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave the arguments unparsed if the first one names a subcommand; otherwise parse the options."""
        if not args or args[0] not in self.commands:
            parsed: list[str] = Command.parse_args(self, ctx, args)
            return parsed
        ctx.invoked_subcommand = args[0]
        ctx.args = args
        return args

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand, or the command itself."""
        if ctx.invoked_subcommand is None:
            return Command.invoke(self, ctx)
        name, *args = ctx.args
        subcommand = self.commands[name]
        with subcommand.make_context(name, args, parent=ctx) as inner:
            return subcommand.invoke(inner)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return completions: subcommands, options, and values of the first argument."""
        found: list[Any] = super().shell_complete(ctx, incomplete)
        arguments = [] if incomplete.startswith("-") else [param for param in self.params if is_argument(param)]
        return found + [item for param in arguments[:1] for item in param.shell_complete(ctx, incomplete)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage without a subcommand; the help lists the subcommands below the options."""
        return Helped.collect_usage_pieces(self, ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; none in the context of a subcommand, whose usage line would begin with them.

        Shell completion gets only the options, because the first argument may be the name of a subcommand.
        """
        if ctx.command is not self:
            return []
        params = Command.get_params(self, ctx)
        return [param for param in params if not (ctx.resilient_parsing and param.param_type_name == "argument")]
