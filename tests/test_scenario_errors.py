"""Every fault that a scenario can have: its code, the path it names, its line, and the mend it offers."""

import inspect
import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from error_tables import FOLDER, JOB, PACKET, Case, cases
from gradtide.codes import CODES, explain
from gradtide.errors import Fault, GradtideError, ScenarioError
from gradtide.scenario import Scenario, support
from gradtide.scenario.support import COMBINATIONS, ENGINES, FEATURES, Support

GOOD_CSV = "layer,forward_us,backward_us,parameter_bytes\nconv1,1,2,100\nfc,3,4,0\nout,5,6,300\n"

NOT_TEXT = [
    ("control character", "[run]\nseed = 1\x01\n", "GT001", "", 2, "fix"),
    ("bracket bomb", "x = " + "[" * 50_000, "GT001", "", None, ""),
    ("number of 5000 digits", "[run]\nseed = " + "9" * 5000, "GT001", "", None, "digits"),
    (
        "more bands than layers",
        f"{JOB}\npriority = [{'0,' * 2000}]\n",
        "GT014",
        "job.train.priority",
        4,
        "at most one band for each layer",
    ),
]
"""Cases that no file of tests/data/errors can show."""

TABLES = sorted(path.stem for path in FOLDER.glob("*.txt"))
CASES = [case for name in TABLES for case in cases(name)]
CASES += [Case(title, text, code, loc, hint, line, None, None) for title, text, code, loc, line, hint in NOT_TEXT]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fault_names_code_path_line_and_fix(case: Case) -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_toml(case.text, name="s.toml").check_built()
    (fault,) = caught.value.faults
    assert case.is_of(fault), str(caught.value)
    assert fault.file == "s.toml"
    assert fault.msg
    json.dumps(caught.value.errors)


IN_FILES = [case for kind in ("models", "orders", "flow_lists", "cdfs") for case in cases(f"files/{kind}")]
NOT_UTF8 = [
    ("not UTF-8, m.csv", "layer,é\n".encode("latin-1"), "GT003", 3, "job.a.model", "UTF-8"),
    ("NUL, m.csv", b"a\0,1,2,3\n", "GT003", 3, "job.a.model", "binary"),
    ("no gzip, m.json.gz", b"\x1f\x8bnot", "GT038", 3, "job.a.model", "training step"),
    ("flows not in UTF-8, f.csv", b"start_ns,src,dst,bytes\n\xff", "GT003", 8, "traffic.web.replay", "UTF-8"),
]
IN_FILES += [
    Case(title, content.decode("utf-8", "surrogateescape"), code, loc, hint, line, None, None)
    for title, content, code, line, loc, hint in NOT_UTF8
]
"""Titles end in the name of the file."""


@pytest.mark.parametrize("case", IN_FILES, ids=str)
def test_a_fault_of_a_named_file_points_into_that_file(tmp_path: Path, case: Case) -> None:
    name = case.title.rpartition(", ")[2]
    (tmp_path / "good.csv").write_text(GOOD_CSV)
    (tmp_path / name).write_bytes(case.text.encode("utf-8", "surrogateescape"))
    model = name if name.startswith("m.") else "good.csv"
    text = f'[job.a]\nworkers = 2\nmodel = "{model}"\n'
    if name == "o.csv":
        text += 'schedule = { order = "file", file = "o.csv" }\n'
    if name in ("f.csv", "s.cdf"):
        text += '[run]\nengine = "packet"\nduration = "4s"\n[traffic.web]\n'
        text += 'replay = "f.csv"\n' if name == "f.csv" else 'sizes = "s.cdf"\nload = 0.1\n'
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        Scenario.load(tmp_path / "s.toml")
    fault = caught.value.faults[0]
    assert case.is_of(fault), str(caught.value)
    in_scenario = case.loc.startswith(("job.", "traffic."))
    assert fault.file == (str(tmp_path / "s.toml") if in_scenario else name)


