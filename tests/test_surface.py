"""What users rely on stays: names, options, keys, tables and documents of every version, and its files."""

import importlib.util
import json
import os
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide import files, report
from gradtide.report.folder import RunFolderError
from gradtide.studies import upgrade as upgrading
from gradtide.studies.sweep.study import Study

ROOT = Path(__file__).resolve().parent.parent
SURFACE = Path(__file__).with_name("surface")
VERSIONS = sorted(path.name for path in SURFACE.glob("[0-9]*"))
EARLIER = sorted(path.name for path in (SURFACE / "earlier").iterdir())

WHAT_TO_DO = """
These are gone, or mean another thing, and users may rely on them:

{lines}

Let the old ones work and warn (gradtide.deprecated), and add the new ones beside them: docs/reference/stability.md says
for how long. What went after that is named in tests/surface/gone.json. Nothing of a version that is not yet released
has to stay: `python tools/surface.py` lists it anew.
"""


@cache
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("surface", ROOT / "tools" / "surface.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kept(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SURFACE / version / "surface.json").read_bytes())
    return found


def broken(old: dict[str, Any], new: dict[str, Any], gone: dict[str, str]) -> list[str]:
    """Return what is gone, what is another thing, and what is asked for now and was not."""
    lines = [f"{name}: gone" for name in old if name not in new and name not in gone]
    lines += [
        f"{name}: was {was!r}, is {new[name]!r}"
        for name, was in old.items()
        if name in new and new[name] != was and name not in gone and not is_free(was, new[name])
    ]
    asked = (name for name, value in new.items() if name not in old and tool().REQUIRED in str(value))
    return lines + [f"{name}: asked for now" for name in asked if any(one in old for one in parents(name))]


def is_free(was: Any, now: Any) -> bool:
    """Whether a change breaks nothing: what had to be given has a default now, or a name is no longer needed."""
    if not isinstance(was, str) or not isinstance(now, str):
        return False
    required = tool().REQUIRED
    return (was.endswith(required) and not now.endswith(required)) or now == was.replace("by name", "by place")


def parents(name: str) -> list[str]:
    """Return what a new name may be part of: a function of its parameter, a command of its argument."""
    return [name.rpartition(sign)[0] for sign in "(. " if sign in name]


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    samples = tmp_path_factory.mktemp("samples")
    tool().make_samples(samples)
    found: dict[str, Any] = tool().surface(samples)
    return json.loads(json.dumps(found))


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_that_users_rely_on_is_gone_or_another_thing(today: dict[str, Any], version: str) -> None:
    gone = json.loads((SURFACE / "gone.json").read_bytes())
    lines = broken(kept(version), today, gone)
    assert not lines, WHAT_TO_DO.format(lines="\n".join(lines))


OLD = {
    "python run": "function",
    "python run(scenario)": "by place, required",
    "python run(limits)": "by name, default None",
    "command run": "command",
    "scenario job.NAME": "key",
    "scenario run.seed by default": 0,
}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"python run(limits)": None}, ["python run(limits): gone"]),
        (
            {"python run(limits)": "by name, default 1"},
            ["python run(limits): was 'by name, default None', is 'by name, default 1'"],
        ),
        ({"scenario run.seed by default": 1}, ["scenario run.seed by default: was 0, is 1"]),
        ({"python run(more)": "by name, required"}, ["python run(more): asked for now"]),
        ({"command run FILE": "required"}, ["command run FILE: asked for now"]),
        ({"scenario job.NAME.size": "required"}, ["scenario job.NAME.size: asked for now"]),
        ({"python run(more)": "by name, default None", "command fly": "command"}, []),
        ({"python run(scenario)": "by place, default None"}, []),
        ({"python run(limits)": "by place, default None"}, []),
    ],
)
def test_additions_are_fine_and_what_breaks_a_user_is_named(change: dict[str, Any], found: list[str]) -> None:
    new = {name: value for name, value in (OLD | change).items() if value is not None}
    assert broken(OLD, new, {}) == found
    assert broken(OLD, new, dict.fromkeys(OLD, "deprecated since 0.2")) == [one for one in found if "now" in one]


# Files of released versions


def sample(version: str, name: str, tmp_path: Path) -> Path:
    place = tmp_path / name
    source = SURFACE / version / "samples" / name
    return Path(shutil.copytree(source, place) if source.is_dir() else shutil.copy(source, place))


def folders(version: str) -> list[str]:
    return sorted(path.parent.name for path in (SURFACE / version / "samples").glob("*/summary.json"))


