"""`gradtide profile --network`: two ranks measure transfers on loopback, and `gradtide calibrate` fits them."""

import os
import socket
import subprocess
import sys

import pytest

import gradtide as gt


def environment(rank, port):
    named = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, **{name: str(value) for name, value in named.items()}}


@pytest.mark.torch
def test_two_ranks_measure_a_table_that_can_be_fitted(tmp_path):
    pytest.importorskip("torch")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "gradtide", "profile", "--network", "--runs", "3", "-q", "-o", "times.csv"]
    ranks = [subprocess.Popen(command, cwd=tmp_path, env=environment(rank, port)) for rank in (0, 1)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    found = gt.calibrate(tmp_path / "times.csv")
    assert len(found.timings.rows) == 9 * 4
    assert {depth for _, depth, _ in found.timings.rows} == {1, 2, 4, 8}
    assert found.cluster["link"]["rate"]


@pytest.mark.parametrize(
    ("arguments", "settings", "says"),
    [
        pytest.param(
            ["--network"], {}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT is not set", marks=pytest.mark.torch
        ),
        pytest.param(
            ["--network"],
            {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
            "2 ranks, not 3",
            marks=pytest.mark.torch,
        ),
        (["--network", "--device", "A100"], {}, "--network measures no module"),
        ([], {}, "MODULE:FACTORY is missing"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, settings, says):
    if settings or arguments == ["--network"]:
        pytest.importorskip("torch")
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    plain = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-m", "gradtide", "profile", *arguments]
    done = subprocess.run(command, env={**plain, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
