"""Functions that differ between operating systems; no other module checks the system.

All functions are tested on Linux. macOS and Windows lack some calls; each docstring states the alternative there.
`gradtide.torch` also calls Linux directly to read the sockets of a process and the marks of its packets.
"""

import errno
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# Memory


def resident_bytes() -> int:
    """Return the resident memory of the process, in bytes; on a Linux without /proc, its peak."""
    if sys.platform != "linux":
        import psutil

        return int(psutil.Process().memory_info().rss)
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return most_resident_bytes()


def most_resident_bytes() -> int:
    """Return the peak resident memory of the process, in bytes."""
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def free_bytes() -> int:
    """Return the bytes of memory that are free in the system, or in the process's container if that is less."""
    if sys.platform != "linux":
        import psutil

        return int(psutil.virtual_memory().available)
    known = []
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            known += [1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:")]
    except OSError:
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    try:
        with (
            open("/sys/fs/cgroup/memory.max", encoding="ascii") as most,
            open("/sys/fs/cgroup/memory.current", encoding="ascii") as used,
        ):
            known.append(int(most.read()) - int(used.read()))
    except (OSError, ValueError):  # the process is in no container, or its container has no limit ("max")
        pass
    return max(0, min(known))


# Locks. The system releases a lock when its process ends, even if the process is killed.


def lock(handle: int, *, wait: bool) -> bool:
    """Lock an open file until it is closed; return whether the lock was acquired. Windows waits at most ten seconds."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def close(handle: int, path: "Path | None") -> None:
    """Close a file, which releases its locks, and delete `path` if given: before closing, except on Windows."""
    try:
        if path is not None and sys.platform != "win32":
            _delete(path)
    finally:
        os.close(handle)
    if path is not None and sys.platform == "win32":
        _delete(path)


def _delete(path: "Path") -> None:
    with suppress(OSError):
        path.unlink()


def lock_byte(handle: int, offset: int) -> bool:
    """Lock the byte at `offset` of an open file, even beyond its end; return whether the lock was acquired.

    Windows uses only 31 bits of `offset`, so some offsets share a lock.
    """
    try:
        if sys.platform == "win32":
            os.lseek(handle, offset % (1 << 31), os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
    except OSError:
        return False
    return True


def unlock_byte(handle: int, offset: int) -> None:
    """Release a lock of `lock_byte`."""
    if sys.platform == "win32":
        os.lseek(handle, offset % (1 << 31), os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
    else:
        fcntl.lockf(handle, fcntl.LOCK_UN, 1, offset)


# Files and folders

CANNOT_EXCHANGE = {errno.EBUSY, errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.ENOTSUP}
"""Errors that mean that two folders cannot be exchanged, as with mount points or file systems without support."""

MOST_NAME_BYTES = 255
"""Maximum length of a file name if the system does not report it: 255 characters, as on NTFS."""


def sync(path: "Path") -> None:
    """Flush a file or folder to disk, so that it survives a power failure; Windows supports this only for files."""
    if sys.platform == "win32" and path.is_dir():
        return
    # Windows only flushes files that are open for writing.
    handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def can_exchange() -> bool:
    """Return whether this system can exchange two folders atomically, as Linux can."""
    return _renameat2() is not None


def exchange(one: "Path", other: "Path") -> None:
    """Exchange two folders atomically.

    Raises:
        OSError: with an error of `CANNOT_EXCHANGE` if the system cannot.
    """
    import ctypes

    rename = _renameat2()
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    # Linux, include/uapi: AT_FDCWD is -100, RENAME_EXCHANGE is 2.
    if rename(-100, os.fsencode(one), -100, os.fsencode(other), 2) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(one), None, str(other))


@cache
def _renameat2() -> "Callable[..., int] | None":
    if sys.platform != "linux":
        return None
    import ctypes

    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def mount_points() -> set[str]:
    """Return the mount points that Linux lists, because `ismount` misses bind mounts of the same file system."""
    import re

    if sys.platform != "linux":
        return set()
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            # proc(5): the fifth field is the mount point, with blanks and similar characters as octal numbers.
            fields = [line.split()[4] for line in file]
    except OSError:
        return set()
    return {os.fsdecode(re.sub(rb"\\(\d{3})", lambda found: bytes([int(found[1], 8)]), field)) for field in fields}


def most_name_bytes(folder: "Path") -> int:
    """Return the maximum length of a name in a folder, in bytes."""
    if sys.platform == "win32":
        return MOST_NAME_BYTES
    return os.pathconf(folder, "PC_NAME_MAX")


# Signals

STOPS: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM)
"""Signals that end a command: Ctrl-C, SIGTERM from batch systems and containers, and SIGHUP from a closed terminal,
which Windows lacks."""
ALARM: signal.Signals
"""The signal that the process sends to itself. Windows has few signals; SIGABRT otherwise occurs only in an abort."""
if sys.platform == "win32":
    ALARM = signal.SIGABRT
else:
    STOPS = (*STOPS, signal.SIGHUP)
    ALARM = signal.SIGALRM


def has_namespaces() -> bool:
    """Return whether the system has network namespaces: on Linux alone."""
    return sys.platform.startswith("linux")


def is_running(pid: int) -> bool:
    """Return whether a process exists. On Windows, where it cannot be asked without ending it, always true."""
    if sys.platform == "win32":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def alarm() -> None:
    """Send `ALARM` to the main thread. On Windows, a thread that waits for a file receives it after the wait."""
    if sys.platform == "win32":
        import _thread

        _thread.interrupt_main(ALARM)
    else:
        os.kill(os.getpid(), ALARM)


def alarm_after(time_s: float) -> None:
    """Send `ALARM` to the main thread after `time_s` seconds."""
    if sys.platform == "win32":
        import threading

        threading.Timer(time_s, alarm).start()
    else:
        signal.setitimer(signal.ITIMER_REAL, time_s)


def arrivals() -> Callable[[float], int | None]:
    """Return a function that waits up to a number of seconds for a signal, and returns its number or None."""
    if sys.platform == "win32":
        # On Windows, `select` accepts only sockets. Other systems avoid loading `socket`, which takes milliseconds.
        import socket

        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        reader, writer = ours.fileno(), theirs.detach()

        def read() -> bytes:
            return ours.recv(1)
    else:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)

        def read() -> bytes:
            return os.read(reader, 1)

    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def wait(time_s: float) -> int | None:
        return read()[0] if select.select([reader], [], [], time_s)[0] else None

    return wait


# Sockets


def choose_congestion_control(tcp: "socket.socket", name: str) -> None:
    """Set the congestion control of a TCP socket, by its name on Linux.

    Raises:
        OSError: if the system has no congestion control of that name, or does not allow the choice.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "only Linux lets a program choose")
    import socket

    try:
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError as error:
        known = "/proc/sys/net/ipv4/tcp_available_congestion_control lists what there is"
        raise OSError(error.errno, known) from None


def enable_service_type(udp: "socket.socket") -> None:
    """Let `receive_marked` return the type of service, or IPv6's traffic class, of received datagrams.

    Raises:
        OSError: on Windows, which does not report the type of service.
    """
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, "Windows does not report the type of service of received datagrams")
    import socket

    if udp.family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
    else:
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)


def receive_marked(udp: "socket.socket", most_bytes: int) -> "tuple[bytes, int, Any]":
    """Receive a datagram after `enable_service_type`; return its bytes, its type of service and its sender."""
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, "Windows does not report the type of service of received datagrams")
    payload, ancillary, _, sender = udp.recvmsg(most_bytes, 64)
    return payload, next((data[0] for _, _, data in ancillary if data), 0), sender


# Processes


def in_forked_children(run: Callable[[], object]) -> None:
    """Make every forked child of this process call `run` first. Windows has no fork, so nothing happens there."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=run)
