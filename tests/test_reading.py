"""Reading users' files: what is read is bounded by what the file is, and what is shown by what may be seen."""

import gzip
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gradtide as gt
from gradtide import errors, inputs
from gradtide.errors import GradtideError
from gradtide.report.folder import RunFolderError
from gradtide.report.folder import read_text as read_result
from gradtide.scenario import Scenario
from gradtide.scenario.opdag import load_op_dag
from gradtide.scenario.plan import read_plan
from gradtide.scenario.prices import read_prices
from gradtide.studies.convert import convert

LAYERS = "layer,forward_us,backward_us,parameter_bytes\nfc,1,2,4096\n"


def scenario(folder: Path, *, model: str = "resnet50", more: str = "") -> Path:
    path = folder / "s.toml"
    path.write_text(f"[job.train]\nmodel = {json.dumps(model)}\nworkers = 2\n{more}")
    return path


def in_little_memory(folder: Path, code: str) -> str:
    """Run Python with 1 GB of memory and 60 s of processor time, and return what it prints."""
    limits = """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (10**9, 10**9))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        import gradtide as gt
    """
    program = textwrap.dedent(limits) + textwrap.dedent(code)
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def op(start: int, group: str = "0", name: str = "gloo:all_reduce") -> dict:
    args = {"Input Dims": [[1000]], "Input type": ["float"], "Process Group Name": group}
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": 5, "args": args}


def kineto(folder: Path, job: dict, events: int = 2) -> Path:
    path = folder / "t.json"
    path.write_text(json.dumps({"distributedInfo": job, "traceEvents": [op(10 * i) for i in range(events)]}))
    return path


# ── numbers that would be memory ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"rank": 2**32 - 1}, "rank"),
        ({"rank": 0, "world_size": 2**32 - 1}, "world_size"),
        ({"rank": 0, "pg_config": [{"pg_name": "0", "ranks": [0, 2**32 - 1]}]}, "ranks"),
    ],
)
def test_a_rank_that_no_job_has_is_refused_by_its_field(tmp_path, job, field):
    kineto(tmp_path, job)
    code = """
        try:
            print(gt.from_kineto("t.json").summary())
        except gt.TraceError as error:
            print(error)
    """
    said = in_little_memory(tmp_path, code)
    value = job[field] if field != "ranks" else 2**32 - 1
    assert f"`{field}` is {value}; a job has at most 1,000,000 ranks" in said


def test_a_date_in_the_name_of_a_trace_is_no_rank(tmp_path):
    trace = gt.from_kineto(kineto(tmp_path, {"rank": 0, "world_size": 1}))
    trace.save(tmp_path / "trace_20261122.et")
    code = """
        summary = gt.from_chakra("trace_20261122.et").summary()
        print([row["rank"] for row in summary["ranks"]], summary["missing_ranks"])
    """
    assert in_little_memory(tmp_path, code) == "[0] []\n"


def test_the_ranks_of_a_group_are_kept_once_however_many_transfers_it_has(tmp_path):
    ranks = list(range(0, 200_000, 2))
    path = kineto(tmp_path, {"rank": 0, "world_size": 200_000, "pg_config": [{"pg_name": "0", "ranks": ranks}]}, 4000)
    assert path.stat().st_size < 2_000_000
    code = """
        trace = gt.from_kineto("t.json")
        row = next(iter(trace.collectives.to_dicts()))
        step = trace.step()
        files = trace.save("dag.json")
        again = gt.traces.read("dag.json").collectives.to_dicts()
        assert step["transfers"][0]["group_size"] == 100_000
        assert files[0].stat().st_size < 5_000_000
        print(row["group_ranks"][-19:])
        print([one["group_ranks"] for one in again] == [row["group_ranks"]] * 4000)
    """
    assert in_little_memory(tmp_path, code).split("\n")[:2] == ["2046 and 98976 more", "True"]


