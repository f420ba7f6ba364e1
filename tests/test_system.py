"""What differs between operating systems is asked in one module, and changes no byte of a result."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradtide import system
from gradtide.scenario import Scenario
from run_folders import tiny_tenants

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parent.parent
FOREIGN = Path(__file__).with_name("foreign.py")


# Where a system is asked

PLACES = ("python/gradtide/system.py", "python/gradtide/torch/")
"""The only module that asks for the system, and the package that is for Linux by its nature."""

MODULES = {
    "fcntl",
    "resource",
    "pwd",
    "grp",
    "termios",
    "tty",
    "pty",
    "msvcrt",
    "winreg",
    "ctypes",
    "psutil",
    "_thread",
}
NAMES = {
    "os": "name fork forkpty register_at_fork pathconf sysconf geteuid getuid getgid setsid killpg kill pipe "
    "set_blocking O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_DIRECTORY mkfifo statvfs uname chown fchmod nice fsync wait "
    "waitpid sched_getaffinity getloadavg sep linesep",
    "sys": "platform",
    "signal": "SIGHUP SIGALRM SIGKILL SIGUSR1 SIGUSR2 SIGCHLD SIGPIPE setitimer alarm pthread_kill pthread_sigmask "
    "set_wakeup_fd pause",
    "socket": "AF_UNIX TCP_CONGESTION if_nameindex recvmsg IP_RECVTOS socketpair",
    "platform": "system",
}
ALLOWED = {
    ("files.py", "os.fsync"),  # of a file that is open for writing
    ("archives.py", "open without encoding"),  # of a member of a zip archive, which is bytes
    # Where ns-3 is installed.
    ("ns3.py", "/usr"),
    ("ns3.py", "/usr/local"),
}
FOLDERS = re.compile(r"^/(proc|sys|dev|tmp|etc|var|usr)(/|$)")


def questions(python: str) -> list[str]:
    """Return what a module asks of a system, and what it writes that is another on another system."""
    found = []
    for node in ast.walk(ast.parse(python)):
        if isinstance(node, ast.Import):
            found += [f"import {one.name}" for one in node.names if one.name in MODULES]
        elif isinstance(node, ast.ImportFrom):
            found += [f"import {node.module}"] if node.module in MODULES else []
            names = NAMES.get(node.module or "", "").split()
            found += [f"{node.module}.{one.name}" for one in node.names if one.name in names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in NAMES.get(node.value.id, "").split():
                found.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and FOLDERS.match(node.value):
            found.append(node.value)
        elif isinstance(node, ast.Call):
            found += text_written(node)
    return found


def text_written(call: ast.Call) -> list[str]:
    """Return a call that writes or reads a text without saying its encoding, or writes one without its line ends."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    is_method = isinstance(call.func, ast.Attribute)
    if is_method and getattr(call.func.value, "id", "") in ("os", "inputs", "tarfile"):
        return []
    given = {one.arg: one.value for one in call.keywords}
    texts = [one.value for one in [*call.args, given.get("mode")] if isinstance(one, ast.Constant)]
    mode = next((str(one) for one in texts if re.fullmatch(r"[rwaxbt+]{1,3}", str(one))), "r")
    opens, writes = name == "open" and "b" not in mode, is_method and name == "write_text"
    if not (opens or writes or (is_method and name == "read_text")):
        return []
    needed = {"encoding"} | ({"newline"} if writes or (opens and set(mode) & set("wax+")) else set())
    return [f"{name} without {one}" for one in sorted(needed - given.keys())]


def test_one_module_alone_asks_for_the_system() -> None:
    found = []
    files = sorted((ROOT / "python" / "gradtide").rglob("*.py"))
    assert len(files) > 200
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(PLACES):
            asked = [one for one in questions(path.read_text(encoding="utf-8")) if (path.name, one) not in ALLOWED]
            found += [f"{name}: {one}" for one in asked]
    assert found == []


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("import fcntl", "import fcntl"),
        ("def f():\n    from resource import getrusage", "import resource"),
        ("import os\nos.sysconf('SC_PAGE_SIZE')", "os.sysconf"),
        ("from os import fork", "os.fork"),
        ("open('/proc/self/statm', 'rb')", "/proc/self/statm"),
        ("path.write_text(text, encoding='utf-8')", "write_text without newline"),
        ("path.open('w', encoding='utf-8')", "open without newline"),
        ("path.read_text()", "read_text without encoding"),
    ],
)
def test_a_planted_question_is_found(planted: str, found: str) -> None:
    assert questions(planted) == [found]


# The same bytes everywhere

