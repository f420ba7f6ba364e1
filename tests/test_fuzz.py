"""Every target of `make fuzz` that hypothesis feeds, on some examples; those of the core run in `cargo test`."""

import pytest
from hypothesis import HealthCheck, settings

import test_scenario_fuzz
from fuzz.targets import TARGETS

OWN = {name: target for name, target in TARGETS.items() if target not in vars(test_scenario_fuzz).values()}
EXAMPLES = 40


@pytest.mark.parametrize("name", OWN)
def test_what_holds_for_anything_holds_for_some_examples(name):
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=slow)(OWN[name])()
