"""What users rely on stays: names, options, keys, tables and documents of every version, and what newer ones say."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import scripts
from gradtide import report
from gradtide.report.folder import RunFolderError
from gradtide.schemas import kind_and_version, newer_version
from run_folders import make_run

ROOT = Path(__file__).resolve().parent.parent
LISTS = sorted((Path(__file__).parent / "surface").glob("*.json"))

WHAT_TO_DO = """
These are gone, or mean another thing, and users may rely on them:

{lines}

docs/reference/stability.md says how a name goes. Nothing of a version that is not yet released has to stay:
`python tools/surface.py` lists it anew.
"""


@cache
def tool() -> Any:
    return scripts.load("tools/surface.py")


def broken(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return what is gone, what is another thing, and what is asked for now and was not."""
    lines = [f"{name}: gone" for name in old if name not in new]
    lines += [
        f"{name}: was {was!r}, is {new[name]!r}"
        for name, was in old.items()
        if name in new and new[name] != was and not is_free(was, new[name])
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
def today() -> dict[str, Any]:
    return json.loads(tool().text(tool().surface()))


@pytest.mark.slow
@pytest.mark.parametrize("listed", LISTS, ids=lambda path: path.stem)
def test_nothing_that_users_rely_on_is_gone_or_another_thing(today: dict[str, Any], listed: Path) -> None:
    lines = broken(json.loads(listed.read_bytes()), today)
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
    assert broken(OLD, {name: value for name, value in (OLD | change).items() if value is not None}) == found


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ("gradtide.run/1", ("run", 1)),
        ("gradtide.trace-summary/12", ("trace-summary", 12)),
        *((schema, None) for schema in ("gradtide.run", "other.run/1", "gradtide.run/1.0", None, 7)),
    ],
)
def test_a_schema_says_kind_and_version(schema: object, found: tuple[str, int] | None) -> None:
    assert kind_and_version(schema) == found


def test_a_newer_version_is_told_from_another_kind() -> None:
    known = ["gradtide.run/2", "gradtide.plan/1"]
    says = "is of a newer version of gradtide: its schema is gradtide.run/10, and this version reads gradtide.run/2"
    assert newer_version("gradtide.run/10", known) == says
    others = ("gradtide.run/2", "gradtide.run/1", "gradtide.walk/9", None)
    assert [newer_version(one, known) for one in others] == [None] * 4


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_document_of_a_newer_version_is_one_clear_error(gradtide: Any, tmp_path: Path) -> None:
    plan, model, trace = tmp_path / "plan.json", tmp_path / "layers.json", tmp_path / "trace.json"
    run, other = tmp_path / "run", tmp_path / "other"
    make_run(run, layers=2, iterations=1)
    make_run(other, layers=2, iterations=1)
    layer = {"name": "fc", "forward_us": 1000, "backward_us": 2000, "parameter_bytes": 10**6}
    model.write_text(json.dumps({"schema": "gradtide.model/1", "name": "fc", "layers": [layer]}), encoding="utf-8")
    (tmp_path / "s.toml").write_text('[job.train]\nmodel = "layers.json"\nworkers = 2\n', encoding="utf-8")
    for command in (
        ["plan", tmp_path / "s.toml", "--device", "cpu", "-q", "-o", plan],
        ["convert", ROOT / "tests" / "data" / "traces", trace, "--rank", 0, "-q"],
    ):
        code, _, err = gradtide(*command)
        assert code == 0, err
    commands = {
        "gradtide.model/1": (model, ["run", tmp_path / "s.toml"]),
        "gradtide.plan/1": (plan, ["run", "alexnet", "--plan", plan]),
        "gradtide.run/1": (run / "summary.json", ["report", run]),
        "gradtide.folder/1": (other / "versions.json", ["report", other]),
        "gradtide.trace/1": (trace, ["convert", trace]),
    }
    for schema, (file, command) in commands.items():
        replace(file, schema, f"{schema[:-1]}2")
        code, out, err = gradtide(*command)
        assert (code, out) == (2, ""), command
        assert err.count("is of a newer version of gradtide") == 1, err
        assert f"this version reads {schema}" in err
    with pytest.raises(RunFolderError, match="newer"):
        report.write_report(run)
    replace(other / "versions.json", '  "schema": "gradtide.folder/2",\n', "")
    with pytest.raises(RunFolderError, match=r"key `schema` is not gradtide\.folder/1"):
        report.write_report(other)