STUDY = '[sweep]\nscenario = "own.toml"\nseeds = 2\n[sweep.grid]\n"cluster.link.rate" = ["1Gbps", "10Gbps"]\n'
LAYERS = "layer,forward_us,backward_us,parameter_bytes\n" + "".join(
    f"å–{at},1000,2000,{at + 1}000000\n" for at in range(4)
)
OWN = """\
[job.train]
model = "layers.csv"
workers = 4
iterations = 2
compute = { noise = 0.1 }
[cluster.link]
rate = "10Gbps"
delay = "10us"
"""
COMMANDS = [
    ["run", "own.toml", "-q", "-o", "run"],
    ["run", "own.toml", "-q", "-o", "run"],  # replaces it
    ["run", "tenants.json", "-q", "-o", "packet"],
    ["compare", "own.toml", "--schedule", "ddp", "--schedule", "caramel", "--rate", "1Gbps,2Gbps", "-q", "-o", "cmp"],
    ["sweep", "study.toml", "-q", "-o", "sweep"],
    ["sweep", "study.toml", "-q", "-o", "sweep"],  # finds every run in its store
    ["sweep", "list", "gradtide.store"],
    ["plan", "own.toml", "--device", "cpu", "--seeds", "2", "-q", "-o", "plan"],
    ["plan", "own.toml", "--device", "cpu", "--seeds", "2", "-q", "-o", "plan.json"],
    ["plan", "own.toml", "--device", "cpu", "--seeds", "2", "-q", "-o", "plan.json"],  # replaces it
    ["run", "own.toml", "--plan", "plan.json", "-q", "--json"],
    ["report", "run", "-q"],
    ["convert", "layers.csv", "layers.json", "-q"],
    ["run", "own.toml", "--set", "run.sed=1", "--json"],
]  # fmt: skip
CODES = [0] * (len(COMMANDS) - 1) + [2]

