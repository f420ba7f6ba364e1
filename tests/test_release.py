"""What a stranger installs and how it is released: commands in texts and errors, wheels, changelog, workflows."""

import importlib.metadata
import json
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from gradtide import extras

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import lowest  # noqa: E402 - a script
import release  # noqa: E402 - a script
import wheels  # noqa: E402 - a script

FILES = sorted(wheels.tracked())
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
OPTIONAL = PROJECT.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0]
EXTRAS = set(re.findall(r"^(\w+) = ", OPTIONAL, re.MULTILINE))


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


# How it is installed


@pytest.mark.parametrize("package", ["pyarrow", "highspy", "ray", "torch"])
def test_an_optional_package_is_installed_by_the_requirement_that_the_project_declares(package):
    declared = re.search(rf'"({package}>=[^"]+)"', PROJECT)[1]
    assert extras.how_to_install(package).endswith(f"install '{declared}'")


def test_every_package_that_the_project_needs_has_a_lowest_version_to_test_with():
    declared = re.findall(
        r'^ *(?:\w+ = \[)?"([\w-]+)>=([\d.]+)', PROJECT.partition("[dependency-groups]")[0], re.MULTILINE
    )
    found = {one.partition(";")[0] for one in lowest.lowest(sorted(EXTRAS))}
    assert found == {f"{package}=={version}" for package, version in declared if package != "maturin"}
    assert {"numpy", "pydantic", "typer", "pyarrow", "ray", "torch"} <= {one.partition("==")[0] for one in found}


@pytest.mark.parametrize("requirement", ["numpy", "numpy<3", "numpy~=1.26"])
def test_a_requirement_without_a_lowest_version_is_refused(requirement, monkeypatch, tmp_path):
    project = tmp_path / "pyproject.toml"
    project.write_text(f'[project]\ndependencies = ["{requirement}"]\n[project.optional-dependencies]\n')
    monkeypatch.setattr(lowest, "PROJECT", project)
    with pytest.raises(ValueError, match="lowest version"):
        lowest.lowest([])


def test_a_copy_that_was_never_installed_names_the_package_alone(monkeypatch):
    def unknown(_):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "requires", unknown)
    assert extras.how_to_install("ray").endswith(" install ray")


def test_pip_is_that_of_the_interpreter(monkeypatch, tmp_path):
    beside = Path(sys.executable).parent / "pip"
    monkeypatch.setattr(extras.shutil, "which", lambda _: str(beside))
    assert extras.how_to_install("ray").startswith("pip install ")
    monkeypatch.setattr(extras.shutil, "which", lambda _: str(tmp_path / "pip"))
    assert extras.how_to_install("ray").startswith(f"{sys.executable} -m pip install ")
    monkeypatch.setattr(extras.shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "executable", "/opt/my python/bin/python")
    assert extras.how_to_install("ray").startswith("'/opt/my python/bin/python' -m pip install ")


def test_only_one_module_says_how_to_install():
    modules = [name for name in FILES if name.startswith("python/") and name.endswith(".py")]
    assert [name for name in modules if "pip install" in text_of(name)] == ["python/gradtide/extras.py"]


def test_only_the_page_on_installing_speaks_of_the_index():
    """Until gradtide is published, `pip install gradtide` installs nothing."""
    ending = (".md", ".ipynb", ".py", "Makefile", ".toml")
    speaking = {
        name
        for name in FILES
        if name.endswith(ending) and re.search(r"pip install [^`\n]*\bgradtide(\[|==|`|$)", text_of(name), re.MULTILINE)
    }
    assert speaking <= {"docs/install.md", "README.md", "docs/faq.md", "tests/test_release.py"}
    for name in speaking - {"tests/test_release.py"}:
        for line in text_of(name).splitlines():
            assert "pip install gradtide`" not in line or "published" in line, f"{name}: {line}"


def test_the_page_on_installing_has_every_extra():
    assert set(re.findall(r"^\| `(\w+)` \|", text_of("docs/install.md"), re.MULTILINE)) == EXTRAS
    pages = "".join(text_of(name) for name in FILES if name.endswith(".md"))
    named = ",".join(re.findall(r"'(?:\.|gradtide)\[([\w,]+)\]'", pages)).split(",")
    assert set(named) == EXTRAS == {"df", "lp", "ray", "torch"}


# Wheels

CORE = "gradtide/_core.abi3.so"
SOURCES = {"python/gradtide/__init__.py", "python/gradtide/py.typed", "README.md"}
LICENCES = [f"gradtide-1.2.3.dist-info/licenses/{name}" for name in wheels.LICENCES]
INSIDE = ["gradtide/__init__.py", "gradtide/py.typed", CORE, *LICENCES]
GOOD = "gradtide-1.2.3-cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"


