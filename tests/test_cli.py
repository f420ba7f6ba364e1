"""The command line: what it prints where, how it ends, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import gradtide as gt
from gradtide.cli.progress import Bar
from gradtide.studies.run_folder import summary
from plan_scenarios import TEN_LAYERS
from run_folders import contents, results

GRADTIDE = [sys.executable, "-m", "gradtide"]

KEYS_OF_A_JOB = {
    "iterations",
    "iteration_time_ms",
    "compute_ms",
    "comm_ms",
    "rho",
    "alpha",
    "utilisation",
    "straggler_percent",
    "slack_ms",
    "bytes_per_worker",
}


def test_json_is_one_document_with_the_keys_that_other_tools_rely_on(gradtide):
    code, out, err = gradtide("run", "paper/gao2020-ch4", "--json")
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert summary["schema"] == "gradtide.run/1"
    assert {"version", "engine", "seed", "scenario_sha256", "jobs", "traffic", "links", "cost"} <= set(summary)
    job = summary["jobs"]["train"]
    assert set(job) >= KEYS_OF_A_JOB
    assert set(job["iteration_time_ms"]) == {"mean", "p50", "p95", "min", "max", "all"}
    assert len(job["iteration_time_ms"]["all"]) == job["iterations"]
    assert set(job["slack_ms"]) == {"min", "p50", "max"}
    dropped = {"drops", "switch_drops", "host_drops"}
    assert set(summary["links"]) == {"max_utilisation", *dropped, "ce_marks", "max_queue_packets", "timeouts"}
    assert set(summary["cost"]) == {"events", "packet_hops", "cpu_s", "wall_s", "peak_rss_mb"}


def test_a_run_folder_holds_what_json_prints_but_for_measured_costs(gradtide, tmp_path):
    code, out, _ = gradtide("run", "paper/gao2020-ch4", "--json", "-o", tmp_path / "run")
    printed, kept = json.loads(out), json.loads((tmp_path / "run/summary.json").read_text())
    assert code == 0
    assert all(printed["cost"].pop(name) > 0 for name in ("cpu_s", "wall_s", "peak_rss_mb"))
    assert all(kept["cost"].pop(name) is None for name in ("cpu_s", "wall_s", "peak_rss_mb"))
    assert printed.pop("again")["command"] == "gradtide run paper/gao2020-ch4"
    assert kept.pop("again")["scenario"] == "scenario.resolved.toml"
    assert printed == kept
    assert set(contents(tmp_path / "run")) == {
        "scenario.resolved.toml",
        "versions.json",
        "summary.json",
        "iterations.csv",
        "transfers.csv",
        "operations.csv",
        "links.csv",
        "bandwidth.csv",
        "timeline.pftrace",
        "report.html",
    }


def test_the_resolved_scenario_gives_the_same_run(gradtide, tmp_path):
    gradtide("run", "paper/gao2020-ch4", "-o", tmp_path / "one", "--set", "cluster.link.rate=1Gbps", "--seed", 7)
    gradtide("run", tmp_path / "one/scenario.resolved.toml", "-o", tmp_path / "two")
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    one.pop("versions.json"), two.pop("versions.json")
    # What the first run assumed, the resolved file states.
    one.pop("report.html"), two.pop("report.html")
    first, second = (json.loads(folder.pop("summary.json")) for folder in (one, two))
    assert all(premise["stated"] for premise in second["premises"])
    assert [(p["name"], p["value"]) for p in first.pop("premises")] == [
        (p["name"], p["value"]) for p in second.pop("premises")
    ]
    assert first == second
    assert one == two


def test_two_runs_differ_in_the_time_stamp_alone(gradtide, tmp_path):
    scenario = tmp_path / "random.toml"
    scenario.write_text(
        '[job.a]\nmodel = "resnet50"\nworkers = 4\nschedule = { order = "random", barrier = false, fusion = "1MB" }\n'
    )
    for name, jobs in (("one", 1), ("two", 2)):
        assert gradtide("run", scenario, "-o", tmp_path / name)[0] == 0
        assert (
            gradtide("compare", scenario, "-o", tmp_path / f"compare-{name}", "-j", jobs, "--rate", "1Gbps,10Gbps")[0]
            == 0
        )
    for prefix in ("", "compare-"):
        assert results(tmp_path / f"{prefix}one") == results(tmp_path / f"{prefix}two")


def test_another_seed_gives_another_random_run(gradtide, tmp_path):
    scenario = tmp_path / "random.toml"
    scenario.write_text('[job.a]\nmodel = "resnet50"\nworkers = 4\nschedule = { order = "random", barrier = false }\n')
    times = [
        json.loads(gradtide("run", scenario, "--json", "--seed", seed)[1])["jobs"]["a"]["iteration_time_ms"]["all"]
        for seed in (0, 1)
    ]
    assert times[0] != times[1]


def test_bad_input_leaves_no_folder_and_says_where(gradtide, tmp_path):
    scenario = tmp_path / "bad.toml"
    scenario.write_text('[job.a]\nmodel = "resnet5"\nworkers = 0\n')
    code, out, err = gradtide("run", scenario, "-o", tmp_path / "out")
    assert (code, out) == (2, "")
    assert err.count("error[GT") == 2
    assert f"{scenario}:2" in err
    assert os.listdir(tmp_path) == ["bad.toml"]


def test_bad_input_with_json_is_json(gradtide, tmp_path):
    code, out, _ = gradtide("run", tmp_path / "none.toml", "--json")
    assert code == 2
    assert json.loads(out)["errors"][0]["code"] == "GT002"


def test_what_is_not_built_yet_is_refused_by_name(gradtide):
    code, _, err = gradtide("run", "paper/gao2020-ch4", "--set", 'run.probe={every="1ms"}')
    assert code == 2
    assert 'a probe is not built yet with engine = "fluid"' in err


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("V100", "Keep FIFO with barrier: at 10 Gbit/s, no other order of transfers would save time"),
        ("Xeon-E5-2686v4", ", with gradtide.torch. At "),
    ],
)
def test_the_headline_of_a_run_names_only_what_the_device_can_carry_out(device, says):
    job = {"model": "vgg16", "workers": 4, "compute": {"device": device, "batch": 1}}
    headline = summary(gt.run({"job": {"train": job}}))["headline"]
    assert says in headline
    assert "no device is given" not in headline


def test_the_headline_of_a_run_says_that_no_device_is_named():
    headline = summary(gt.run("paper/gao2020-ch4", link_rate="1Gbps"))["headline"]
    assert headline.endswith(
        "no device is given (--device), and gradtide.torch sends in this order only on CPUs with gloo."
    )


def test_a_foreign_folder_is_not_touched(gradtide, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    code, _, err = gradtide("run", "paper/gao2020-ch4", "-o", tmp_path)
    assert code == 2
    assert "files that gradtide did not write" in err
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}


def test_an_older_run_folder_is_replaced_whole(gradtide, tmp_path):
    gradtide("compare", "paper/gao2020-ch4", "-o", tmp_path / "out")
    gradtide("run", "paper/gao2020-ch4", "-o", tmp_path / "out")
    assert not (tmp_path / "out/runs").exists()
    assert os.listdir(tmp_path) == ["out"]


def test_a_run_says_that_it_replaces_an_earlier_folder_and_leaves_what_is_not_ours(gradtide, tmp_path):
    out = tmp_path / "out"
    assert gradtide("compare", "paper/gao2020-ch4", "-q", "-o", out)[2] == ""
    _, _, err = gradtide("run", "paper/gao2020-ch4", "-q", "-o", out)
    assert err == f"note: {out} holds the results of an earlier compare, and will be replaced\n"
    (out / "notes.txt").write_text("mine")
    before = contents(out)
    code, _, err = gradtide("run", "paper/gao2020-ch4", "-o", out)
    assert (code, "notes.txt (not gradtide's)" in err) == (2, True)
    assert contents(out) == before


NO_EFFECT = [
    ("convert TRACE --version 1.0.0", "--version would do nothing"),
    ("convert TRACE out.json --version 1.0.0", "--version would do nothing"),
    ("convert TRACE out.et --cut", "--cut would do nothing"),
    ("convert TRACE --to chakra", "--to would do nothing"),
]


@pytest.mark.parametrize(("line", "message"), NO_EFFECT, ids=[line for line, _ in NO_EFFECT])
def test_an_option_without_effect_is_refused(gradtide, monkeypatch, tmp_path, line, message):
    trace = next((Path(__file__).parent.parent / "scenarios" / "traces").rglob("*.json*"))
    monkeypatch.chdir(tmp_path)
    code, out, err = gradtide(*line.replace("TRACE", str(trace)).split())
    assert (code, out) == (2, "")
    assert message in err
    assert os.listdir(tmp_path) == []


def test_the_same_value_twice_is_no_conflict(gradtide):
    assert gradtide("run", "paper/gao2020-ch4", "-q", "--set", "run.seed=1", "--seed", 1)[0] == 0


class _Ranks:
    def __init__(self, answer):
        self.ranks = answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda dag: dict.fromkeys(dag.recvs, float("nan")), "the rank nan, which is not a number"),
        (lambda dag: dict.fromkeys(dag.recvs[1:], 1), "does not rank transfer"),
        (lambda dag: dict.fromkeys(dag.recvs, "first"), "the rank 'first'"),
        (lambda dag: 1 / 0, r"failed in test_cli.py, line \d+: ZeroDivisionError: division by zero"),
        (lambda dag: None, "returned NoneType"),
        (lambda dag: {**dict.fromkeys(dag.recvs, 1), "a": 2}, "ranks 'a', which is not a needed transfer"),
    ],
)
def test_a_scheduler_of_the_users_own_that_fails_is_one_clear_error(answer, message):
    with pytest.raises(ValueError, match=message) as raised:
        gt.compare("paper/gao2020-ch4", schedules=["fifo", _Ranks(answer)])
    assert "_Ranks" in str(raised.value)


def test_yes_and_no_are_booleans_in_rows_json_and_csv(gradtide, tmp_path):
    _, out, _ = gradtide("compare", "paper/gao2020-ch4", "--json", "-o", tmp_path / "out")
    assert {type(row["barrier"]) for row in json.loads(out)["rows"]} == {bool}
    assert (tmp_path / "out/rows.csv").read_text().splitlines()[1].split(",")[10] in ("true", "false")
    _, out, _ = gradtide("buy", "alexnet", "--nodes", "2", "--fabrics", "star", "--collectives", "ring", "--json")
    assert {type(row[key]) for row in json.loads(out)["rows"] for key in ("is_knee", "is_frontier")} == {bool}


@pytest.mark.parametrize(("limit", "code"), [("2000", 0), ("900", 1)])
def test_a_stated_check_decides_the_exit_code(gradtide, limit, code):
    assert gradtide("run", "paper/gao2020-ch4", "-q", "--fail-if", f"iteration_time_ms>{limit}")[0] == code


def test_a_check_of_a_comparison_names_the_run(gradtide):
    code, _, err = gradtide("compare", "paper/gao2020-ch4", "--rate", "1Gbps", "--fail-if", "saves_percent>15")
    assert code == 1
    assert "thesis-2w-1gbps-priority-without-barrier" in err


def test_a_command_with_subcommands_shows_its_own_options_and_them(gradtide):
    code, out, _ = gradtide("tenants", "--help")
    assert code == 0
    assert "--seeds" in out
    assert all(f"\n  {name} " in out for name in ("map", "policies", "lp"))
    assert "--job-loads" not in out
    code, out, _ = gradtide("tenants", "map", "--help")
    assert out.startswith("Usage: gradtide tenants map [OPTIONS]")
    assert "--job-loads" in out


def test_schema_explain_presets_doctor_and_version_print(gradtide):
    assert json.loads(gradtide("schema")[1])["$schema"].startswith("https://json-schema.org")
    assert gradtide("explain", "gt012")[1].startswith("GT012")
    models = json.loads(gradtide("presets", "model", "--json")[1])["presets"]
    assert {"resnet50", "vgg16", "bert_base", "gpt2_xl", "llama_7b"} <= {row["name"] for row in models}
    assert "paper/gao2020-ch4" in gradtide("presets")[1]
    graphs = json.loads(gradtide("presets", "graphs", "--json")[1])["presets"]
    assert {"tictac_vgg16", "caramel_resnet152_v2"} <= {row["name"] for row in graphs}
    assert gradtide("doctor")[0] == 0
    assert gradtide("--version")[1].startswith("gradtide 0.")


def test_report_makes_a_report_again(gradtide, tmp_path):
    gradtide("run", "paper/gao2020-ch4", "-o", tmp_path / "out")
    first = (tmp_path / "out/report.html").read_bytes()
    (tmp_path / "out/report.html").unlink()
    assert gradtide("report", tmp_path / "out")[0] == 0
    assert (tmp_path / "out/report.html").read_bytes() == first


def test_a_bug_of_ours_exits_70_and_asks_to_be_reported(gradtide, monkeypatch):
    monkeypatch.setattr("gradtide.scenario.Scenario.load", lambda name: 1 / 0)
    code, _, err = gradtide("run", "paper/gao2020-ch4")
    assert code == 70
    assert "ZeroDivisionError" in err
    assert "report it" in err


def test_a_full_disk_leaves_nothing_behind(gradtide, monkeypatch, tmp_path):
    def full(self, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    code, _, err = gradtide("run", "paper/gao2020-ch4", "-o", tmp_path / "out")
    assert code == 3
    assert "No space left on device" in err
    assert os.listdir(tmp_path) == []


@pytest.mark.linux
@pytest.mark.slow
def test_ctrl_c_ends_a_long_run_and_leaves_nothing(tmp_path):
    scenario = tmp_path / "long.toml"
    scenario.write_text(
        "[job.a]\nworkers = 8\niterations = 100000\n"
        'model = { kind = "thesis", layers = 450, time = "1ms" }\nschedule = { fusion = "10MB", barrier = false }\n'
    )
    command = [*GRADTIDE, "run", str(scenario), "-o", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        used_s = 0.0
        while used_s < 1.5:  # of processor time: a busy machine starts it late
            assert process.poll() is None, "the run ended before it could be interrupted; make it longer"
            time.sleep(0.05)
            used_s = sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().split()[13:15])) / os.sysconf(
                "SC_CLK_TCK"
            )
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert os.listdir(tmp_path) == ["long.toml"]


@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_reader_that_goes_away_is_no_error(reader):
    command = f"{' '.join(GRADTIDE)} schema | {reader}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_importing_gradtide_loads_nothing_heavy():
    code = "import sys, gradtide; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "ray", "pandas", "pyarrow", "numpy", "pydantic", "typer", "rich", "jinja2"} & set(loaded)


def test_progress_shows_no_hundred_per_cent_and_says_what_is_done_after_the_runs():
    shown = []

    class Fake:
        def add_task(self, what, total):
            shown.append((what, total))
            return 0

        def update(self, task, **changes):
            shown.append(changes)

    bar = Bar(Fake(), "4 runs")
    for share in (0.5, 1.0):
        bar(share)
    bar.stage("writing the report")
    assert shown == [
        ("4 runs", 1.0),
        {"completed": 0.5},
        {"description": "evaluating the runs", "completed": 0, "total": None},
        {"description": "writing the report", "completed": 0, "total": None},
    ]


@pytest.mark.parametrize("command", [["run", "paper/gao2020-ch4"], ["compare", "paper/gao2020-ch4"]])
def test_the_report_is_written_while_progress_is_shown(gradtide, monkeypatch, tmp_path, command):
    told = []

    class Recorder:
        def __call__(self, share):
            told.append(share)

        def stage(self, what):
            told.append(what)

    @contextmanager
    def bar(what, quiet):
        yield Recorder()
        told.append("end")
        assert (tmp_path / "out/report.html").exists()

    for module in ("run", "study"):
        monkeypatch.setattr(f"gradtide.cli.{module}.progress_bar", bar)
    assert gradtide(*command, "-o", tmp_path / "out")[0] == 0
    assert told[-2:] == ["writing the report", "end"]


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("gradtide ten", "tenants"),
        ("gradtide tenants po", "policies"),
        ("gradtide tenants map s.toml --job-l", "--job-loads"),
    ],
)
def test_the_shell_completes_commands_and_options(typed, completed):
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_GRADTIDE_COMPLETE": "complete_bash"}
    script = "from gradtide.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **words}, capture_output=True, text=True, check=False
    )
    assert completed in done.stdout.split(), done.stderr


@pytest.mark.parametrize(("arguments", "made"), [(["--help"], 0), (["run", "no-such.toml"], 1)])
def test_only_the_command_that_is_asked_for_is_made(arguments: list[str], made: int) -> None:
    code = (
        "import atexit, sys\n"
        "from gradtide import cli\n"
        "atexit.register(lambda: print('made', cli._made.cache_info().currsize))\n"
        f"sys.argv = {['gradtide', *arguments]!r}\n"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"made {made}" in done.stdout


def test_descriptions_of_keys_are_read_only_for_a_schema() -> None:
    code = (
        "import inspect\n"
        "asked = []\n"
        "inspect.getsource = inspect.getblock = lambda *_: asked.append(1) or 1 / 0\n"
        "import gradtide as gt\n"
        "gt.Scenario.from_dict({'job': {'a': {'model': 'resnet50', 'workers': 2}}})\n"
        "assert not asked\n"
        "try:\n"
        "    gt.schema()\n"
        "except ZeroDivisionError:\n"
        "    print('read')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "read\n", done.stderr


def test_without_a_command_the_help_is_printed_as_it_is(gradtide):
    code, out, err = gradtide()
    assert (code, out) == (2, "")
    assert err.startswith("Usage: gradtide [OPTIONS] COMMAND [ARGS]...\n\n  See, plan and tame")
    assert "\n  run " in err


def test_a_layer_table_is_a_model(gradtide, tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("layer,forward_us,backward_us,parameter_bytes\na,1000,2000,4000000\n")
    code, out, _ = gradtide("run", table, "--json")
    job = json.loads(out)["jobs"]["train"]
    assert (code, job["model"], job["workers"], job["compute_ms"]) == (0, "mine", 8, 3)
    assert "device" not in job
    table.write_text("name,forward,backward,bytes\na,1000,2000,4000000\n")
    code, _, err = gradtide("run", table)
    assert code == 2
    assert "write layer,forward_us,backward_us,parameter_bytes" in err


def test_a_run_says_what_is_computed_on_what(gradtide):
    code, out, _ = gradtide("run", "resnet50", "--set", "job.train.compute.batch=16")
    assert code == 0
    assert "computed on             V100, mini-batch of 16\n" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bert"], ["there is no scenario bert, and no model of that name", 'there are "bert_base"']),
        (["bert", "--cluster", "ethernet-10g/4"], ["--> SCENARIO ", "SCENARIO bert", 'there are "bert_base"']),
        (["nothing-like-it"], ["there is no scenario nothing-like-it", "name a .toml or .json file"]),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_model(gradtide, arguments, said):
    code, _, err = gradtide("run", *arguments)
    assert code == 2
    assert [text for text in said if text not in err] == []
    assert "replace()" not in err


def test_a_job_without_a_name_is_answered_with_how_to_name_it(gradtide, tmp_path):
    scenario = tmp_path / "s.toml"
    scenario.write_text('[job]\nmodel = "resnet50"\n')
    code, _, err = gradtide("run", scenario)
    assert code == 2
    assert "write a table with a name, as in [job.train]" in err


def test_a_file_that_is_no_store_has_no_file_of_claims_beside_it_afterwards(gradtide, tmp_path):
    table = tmp_path / "layers.csv"
    table.write_text("layer,forward_us,backward_us,parameter_bytes\na,1,2,4\n" * 40)
    for command in (["sweep", "list", table], ["compare", TEN_LAYERS, "--store", table]):
        assert gradtide(*command)[0] == 3
        assert os.listdir(tmp_path) == ["layers.csv"]


def test_an_order_that_is_written_is_a_scheduler(gradtide, tmp_path):
    path = tmp_path / "order.json"
    assert gradtide("order", "tictac_alexnet_v2", "--scheduler", "tic", "-o", path)[0] == 0
    written = json.loads(path.read_text())
    out = gradtide("order", "tictac_alexnet_v2", "--scheduler", "tic", "--json")[1]
    assert written["priority"] == json.loads(out)["priority"]
    code, out, _ = gradtide("order", "tictac_alexnet_v2", "--scheduler", path, "--json")
    assert (code, json.loads(out)["makespan"]) == (0, written["makespan"])
