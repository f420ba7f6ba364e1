"""Files of other tools in tests/data, and their conversion, for the tests of formats."""

import subprocess
import sys
from pathlib import Path

from gradtide import formats

DATA = Path(__file__).parent / "data" / "formats"


def convert(source, target=None, into=None, form=None, **options):
    form = formats.recognised(Path(source)) if form is None else formats.known(form)
    return formats.convert(Path(source), None if target is None else Path(target), form=form, into=into, **options)


def command(*arguments):
    line = [sys.executable, "-m", "gradtide", "convert", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


TOPOLOGY = (DATA / "topology.txt").read_text()
