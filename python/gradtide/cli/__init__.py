"""The command `gradtide`: reads options, calls a study and prints its result. Only `__main__` imports this package.

Results go to stdout, messages and progress to stderr. Slow imports are inside the commands, so that errors of the
command line are reported at once.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gradtide import _core, signals, streams
from gradtide.answer.again import asked_by
from gradtide.cli import (
    bursts,
    buy,
    calibrate,
    check,
    collectives,
    compare,
    convert,
    demo,
    doctor,
    emulate,
    explain,
    order,
    plan,
    presets,
    profile,
    report,
    reproduce,
    run,
    schema,
    sweep,
    tenants,
    tenants_lp,
    tenants_map,
    tenants_policies,
)
from gradtide.cli.ends import (
    EXIT_CANNOT_GO_ON,
    EXIT_CHECK_FAILED,
    EXIT_INTERRUPTED,
    Stopped,
    document_of,
    error_document,
    stopped_document,
)
from gradtide.cli.examples import example_lines
from gradtide.cli.groups import (
    CommandWithSubcommands,
    Helped,
    Listed,
    OneCommand,
    is_missing,
    name_of,
    usage_message,
)
from gradtide.cli.options import exact_command, with_options
from gradtide.cli.printing import json_text, one_document, say, talk, wants_json
from gradtide.errors import GradtideError, InternalError

# Commands are in the order of `gradtide --help`.
COMMANDS: dict[str, Callable[..., None]] = {
    "run": run.run,
    "compare": compare.compare,
    "sweep": sweep.sweep,
    "collectives": collectives.collectives,
    "tenants": tenants.tenants,
    "buy": buy.buy,
    "plan": plan.plan,
    "demo": demo.demo,
    "reproduce": reproduce.reproduce,
    "check": check.check,
    "profile": profile.profile,
    "calibrate": calibrate.calibrate,
    "bursts": bursts.bursts,
    "emulate": emulate.emulate,
    "report": report.report,
    "presets": presets.presets,
    "order": order.order,
    "convert": convert.convert,
    "schema": schema.schema,
    "explain": explain.explain,
    "doctor": doctor.doctor,
}
SUBCOMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "bursts": {"receive": bursts.receive, "thresholds": bursts.thresholds},
    "sweep": {"merge": sweep.merge, "list": sweep.list_store},
    "tenants": {
        "map": tenants_map.tenants_map,
        "policies": tenants_policies.tenants_policies,
        "lp": tenants_lp.tenants_lp,
    },
}


class _Commands(Mapping[str, Any]):
    """Maps names to typer's commands. Each is created on first use, because typer reads signatures slowly."""

    def __getitem__(self, name: str) -> Any:
        return _made(name, COMMANDS[name])

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _made(name: str, command: Callable[..., None]) -> Any:
    subcommands = SUBCOMMANDS.get(name)
    app = typer.Typer(cls=CommandWithSubcommands if subcommands else None, add_completion=False, rich_markup_mode=None)
    if subcommands:
        app.callback(invoke_without_command=True)(with_options(command))
    else:
        app.command(name, cls=OneCommand)(with_options(command))
    for inner, subcommand in (subcommands or {}).items():
        app.command(inner, cls=OneCommand)(with_options(subcommand))
    return typer.main.get_command(app)


class Root(Helped, TyperGroup):
    """The command `gradtide`; its help lists the subcommands in the order of `COMMANDS`."""

    commands: Any

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(self.commands)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows `gradtide` in the usage line."""
        return ["[OPTIONS]", self.subcommand_metavar]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands with the summary of each."""
        self.commands = {name: Listed(name, command) for name, command in COMMANDS.items()}
        super().format_commands(ctx, formatter)


