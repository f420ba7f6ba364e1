"""The commands of the command line, small inputs for each, and the time in which they must end."""

import sys
from pathlib import Path

from gradtide import cli

TRACES = Path(__file__).parent.parent / "scenarios" / "traces"


def commands():
    """Return every command with its name, as in `tenants map`."""
    for name in cli.COMMANDS:
        command = cli._made(name, cli.COMMANDS[name])
        yield name, command
        for inner in cli.SUBCOMMANDS.get(name, ()):
            yield f"{name} {inner}", command.commands[inner]


NAMES = [name for name, _ in commands()]
SMALL = '[job.a]\nmodel = "alexnet"\nworkers = 2\n'
STUDY = '[sweep]\nscenario = "{name}"\nseeds = 3\n'
FLOWS = (
    SMALL
    + """[traffic.web]
incast = { dst = "h0", bytes = "1kB", every = "1ms" }
[run]
engine = "fluid"
duration = "2s"
"""
)
TRACE = str(TRACES / "rank0.pt.trace.json.gz")


GRADTIDE = [sys.executable, "-m", "gradtide"]
GRACE_S = 60
"""After so long a command must have ended; a machine that is not loaded needs a tenth of a second."""