def load_fault(path: str | Path) -> dict[str, object]:
    return only_fault(Scenario.load, path)


def only_fault(call: Callable[..., object], *arguments: Any, **options: Any) -> dict[str, Any]:
    with pytest.raises(ScenarioError) as caught:
        call(*arguments, **options)
    (fault,) = caught.value.errors
    return fault


@pytest.mark.linux
def test_a_scenario_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text("")
    assert load_fault(tmp_path / "clutser.toml")["hint"] == "did you mean cluster.toml?"
    assert load_fault(tmp_path / "clutser.toml")["code"] == "GT002"
    assert load_fault(tmp_path / "cluster.toml")["code"] == "GT005"
    assert "directory" in str(load_fault(tmp_path)["msg"])
    (tmp_path / "utf16.toml").write_text(JOB, encoding="utf-16")
    assert load_fault(tmp_path / "utf16.toml")["code"] == "GT003"
    (tmp_path / "nul.toml").write_bytes(b"[job]\n\0")
    assert load_fault(tmp_path / "nul.toml")["code"] == "GT003"
    (tmp_path / "big.toml").write_bytes(b"#" * 10_000_001)
    assert load_fault(tmp_path / "big.toml")["code"] == "GT004"
    assert load_fault("bad\0name.toml")["code"] == "GT002"
    assert load_fault("x" * 5000)["code"] in ("GT002", "GT006")
    (tmp_path / "list.json").write_text("[1]")
    assert load_fault(tmp_path / "list.json")["code"] == "GT011"
    os.mkfifo(tmp_path / "pipe.toml")
    assert load_fault(tmp_path / "pipe.toml")["code"] == "GT002"


@pytest.mark.linux
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(JOB)
    path.chmod(0)
    assert load_fault(path)["code"] == "GT002"


def test_an_unknown_preset_offers_the_nearest() -> None:
    fault = load_fault("paper/gao2020-ch6")
    assert fault["code"] == "GT006"
    assert "paper/gao2020-ch" in str(fault["hint"])
    assert "paper/gao2020-ch4" in str(load_fault("nothing-like-it")["hint"])
    assert load_fault("paper/../../errors")["code"] == "GT006"


def test_an_unknown_model_or_device_lists_those_that_begin_so_or_all() -> None:
    pytest.importorskip("gradtide.roofline")
    fault = only_fault(Scenario.from_toml, '[job.a]\nmodel = "resnet5"\nworkers = 2')
    assert fault["code"] == "GT030"
    assert '"resnet50"' in fault["hint"]
    fault = only_fault(Scenario.from_toml, '[job.a]\nmodel = "resnet50"\nworkers = 2\ncompute.device = "v10"')
    assert (fault["code"], fault["line"]) == ("GT031", 4)
    assert "V100" in fault["hint"]


def test_all_faults_of_a_file_are_found_at_once() -> None:
    text = (
        "[job.train]\n"
        'model = { kind = "thesis", layers = 1 }\n'
        "wrokers = 2\n"
        'schedule = { order = "fifi", fusion = 25 }\n'
        "\n"
        "[job.other]\n"
        'model = { kind = "thesis" }\n'
        'hosts = ["h0", "h0"]\n'
        "iterations = 1000000000\n"
        "[cluster]\n"
        'topology = { kind = "star", ports = 4 }\n'
        'link = { rate = "10G", delay = "-1us" }\n'
        "[traffic.web]\n"
        "load = 0.5\n"
        "[run]\n"
        'engine = "pip"\n'
    )
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_toml(text, name="many.toml")
    assert [(e["code"], e["line"]) for e in caught.value.errors] == [
        ("GT014", 2), ("GT012", 3), ("GT013", 4), ("GT020", 4), ("GT041", 8), ("GT050", 9), ("GT015", 11),
        ("GT021", 12), ("GT023", 12), ("GT010", 13), ("GT010", 15), ("GT013", 16),
    ]  # fmt: skip


