"""`gradtide demo`."""

from dataclasses import replace
from pathlib import Path

from gradtide.cli.compare import run_comparison
from gradtide.cli.options import Common, option
from gradtide.cli.printing import talk

OUTPUT = Path("out/demo")


def demo(
    *,
    output: Path = option("DIR", "Write a folder of results.", OUTPUT, "-o", "--output"),
    common: Common,
) -> None:
    """Compare schedules of ResNet-50 and VGG-16, in seconds.

    Runs a built-in comparison on V100s: 1 to 25 Gbit/s, 2 and 8 workers.
    """
    from gradtide.studies import demo as study

    if common.names_files:
        talk(study.QUESTION)
    is_for_estimate = common.estimate and output == OUTPUT
    run_comparison(study.variants(), replace(common, output=None if is_for_estimate else output))
