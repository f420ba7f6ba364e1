"""The pages: every command and example in them runs, and prints what they show.

A ```console block is a terminal: lines with `$ `, with the lines after them that start with `>`, are run by bash in a
folder of the page's own that holds `scenarios/`, and what they print on stdout and stderr is compared with the lines
after them. A line `…` stands for any lines. A ```pycon block is a Python prompt. A ```toml block with a job in it is a
scenario. `UPDATE_GOLDEN=1` writes what the commands print now into the pages.
"""

import contextlib
import doctest
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import gradtide

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "changes").glob("README.md")]
)
# Pages whose blocks are fragments, compared with the code by tests of their own.
FRAGMENTS = ("docs/reference/errors.md", "docs/reference/scenario.md")
NEEDS_TORCH = ("docs/own-model.md", "docs/training.md")
BLOCK = re.compile(r"^```(console|pycon|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Terminal:
    """Runs commands in one folder, one after the other."""

    def __init__(self, folder):
        self.folder = folder
        self.code = 0
        shutil.copytree(ROOT / "scenarios", folder / "scenarios")
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        plain = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8"}
        self.env = {**os.environ, **plain, "PATH": paths}

    def run(self, command):
        done = subprocess.run(
            ["bash", "-c", f"(exit {self.code}); {command}"],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
        self.code = done.returncode
        return [line.rstrip() for line in done.stdout.rstrip("\n").split("\n")] if done.stdout.strip() else []


def steps(block):
    """Split a console block into (command, expected lines)."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.startswith(">") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
        else:
            found[-1][1].append(line.rstrip())
    return found


def matches(expected, printed):
    """Whether the lines are the same, `…` standing for any number of them."""
    pattern = "".join(r"(?:.*\n)*" if line == "…" else re.escape(line + "\n") for line in expected)
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


def shortened(expected, printed):
    """Return what is printed; where a page leaves out one stretch of lines, as many stand before and after it."""
    if expected.count("…") != 1 or len(printed) < len(expected):
        return printed
    before = expected.index("…")
    return [*printed[:before], "…", *printed[len(printed) - (len(expected) - before - 1) :]]


def try_console(block, terminal, page):
    shown = []
    for command, expected in steps(block):
        printed = terminal.run(command)
        if os.environ.get("UPDATE_GOLDEN"):
            expected = expected if matches(expected, printed) else shortened(expected, printed)
        else:
            assert matches(expected, printed), f"{page}: $ {command}\n" + "\n".join(printed)
        first, *more = command.split("\n")
        shown += [f"$ {first}", *(f"> {line}".rstrip() for line in more), *expected]
    return "\n".join(shown) + "\n"


def try_pycon(block, names, page, folder):
    here = os.getcwd()
    os.chdir(folder)
    try:
        shown = ""
        for example in doctest.DocTestParser().get_examples(block):
            first, *more = example.source.splitlines()
            printed = printed_by(example.source, names)
            shown += "".join(f"{line}\n" for line in [f">>> {first}", *(f"... {line}" for line in more)]) + printed
    finally:
        os.chdir(here)
    if os.environ.get("UPDATE_GOLDEN"):
        return shown
    assert shown == block, f"{page}:\n{shown}"
    return block


def printed_by(source, names):
    """Run a statement as a prompt does; return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "<pycon>", "single"), names)
    return printed.getvalue()