GOLDEN = """\
error[GT012]: unknown field `rate_gpbs`
  --> cluster.toml:7   cluster.link.rate_gpbs
 7 | rate_gpbs = 10
   | ^^^^^^^^^ did you mean `rate`, with a unit, as in rate = "10Gbps"?
help: gradtide explain GT012"""


def test_a_block_looks_as_the_interface_says() -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_toml(f"{JOB}\n\n\n[cluster.link]\nrate_gpbs = 10", name="cluster.toml")
    assert str(caught.value) == GOLDEN
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, GradtideError)
    assert caught.value.errors[0]["input"] == 10
    assert str(pickle.loads(pickle.dumps(caught.value))) == GOLDEN


def test_a_dict_has_paths_but_no_lines() -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict({"job": {"a": {"model": {"kind": "thesis"}, "workers": "2"}}})
    assert str(caught.value) == (
        'error[GT011]: expected a whole number, found the text "2"\n'
        "  --> <dict>   job.a.workers\n"
        "   = write workers = 8\n"
        "help: gradtide explain GT011"
    )
    assert caught.value.errors[0]["line"] is None


def test_json_has_lines_too(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"job": {"a": {\n  "model": {"kind": "thesis"},\n  "wor\\u006bers": 0}}}')
    fault = load_fault(path)
    assert (fault["code"], fault["loc"], fault["line"]) == ("GT014", "job.a.workers", 3)


def test_a_dict_that_holds_itself_is_refused() -> None:
    data: dict[str, object] = {}
    data["job"] = data
    assert only_fault(Scenario.from_dict, data)["code"] == "GT011"


def test_set_is_named_as_the_file() -> None:
    base = Scenario.load("paper/gao2020-ch4")
    with pytest.raises(ScenarioError) as caught:
        base.set({"cluster.link.rate": "10", "run.seed": "-1"})
    assert str(caught.value).startswith(
        "error[GT020]: the number 10 has no unit\n"
        "  --> --set   cluster.link.rate\n"
        "   | cluster.link.rate=10\n"
        "   |                   ^^ write a rate with its unit"
    )
    assert {e["file"] for e in caught.value.errors} == {"--set"}


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("job.tain.workers", "job.train"),
        ("link.rate", "cluster.link.rate"),
        ("rate", "write job.NAME"),
        ("", "write job.NAME"),
        ("job.train", "write job.NAME"),
        ("run..seed", "run.seed"),
        ("run.seed.x", "set run.seed itself"),
    ],
)
def test_a_path_of_set_that_names_nothing(path: str, hint: str) -> None:
    fault = only_fault(Scenario.load("paper/gao2020-ch4").set({"run.seed": 1}).set, {path: "1"})
    assert fault["code"] == "GT017"
    assert hint in fault["hint"]


CH4, CH5, ZHANG = "paper/gao2020-ch4", "paper/gao2020-ch5", "paper/zhang2017"
ECN = {"kind": "ecn", "threshold": "40pkt"}
NOT_RUN = [
    (CH4, "run.probe", {"every": "1ms"}, "GT090", "packet"),
    (CH5, "traffic.web.priority", {"adaptive": {"policy": "deadline"}}, "GT090", '"high"'),
    (ZHANG, "run.probe", {"every": "1ms"}, "GT090", 'engine = "packet"'),
    (ZHANG, "cluster.queue", ECN, "GT015", 'engine = "packet"'),
    (ZHANG, "cluster.switch_buffer", {"capacity": "4MB"}, "GT015", 'engine = "packet"'),
    (ZHANG, "cluster.transport.kind", "cubic", "GT015", 'engine = "packet"'),
    (CH4, "cluster.queue", {**ECN, "mark_at": "dequeue"}, "GT015", "pfifo_fast"),
    (CH4, "cluster.queue", {"kind": "pcn", "threshold": "40pkt", "announced": "10pkt"}, "GT015", "pfifo_fast"),
    (CH4, "cluster.queue.capacity", "60pkt", "GT015", "pfifo_fast"),
    (CH4, "cluster.switch_buffer", {"capacity": "4MB"}, "GT015", "packet"),
    (CH4, "cluster.transport.kind", "dctcp", "GT015", "newreno"),
]


