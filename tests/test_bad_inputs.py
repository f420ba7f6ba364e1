"""Bad inputs to every command: each is refused with one clear error, and nothing is left behind.

Clear means: the error has its code or names the option, says in which file and line the fault stands, and shows how to
fix it. What each text says word for word is in the tests of the single readers.
"""

import re
import sys

import pytest

from error_tables import RESNET50, Case, Command, cases, commands
from gradtide import cli

NOT_TEXT = [
    Command("binary", {"s.toml": "\0\1\2"}, ["run", "s.toml"], "GT003", ["--> s.toml"]),
    Command("chakra trunc", {"a.et": "\x08\xff\xff"}, ["convert", "a.et"], None, ["a.et", "byte 0"]),
]
"""Cases that no file of tests/data/errors can show."""


@pytest.fixture
def refused(monkeypatch, capsys, tmp_path):
    """Return a function that runs a command on bad files and returns what it prints on stderr."""

    def call(files, arguments):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text.encode("latin-1" if "\x80" <= max(text, default="") <= "\xff" else "utf-8"))
        before = sorted(tmp_path.rglob("*"))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", ["gradtide", *arguments])
        code = cli._main()
        out, err = capsys.readouterr()
        assert code == 2, out + err
        assert out == ""
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return call


def check(err, code, fragments):
    for fragment in fragments:
        assert fragment in err
    # Names of ours, where the user's would stand.
    assert not re.search(r"replace\(\)|<dict>|<toml>|Traceback|object at 0x", err)
    assert err.count("error[") + err.count("rror: ") >= 1
    if code:
        assert f"error[{code}]" in err
        # Every fault shows where it is and how to fix it: under the line, or after an equals sign.
        for fault in err.split("error[")[1:]:
            assert re.search(r"^ +\| +\^+ \S|^ += \S", fault, re.MULTILINE), fault


@pytest.mark.parametrize("case", cases("commands/scenarios"), ids=str)
def test_a_bad_scenario_is_refused_with_its_line_and_fix(refused, case: Case):
    place = "s.toml" if case.line is None else f"s.toml:{case.line}"
    err = refused({"s.toml": case.text}, ("run", "s.toml"))
    check(err, case.code, [f"--> {place}   {case.loc}".rstrip(), case.hint])
    if case.width is not None:
        assert f"| {' ' * (case.column - 1)}{'^' * case.width} " in err


@pytest.mark.parametrize("case", [*commands("commands/lines"), *NOT_TEXT], ids=str)
def test_a_bad_command_is_refused_with_its_option_and_fix(refused, case: Command):
    check(refused({"s.toml": RESNET50, **case.files}, case.words), case.code, case.says)