# ── compressed files ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "read"), [("bomb.et", gt.from_chakra), ("bomb.json.gz", gt.from_kineto)])
def test_what_gzip_unpacks_to_is_bounded_while_it_is_unpacked(tmp_path, monkeypatch, name, read):
    monkeypatch.setattr(inputs, "FREE_BYTES", 3_000_000)
    path = tmp_path / name
    content = b" " * 20_000_000
    if name.endswith(".et"):
        # The first message of a Chakra file, and a node that never ends.
        content = b"\x07\n\x050.0.4" + b"\x80\x80\x80\x07" + content
    path.write_bytes(gzip.compress(content))
    unpacked = 0
    real = gzip.GzipFile.read

    def counted(file: gzip.GzipFile, size: int = -1) -> bytes:
        nonlocal unpacked
        found = real(file, size)
        unpacked += len(found)
        return found

    monkeypatch.setattr(gzip.GzipFile, "read", counted)
    with pytest.raises(gt.TraceError, match=r"unpacks to more than 3,000,000 bytes; .* --max-input SIZE"):
        read(path)
    assert unpacked <= 3_000_001
    with inputs.allowing(30_000_000), pytest.raises(gt.TraceError) as error:
        read(path)
    assert "--max-input" not in str(error.value)


def test_a_file_larger_than_its_limit_is_refused_and_the_option_named_that_reads_it(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text(LAYERS + "#" * inputs.MAX_TEXT_BYTES)
    with pytest.raises(gt.ScenarioError, match=r"--max-input 11MB reads it") as error:
        Scenario.load(scenario(tmp_path, model="m.csv"))
    assert error.value.errors[0]["code"] == "GT004"
    path.write_text(LAYERS + "\n" * inputs.MAX_TEXT_BYTES)
    with inputs.allowing(11_000_000):
        assert len(Scenario.load(scenario(tmp_path, model="m.csv")).jobs[0].layers) == 1


# ── faults in large files ─────────────────────────────────────────────────────────────────────────────────


def test_a_fault_holds_a_window_of_its_line_and_never_the_line(tmp_path):
    rows = ", ".join(f'{{ name = "l{i}", forwards = "1us" }}' for i in range(7000))
    path = tmp_path / "s.toml"
    path.write_text(f'[job.train]\nworkers = 2\nmodel = {{ name = "m", layers = [{rows}] }}\n')
    assert path.stat().st_size > 230_000
    code = """
        try:
            gt.Scenario.load("s.toml")
        except gt.ScenarioError as error:
            print(max(len(fault.text or "") for fault in error.faults), len(str(error)) < 50_000)
    """
    assert in_little_memory(tmp_path, code) == f"{errors.WINDOW} True\n"


def test_a_fault_in_a_long_line_still_points_at_its_place(tmp_path):
    cells = ",".join(f'"{"x" * 20}{i}"' for i in range(500))
    (tmp_path / "s.toml").write_text(f"[job.train]\nmodel = [{cells}, 5\n")
    with pytest.raises(gt.ScenarioError) as error:
        Scenario.load(tmp_path / "s.toml")
    fault = error.value.faults[0]
    line = (tmp_path / "s.toml").read_text().split("\n")[fault.line - 1]
    assert fault.text == line[fault.cut : fault.cut + len(fault.text)]


@pytest.mark.parametrize(
    "text",
    [
        "[" + ".".join(["a"] * 20_000) + "]\n",
        ".".join(["a"] * 20_000) + " = 1\n",
        "x = {" + ".".join(["a"] * 20_000) + " = 1}\n",
        "x = " + "[" * 20_000,
        "x = " + "[" * 900 + "1," * 15_000 + "]" * 900,
        "x = " + "{a = " * 5000 + "1" + "}" * 5000,
        "[[a]]\n" + "".join(f"[[{'.'.join('a' * depth)}]]\n" for depth in range(1, 33)) * 60 + "[b]\nc = 1\nc = 2\n",
    ],
    ids=["table", "key", "inline", "lists", "wide and deep", "tables", "lists of tables"],
)
def test_deep_tables_take_no_more_than_their_text(tmp_path, text):
    (tmp_path / "s.toml").write_text(text)
    code = """
        import time
        try:
            gt.Scenario.load("s.toml")
        except gt.ScenarioError as error:
            print(error.errors[0]["code"])
    """
    assert in_little_memory(tmp_path, code)[:2] == "GT"


@pytest.mark.parametrize("kind", ["scenario", "top", "jobs", "models", "model file", "rows", "plan", "prices"])
def test_20_000_unknown_keys_are_looked_up_200_times_at_most(tmp_path, monkeypatch, kind):
    import difflib

    looked_up = 0
    real = difflib.get_close_matches

    def counted(*args, **kwargs):
        nonlocal looked_up
        looked_up += 1
        return real(*args, **kwargs)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    many = {f"key{i}": 1 for i in range(20_000)}
    layer = {"name": "a", "parameter_bytes": 1, "forward_us": 1, "backward_us": 1}
    read = Scenario.load
    path = tmp_path / "s.json"
    job = {"model": "resnet50", "workers": 2}
    data: dict = {"job": {"train": {**job, **many}}}
    if kind == "top":
        data = {"job": {"train": job}, **many}
    elif kind == "jobs":
        data = {"job": {name: {**job, "workres": 3} for name in many}}
    elif kind == "models":
        data = {"job": {name: {**job, "model": "resnet5O"} for name in list(many)[:2000]}}
    elif kind == "model file":
        (tmp_path / "m.json").write_text(
            json.dumps({"schema": "gradtide.model/1", "name": "m", "layers": [layer], **many})
        )
        data = {"job": {"train": {**job, "model": "m.json"}}}
    elif kind == "rows":
        rows = [{**layer, "name": f"l{i}", **many} for i in range(2)]
        (tmp_path / "m.json").write_text(json.dumps({"schema": "gradtide.model/1", "name": "m", "layers": rows}))
        data = {"job": {"train": {**job, "model": "m.json"}}}
    elif kind == "plan":
        read, data = read_plan, {"schema": "gradtide.plan/1", "level": "x", "buckets": [1] * 20_000, **many}
    elif kind == "prices":
        read, path = read_prices, tmp_path / "p.toml"
    path.write_text(json.dumps(data) if kind != "prices" else "".join(f"{key} = 1\n" for key in many))
    with pytest.raises(gt.ScenarioError) as error:
        read(path)
    assert looked_up <= 2 * errors.MAX_FAULTS
    assert len(str(error.value)) < 100_000


def test_the_text_of_an_error_is_bounded_whatever_names_are_in_it(tmp_path):
    keys = "".join(f"{'k' * 20_000}{i} = 1\n" for i in range(100))
    (tmp_path / "s.toml").write_text(f'[job.train]\nmodel = "resnet50"\nworkers = 2\n{keys}')
    with pytest.raises(gt.ScenarioError) as error:
        Scenario.load(tmp_path / "s.toml")
    assert len(str(error.value)) < 250_000
    assert all(len(json.dumps(one)) < 10_000 for one in error.value.errors)


# ── what is no file ───────────────────────────────────────────────────────────────────────────────────────


READERS = {
    "scenario": ("x.toml", Scenario.load),
    "model csv": ("x.csv", lambda path: Scenario.load(scenario(path.parent, model=path.name))),
    "model json": ("x.json", lambda path: Scenario.load(scenario(path.parent, model=path.name))),
    "model trace": ("x.et", lambda path: Scenario.load(scenario(path.parent, model=path.name))),
    "links": (
        "x.csv",
        lambda path: Scenario.load(
            scenario(path.parent, more='[cluster.topology]\nkind = "custom"\nlinks = "x.csv"\n')
        ),
    ),
    "replay": (
        "x.csv",
        lambda path: Scenario.load(
            scenario(path.parent, more='[traffic.bg]\nreplay = "x.csv"\n[run]\nduration = "1s"\n')
        ),
    ),
    "sizes": (
        "x.csv",
        lambda path: Scenario.load(
            scenario(path.parent, more='[traffic.bg]\nsizes = "x.csv"\nload = 0.1\n[run]\nduration = "1s"\n')
        ),
    ),
    "ranking": (
        "x.csv",
        lambda path: Scenario.load(
            scenario(path.parent, more='[job.train.schedule]\norder = "file"\nfile = "x.csv"\n')
        ),
    ),
    "kineto": ("x.json", gt.from_kineto),
    "chakra": ("x.et", gt.from_chakra),
    "trace": ("x.json", lambda path: gt.traces.read(path)),
    "dag": ("x.json", load_op_dag),
    "plan": ("x.json", read_plan),
    "prices": ("x.toml", read_prices),
    "result": ("x.csv", read_result),
    "convert csv": ("x.csv", lambda path: convert(str(path), None, from_format="flows")),
    "convert json": ("x.json", lambda path: convert(str(path), None)),
}


@pytest.mark.linux
@pytest.mark.parametrize("kind", ["fifo", "device", "socket", "folder"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path, monkeypatch, reader, kind):
    monkeypatch.chdir(tmp_path)
    name, read = READERS[reader]
    path = tmp_path / name
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name)
    with pytest.raises((GradtideError, RunFolderError, ValueError)) as error:
        read(path)
    if kind != "folder":
        assert re.search("not a regular file|outside the scenario's folder", str(error.value))


# ── no traceback ──────────────────────────────────────────────────────────────────────────────────────────

MODEL = '{{"schema": "gradtide.model/1", "name": "m", "layers": [{{"name": "a", "parameter_bytes": 1, {}}}]}}'
TIMED = '"backward_us": 1, "forward_us": {}'
PLAN = '{{"schema": "gradtide.plan/1", "level": "none", "buckets": [], "predicted": {{"overhead_us": {}}}}}'


@pytest.mark.parametrize(
    ("reader", "content", "said"),
    [
        ("model json", '{"ops": [], "target": 0, "time_unit": ["ns"]}', "a list is not a unit of time"),
        ("model json", '{"ops": [], "target": 0, "time_unit": {}}', "not a unit of time"),
        ("model json", MODEL.format(TIMED.format("1" * 22)), "too large"),
        ("model json", MODEL.format(TIMED.format("1" * 400)), "a number is too long"),
        ("model json", MODEL.format(TIMED.format("1e400")), "is not a number of microseconds"),
        ("plan", PLAN.format("1" * 400), "a number is too long"),
        ("plan", PLAN.format("1" * 30), "expected a time"),
        ("links", "a,b\nh0,s0\rh1,s0\nh0,h0\n", "x.csv:4"),
        ("links", "a,b\nh0," + "s" * 140_000 + "\n", "not valid CSV"),
        ("links", 'a,b\n"h0,s0\n', "the line has 1 fields"),
        ("model csv", LAYERS.replace("fc", "f" * 140_000), "not valid CSV"),
    ],
)
def test_a_wrong_value_is_a_fault_and_no_traceback(tmp_path, reader, content, said):
    name, read = READERS[reader]
    (tmp_path / name).write_bytes(content.encode())
    with pytest.raises(gt.ScenarioError) as error:
        read(tmp_path / name)
    assert said in str(error.value)


def test_a_plan_in_python_with_a_number_of_400_digits_is_refused():
    plan = {"schema": "gradtide.plan/1", "level": "none", "buckets": [], "predicted": {"overhead_us": 10**400}}
    with pytest.raises(gt.ScenarioError, match="expected a time"):
        read_plan(plan)


@pytest.mark.parametrize("path", ["x" * 300, "x" * 300 + "/t.json", "a\0b", "t.json/x"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.json").write_text("{}")
    for read in (Scenario.load, gt.from_kineto, gt.from_chakra, read_plan, load_op_dag):
        with pytest.raises(GradtideError):
            read(path)


# ── lines of files that a scenario may not show ───────────────────────────────────────────────────────────

SECRET = "root:hunter2:19000\nuser:hunter2:19001\nhunter2\n"


@pytest.mark.parametrize("reader", ["model csv", "model json", "model trace", "links", "replay", "sizes", "ranking"])
@pytest.mark.parametrize("how", ["outside", "link", "inside"])
def test_an_error_shows_no_line_of_a_file_outside_the_folder(tmp_path, monkeypatch, reader, how):
    name, read = READERS[reader]
    here, away = tmp_path / "here", tmp_path / "away"
    here.mkdir()
    away.mkdir()
    monkeypatch.chdir(here)
    content = SECRET if name != "x.json" else SECRET.replace("\n", " ")
    (here / name if how == "inside" else away / name).write_text(content)
    if how == "link":
        (here / name).symlink_to(away / name)
    if how == "outside":
        real = scenario
        monkeypatch.setitem(
            globals(),
            "scenario",
            lambda folder, model="resnet50", more="": real(
                here, model=model.replace("x.", "../away/x."), more=more.replace("x.", "../away/x.")
            ),
        )
    with pytest.raises(gt.ScenarioError) as error:
        read(here / name)
    told = str(error.value) + json.dumps(error.value.errors)
    if how == "inside" and reader != "model trace":
        assert "hunter2" in told
    elif how != "inside":
        assert "hunter2" not in told
        assert "outside the scenario's folder" in told


def test_a_file_that_the_command_line_names_is_quoted(tmp_path, monkeypatch):
    here, away = tmp_path / "here", tmp_path / "away"
    here.mkdir()
    away.mkdir()
    monkeypatch.chdir(here)
    (away / "m.csv").write_text(SECRET)
    with pytest.raises(gt.ScenarioError, match="hunter2"):
        Scenario.load(scenario(here)).set({"job.train.model": str(away / "m.csv")})


# ── the option ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_size_that_cannot_be_read_names_the_option():
    with pytest.raises(ValueError, match="--max-input"):
        inputs.allow("many")