app = typer.Typer(
    name="gradtide",
    cls=Root,
    help="See, plan and tame the network traffic of distributed training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        say(f"gradtide {_core.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line in `sys.argv` and exit with its exit code. The caller installs the signal handlers."""
    signals.last_words = _last_words
    sys.exit(_printed(_main()))


def _main() -> int:
    """Run the command line, print its JSON document if `--json` is given, and return the exit code."""
    with one_document() as document:
        try:
            try:
                signals.answer()
                code = _run()
            finally:
                # From here on, a signal raises no exception, because printing the result takes little time.
                signals.settle()
        except BaseException as error:
            if isinstance(error, SystemExit):
                if not isinstance(error.__context__, OSError):
                    raise
                # typer raises SystemExit(1) for a broken pipe; its __context__ is the original OSError.
                error = error.__context__
            failure = _explained(error)
            code = failure["exit_code"]
            document.instead(failure)
    document.write()
    return code


def _printed(code: int) -> int:
    """Flush stdout and stderr; return `code`, or an error code if some output of the command was lost."""
    lost = [failure for failure in streams.failures() if not failure.reader_left]
    for name, error in lost:
        talk(f"error: cannot print to {name}: {error.strerror}")
    # The exit code of a failed command is kept, because it is more specific than that of lost output.
    return EXIT_CANNOT_GO_ON if lost and code in (0, EXIT_CHECK_FAILED) else code


def _run() -> int:
    with asked_by(exact_command(sys.argv[1:])):
        code = int(app(prog_name="gradtide", standalone_mode=False) or 0)
    if code == EXIT_INTERRUPTED:
        # typer returns this code in place of a KeyboardInterrupt.
        raise KeyboardInterrupt
    return code


def _explained(error: BaseException) -> dict[str, Any]:
    """Print on stderr why a command has no result, and return the reason as an error document."""
    if signals.has_raised() or isinstance(error, (Stopped, KeyboardInterrupt, typer.Abort)):
        number = signals.received[0] if signals.received else signal.SIGINT
        if not isinstance(error, Stopped):
            talk("interrupted; no incomplete files remain")
        return stopped_document(number)
    if isinstance(error, GradtideError) and not isinstance(error, InternalError):
        # An invalid input has several faults of several lines each; other errors are one line.
        talk(*str(error).split("\n")) if hasattr(error, "errors") else talk(f"error: {error}")
        return document_of(error)
    if isinstance(error, OSError) and error.strerror:
        # A full disk or a read-only folder: the message of the operating system is clear enough.
        named = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
        message = f"{' and '.join(named) or 'the system'}: {error.strerror}"
        talk(f"error: {message}")
        return error_document("failed", message)
    if hasattr(error, "format_message"):
        # Only errors of the command line, which click raises inside typer, have this attribute.
        return _explained_usage(error)
    for part in traceback.format_exception(error):
        # `talk` escapes line breaks. Those of a stack frame are kept; those of an exception's message are not.
        talk(*(part.rstrip().split("\n") if part.startswith("  File ") else [part.rstrip("\n")]))
    talk("This is a bug of gradtide. Please report it with the lines above and the scenario.")
    return error_document("bug", "".join(traceback.format_exception_only(error)).strip())


def _explained_usage(error: Any) -> dict[str, Any]:
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        # Without arguments, the message of the error is the whole help.
        talk(*context.get_help().split("\n"))
        return error_document("usage", "no command is given")
    message = usage_message(error)
    talk(f"error: {message}")
    if context is not None:
        if is_missing(error):
            talk("for example:", *(f"  {line}" for line in example_lines(name_of(context), 120)))
        talk(f"help: {context.command_path} {max(context.help_option_names, key=len)}")
    param = getattr(error, "param", None)
    is_argument = param is not None and param.param_type_name == "argument"
    named = None if param is None else param.metavar if is_argument else max(param.opts, key=len)
    option = getattr(error, "option_name", None) or named
    return error_document("usage", message, [{"msg": message, "option": option}])


def _last_words(number: int) -> None:
    """Write the last message of a command that does not respond. No lock is taken, because the command may own it."""
    limit = signals.reached if number == signals.LIMIT else None
    document = document_of(limit) if isinstance(limit, GradtideError) else stopped_document(number)
    why = "interrupted" if limit is None else str(limit)
    text = f"{why}; the next command that writes to the same place deletes the incomplete files\n"
    with suppress(OSError):
        os.write(2, text.encode())
    if wants_json() and not signals.is_settled():
        with suppress(OSError):
            os.write(1, f"{json_text(document)}\n".encode())
