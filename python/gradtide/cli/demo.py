"""`gradtide demo`."""

from pathlib import Path
from typing import Annotated

import typer

from gradtide.cli.compare import run_comparison
from gradtide.cli.options import JobsOption, JsonOption, QuietOption, VerboseOption, check_target, limits_of
from gradtide.cli.printing import talk


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder of results.")] = Path(
        "out/demo"
    ),
    as_json: JsonOption = False,
    jobs: JobsOption = 2,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """The built-in study: ResNet-50 and VGG-16 on V100s, 1 to 25 Gbit/s, 2 and 8 workers. Takes seconds."""
    check_target(output)
    from gradtide.studies import demo as study

    if not quiet and not as_json:
        talk(study.QUESTION)
    run_comparison(study.variants(), output, as_json, jobs, quiet, verbose, [], limits_of(None, None))