def try_toml(block, page, folder):
    if "[job." in block and page not in FRAGMENTS:
        gradtide.Scenario.from_toml(block, name=page, base_dir=folder / "scenarios")
    return block


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.torch) if page in NEEDS_TORCH else page for page in PAGES]
)
def test_every_command_and_example_of_the_page_prints_what_it_shows(page, tmp_path):
    if page in NEEDS_TORCH:
        pytest.importorskip("torch", reason="needs torch, which is optional: make test-torch")
    text = (ROOT / page).read_text(encoding="utf-8")
    terminal, names = Terminal(tmp_path), {}

    def try_block(match):
        kind, block = match[1], match[2]
        if kind == "console":
            block = try_console(block, terminal, page)
        elif kind == "pycon":
            block = try_pycon(block, names, page, tmp_path)
        else:
            block = try_toml(block, page, tmp_path)
        return f"```{kind}\n{block}```"

    now = BLOCK.sub(try_block, text)
    if os.environ.get("UPDATE_GOLDEN"):
        (ROOT / page).write_text(now, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_link_between_pages_leads_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        there = (ROOT / page).parent / target if target else ROOT / page
        assert there.exists(), f"{page} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}
            assert anchor in slugs, f"{page} links to {target}#{anchor}"


def test_a_page_that_shows_something_else_is_found(tmp_path):
    terminal = Terminal(tmp_path)
    assert try_console("$ echo one\none\n$ false\n$ echo $?\n1\n", terminal, "page")
    if not os.environ.get("UPDATE_GOLDEN"):
        with pytest.raises(AssertionError, match="two"):
            try_console("$ echo two\none\n", terminal, "page")
    assert matches(["a", "…", "d"], ["a", "b", "c", "d"])
    assert shortened(["a", "…", "d"], ["e", "f", "g", "h"]) == ["e", "…", "h"]
    assert shortened(["a", "d"], ["e", "f"]) == ["e", "f"]
    assert not matches(["a", "…", "d"], ["a", "b", "c"])
    if not os.environ.get("UPDATE_GOLDEN"):
        with pytest.raises(AssertionError, match="page"):
            try_pycon(">>> 1 + 1\n3\n", {}, "page", tmp_path)


def test_every_page_of_the_site_is_in_its_navigation():
    navigation = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "examples").glob("*.ipynb")}
    assert navigation == notebooks | {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}


# Pages with nothing to run: definitions, answers that link to examples, and steps for maintainers.
WITHOUT_EXAMPLE = ("docs/faq.md", "docs/glossary.md", "docs/releasing.md")


@pytest.mark.parametrize("page", [page for page in PAGES if page.count("/") == 1 and page.startswith("docs/")])
def test_every_page_for_users_has_an_example(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert (page in WITHOUT_EXAMPLE) != bool(re.search(r"^```(console|pycon|sh)\n", text, re.MULTILINE))


@pytest.mark.timeout(300)
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    site = tmp_path / "site"
    assert (site / "search" / "search_index.json").exists()
    assert "data:image/png" in (site / "notebooks" / "my_model" / "index.html").read_text(encoding="utf-8")
    for page in site.rglob("*.html"):
        fetched = re.findall(r"<(?:script|img|link)[^>]*", page.read_text(encoding="utf-8"))
        assert not [tag for tag in fetched if re.search(r"(src|href)=.?(https?:)?//", tag)], page


def test_the_version_to_cite_is_that_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {gradtide.__version__}\n" in citation


def test_forms_for_issues_are_complete_and_name_files_that_exist():
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))
    assert [form.stem for form in forms] == ["bug", "feature", "prediction"]
    for form in forms:
        asked = yaml.safe_load(form.read_text(encoding="utf-8"))
        assert set(asked) == {"name", "description", "labels", "body"}
        fields = [field for field in asked["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len({field["attributes"]["label"] for field in fields})
        assert any(field.get("validations", {}).get("required") for field in fields), form
    for text in [*forms, ROOT / ".github/pull_request_template.md"]:
        for named in re.findall(r"[\w/-]+\.(?:md|cff)\b", text.read_text(encoding="utf-8")):
            assert (ROOT / named).exists(), f"{text.name} names {named}"


def test_every_picture_of_the_gallery_is_small_and_has_a_command():
    sys.path.insert(0, str(ROOT / "tools"))
    pictures = pytest.importorskip("pictures", reason="needs playwright")
    commands = dict(pictures.commands())
    assert commands.keys() == pictures.PICTURES.keys()
    for name, command in commands.items():
        assert f"-o {Path(pictures.PICTURES[name].report).parent}" in command
    assert sum(path.stat().st_size for path in pictures.IMAGES.iterdir()) < 1_500_000
