"""A short run of every attack, and every input that a longer one has found. `make attack` runs all of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attack.inputs import input_of

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
CORPUS = sorted(path for path in (HERE / "attack_corpus").glob("*/*"))
SEED = 20


def attack(*options: object) -> str:
    """Run the attack in a process of its own, which forks and must have no threads; return what it printed."""
    paths = os.pathsep.join([str(HERE), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "attack", "--seed", str(SEED), *map(str, options)],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
def test_no_mutated_input_gives_more_than_a_documented_error(tmp_path: Path) -> None:
    assert " 0 in " not in attack("--only", "inputs", "--inputs", 4000, "--out", tmp_path)


@pytest.mark.slow
def test_random_valid_runs_are_byte_equal_and_their_resolved_files_too() -> None:
    assert "byte-equal" in attack("--only", "runs", "--runs", 16)


@pytest.mark.slow
def test_a_killed_command_leaves_the_old_result_or_the_new_one() -> None:
    assert "new" in attack("--only", "kills", "--kills", 6, "--commands", "run,compare")


@pytest.mark.slow
def test_a_killed_study_ends_with_the_table_of_one_that_was_not() -> None:
    ways = "one process,one or both of two processes on one store"
    assert "sweeps: 4 in" in attack("--only", "sweeps", "--sweeps", 2, "--commands", ways)


@pytest.mark.slow
def test_a_failing_disk_leaves_the_old_result_or_the_new_one() -> None:
    assert "new" in attack("--only", "saves", "--faults", 8)


def test_every_input_that_was_found_is_harmless_now() -> None:
    given = [str(path.relative_to(HERE)) for path in CORPUS]
    assert CORPUS
    told = attack("--replay", *given)
    assert len(told.splitlines()) == len(CORPUS)


def test_an_attack_finds_what_takes_too_long_too_much_or_ends_the_process() -> None:
    script = """
import os
from attack import inputs, pool
from attack.readers import READERS, Reader
pool.CPU_SECONDS = 0.2
bad = {b"loop": lambda: [None for _ in iter(int, 1)], b"grow": lambda: bytes(2 * 10**9), b"die": os.abort, b"ok": str}
READERS["x"] = Reader("in", lambda: list(bad), lambda path: bad[path.read_bytes()]())
print([inputs.outcome_in_child("x", data) for data in bad])
"""
    paths = os.pathsep.join([str(HERE), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    told = eval(done.stdout)
    assert told[0] == "killed by SIGPROF"
    assert told[1].startswith("MemoryError")
    assert told[2] == "killed by SIGABRT"
    assert told[3] == "value"


def test_every_promise_of_the_security_policy_names_its_tests() -> None:
    promises = (HERE.parent / "SECURITY.md").read_text().split("<!-- table: promises -->")[1].split("\n\n")[1]
    rows = promises.splitlines()[2:]
    for row in rows:
        named = re.findall(r"`(test_\w+\.py): (test_\w+)`", row)
        assert named, row
        for file, test in named:
            assert f"def {test}(" in (HERE / file).read_text(), (file, test)


def test_equal_seeds_give_equal_inputs() -> None:
    made = [[input_of(seed, "units", index) for index in range(200)] for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]
