"""Builds the sdist and from it a wheel, checks both, and tries the wheel in an environment with nothing but Python.

    python tools/wheels.py build [--target TRIPLE]   writes dist/: the sdist, and the wheel that is built from it
    python tools/wheels.py check                     size, tags, licences, metadata and files of all that is in dist/
    python tools/wheels.py try                       installs the wheel in a new environment and tries its commands

`build` needs maturin, on Linux also zig, which links against the C library of the oldest system that the tag of the
wheel promises. `check` needs twine, abi3audit and validate-pyproject. The group `release` of pyproject.toml has all of
them. `try` needs Python alone: tools/bare_debian.sh runs it in a chroot.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
LARGEST_WHEEL_BYTES = 8_000_000
# Time from `pip install` to the last line of the demo, on a machine with two cores.
LONGEST_TRY_S = 60


MESHES = ["--parallel", "fsdp=128", "--parallel", "fsdp=32,tp=4", "--global-batch", "128"]


class Command(NamedTuple):
    """A command that `try` runs: its expected exit code, a text of its output, and a file that it writes."""

    arguments: list[str]
    output: str
    code: int = 0
    writes: str | None = None


# Commands of a new user: a language model, a recorded step, and a mistake.
COMMANDS = (
    Command(["demo"], "report", writes="out/demo/report.html"),
    Command(
        ["compare", "llama3-8b", "--cluster", "h100-hgx/16", "--seq", "8192", *MESHES, "-o", "out/llama"],
        "fsdp=32,tp=4",
        writes="out/llama/report.html",
    ),
    Command(["report", str(ROOT / "scenarios" / "traces"), "-o", "out/step"], "ms", writes="out/step/report.html"),
    Command(["run", "paper/gao2020-ch4", "--set", "cluster.link.rate=10"], "error[GT020]", code=2),
    Command(["run", "missing.toml"], "missing.toml", code=2),
    Command(["doctor"], "gradtide"),
)
LICENCES = ("LICENSE-MIT", "LICENSE-APACHE", "LICENSE-THIRD-PARTY")
ABI = "cp310-abi3"
# Platform tags of wheels by the end of the target triple. Rust itself needs glibc 2.17 or musl 1.2.
LINUX_TAGS = {"linux-gnu": "manylinux_2_17", "linux-musl": "musllinux_1_2"}
TAGS = (*(f"{tag}_" for tag in LINUX_TAGS.values()), "macosx_", "win_")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "check", "try"))
    parser.add_argument("--target", metavar="TRIPLE", help="Build for another machine, as Rust calls it.")
    arguments = parser.parse_args()
    if arguments.what == "build":
        build(arguments.target)
    elif arguments.what == "check":
        check()
    else:
        try_wheel(the_wheel())


def build(target: str | None) -> None:
    """Write the sdist and a wheel into `DIST`. The wheel of one target replaces only its own."""
    DIST.mkdir(exist_ok=True)
    if target is None and sys.platform == "linux":
        target = f"{platform.machine()}-unknown-linux-gnu"
    # Not --locked: the sdist lacks the workspace members that are only for tests, but Cargo.lock contains them.
    command = ["maturin", "build", "--release", "--sdist", "--out", str(DIST)]
    if target is not None:
        command += ["--target", target]
    for end, tag in LINUX_TAGS.items():
        if target is not None and target.endswith(end):
            command += ["--zig", "--compatibility", tag, "--auditwheel", "check"]
    # The wheel is stripped, so debug information would be useless.
    subprocess.run(command, cwd=ROOT, env={**os.environ, "CARGO_PROFILE_RELEASE_DEBUG": "none"}, check=True)


def the_wheel() -> Path:
    """Return the one wheel in `DIST` that this machine can install."""
    libc = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    system = {"darwin": "macosx", "win32": "win"}.get(sys.platform, libc)
    machine = platform.machine().lower()
    found = [path for path in DIST.glob("*.whl") if f"-{ABI}-{system}" in path.name and machine in path.name]
    if len(found) != 1:
        sys.exit(f"wheels: dist/ has {len(found)} wheels for {system} on {machine}: run `make wheel` first")
    return found[0]


def try_wheel(wheel: Path) -> None:
    """Install the wheel with its dependencies in a new environment, and try `COMMANDS` in an empty folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
        begin = time.monotonic()
        # Only wheels: without a compiler, an sdist among the dependencies could not be built.
        pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
        subprocess.run([*pip, str(wheel)], check=True)
        installed = time.monotonic()
        took = [timed(command, programs / "gradtide", folder) for command in COMMANDS]
    install_s = installed - begin
    print(f"wheels: {wheel.name} installed in {install_s:.1f} s")
    for command, seconds in zip(COMMANDS, took, strict=True):
        print(f"wheels: {seconds:5.1f} s  gradtide {' '.join(command.arguments)}")
    if install_s + took[0] > LONGEST_TRY_S:
        sys.exit(f"wheels: install and demo took {install_s + took[0]:.0f} s; at most {LONGEST_TRY_S} s are allowed")


