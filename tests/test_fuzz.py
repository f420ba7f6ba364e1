"""Every target of `make fuzz` that hypothesis feeds, on some examples; those of the core run in `cargo test`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import test_scenario_fuzz
from fuzz import core
from fuzz.targets import TARGETS

HERE = Path(__file__).parent
OWN = {name: target for name, target in TARGETS.items() if target not in vars(test_scenario_fuzz).values()}
EXAMPLES = 40


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_what_holds_for_anything_holds_for_some_examples(name):
    slow = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=slow)(OWN[name])()


def test_the_fuzzer_feeds_a_target_and_tells_a_finding_with_its_input(tmp_path):
    script = """
import sys, pathlib
from hypothesis import given, strategies as st
from fuzz import feed, targets

@given(st.integers(0, 9))
def nine(number):
    assert number < 9

targets.TARGETS["nine"] = nine
print(feed.feed("quantities", 0.3, 1, pathlib.Path(sys.argv[1])))
print(feed.feed("nine", 60, 1, pathlib.Path(sys.argv[1])))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    done = subprocess.run([sys.executable, "-c", script, tmp_path], env=env, capture_output=True, text=True, check=True)
    fine, found = map(eval, done.stdout.splitlines())
    assert fine["executions"] > 0
    assert fine["lines"] > 0
    assert fine["finding"] == ""
    assert "in nine\nAssertionError\n" in found["finding"]
    assert [path.name for path in tmp_path.iterdir()] == [f"nine-{found['executions']}"]


def test_what_libfuzzer_prints_is_read():
    text = """
#1552591 NEW    cov: 13126 ft: 31265 corp: 3532/2Mb lim: 8192 exec/s: 1375 rss: 40Mb
Done 1552600 runs in 601 second(s)
stat::number_of_executed_units: 1552600
stat::peak_rss_mb:              41
"""
    told = core.told("run", 600, text, 0)
    assert (told.executions, told.coverage, told.findings) == (1552600, "13,126 edges", "")
    assert core.told("run", 600, "panicked at crates/net", 77).findings == "panicked at crates/net"
    assert str(told).endswith("0 findings")