@pytest.mark.parametrize(("name", "path", "value", "code", "instead"), NOT_RUN)
def test_what_the_engine_does_not_model_is_understood_but_not_run(
    name: str, path: str, value: object, code: str, instead: str
) -> None:
    scenario = Scenario.load(name).set({path: value})
    assert Scenario.from_toml(scenario.to_toml()) == scenario
    fault = only_fault(scenario.spec)
    assert fault["code"] == code
    assert ("is not built yet" if code == "GT090" else 'has no effect with engine = "fluid"') in fault["msg"]
    assert instead in fault["hint"]


ASKED = set(re.findall(r'yield "([\w ]+)"', inspect.getsource(support)))


def test_what_a_scenario_asks_for_is_in_the_tables() -> None:
    assert set(COMBINATIONS) <= ASKED <= {*FEATURES, *COMBINATIONS}


@pytest.mark.parametrize("name", sorted(set(FEATURES) - ASKED))
def test_only_what_is_refused_elsewhere_has_no_check(name: str) -> None:
    feature = FEATURES[name]
    missing = {feature.on(engine) for engine in ENGINES} - {Support.YES}
    assert not missing or re.search(r"\(GT\d{3}\)", feature.name)


def test_a_replayed_file_that_changed(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("start_ns,src,dst,bytes\n1,0,1,5\n")
    text = f"{JOB}\n[traffic.web]\nreplay = 'f.csv'\nreplay_sha256 = '{'0' * 64}'\n{PACKET}"
    fault = only_fault(Scenario.from_toml, text, base_dir=tmp_path)
    assert (fault["code"], fault["loc"], fault["line"]) == ("GT064", "traffic.web.replay_sha256", 6)


def test_thousands_of_faults_are_shown_as_fifty() -> None:
    rows = [{"name": f"l{i}", "forward": 1} for i in range(2_000)]
    with pytest.raises(ScenarioError) as caught:
        Scenario.from_dict({"job": {"a": {"model": {"layers": rows}, "workers": 2}}})
    assert len(caught.value.errors) == 200
    assert str(caught.value).count("error[GT") == 50
    assert str(caught.value).endswith("and 150 more errors")


def test_a_long_line_is_shown_around_the_offence() -> None:
    fault = Fault("GT012", "a", "m", None, "h", "f", 1, "x" * 500 + "bad" + "y" * 500, 500, 3)
    shown, carets = fault.render().split("\n")[2:4]
    assert len(shown) < 120
    assert shown[carets.index("^") : carets.index("^") + 3] == "bad"


def test_the_table_holds_exactly_the_codes_in_use() -> None:
    package = Path(__file__).parent.parent / "python" / "gradtide"
    alone = [package / f"{name}.py" for name in ("errors", "estimate", "inputs", "recognise", "traffic", "units")]
    files = [
        *alone,
        package / "studies/calibrate.py",
        *sorted((package / "studies/sweep").glob("*.py")),
        *sorted((package / "scenario").rglob("*.py")),
    ]
    used = {code for file in files for code in re.findall(r'"(GT\d{3})"', file.read_text())}
    assert used == set(CODES)
    tests = [*Path(__file__).parent.glob("test_*.py"), *FOLDER.rglob("*.txt")]
    tested = {code for path in tests for code in re.findall(r"GT\d{3}", path.read_text(encoding="utf-8"))}
    assert set(CODES) <= tested


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained(code: str) -> None:
    entry = CODES[code]
    text = explain(code.lower())
    assert text.startswith(f"{code}: {entry.title}\n")
    assert all(line.strip() in text for line in (entry.bad + "\n" + entry.good).splitlines())
    assert entry.bad != entry.good
    assert max(map(len, text.splitlines())) <= 100


def test_an_unknown_code_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        explain("GT999")