def timed(command: Command, gradtide: Path, folder: Path) -> float:
    """Run a command in `folder`; return its seconds, or exit with differences from expected output and files."""
    begin = time.monotonic()
    # Bytes, because a pipe on Windows uses the encoding of the code page.
    done = subprocess.run([str(gradtide), *command.arguments], cwd=folder, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode(errors="replace")
    faults = []
    if done.returncode != command.code:
        faults.append(f"exit code {done.returncode}, not {command.code}")
    if command.output not in said:
        faults.append(f"no {command.output!r} in the output")
    if command.writes is not None and not (folder / command.writes).is_file():
        faults.append(f"no {command.writes}")
    if faults:
        sys.exit(f"wheels: gradtide {' '.join(command.arguments)}: {', '.join(faults)}\n{said}")
    return time.monotonic() - begin


def check() -> None:
    """Exit with every fault of the files in `DIST`."""
    wheels, sdists = sorted(DIST.glob("*.whl")), sorted(DIST.glob("*.tar.gz"))
    if not wheels or len(sdists) != 1:
        sys.exit(f"wheels: dist/ has {len(wheels)} wheels and {len(sdists)} sdists: run `make wheel` first")
    faults = sdist_faults(sdists[0].name, sdist_names(sdists[0]), version(), tracked())
    for wheel in wheels:
        names = zipfile.ZipFile(wheel).namelist()
        faults += wheel_faults(wheel.name, wheel.stat().st_size, names, version(), tracked())
    if faults:
        sys.exit("\n".join(f"wheels: {fault}" for fault in faults))
    for command in (
        ["validate_pyproject", str(ROOT / "pyproject.toml")],
        ["twine", "check", "--strict", *map(str, [*sdists, *wheels])],
        ["abi3audit", "--strict", *map(str, wheels)],
    ):
        subprocess.run([sys.executable, "-m", *command], check=True)
    for path in [*sdists, *wheels]:
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")


def wheel_faults(file: str, size: int, names: list[str], version: str, files: set[str]) -> list[str]:
    """Return the faults of a wheel with this name, size and content; `files` are those of the repository."""
    faults = []
    platforms = "|".join(TAGS)
    if not re.fullmatch(rf"gradtide-{re.escape(version)}-{ABI}-([\w.]+\.)?({platforms})[\w.]+\.whl", file):
        faults.append(f"{file}: the name is not gradtide-{version}-{ABI}-PLATFORM.whl; PLATFORM: {', '.join(TAGS)}")
    if size > LARGEST_WHEEL_BYTES:
        faults.append(f"{file}: {size / 1e6:.1f} MB; at most {LARGEST_WHEEL_BYTES / 1e6:.0f} MB are allowed")
    wanted = {name.removeprefix("python/") for name in files if name.startswith("python/")}
    wanted |= {f"gradtide-{version}.dist-info/licenses/{name}" for name in LICENCES}
    faults += [f"{file}: {name} is missing" for name in sorted(wanted - set(names))]
    if not any(re.fullmatch(r"gradtide/_core\.(abi3\.so|pyd)", name) for name in names):
        faults.append(f"{file}: the core is missing")
    return faults


def sdist_faults(file: str, names: set[str], version: str, files: set[str]) -> list[str]:
    """Return the faults of an sdist. The wheel is built from it, which shows that it can be built."""
    faults = [] if file == f"gradtide-{version}.tar.gz" else [f"{file}: the name is not gradtide-{version}.tar.gz"]
    wanted = {name for name in files if name.startswith("python/")} | {*LICENCES, "README.md", "Cargo.lock"}
    return faults + [f"{file}: {name} is missing" for name in sorted(wanted - names)]


def sdist_names(path: Path) -> set[str]:
    """Return the names of an sdist's files, without its top folder."""
    with tarfile.open(path) as archive:
        return {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}


def version() -> str:
    """Return the version of the package, from Cargo.toml."""
    match = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


def tracked() -> set[str]:
    """Return the files of the repository."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return set(done.stdout.splitlines())


if __name__ == "__main__":
    main()