FOLDERS = [(version, name) for version in VERSIONS for name in folders(version)]
SCENARIOS = [
    (version, path.relative_to(SURFACE / version / "samples").as_posix())
    for version in VERSIONS
    for path in sorted((SURFACE / version / "samples").rglob("*.toml"))
    if "study" not in path.name
]


@pytest.mark.parametrize(("version", "name"), FOLDERS)
def test_a_folder_of_results_has_its_report(gradtide: Any, tmp_path: Path, version: str, name: str) -> None:
    folder = sample(version, name, tmp_path)
    assert gradtide("report", folder)[0] == 0
    headline = json.loads((folder / "summary.json").read_bytes())["headline"]
    text = re.sub(r"<[^>]+>", "", (folder / "report.html").read_text(encoding="utf-8"))
    assert headline[:20] in text
    if (folder / "operations.csv").exists():
        assert report.write_timeline(folder).stat().st_size > 100


@pytest.mark.parametrize(("version", "name"), SCENARIOS)
def test_a_scenario_is_read(version: str, name: str) -> None:
    scenario = gt.Scenario.load(SURFACE / version / "samples" / name)
    again = gt.Scenario.from_toml(scenario.to_toml(), name=scenario.name)
    assert again.sha256 == scenario.sha256
    assert scenario.warnings == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_studies_plans_models_and_stores_are_read(gradtide: Any, tmp_path: Path, version: str) -> None:
    samples = SURFACE / version / "samples"
    assert len(Study.load(samples / "study.toml")) == 4
    plans = [gt.read_plan(samples / name) for name in ("plan.json", "plan/plan.json")]
    assert plans[0].buckets == plans[1].buckets
    assert len(plans[0].buckets) >= 1
    layers = gt.run({"job": {"train": {"model": str(samples / "layers.json"), "workers": 2}}})
    assert layers.job["parameter_bytes"] == 5_000_000
    store = sample(version, "sweep.store", tmp_path)
    (row,) = gt.sweep_list(store)
    # Two points; their seeds decide nothing, and share a run.
    assert (row["scenario"], row["engine"], row["runs"]) == ("star.toml", "fluid", 2)
    assert gradtide("sweep", "list", store)[0] == 0


# Folders of earlier versions


