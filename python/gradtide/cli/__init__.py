"""The command `gradtide`: reads options, calls a study and prints. Nothing but `__main__` imports it.

Results go to stdout, messages and progress to stderr. Imports that cost time stand inside the commands, so that an
answer to bad input does not wait for what it does not need.
"""

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gradtide import _core
from gradtide.cli import (
    buy,
    collectives,
    compare,
    convert,
    demo,
    doctor,
    explain,
    order,
    plan,
    presets,
    profile,
    report,
    reproduce,
    run,
    schema,
    tenants,
    tenants_lp,
    tenants_map,
    tenants_policies,
)
from gradtide.cli.ends import (
    EXIT_BAD_INPUT,
    EXIT_BUG,
    EXIT_CANNOT_GO_ON,
    EXIT_INTERRUPTED,
    Stopped,
    UsageError,
)
from gradtide.cli.groups import CommandWithSubcommands
from gradtide.cli.moved import moved
from gradtide.cli.options import with_options
from gradtide.cli.printing import print_json, talk
from gradtide.errors import CoreRefusal, GradtideError, LimitReached, ScenarioError, SimulationError

# In the order of `gradtide --help`.
COMMANDS: dict[str, Callable[..., None]] = {
    "run": run.run,
    "compare": compare.compare,
    "collectives": collectives.collectives,
    "tenants": tenants.tenants,
    "buy": buy.buy,
    "plan": plan.plan,
    "demo": demo.demo,
    "reproduce": reproduce.reproduce,
    "profile": profile.profile,
    "report": report.report,
    "presets": presets.presets,
    "order": order.order,
    "convert": convert.convert,
    "schema": schema.schema,
    "explain": explain.explain,
    "doctor": doctor.doctor,
}
SUBCOMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "tenants": {
        "map": tenants_map.tenants_map,
        "policies": tenants_policies.tenants_policies,
        "lp": tenants_lp.tenants_lp,
    },
}


class _Commands(Mapping[str, Any]):
    """The commands as typer has them. Each is made when it is asked for, because reading its signature takes time."""

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
        app.command(name)(with_options(command))
    for inner, subcommand in (subcommands or {}).items():
        app.command(inner)(with_options(subcommand))
    return typer.main.get_command(app)


class Root(TyperGroup):
    """The commands in the order of the table, whether they have subcommands or not."""

    commands: Any

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write what each command is for; its options are not looked at."""
        self.commands = {name: TyperCommand(name, help=inspect.getdoc(command)) for name, command in COMMANDS.items()}
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
        print(f"gradtide {_core.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; every end has its exit code."""
    code = _main()
    if code in (EXIT_INTERRUPTED, EXIT_CANNOT_GO_ON):
        # Runs that are still under way are not waited for.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _reader_went_away() -> int:
    """Let nobody be told: what is still to be flushed at exit goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _main() -> int:
    wants_json = "--json" in sys.argv
    new = moved(sys.argv[1:])
    if new is not None:
        talk(f"error: this is written differently now: {new}")
        return EXIT_BAD_INPUT
    try:
        code = int(app(prog_name="gradtide", standalone_mode=False) or 0)
        if code == EXIT_INTERRUPTED:
            # What typer makes of a KeyboardInterrupt.
            raise KeyboardInterrupt
        sys.stdout.flush()
        return code
    except ScenarioError as error:
        talk(str(error))
        if wants_json:
            print_json({"schema": "gradtide.error/1", "errors": error.errors})
        return EXIT_BAD_INPUT
    except (UsageError, CoreRefusal) as error:
        talk(f"error: {error}")
        return EXIT_BAD_INPUT
    except Stopped:
        return EXIT_INTERRUPTED
    except LimitReached as error:
        talk(str(error))
        if wants_json and error.study is None:
            print_json({"schema": "gradtide.error/1", "errors": error.errors})
        return EXIT_CANNOT_GO_ON
    except (SimulationError, GradtideError) as error:
        talk(f"error: {error}")
        return EXIT_CANNOT_GO_ON
    except BrokenPipeError:
        return _reader_went_away()
    except SystemExit as error:
        # typer turns a broken pipe into exit 1.
        if isinstance(error.__context__, BrokenPipeError):
            return _reader_went_away()
        raise
    except (KeyboardInterrupt, typer.Abort):
        talk("interrupted; nothing half-written is left behind")
        return EXIT_INTERRUPTED
    except Exception as error:
        show = getattr(error, "show", None)
        if show is not None:
            show(file=sys.stderr)
            return EXIT_BAD_INPUT
        traceback.print_exc()
        talk("This is a bug of gradtide. Please report it with the lines above and the scenario.")
        return EXIT_BUG