@pytest.mark.parametrize(
    "file",
    [
        GOOD,
        "gradtide-1.2.3-cp310-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
        "gradtide-1.2.3-cp310-abi3-musllinux_1_2_x86_64.whl",
        "gradtide-1.2.3-cp310-abi3-macosx_11_0_arm64.whl",
        "gradtide-1.2.3-cp310-abi3-win_amd64.whl",
    ],
)
def test_a_whole_wheel_has_no_fault(file):
    assert wheels.wheel_faults(file, 3_000_000, INSIDE, "1.2.3", SOURCES) == []


@pytest.mark.parametrize(
    ("file", "size", "names", "said"),
    [
        (GOOD.replace("1.2.3", "1.2.4"), 1, INSIDE, "the name is not"),
        (GOOD.replace("abi3", "cp310"), 1, INSIDE, "the name is not"),
        ("gradtide-1.2.3-cp310-abi3-linux_x86_64.whl", 1, INSIDE, "the name is not"),
        ("gradtide-1.2.3-cp310-abi3-manylinux_2_34_x86_64.whl", 1, INSIDE, "the name is not"),
        (GOOD, 8_000_001, INSIDE, "8.0 MB; at most 8 MB"),
        (GOOD, 1, [name for name in INSIDE if name != CORE], "the core is missing"),
        *(
            (GOOD, 1, [name for name in INSIDE if name != gone], f"{gone} is missing")
            for gone in INSIDE
            if gone != CORE
        ),
    ],
)
def test_a_fault_of_a_wheel_is_found(file, size, names, said):
    (fault,) = wheels.wheel_faults(file, size, names, "1.2.3", SOURCES)
    assert fault.startswith(file)
    assert said in fault


def test_an_sdist_without_a_source_or_a_licence_is_found():
    inside = {*SOURCES, *wheels.LICENCES, "Cargo.lock"}
    assert wheels.sdist_faults("gradtide-1.2.3.tar.gz", inside, "1.2.3", SOURCES) == []
    for gone in inside:
        (fault,) = wheels.sdist_faults("gradtide-1.2.3.tar.gz", inside - {gone}, "1.2.3", SOURCES)
        assert gone in fault
    assert wheels.sdist_faults("gradtide-1.2.2.tar.gz", inside, "1.2.3", SOURCES)


def test_the_wheel_has_the_licence_of_every_crate_in_it():
    tree = ["cargo", "tree", "--offline", "-p", "gradtide-py", "-e", "normal,no-proc-macro", "--prefix", "none"]
    crates = subprocess.run([*tree, "--format", "{p}"], cwd=wheels.ROOT, capture_output=True, text=True, check=True)
    inside = {tuple(re.match(r"(\S+) v(\S+)", line).groups()) for line in crates.stdout.splitlines()}
    told = set(re.findall(r"^- (\S+) (\S+)$", text_of("LICENSE-THIRD-PARTY"), re.MULTILINE))
    left = {crate for crate in inside - told if not crate[0].startswith("gradtide")}
    assert not left, "make licences writes LICENSE-THIRD-PARTY again"
    locked = re.findall(r'^name = "(.+)"\nversion = "(.+)"$', text_of("Cargo.lock"), re.MULTILINE)
    assert told <= set(locked), "make licences writes LICENSE-THIRD-PARTY again"


# Versions and the changelog

HEAD = "# Changelog\n\nAbout.\n"
TODAY = date(2026, 1, 2)


def test_fragments_become_a_section_above_earlier_versions():
    fragments = {"b.added.md": "Two.\nLines.\n", "a.added.md": "One.\n", "c.prediction.md": "Moved.\n\nWhy.\n"}
    first = release.assembled(HEAD, fragments, "0.1.0", TODAY)
    assert first == (
        "# Changelog\n\nAbout.\n\n## 0.1.0 - 2026-01-02\n\n### Changed predictions\n\n- Moved.\n\n  Why.\n\n"
        "### Added\n\n- Two.\n  Lines.\n- One.\n"
    )
    second = release.assembled(first, {"d.fixed.md": "Well."}, "0.2.0", TODAY)
    assert second == first.replace("## 0.1.0", "## 0.2.0 - 2026-01-02\n\n### Fixed\n\n- Well.\n\n## 0.1.0")
    assert release.section(second, "0.2.0") == "## 0.2.0 - 2026-01-02\n\n### Fixed\n\n- Well."
    with pytest.raises(SystemExit, match=r"a section 0\.2\.0 already"):
        release.assembled(second, {}, "0.2.0", TODAY)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.b.md", "x", "the name is not NAME.KIND.md"),
        ("A.added.md", "x", "the name is not NAME.KIND.md"),
        ("a.added.md", " \n", "is empty"),
        ("a.added.md", "[x](../README.md)", "links to ../README.md"),
        ("a.added.md", "[x](docs/nowhere.md#x)", "links to docs/nowhere.md#x"),
    ],
)
def test_a_fault_of_a_fragment_is_found(name, text, said):
    (fault,) = release.fragment_faults({name: text})
    assert said in fault