@pytest.fixture
def old(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a folder of an earlier version, with a report that it had."""
    folder = tmp_path / "old"
    shutil.copytree(SURFACE / "earlier" / request.param, folder)
    (folder / "report.html").write_text("the page of that version", encoding="utf-8")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("old", EARLIER, indirect=True)
def test_a_folder_of_an_earlier_version_is_converted_and_nothing_is_lost(
    gradtide: Any, old: Path, tmp_path: Path
) -> None:
    before = contents(old)
    code, _, err = gradtide("report", old)
    assert (code, f"gradtide convert {old} NEW" in err) == (2, True)
    code, out, err = gradtide("convert", old, tmp_path / "new", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert (document["schema"], document["format"], document["notes"]) == (
        "gradtide.convert/1",
        "folder of version 0",
        [],
    )
    assert contents(old) == before
    after = contents(tmp_path / "new")
    assert after.keys() == before.keys()
    same = [name for name in before if after[name] == before[name]]
    assert {Path(name).name for name in before.keys() - same} <= {"versions.json", "summary.json", "report.html"}
    for name in (name for name in before if Path(name).name in ("versions.json", "summary.json")):
        was, now = json.loads(before[name]), json.loads(after[name])
        was.pop("entries", None)
        assert_kept(was, now)
    assert gradtide("report", tmp_path / "new")[0] == 0
    assert files.foreign(tmp_path / "new") == {}
    code, _, err = gradtide("convert", tmp_path / "new", tmp_path / "newer")
    assert (code, "nothing to convert" in err) == (2, True)
    assert sorted(os.listdir(tmp_path)) == ["new", "old"]


def assert_kept(was: Any, now: Any) -> None:
    """Check that a document holds all that an older one held."""
    if isinstance(was, dict):
        assert was.keys() <= now.keys()
        for key, value in was.items():
            assert_kept(value, now[key])
    else:
        assert now == was


@pytest.mark.parametrize("old", ["run", "packet"], indirect=True)
def test_what_a_user_put_into_an_old_folder_is_copied_and_stays_the_users(
    gradtide: Any, old: Path, tmp_path: Path
) -> None:
    (old / "notes.txt").write_text("what I think of this run", encoding="utf-8")
    code, _, err = gradtide("convert", old, tmp_path / "new")
    assert (code, "notes.txt was copied: not gradtide's" in err) == (0, True)
    assert (tmp_path / "new" / "notes.txt").read_text(encoding="utf-8") == "what I think of this run"
    assert files.foreign(tmp_path / "new") == {"notes.txt": "not gradtide's"}
    code, _, err = gradtide("run", "paper/gao2020-ch4", "-q", "-o", tmp_path / "new")
    assert (code, "notes.txt" in err) == (2, True)


def test_a_folder_with_a_list_and_without_a_schema_is_of_version_0(gradtide: Any, tmp_path: Path) -> None:
    # As revisions shortly before version 0.1 wrote them.
    old = sample(VERSIONS[-1], "compare", tmp_path)
    for versions in old.rglob("versions.json"):
        replace(versions, '  "schema": "gradtide.folder/1",\n', "")
    replace(old / "rows.csv", "train", "mine")
    (old / "data").symlink_to("elsewhere")
    assert gradtide("report", old)[0] == 2
    code, _, err = gradtide("convert", old, tmp_path / "new")
    assert code == 0, err
    assert os.readlink(tmp_path / "new" / "data") == "elsewhere"
    assert "rows.csv was copied: changed since" in err
    assert files.foreign(tmp_path / "new").keys() == {"rows.csv", "data"}
    assert gradtide("report", tmp_path / "new")[0] == 0
    schemas = {json.loads(path.read_bytes())["schema"] for path in (tmp_path / "new").rglob("versions.json")}
    assert schemas == {"gradtide.folder/1"}


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.mark.parametrize("old", ["run"], indirect=True)
@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("summary.json", ('"all"', '"some"'), "no key `all`"),
        ("summary.json", ("{", "["), "summary.json"),
        ("iterations.csv", ("time_us", "time"), "no column `time_us`"),
        ("versions.json", ("{", '{"schema": "gradtide.folder/9",'), "is of a newer version of gradtide"),
        ("versions.json", ("{", '{"schema": "gradtide.run/1",'), "key `schema` is not gradtide.folder/1"),
    ],
)
def test_a_damaged_or_newer_folder_is_named_and_nothing_is_written(
    gradtide: Any, old: Path, tmp_path: Path, name: str, change: tuple[str, str], says: str
) -> None:
    replace(old / name, *change)
    before = contents(old)
    code, out, err = gradtide("convert", old, tmp_path / "new")
    assert (code, out) == (2, ""), err
    assert says in err
    assert os.listdir(tmp_path) == ["old"]
    assert contents(old) == before


@pytest.mark.parametrize("old", ["run"], indirect=True)
def test_an_interrupted_conversion_leaves_nothing(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupts(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "write_report", interrupts)
    with pytest.raises(KeyboardInterrupt):
        upgrading.upgrade(old, tmp_path / "new")
    assert os.listdir(tmp_path) == ["old"]


@pytest.mark.parametrize("old", ["run"], indirect=True)
def test_a_target_inside_the_old_folder_or_of_somebody_else_is_refused(old: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stays as it is"):
        upgrading.upgrade(old, old / "new")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("a year of work", encoding="utf-8")
    with pytest.raises(gt.GradtideError, match="holds files that are not a run's"):
        upgrading.upgrade(old, tmp_path / "mine")


# Documents of newer versions


@pytest.mark.parametrize("version", VERSIONS[-1:])
def test_a_document_of_a_newer_version_is_one_clear_error(gradtide: Any, tmp_path: Path, version: str) -> None:
    plan, model = sample(version, "plan.json", tmp_path), sample(version, "layers.json", tmp_path)
    run, other = sample(version, "star", tmp_path), sample(version, "fluid", tmp_path)
    replace(plan, "gradtide.plan/1", "gradtide.plan/2")
    replace(model, "gradtide.model/1", "gradtide.model/2")
    replace(run / "summary.json", "gradtide.run/1", "gradtide.run/2")
    replace(other / "versions.json", "gradtide.folder/1", "gradtide.folder/2")
    (tmp_path / "s.toml").write_text('[job.train]\nmodel = "layers.json"\nworkers = 2\n', encoding="utf-8")
    trace = tmp_path / "trace.json"
    assert gradtide("convert", ROOT / "tests" / "data" / "traces", trace, "--rank", 0, "-q")[0] == 0
    assert gradtide("convert", trace)[0] == 0
    replace(trace, "gradtide.trace/1", "gradtide.trace/2")
    commands = (
        ["run", tmp_path / "s.toml"],
        ["run", "alexnet", "--plan", plan],
        ["report", run],
        ["report", other],
        ["convert", trace],
    )
    for command in commands:
        code, out, err = gradtide(*command)
        assert (code, out) == (2, ""), command
        assert err.count("is of a newer version of gradtide") == 1, err
        assert "this version reads gradtide." in err
    with pytest.raises(RunFolderError, match="newer"):
        report.write_report(run)
