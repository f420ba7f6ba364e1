"""Hosts and a switch made of network namespaces: every egress port is a token bucket over pfifo_fast.

Needs root and iproute2. Nothing leaves the machine, and everything is deleted at the end, also after errors and Ctrl-C.
"""

import contextlib
import ctypes
import fcntl
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

SWITCH, HOST = "gradtide-switch", "gradtide-host"
MTU = 1500
LATENCY = "20ms"  # tbf asks for it; the queue is that of pfifo_fast
LOCK = "/run/gradtide-testbed.lock"
CLONE_NEWNET = 0x40000000


def on_each_host(hosts: int, command: Sequence[str]) -> None:
    """Run a command with `--rank N` on every host, for training over gloo; wait for all, and end them after an error.

    Raises:
        SystemExit: if one of them failed.
    """
    workers = [
        subprocess.Popen(
            ["ip", "netns", "exec", f"{HOST}{rank}", *command, "--rank", str(rank)],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
        )
        for rank in range(hosts)
    ]
    try:
        codes = [process.wait() for process in workers]
    finally:
        for process in workers:
            process.kill()
    if any(codes):
        raise SystemExit(f"workers ended with {codes}")


def join(rank: int, ranks: int, store: str) -> None:
    """Join the group of ranks that `on_each_host` started, over gloo, with one compute thread."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    timeout = timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timeout)


def address(host: int, *, routed: bool) -> str:
    """Return the IPv4 address of a host."""
    return f"10.77.{host}.1" if routed else f"10.77.0.{host + 1}"


@contextlib.contextmanager
def network(
    hosts: int, rate: str, *, burst: str = "128k", queue: int | None = None, routed: bool = False
) -> Iterator[None]:
    """Create a switch and its hosts; delete them in any case.

    Args:
        hosts: number of hosts.
        rate: rate of every port, in the syntax of tc.
        burst: size of the token bucket, which an idle port sends at once.
        queue: capacity of a band of a port in packets; default: 1000. If it is given, segmentation offload is off, so
            that packets in hosts are no larger than the MTU and can be counted.
        routed: whether the switch routes instead of bridging. A packet loses its priority on a cable between
            namespaces. A router restores it from the type of service; a bridge does not, so its ports have one band.
    """
    names = [SWITCH, *(f"{HOST}{host}" for host in range(hosts))]
    lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise SystemExit("another testbed is running on this machine") from None
    take_down(names)  # remains of a killed run
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        if routed:
            run("ip", "netns", "exec", SWITCH, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        else:
            ip("-n", SWITCH, "link", "add", "bridge", "type", "bridge")
            ip("-n", SWITCH, "link", "set", "bridge", "up")
        for index in range(hosts):
            host, port = f"{HOST}{index}", f"port{index}"
            ip("-n", SWITCH, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            ip("-n", SWITCH, "link", "set", port, "mtu", str(MTU), "up")
            ip("-n", host, "address", "add", f"{address(index, routed=routed)}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "mtu", str(MTU), "up")
            if routed:
                ip("-n", SWITCH, "address", "add", f"10.77.{index}.254/24", "dev", port)
                ip("-n", host, "route", "add", "default", "via", f"10.77.{index}.254")
            else:
                ip("-n", SWITCH, "link", "set", port, "master", "bridge")
            for name, device in ((host, "eth0"), (SWITCH, port)):
                if queue is not None:
                    ip("-n", name, "link", "set", device, "txqueuelen", str(queue), "gso_max_segs", "1")
                shape = ["rate", rate, "burst", burst, "latency", LATENCY]
                run("tc", "-n", name, "qdisc", "add", "dev", device, "root", "handle", "1:", "tbf", *shape)
                run("tc", "-n", name, "qdisc", "add", "dev", device, "parent", "1:1", "handle", "10:", "pfifo_fast")
        yield
    finally:
        take_down(names)
        signal.signal(signal.SIGTERM, before)
        os.close(lock)


@contextlib.contextmanager
def inside(host: int) -> Iterator[None]:
    """Enter a host's namespace: sockets that are created here belong to it permanently (setns(2))."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{HOST}{host}", os.O_RDONLY)
    try:
        _enter(there)
        yield
    finally:
        _enter(own)
        os.close(own)
        os.close(there)


def urgent(priority: int) -> None:
    """Let this process run before other processes of the machine (sched(7), SCHED_RR), if that is allowed.

    The measurement is about the network, not about how long the machine is busy with something else.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))


def dropped(hosts: int) -> int:
    """Return the number of packets that the ports of the hosts and of the switch have dropped so far."""
    total = 0
    for name in [SWITCH, *(f"{HOST}{host}" for host in range(hosts))]:
        said = subprocess.run(["tc", "-n", name, "-s", "qdisc", "show"], check=True, capture_output=True, text=True)
        lines = said.stdout.splitlines()
        for head, sent in itertools.pairwise(lines):
            if head.startswith("qdisc tbf"):
                total += int(sent.partition("dropped ")[2].partition(",")[0])
    return total


def take_down(names: list[str]) -> None:
    """Delete namespaces and their devices; missing ones are ignored."""
    for name in names:
        if Path(f"/run/netns/{name}").exists():
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def ip(*words: str) -> None:
    """Run ip."""
    run("ip", *words)


def run(*words: str) -> None:
    """Run a command; exit with its output if it fails."""
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
