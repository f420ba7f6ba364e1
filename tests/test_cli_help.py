"""The help of every command: whole at any width, with examples that parse; and errors of the command line."""

import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from gradtide import cli
from gradtide.cli.examples import EXAMPLES, example_lines, words_of
from gradtide.cli.groups import Helped, is_argument, usage_message


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its name; the name of `gradtide` is empty."""
    root: Any = typer.main.get_command(cli.app)
    yield "", root
    for name in cli.COMMANDS:
        command = root.commands[name]
        yield name, command
        yield from ((f"{name} {inner}", command.commands[inner]) for inner in cli.SUBCOMMANDS.get(name, ()))


COMMANDS = dict(commands())


def words(text: str) -> list[str]:
    """Return the words of a text; a word that a line break divides at a hyphen is one."""
    return re.sub(r"-\n\s+", "-", text).split()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", COMMANDS, ids=lambda name: name or "gradtide")
def test_a_help_is_whole_at_any_width(gradtide: Any, monkeypatch: Any, name: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = gradtide(*name.split(), "--help")
    assert (code, err) == (0, "")
    shown = " ".join(words(out))
    texts = [COMMANDS[name].help, *(param.help for param in COMMANDS[name].params if not is_argument(param))]
    texts += [command.help.partition("\n\n")[0] for inner, command in COMMANDS.items() if is_below(inner, name)]
    assert [text for text in texts if " ".join(words(text)) not in shown] == []
    assert [line for line in out.splitlines() if len(line) > width] == []


def is_below(inner: str, name: str) -> bool:
    """Return whether the help of `name` lists the command `inner`."""
    return inner.rpartition(" ")[0] == name and inner != name


def test_a_summary_fits_on_a_line_of_the_list_of_commands() -> None:
    summaries = {name: command.help.partition("\n\n")[0] for name, command in COMMANDS.items() if name}
    assert {name: text for name, text in summaries.items() if len(text) > 61 or not text.endswith(".")} == {}


def test_every_command_has_its_own_class_and_every_option_a_heading() -> None:
    for name, command in COMMANDS.items():
        assert isinstance(command, Helped), name
    headings = {param.rich_help_panel for command in COMMANDS.values() for param in command.params}
    assert headings == {None, "Training", "Scenario", "Output", "Runs and limits"}


def test_every_command_has_examples() -> None:
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize(
    ("name", "example"), [(name, example) for name, examples in EXAMPLES.items() for example in examples]
)
def test_an_example_parses(name: str, example: str) -> None:
    first, *rest = words_of(example)
    command = COMMANDS[first]
    if rest and rest[0] in getattr(command, "commands", {}):
        first, command, rest = f"{first} {rest[0]}", command.commands[rest[0]], rest[1:]
    assert name in ("", first)
    # Parsing creates no file and runs no command.
    assert command.make_context(first, rest).params


@pytest.mark.parametrize("width", [40, 60, 80])
def test_an_example_that_is_continued_is_the_same_command(width: int) -> None:
    for name, examples in EXAMPLES.items():
        joined = re.sub(r" \\\n +", " ", "\n".join(example_lines(name, width)))
        assert joined.split("\n") == list(examples)


@pytest.mark.parametrize("name", [name for name, one in COMMANDS.items() if any(map(is_argument, one.params))])
def test_a_command_without_its_argument_shows_what_to_type(gradtide: Any, name: str) -> None:
    if not next(param for param in COMMANDS[name].params if is_argument(param)).required:
        return
    code, out, err = gradtide(*name.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: Missing argument ")
    assert all(f"\n  {example}\n" in err for example in EXAMPLES[name])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run resnet50 --workrs 2", "No such option: --workrs; did you mean --workers?"),
        ("run resnet50 --batch 0", "--batch 0: write a whole number of at least 1"),
        ("run resnet50 --batch=two", "--batch two: write a whole number of at least 1"),
        ("plan resnet50 --noise 2", "--noise 2: write a number from 0 to 0.5"),
        ("bursts host --port 70000", "--port 70000: write a whole number from 1 to 65535"),
        ("run resnet50 --efficiency most", "--efficiency most: write a number"),
        ("run resnet50 vgg16", "Unexpected argument: vgg16; leave vgg16 out"),
        ("tenants mapp s.toml", "did you mean gradtide tenants map?"),
        ("rnu resnet50", "Did you mean 'run'?"),
        ("run resnet50 --batch", "--batch requires a value"),
        ("run resnet50 --rate 1Gbps --set cluster.link.rate=2Gbps", "--rate 1Gbps and --set cluster.link.rate=2Gbps"),
        ("run resnet50 --device V100 --set job.train.compute.device=K80", "leave one of them out"),
    ],
)
def test_a_wrong_command_line_is_one_error_with_its_fix(gradtide: Any, arguments: str, message: str) -> None:
    code, out, err = gradtide(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err


def test_an_option_that_takes_no_number_keeps_the_reason_of_its_error() -> None:
    [prices] = [param for param in COMMANDS["buy"].params if param.name == "prices"]
    error = typer.BadParameter("Path 'p.toml' is not readable.", param=prices)  # type: ignore[arg-type]
    assert usage_message(error) == "--prices: Path 'p.toml' is not readable."


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("run llama3-8", ["llama3-8b"]),
        ("tenants paper/p", ["paper/pcn"]),
        ("compare resnet50 --model alexnet,vgg", ["alexnet,vgg16", "alexnet,vgg19"]),
        ("run resnet50 --cluster h100", ["h100-hgx"]),
        ("run resnet50 --device H100", ["H100", "H100-bf16"]),
        ("run paper/gao2020-ch4 --set cluster.link.r", ["cluster.link.rate="]),
        ("run resnet50 --set job.train.compute.dev", ["job.train.compute.device="]),
        ("explain GT00", ["GT001", "GT002", "GT003", "GT004", "GT005", "GT006", "GT007"]),
        ("presets pa", ["paper"]),
        ("run resnet50 --engine p", ["packet"]),
        ("convert a.csv --to chakra", ["chakra"]),
    ],
)
def test_the_shell_completes_values(monkeypatch: Any, capsys: Any, typed: str, completed: list[str]) -> None:
    monkeypatch.setenv("COMP_WORDS", f"gradtide {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    monkeypatch.setenv("_GRADTIDE_COMPLETE", "complete_bash")
    monkeypatch.setattr(sys, "argv", ["gradtide"])
    with pytest.raises(SystemExit):
        cli.app(prog_name="gradtide", standalone_mode=False)
    assert capsys.readouterr().out.split() == completed


def test_files_are_completed_beside_presets(monkeypatch: Any, capsys: Any, tmp_path: Any) -> None:
    for name in ("paths.toml", "palm.csv", "pages.txt"):
        (tmp_path / name).touch()
    (tmp_path / "pack").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMP_WORDS", "gradtide run pa")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("_GRADTIDE_COMPLETE", "complete_bash")
    with pytest.raises(SystemExit):
        cli.app(prog_name="gradtide", standalone_mode=False)
    found = capsys.readouterr().out.split()
    assert [name for name in found if not name.startswith("paper/")] == ["pack/", "palm.csv", "paths.toml"]