FORBIDDEN = re.compile(r'[<>:"|?*\\\x00-\x1f]|[ .]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE)
"""What Windows allows in no name of a file."""


def on(name: str, folder: Path, commands: list[list[str]]) -> subprocess.CompletedProcess[str]:
    """Run commands in `folder` as on a system of that name."""
    (folder / "layers.csv").write_text(LAYERS, encoding="utf-8")
    (folder / "own.toml").write_text(OWN, encoding="utf-8")
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    (folder / "tenants.json").write_text(json.dumps(tiny_tenants()), encoding="utf-8")
    (folder / "commands.json").write_text(json.dumps(commands), encoding="utf-8")
    command = [sys.executable, "-X", "warn_default_encoding", str(FOREIGN), name, "commands.json"]
    env = {**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, encoding="utf-8", check=False)


def written(folder: Path) -> dict[str, bytes]:
    """Return every file that the commands wrote and that is the same in each run, by its name."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    # A store has pages of a database, and times that were measured.
    return {
        name: path.read_bytes()
        for name, path in files.items()
        if path.name != "versions.json" and ".store" not in path.name
    }


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("here")
    done = on("linux", folder, COMMANDS)
    assert json.loads(done.stdout.splitlines()[-1]) == CODES, done.stderr
    return done.stdout, written(folder)


@pytest.mark.linux
@pytest.mark.slow
@pytest.mark.parametrize("name", ["win32", "darwin"])
def test_the_main_commands_give_the_same_bytes_on_a_system_with_less(
    tmp_path: Path, here: tuple[str, dict[str, bytes]], name: str
) -> None:
    done = on(name, tmp_path, COMMANDS)
    assert json.loads(done.stdout.splitlines()[-1]) == CODES, done.stderr
    stdout, files = here
    found = written(tmp_path)
    assert {"run/summary.json", "sweep/rows.csv", "cmp/rows.csv", "plan.json", "layers.json"} < found.keys()
    assert sorted(found) == sorted(files)
    assert [file for file in files if found[file] != files[file]] == []
    measured = re.compile(r'"(wall_s|cpu_s|peak_rss_mb)": [\d.]+')
    assert measured.sub("", done.stdout) == measured.sub("", stdout)
    assert [part for file in found for part in Path(file).parts if FORBIDDEN.search(part)] == []
    assert not list(tmp_path.rglob(".*"))
    assert not list(tmp_path.rglob("*incomplete"))


@pytest.mark.linux
def test_what_the_other_systems_lack_is_gone_there(tmp_path: Path) -> None:
    script = """\
import sys; sys.path.insert(0, sys.argv[1])
import foreign; foreign.become("win32")
import os, signal, tempfile, pathlib
for name in foreign.MODULES_OF_POSIX:
    try: __import__(name)
    except ImportError: continue
    raise SystemExit(name)
assert not hasattr(os, "fork") and not hasattr(signal, "SIGHUP")
def refused(call, *arguments):
    try: call(*arguments)
    except OSError: return True
    raise SystemExit(f"{call} {arguments} is possible")
refused(os.open, ".", os.O_RDONLY)
refused(open, "/proc/self/statm")
os.mkdir("folder")
with open("folder/file", "w", encoding="utf-8") as file:
    file.write("a\\n")
    refused(os.rename, "folder", "other"); refused(os.unlink, "folder/file")
assert pathlib.Path("folder/file").read_bytes() == b"a\\r\\n"
os.rename("folder", "other")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(FOREIGN.parent)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.linux
def test_two_processes_share_no_run_without_locks_of_posix(tmp_path: Path) -> None:
    script = f"""\
import sys; sys.path.insert(0, {str(FOREIGN.parent)!r})
import foreign; foreign.become("win32")
from pathlib import Path
from gradtide.studies.store import Store
key = b"\\xff" * 32
with Store(Path("s.store")) as store, store.claim(key) as is_mine:
    print(is_mine, flush=True)
    sys.stdin.readline()
"""
    begin = {"cwd": tmp_path, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    one = subprocess.Popen([sys.executable, "-c", script], **begin)  # type: ignore[call-overload]
    assert one.stdout.readline() == "True\n"
    other = subprocess.Popen([sys.executable, "-c", script], **begin)  # type: ignore[call-overload]
    assert other.communicate("\n")[0] == "False\n"
    # The system ends the claim with the process, however that ends.
    one.kill()
    one.wait()
    third = subprocess.Popen([sys.executable, "-c", script], **begin)  # type: ignore[call-overload]
    assert third.communicate("\n")[0] == "True\n"
    one.communicate()


LONG = {
    "Ctrl-C": (["run", "long.json", "--max-time", "1h", "--json"], 130, "interrupted"),
    "a limit": (["run", "long.json", "--max-time", "3s", "--json"], 3, "limit"),
}


@pytest.mark.linux
@pytest.mark.slow
@pytest.mark.parametrize("why", LONG)
def test_ctrl_c_and_limits_end_a_command_without_signals_of_posix(tmp_path: Path, why: str) -> None:
    command, code, kind = LONG[why]
    script = f"""\
import sys; sys.path.insert(0, {str(FOREIGN.parent)!r})
import foreign; foreign.become("win32")
from gradtide import __main__ as command, estimate
estimate.Total.check = lambda *_: None
sys.argv = ["gradtide", *{command!r}]
print("begins", file=sys.stderr, flush=True)
command.main()
"""
    long = tiny_tenants()
    long["run"]["duration"] = "1000s"
    long["traffic"]["web"]["arrivals"]["rate"] = "6000/s"
    (tmp_path / "long.json").write_text(json.dumps(long), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while process.stderr.readline() != "begins\n":  # type: ignore[union-attr]
        assert process.poll() is None
    if why == "Ctrl-C":
        time.sleep(2)
        os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["kind"]) == (code, kind), err


# What is asked


def test_memory_is_told() -> None:
    resident, most, free = system.resident_bytes(), system.most_resident_bytes(), system.free_bytes()
    assert 10_000_000 < resident < 1.01 * most
    assert 0 < free < 1 << 45


def test_psutil_has_what_other_systems_are_asked_for() -> None:
    psutil = pytest.importorskip("psutil")
    resident = psutil.Process().memory_info().rss
    assert resident == pytest.approx(system.resident_bytes(), rel=0.2)
    assert 0 < psutil.virtual_memory().available < psutil.virtual_memory().total


@pytest.mark.linux
def test_a_system_without_a_type_of_service_receives_no_bursts(tmp_path: Path) -> None:
    done = on("win32", tmp_path, [["bursts", "receive", "--count", "1", "--port", "7477"]])
    assert json.loads(done.stdout) == [3]
    assert "Windows does not report the type of service of received datagrams" in done.stderr


def test_a_scenario_has_the_same_digest_with_ends_of_lines_of_windows(tmp_path: Path) -> None:
    (tmp_path / "layers.csv").write_bytes(LAYERS.encode())
    (tmp_path / "unix.toml").write_bytes(OWN.encode())
    (tmp_path / "dos.toml").write_bytes(OWN.replace("\n", "\r\n").encode())
    one, other = (Scenario.load(tmp_path / name) for name in ("unix.toml", "dos.toml"))
    assert one.to_toml().replace("unix", "") == other.to_toml().replace("dos", "")


# The tests of other modules

OF_LINUX = re.compile(
    r"/proc/|os\.fork\b|mkfifo|geteuid|\bresource\.|SIGHUP|SIGKILL|SIGALRM|setrlimit|killpg|os\.umask"
)


def test_what_needs_linux_is_marked() -> None:
    missing = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        imported = {one.name for node in tree.body if isinstance(node, ast.Import) for one in node.names}
        missing += [f"{path.name}: import {name}" for name in imported & set(MODULES)]
        # torch_ranks.MARKS has the mark.
        if path == Path(__file__) or re.search(
            r"^pytestmark = (torch_ranks\.MARKS$|.*(\n    )?pytest\.mark\.(linux|ray))", text, re.MULTILINE
        ):
            continue
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [ast.unparse(one) for one in node.decorator_list]
                if OF_LINUX.search(ast.get_source_segment(text, node) or "") and "pytest.mark.linux" not in marks:
                    missing.append(f"{path.name}: {node.name}")
    assert missing == []
