"""Files of other tools in tests/data, and their conversion, for the tests of formats."""

from pathlib import Path

from gradtide import formats

DATA = Path(__file__).parent / "data" / "formats"


def convert(source, target=None, into=None, form=None, **options):
    form = formats.recognised(Path(source)) if form is None else formats.known(form)
    return formats.convert(Path(source), None if target is None else Path(target), form=form, into=into, **options)


TOPOLOGY = (DATA / "topology.txt").read_text()
