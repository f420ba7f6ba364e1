"""The options that several commands take, and what is made of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.cli.ends import as_usage_error, fail_usage

if TYPE_CHECKING:
    from gradtide.estimate import Limits
    from gradtide.scenario import Scenario

ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO", help="File (.toml, .json) or preset (paper/…).")]


OutOption = Annotated[Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write a folder of results.")]


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="No talk and no progress.")]


VerboseOption = Annotated[bool, typer.Option("-v", "--verbose", help="Say what is resolved and what it cost.")]


SeedOption = Annotated[int | None, typer.Option("--seed", min=0, help="Root of all random streams.")]


JobsOption = Annotated[int, typer.Option("-j", "--jobs", min=1, help="Runs under way at once; changes no result.")]


SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a key, as in cluster.link.rate=1Gbps.")
]


EngineOption = Annotated[str | None, typer.Option("--engine", help="Network engine: pipe or packet (fluid to come).")]


FailIfOption = Annotated[
    list[str] | None,
    typer.Option("--fail-if", metavar="FIGURE>LIMIT", help="Exit 1 if it holds, as in 'iteration_time_ms>950'."),
]


MaxMemoryOption = Annotated[
    str | None, typer.Option("--max-memory", metavar="SIZE", help="Refuse what would take more; 80 % of what is free.")
]


MaxTimeOption = Annotated[
    str | None, typer.Option("--max-time", metavar="TIME", help="Refuse what would take longer, as in 10h; 1h.")
]


def load(name: str, changes: Sequence[str] | None, seed: int | None, engine: str | None) -> "Scenario":
    """Read a scenario, with the changes of `--set`, `--seed` and `--engine`."""
    from gradtide.scenario import Scenario

    return changed(Scenario.load(name), changes, seed, engine)


def changed(scenario: "Scenario", changes: Sequence[str] | None, seed: int | None, engine: str | None) -> "Scenario":
    """Apply the changes of `--set`, `--seed` and `--engine`."""
    values: dict[str, Any] = {}
    for change in changes or ():
        key, equals, value = change.partition("=")
        if not equals or not key:
            fail_usage(f"--set {change}: write KEY=VALUE, as in --set cluster.link.rate=1Gbps")
        values[key.strip()] = value.strip()
    if seed is not None:
        values["run.seed"] = seed
    if engine is not None:
        values["run.engine"] = engine
    scenario = scenario.set(values) if values else scenario
    scenario.check_built()
    return scenario


def split(text: str | None) -> list[str] | None:
    """Return the parts of a list such as `1Gbps,10Gbps`."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def counts(option: str, text: str | None) -> list[int] | None:
    """Return the whole numbers of a list such as `2,8`."""
    counts = split(text)
    if counts is not None and not all(count.isdecimal() for count in counts):
        fail_usage(f"--{option} {text}: write whole numbers, as in 2,8")
    return None if counts is None else [int(count) for count in counts]


def check_target(output: Path | None) -> None:
    """Refuse a folder that must not or cannot be written, before long work."""
    if output is not None:
        from gradtide.studies.folder import FolderError, refuse_foreign, refuse_unwritable

        with as_usage_error(FolderError):
            refuse_foreign(output)
            refuse_unwritable(output)


def limits_of(max_memory: str | None, max_time: str | None) -> "Limits":
    """Return the limits that `--max-memory` and `--max-time` set."""
    from gradtide.estimate import limits

    with as_usage_error(ValueError):
        return limits(max_memory, max_time)
