"""Ranks that fail in the middle of training: what all the others raise, when, and how every process ends.

Needs torch: `make test-torch` installs it. Ranks are whole programs, which torch_programs.py runs several at a time.
"""

import json
import os
import pickle
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

import torch_ranks
from gradtide.errors import RankLostError

pytestmark = [pytest.mark.linux, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

LEVELS = ("none", "buckets", "priority", "crossiter")
TIMEOUT_S, LONG_S = 5, 60
AFTER_S = 10  # what a rank may take once the connection is lost
NOISE_S = 4  # of a busy machine, where a limit is the process group's timeout

HOW = {  # what the others say of the rank, and with which code its own process ends
    "raises": ("has stopped training by an error, at ", 1),
    "returns": ("has stopped training while others continue, at ", 0),  # as with fewer batches than the others have
    "unwraps": ("has stopped training while others continue, at ", 0),
    "killed": ("has ended (its process died or its host is unreachable), noticed at ", -9),
    "interrupted": ("has stopped training by an error, at ", -2),
    "stopped": ("has made no progress since ", -9),  # by SIGSTOP; killed when the others have ended
    "sleeps": ("has made no progress since ", 1),  # for twice the timeout
}
HANGS = ("stopped", "sleeps")
CASES = {
    f"{level}{', with buffers' * has_buffers}, rank {victim} {how}": (level, has_buffers, victim, how)
    for level, has_buffers in (*((level, level == "none") for level in LEVELS), ("priority", True))
    for how in HOW
    for victim in (0, 1)
}
for victim, how in ((0, "killed"), (1, "returns"), (0, "sleeps")):
    CASES[f"crossiter, with buffers, rank {victim} {how}"] = "crossiter", True, victim, how
CASES["crossiter, rank 1 killed with a child"] = "crossiter", False, 1, "killed with a child"
CASES["priority, rank 0 killed with a child"] = "priority", False, 0, "killed with a child"


SMALL = (
    *((level, 0, "killed") for level in LEVELS),
    *(("crossiter", 1, how) for how in HOW),
    ("priority", 1, "raises"),
)


def marked(name):
    """A case as a parameter: all but a few of each kind run at full size alone."""
    level, _, victim, how = CASES[name]
    return name if (level, victim, how) in SMALL else pytest.param(name, marks=pytest.mark.full)


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    wanted = torch_ranks.wanted(request, "name")
    cases = {
        name: {
            "level": level,
            "size": 3 if how.startswith("killed") else 2,
            "victim": victim,
            "how": how,
            "has_buffers": has_buffers,
            "timeout_s": TIMEOUT_S if how in HANGS else LONG_S,
        }
        for name, (level, has_buffers, victim, how) in CASES.items()
        if name in wanted
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("torch_programs.py")), str(tmp_path_factory.mktemp("programs"))],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def noted(outcome, key):
    """Return the one note of a rank that has this key."""
    found = [note for note in outcome["notes"] if key in note]
    assert len(found) == 1, outcome
    return found[0]


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_all_others_name_the_lost_rank_in_time_and_every_process_ends_cleanly(outcomes, name):
    *_, victim, how = CASES[name]
    said, code = HOW[how.removesuffix(" with a child")]
    failed = noted(outcomes[name][victim], "failed")["at"]
    for rank, outcome in enumerate(outcomes[name]):
        for crash in ("terminate called", "Fatal Python error", "Segmentation fault", "Exception ignored"):
            assert crash not in outcome["output"]
        if rank == victim:
            assert outcome["code"] == code, outcome
            continue
        lost = noted(outcome, "lost")
        assert lost["lost"] == victim
        assert lost["error"].startswith(f"rank {victim} {said}")
        assert lost["error"].endswith("; then start all ranks again from the last checkpoint.")
        gone = outcomes[name][victim]["ended"] if how in ("raises", "returns", "interrupted") else failed
        assert lost["at"] <= (failed + TIMEOUT_S + NOISE_S if how in HANGS else gone + AFTER_S)
        assert failed - NOISE_S <= lost["since"] <= lost["at"]
        assert outcome["code"] == 1, outcome
        assert outcome["output"].count(f"gradtide.errors.RankLostError: rank {victim} ") == 1
    if victim != len(outcomes[name]) - 1:
        assert noted(outcomes[name][-1], "threads")["threads"] == ["MainThread"]


@pytest.mark.parametrize("name", [marked(name) for name, (*_, how) in CASES.items() if how == "raises"])
def test_the_error_of_the_rank_that_fails_is_not_hidden(outcomes, name):
    output = outcomes[name][CASES[name][2]]["output"]
    assert output.count("ZeroDivisionError: the user's own error\n") == 1
    assert "RankLostError" not in output


def test_the_error_tells_rank_and_time_and_can_be_pickled():
    since = datetime(2026, 1, 2, 3, 4, 5)
    error = pickle.loads(pickle.dumps(RankLostError(3, "has ended", since, "Its output has the reason")))
    assert (error.rank, error.since) == (3, since)
    assert str(error) == (
        "rank 3 has ended. Its output has the reason; then start all ranks again from the last checkpoint."
    )