def test_the_fragments_and_versions_of_the_repository_have_no_fault():
    done = subprocess.run([sys.executable, str(ROOT / "tools/release.py"), "check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"version {importlib.metadata.version('gradtide')}" in done.stdout


def test_kinds_are_those_of_the_page_on_fragments():
    assert re.findall(r"^\| `(\w+)` \|", text_of("changes/README.md"), re.MULTILINE) == list(release.HEADINGS)


def test_versions_that_differ_are_found(tmp_path):
    (tmp_path / "CITATION.cff").write_text("version: 0.1.0\n")
    (tmp_path / "Cargo.lock").write_text('[[package]]\nname = "gradtide-net"\nversion = "0.2.0"\n')
    assert release.version_faults("0.2.0", tmp_path) == ["CITATION.cff: version 0.1.0; Cargo.toml has 0.2.0"]
    (fault,) = release.version_faults("0.1.0", tmp_path)
    assert fault == "Cargo.lock, gradtide-net: version 0.2.0; Cargo.toml has 0.1.0"


def test_a_tag_is_a_release_only_if_all_is_ready():
    changelog = release.assembled(HEAD, {}, "0.2.0", TODAY)
    home = "https://example.org/gradtide"
    assert release.tag_faults("v0.2.0", "0.2.0", {}, changelog, home) == []
    assert len(release.tag_faults("v0.2.1", "0.2.0", {}, changelog, home)) == 1
    assert len(release.tag_faults("v0.2.0", "0.2.0", {"a.added.md": "x"}, changelog, home)) == 1
    assert len(release.tag_faults("v0.2.0", "0.2.0", {}, HEAD, home)) == 1
    assert len(release.tag_faults("v0.2.0", "0.2.0", {}, changelog, None)) == 1


def test_links_of_the_readme_become_addresses():
    text = "![a (b)](docs/a.png) [b](docs/b.md#c) [c](#c) [d](https://d.org) `[e]` [![f](f.png)](g.md)"
    assert release.complete_links(text, "https://h.org/g", "v1.0.0") == (
        "![a (b)](https://h.org/g/raw/v1.0.0/docs/a.png) [b](https://h.org/g/blob/v1.0.0/docs/b.md#c) [c](#c) "
        "[d](https://d.org) `[e]` [![f](https://h.org/g/raw/v1.0.0/f.png)](https://h.org/g/blob/v1.0.0/g.md)"
    )
    readme = release.complete_links(text_of("README.md"), "https://h.org/g", "v1.0.0")
    assert not re.findall(r"\]\((?!https:|#)[^)]*\)", readme)


# Workflows

ALLOWED = ("rustup target add ", "python -m pip install ", "gh release create ")
STEP = re.compile(r"^\s*(?:- )?(run|uses): (.*)$", re.MULTILINE)
WORKFLOWS = [name for name in FILES if name.startswith(".github/workflows/")]


def test_there_are_workflows():
    assert {Path(name).stem for name in WORKFLOWS} == {"ci", "docs", "release"}


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_runs_what_anybody_can_run(workflow):
    """Each step is a target of the Makefile, a script of the repository, or sets up Rust or Python."""
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE))
    for kind, what in STEP.findall(text_of(workflow)):
        if kind == "uses":
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", what), what
            continue
        words = what.split("python:3.12-alpine ")[-1].split()
        if what == "make ${{ matrix.target }}":
            words[1:] = re.search(r"target: \[(.*)\]", text_of(workflow))[1].split(", ")
        if words[0] == "make":
            assert set(words[1:]) <= targets, what
        elif words[0] in ("python", "python3") and words[1] != "-m":
            assert words[1] in FILES, what
        else:
            assert words[0] in FILES or what.startswith(ALLOWED), what


def test_a_workflow_names_only_groups_and_platforms_that_there_are():
    text = text_of(".github/workflows/release.yml")
    assert set(re.findall(r"--group (\w+)", text)) <= set(re.findall(r"^(\w+) = \[$", PROJECT, re.MULTILINE))
    assert len(json.loads(re.search(r"python: (\[.*\])", text)[1])) == 2
