"""Runs gradtide on Linux as on a system that has less: what macOS or Windows lacks is gone, or fails as it does there.

    python foreign.py win32 FILE        FILE: a JSON list of command lines; prints the exit code of each

A part of Windows cannot be had so: backslashes in paths, other encodings of a console, and its own calls. Those are
stood in for here, by their documentation.
"""

import builtins
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import platform
import select
import shutil
import signal
import socket
import stat
import struct
import sys
import types
import warnings
from pathlib import Path
from typing import Any

OF_LINUX = {
    os: "eventfd memfd_create sched_getaffinity sched_setaffinity splice copy_file_range O_PATH O_TMPFILE",
    socket: "TCP_CONGESTION TCP_INFO SO_PEERCRED AF_NETLINK AF_PACKET TCP_USER_TIMEOUT",
}
"""What macOS lacks, too."""

OF_POSIX = {
    os: "fork forkpty register_at_fork pathconf fpathconf sysconf geteuid getuid getegid getgid getpgid getpgrp setsid "
    "killpg O_NOFOLLOW O_NONBLOCK O_NOCTTY O_CLOEXEC O_DIRECTORY O_SYNC mkfifo mknod set_blocking getloadavg statvfs "
    "uname wait wait3 wait4 waitid WNOHANG chown chroot fchdir fchmod fchown nice getpriority posix_spawn sendfile "
    "readv writev openpty ttyname confstr lockf",
    signal: "SIGHUP SIGALRM SIGKILL SIGPIPE SIGCHLD SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 setitimer getitimer alarm "
    "ITIMER_REAL ITIMER_PROF ITIMER_VIRTUAL pthread_kill pthread_sigmask sigwait sigpending siginterrupt pause",
    socket: "sethostname if_nameindex IP_RECVTOS",
}
MODULES_OF_POSIX = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "spwd", "crypt", "posix")


def become(system: str) -> None:
    """Take away what `system` lacks; gradtide and what it imports is loaded before, and gradtide's own part anew."""
    _load_all()
    handles, unhidden = _open_handles(), _hide_folders()
    sys.platform = system
    sys.modules["psutil"] = _psutil()
    _take(OF_LINUX)
    if system == "win32":
        _take(OF_POSIX)
        for name in MODULES_OF_POSIX:
            sys.modules[name] = None  # type: ignore[assignment]
        sys.modules["msvcrt"] = _msvcrt()
        _refuse_as_windows(handles, unhidden)
        _end_lines_as_windows()
    # A text without an encoding has another one on every system.
    warnings.filterwarnings("error", category=EncodingWarning)


def _load_all() -> None:
    import gradtide

    for module in pkgutil.walk_packages(gradtide.__path__, "gradtide."):
        if not module.name.startswith(("gradtide.torch", "gradtide.__main__")):
            importlib.import_module(module.name)
    platform.platform()  # is remembered
    for name in [name for name in sys.modules if name.partition(".")[0] == "gradtide" and name != "gradtide._core"]:
        del sys.modules[name]
    gc.collect()


def _take(names: dict[types.ModuleType, str]) -> None:
    for module, listed in names.items():
        for name in listed.split():
            if hasattr(module, name):
                delattr(module, name)


def _hide_folders() -> list[bool]:
    """Let nobody read /proc and /sys, unless what is returned holds something."""
    unhidden: list[bool] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and not unhidden and isinstance(arguments[0], (str, bytes)):
            path = os.fsdecode(arguments[0])
            if path.startswith(("/proc", "/sys")):
                raise FileNotFoundError(2, "there is no such folder on this system", path)

    sys.addaudithook(hook)
    return unhidden


def _psutil() -> types.ModuleType:
    module = types.ModuleType("psutil")
    used = types.SimpleNamespace(rss=100_000_000, peak_wset=200_000_000)
    module.Process = lambda: types.SimpleNamespace(memory_info=lambda: used)  # type: ignore[attr-defined]
    module.virtual_memory = lambda: types.SimpleNamespace(available=8_000_000_000)  # type: ignore[attr-defined]
    return module


