"""Parts of scenarios for the tests of their parser: a model, and drawn numbers."""

from hypothesis import settings
from hypothesis import strategies as st

from gradtide import units

# A busy machine is no fault of the parser; the time of a load has a test of its own.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

MODEL = 'model = { kind = "thesis", layers = 4, size = "1MB", time = "9ms" }'
U64 = st.integers(0, units.U64_MAX)
