"""The command `gradtide`: reads options, calls a study and prints. Nothing but `__main__` imports it.

Results go to stdout, messages and progress to stderr. Imports that cost time stand inside the commands, so that an
answer to bad input does not wait for what it does not need.
"""

import os
import sys
import traceback
from typing import Annotated

import typer

from gradtide import _core
from gradtide.cli import (
    buy,
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
)
from gradtide.cli.ends import (
    EXIT_BAD_INPUT,
    EXIT_BUG,
    EXIT_CANNOT_GO_ON,
    EXIT_INTERRUPTED,
    Stopped,
    UsageError,
)
from gradtide.cli.printing import print_json, talk
from gradtide.errors import CoreRefusal, GradtideError, ScenarioError, SimulationError

app = typer.Typer(
    name="gradtide",
    help="See, plan and tame the network traffic of distributed training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# In the order of `gradtide --help`.
for command in (
    run.run,
    compare.compare,
    tenants.tenants,
    buy.buy,
    plan.plan,
    demo.demo,
    reproduce.reproduce,
    profile.profile,
    report.report,
    presets.presets,
    order.order,
    convert.convert,
    schema.schema,
    explain.explain,
    doctor.doctor,
):
    app.command()(command)


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
    if code == EXIT_INTERRUPTED:
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
    try:
        code = int(app(standalone_mode=False) or 0)
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