def _msvcrt() -> types.ModuleType:
    """Lock bytes from the position of a file on, for each open file by itself, as LockFileEx does."""
    module: Any = types.ModuleType("msvcrt")
    module.LK_UNLCK, module.LK_LOCK, module.LK_NBLCK = 0, 1, 2
    set_lock, set_lock_wait, kinds = fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW, (fcntl.F_UNLCK, fcntl.F_WRLCK)
    control = fcntl.fcntl

    def locking(handle: int, mode: int, count: int) -> None:
        begin = os.lseek(handle, 0, os.SEEK_CUR)
        if begin >= 1 << 31:
            raise OSError(22, "the position does not fit into 31 bits")
        wanted = struct.pack("hhqqi", kinds[mode != module.LK_UNLCK], os.SEEK_SET, begin, count, 0)
        control(handle, set_lock_wait if mode == module.LK_LOCK else set_lock, wanted)

    module.locking = locking
    return module


def _open_handles() -> Any:
    listdir, readlink = os.listdir, os.readlink

    def handles() -> list[str]:
        found = []
        for name in listdir("/proc/self/fd"):
            try:
                found.append(readlink(f"/proc/self/fd/{name}"))
            except OSError:
                continue
        return found

    return handles


def _refuse_as_windows(handles: Any, unhidden: list[bool]) -> None:
    """Refuse what Windows refuses: to open folders, to move or delete what is open, to wait for what is no socket."""
    shutil._use_fd_functions = False  # type: ignore[attr-defined]

    def is_open(path: Any) -> bool:
        unhidden.append(True)
        try:
            real = os.path.realpath(path)
            return any(one == real or one.startswith(real + os.sep) for one in handles())
        finally:
            unhidden.pop()

    def refusing(call: Any, which: tuple[int, ...]) -> Any:
        def checked(*paths: Any, **more: Any) -> Any:
            for index in which:
                if not isinstance(paths[index], int) and is_open(paths[index]):
                    raise PermissionError(13, "somebody has it open", str(paths[index]))
            return call(*paths, **more)

        return checked

    for name, which in {"rename": (0, 1), "replace": (0, 1), "unlink": (0,), "remove": (0,), "rmdir": (0,)}.items():
        setattr(os, name, refusing(getattr(os, name), which))
    os_open, select_select, c_library = os.open, select.select, ctypes.CDLL

    def open_file(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return os_open(path, flags, *more, **named)

    def select_sockets(*lists: Any) -> Any:
        for one in [one for each in lists[:3] for one in each]:
            handle = one if isinstance(one, int) else one.fileno()
            if not stat.S_ISSOCK(os.fstat(handle).st_mode):
                raise OSError(10038, "an operation was attempted on something that is not a socket")
        return select_select(*lists)

    def library(name: Any, *more: Any, **named: Any) -> Any:
        if name is None:
            raise TypeError("bad argument type for built-in operation")
        return c_library(name, *more, **named)

    def kill(process: int, number: int) -> None:
        raise AssertionError("os.kill ends a process of Windows, whatever the signal")

    os.open, select.select, ctypes.CDLL, os.kill = open_file, select_sockets, library, kill  # type: ignore


def _end_lines_as_windows() -> None:
    real = io.open

    def opened(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
               newline: Any = None, *more: Any) -> Any:  # fmt: skip
        if newline is None and "b" not in mode and set(mode) & set("wax+"):
            newline = "\r\n"
        return real(file, mode, buffering, encoding, errors, newline, *more)

    io.open = builtins.open = opened  # type: ignore


def main() -> None:
    """Run command lines one after the other, and print their exit codes."""
    system, file = sys.argv[1:]
    commands = json.loads(Path(file).read_text(encoding="utf-8"))
    if system != "linux":
        become(system)
    from gradtide import signals

    signals.catch()
    from gradtide import cli

    codes = []
    for command in commands:
        sys.argv = ["gradtide", *command]
        codes.append(cli._main())
    sys.stdout.flush()
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
