"""Options that several commands share, in groups.

A group is a dataclass with one field per option, such as `Changes`. If a command has a parameter of this type,
`with_options` gives the command the options of the group, and passes their values as one instance of it.
"""

import copy
import dataclasses
import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

import typer

from gradtide import inputs, signals
from gradtide.cli.checks import Check, parse_check
from gradtide.cli.completion import COMPLETIONS, Complete
from gradtide.cli.ends import UsageError, as_usage_error, fail_usage
from gradtide.cli.printing import only_json, talk, widen
from gradtide.errors import ScenarioError
from gradtide.watch import watching
from gradtide.words import shown

if TYPE_CHECKING:
    from gradtide.estimate import Limits
    from gradtide.scenario import Scenario

OUTPUT, LIMITS = "Output", "Runs and limits"
"""Headings of options in the help. Groups define further headings in `heading`."""

OutputOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="Write a folder of results.", rich_help_panel=OUTPUT),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON document and nothing else.",
        is_eager=True,
        callback=only_json,
        rich_help_panel=OUTPUT,
    ),
]
QuietOption = Annotated[
    bool, typer.Option("-q", "--quiet", help="Print no messages and no progress.", rich_help_panel=OUTPUT)
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario (.toml, .json, or a preset such as paper/gao2020-ch4), or a model: the name of a preset, a "
        "layer table (.csv), a model file or a config.json.",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        help="Use this cluster: a preset with a number of hosts or nodes, as in ethernet-25g/16, or a file. Default: "
        "the scenario's; for a model, 8 hosts at 10 Gbit/s.",
    ),
]
WideOption = Annotated[
    bool,
    typer.Option(
        "--wide",
        help="Do not fit tables and texts to the width of the terminal, and show the symbols of the papers.",
        callback=widen,
        rich_help_panel=OUTPUT,
    ),
]


def _allow(size: str | None) -> str | None:
    with as_usage_error(ValueError):
        inputs.allow(size)
    return size


MaxInputOption = Annotated[
    str | None,
    typer.Option(
        "--max-input",
        metavar="SIZE",
        help="Read files of up to SIZE after decompression. Default: 10MB for text, 4GB for traces and flow lists.",
        callback=_allow,
        rich_help_panel=LIMITS,
    ),
]
SeedsOption = Annotated[
    int, typer.Option("--seeds", min=1, metavar="N", help="Repeat every run with N seeds, starting at --seed.")
]


def option(metavar: str | None, text: str, default: Any = None, *names: str, **limits: float) -> Any:
    """Declare an option; the result is used as the default of a command's parameter.

    Args:
        metavar: name of the option's value in the help. None for flags; None for numbers means N.
        text: help of the option.
        default: value if the option is not on the command line.
        names: names of the option, e.g. `--from`. Default: the name of the parameter.
        limits: `min` and `max` of a numeric option.
    """
    return typer.Option(default, *names, metavar=metavar, help=text, **limits)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Limited:
    """Limits of the memory and the time of a command."""

    heading: ClassVar = LIMITS

    max_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Stop before the command needs more memory. Default: 80 % of free memory."),
    ] = None
    max_time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop before the command takes longer, as in 10h. Default: 1h."),
    ] = None

    @cached_property
    def limits(self) -> "Limits":
        """Parsed values of `--max-memory` and `--max-time`."""
        from gradtide.estimate import limits

        with as_usage_error(ValueError):
            return limits(self.max_memory, self.max_time)


FailIfOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIGURE>LIMIT",
        help="Exit with code 1 if this comparison is true for any result, as in 'iteration_time_ms>950'. Repeatable.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Common(Limited):
    """Options of all commands that simulate: output, checks, and limits."""

    output: OutputOption = None
    as_json: JsonOption = False
    max_input: MaxInputOption = None
    fail_if: FailIfOption = None
    jobs: Annotated[
        int,
        typer.Option(
            "-j", "--jobs", min=1, metavar="N", help="Run N simulations at once, which does not change results."
        ),
    ] = 2
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Keep finished runs in this file; other studies read them from it. Default: none."
        ),
    ] = None
    wide: WideOption = False
    quiet: QuietOption = False
    verbose: Annotated[
        bool,
        typer.Option("-v", "--verbose", help="Print how long the simulation took.", rich_help_panel=OUTPUT),
    ] = False
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Estimate memory and time of all runs, and run nothing.")
    ] = False

    def __post_init__(self) -> None:
        """Reject invalid values before anything is simulated."""
        if self.quiet and self.verbose:
            fail_usage("--quiet and --verbose exclude each other; leave one out")
        if self.estimate:
            refuse_beside_estimate({"-o": self.output, "--fail-if": self.fail_if, "--verbose": self.verbose})
        _ = self.checks, self.limits

    @cached_property
    def checks(self) -> list[Check]:
        """Parsed values of `--fail-if`."""
        return [parse_check(text) for text in self.fail_if or ()]

    @property
    def names_files(self) -> bool:
        """Whether the command prints the names of written files on stderr."""
        return not (self.quiet or self.as_json)


def refuse_beside_estimate(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` if any of `options` is given. `--estimate` runs nothing, so they would have no effect."""
    for flag, given in options.items():
        if given:
            fail_usage(f"{flag} needs a run, and --estimate runs nothing; leave one of them out")


OPTION_OF = {"link_rate": "--rate", "collective": "--collective"}
"""Names of options by the short names of the keys that they set, where the two differ."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Options that change keys of a scenario."""

    heading: ClassVar = "Scenario"

    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set any key of the scenario, as in cluster.link.delay=5us. Repeatable; docs/reference/scenario.md "
            "lists the keys.",
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Set the seed of all random numbers. Default: the scenario's, or 0."),
    ] = None
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Simulate the network with this engine: fluid or packet.")
    ] = None

    def load(self, name: str) -> "Scenario":
        """Read a scenario and apply these options to it."""
        from gradtide.scenario import Scenario

        return self.of(Scenario.load(name))

    def trained(self, name: str, cluster: str | None, **keys: Any) -> "Scenario":
        """Read a scenario, or a model and the cluster that trains it, and apply these options.

        Args:
            name: scenario or model, as on the command line.
            cluster: value of `--cluster`; None if it is not given.
            keys: values by the short names of `Scenario.replace`; `schedule` is a text such as `priority+chunk=1MB`.
        """
        from gradtide.scenario.source import as_options
        from gradtide.studies.schedules import SCHEDULE_KEYS, contender
        from gradtide.studies.trained import trained

        self._refuse_contradictions(keys)
        schedule = keys.pop("schedule", None)
        options = {"model": "SCENARIO", "cluster": "--cluster"} | OPTION_OF
        with as_options(options, None):
            scenario = trained(name, cluster, **keys)
        if schedule is not None:
            with (
                as_usage_error(ValueError, option="--schedule"),
                as_options(dict.fromkeys(SCHEDULE_KEYS, "--schedule")),
            ):
                scenario, _ = contender(schedule).on(scenario)
        return self.of(scenario)

    def of(self, scenario: "Scenario") -> "Scenario":
        """Apply these options to a scenario and print its warnings; raises `ScenarioError` if the result is invalid."""
        with self.naming():
            changed = scenario.set(self.values) if self.values else scenario
        changed.check_built()
        for warning in changed.warnings:
            talk(f"warning: {warning}")
        return changed

    def naming(self) -> AbstractContextManager[None]:
        """Return a context in which errors about `run.seed` and `run.engine` name `--seed` and `--engine` instead."""
        from gradtide.scenario.source import as_options

        own = {"run.seed": "--seed", "run.engine": "--engine"}
        typed = {change.partition("=")[0].strip() for change in self.set_ or ()}
        return as_options({key: option for key, option in own.items() if key not in typed})

    def _refuse_contradictions(self, keys: Mapping[str, Any]) -> None:
        """Raise `UsageError` if `--set` and another option give a key different values."""
        from gradtide.scenario.keys import short_names

        paths = {path: name for name, path in short_names().items()}
        for dotted, value in self.values.items():
            table, *rest = dotted.split(".")
            name = paths.get((table, "*", *rest[1:]) if table == "job" else (table, *rest), "")
            if name in keys and str(keys[name]) != str(value):
                option = OPTION_OF.get(name, f"--{name.replace('_', '-')}")
                fail_usage(
                    f"{option} {keys[name]} and --set {dotted}={value} give {dotted} two values; leave one of them out"
                )

    @cached_property
    def values(self) -> dict[str, Any]:
        """Values of these options by dotted key; raises `UsageError` if a key has two values."""
        values: dict[str, Any] = {}
        given: dict[str, str] = {}

        def add(key: str, value: Any, option: str) -> None:
            if key in values and str(values[key]) != str(value):
                fail_usage(f"{given[key]} and {option} give {key} two values; leave one of them out")
            values[key], given[key] = value, option

        for change in self.set_ or ():
            key, equals, value = (part.strip() for part in change.partition("="))
            if not equals or not key:
                fail_usage(f"--set {change}: write KEY=VALUE, as in --set cluster.link.delay=5us")
            add(key, value, f"--set {change}")
        if self.seed is not None:
            add("run.seed", self.seed, f"--seed {self.seed}")
        if self.engine is not None:
            add("run.engine", self.engine, f"--engine {self.engine}")
        return values


def mesh(text: str | None) -> dict[str, Any] | None:
    """Parse the value of `--parallel`, e.g. `fsdp=16,tp=8`, into the keys of a scenario's table `parallel`."""
    from gradtide.scenario.source import scalar

    keys: dict[str, Any] = {}
    for part in split("--parallel", text) or ():
        name, equals, value = (one.strip() for one in part.partition("="))
        if not (name and equals and value):
            fail_usage(f"--parallel {text}: write AXIS=RANKS with commas between, as in --parallel fsdp=16,tp=8")
        if name in keys:
            fail_usage(f"--parallel {text}: {name} is given twice; leave one of the two out")
        keys[name] = scalar(value)
    return keys or None


@dataclass(frozen=True, kw_only=True)
class Training:
    """Options for frequently changed keys of training jobs and of the cluster."""

    heading: ClassVar = "Training"

    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Train with N workers. Default: the scenario's, or one for each host of the cluster, or 8.",
        ),
    ] = None
    rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="Set the rate of the hosts' links, as in 25Gbps.")
    ] = None
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Send gradients by this schedule: fifo+barrier, priority+chunk=1MB, ddp, horovod, p3, bytescheduler, "
            "caramel, edf, optimal or file:order.csv.",
        ),
    ] = None
    collective: Annotated[
        str | None, typer.Option(metavar="KIND", help="Exchange gradients by this collective, as in tree.")
    ] = None
    parallel: Annotated[
        str | None,
        typer.Option(
            metavar="MESH",
            help="Divide a language model over ranks, as in fsdp=16,tp=8 or fsdp=16,micro_batch=2.",
        ),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Compute on this device, as in H100-bf16. Default: the model file's or the cluster's."
        ),
    ] = None
    batch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Set the samples of a worker's mini-batch, without --parallel."),
    ] = None
    seq: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Set the tokens of a sequence of a language model.")
    ] = None
    micro_batch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Set the sequences that a rank computes at once. Default: 1."),
    ] = None
    global_batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Set the sequences of an iteration on all ranks together.")
    ] = None
    recompute: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="Recompute activations in the backward pass: none, selective or full."),
    ] = None
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT", help="Compute in this number format: bf16, fp16, float8 or fp32. Default: bf16."
        ),
    ] = None
    efficiency: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Assume that large matrix products reach this share of the device's peak, as in 0.6."
        ),
    ] = None
    times: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take the times of ops from this table, such as ops.csv of a run folder."),
    ] = None

    @property
    def keys(self) -> dict[str, Any]:
        """Given values by the key's short name. Paths are absolute, because the scenario may be in another folder."""
        values = dataclasses.asdict(self)
        kind = None if self.collective is None else self.collective.replace("-", "_")
        times = None if self.times is None else str(self.times.absolute())
        own = {"link_rate": values.pop("rate"), "collective": kind, "parallel": mesh(self.parallel), "times": times}
        return {name: value for name, value in (values | own).items() if value is not None}


NO_EFFECT = {
    "-o": 1, "--output": 1, "--json": 0, "-q": 0, "--quiet": 0, "-v": 0, "--verbose": 0, "--wide": 0, "-j": 1,
    "--jobs": 1, "--store": 1, "--max-memory": 1, "--max-time": 1, "--max-input": 1, "--fail-if": 1,
}  # fmt: skip
"""Options that do not affect results, with the number of their values (0 or 1)."""


def exact_command(arguments: Sequence[str]) -> str:
    """Return the command line that reproduces a result. It omits the options in `NO_EFFECT`.

    Example:
        >>> exact_command(["compare", "my model.csv", "--rate", "1Gbps", "-o", "out", "--jobs=4"])
        "gradtide compare 'my model.csv' --rate 1Gbps"
    """
    kept, skip = [], 0
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if skip:
            skip -= 1
        elif name in NO_EFFECT:
            skip = 0 if equals else NO_EFFECT[name]
        else:
            kept.append(argument)
    # `shown` replaces invalid Unicode, e.g. in file names, which could not be written to the report.
    return shown(shlex.join(["gradtide", *kept]))


class Without:
    """Annotation of a group in a command's signature: these fields of the group are no options of the command."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a function for typer with one parameter per option, which calls a command that takes groups of options.

    Each parameter of the command whose type is a dataclass is replaced by one option per field. Fields in `Without` are
    omitted, and so are fields with the name of another parameter of the command.
    """
    options: dict[str, inspect.Parameter] = {}
    groups: dict[str, tuple[Any, list[str]]] = {}
    # Not get_type_hints: in Python 3.10 it drops `Annotated` if the default is None.
    own = inspect.signature(command, eval_str=True).parameters
    for name, parameter in own.items():
        hint = parameter.annotation
        group, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if not dataclasses.is_dataclass(group):
            options[name] = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=parameter.default, annotation=hint
            )
            continue
        left_out = {field for mark in marks if isinstance(mark, Without) for field in mark.fields} | set(own)
        types = get_type_hints(group, include_extras=True)
        taken = [field for field in dataclasses.fields(group) if field.name not in left_out]
        groups[name] = (group, [field.name for field in taken])
        for field in taken:
            options[field.name] = inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=_under(getattr(group, "heading", OUTPUT), types[field.name]),
            )

    for name, parameter in options.items():
        if name in COMPLETIONS:
            options[name] = _completed(parameter, COMPLETIONS[name])

    marks = [(name, mark) for name, parameter in own.items() for mark in get_args(parameter.annotation)]
    arguments = {name: mark.metavar for name, mark in marks if isinstance(mark, typer.models.ArgumentInfo)}

    @wraps(command)
    def flat(**given: Any) -> None:
        known = {name: arguments.get(name) or "--" + name.strip("_").replace("_", "-") for name in given}
        with _naming_options({name: option for name, option in known.items() if given[name] is not None}, known):
            for name, (group, fields) in groups.items():
                given[name] = group(**{field: given.pop(field) for field in fields})
            with _within_limits(given.values()):
                command(**given)

    flat.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
    flat.__annotations__ = {name: option.annotation for name, option in options.items()}
    return flat


def _under(heading: str, hint: Any) -> Any:
    """Return the annotation of an option with a heading for the help, unless it already has a heading."""
    kind, declared = get_args(hint)
    declared = copy.copy(declared)
    declared.rich_help_panel = declared.rich_help_panel or heading
    return Annotated[kind, declared]


def _completed(parameter: inspect.Parameter, complete: Complete) -> inspect.Parameter:
    is_annotated = get_origin(parameter.annotation) is Annotated
    kind, declared = get_args(parameter.annotation) if is_annotated else (None, parameter.default)
    declared = copy.copy(declared)
    declared.autocompletion = complete
    if is_annotated:
        return parameter.replace(annotation=Annotated[kind, declared])
    return parameter.replace(default=declared)


@contextmanager
def _within_limits(groups: Iterable[Any]) -> Iterator[None]:
    limits = next((group.limits for group in groups if isinstance(group, Limited)), None)
    if limits is None:
        yield
        return
    watch = limits.watch()
    signals.check = watch.check
    try:
        with watching(watch):
            yield
    finally:
        signals.check = None


@contextmanager
def _naming_options(options: dict[str, str], known: dict[str, str]) -> Iterator[None]:
    """Replace names of Python parameters and keys in errors of the block by the names of their options.

    Singular and plural match: the parameter `rates` becomes `--rate`, and the key `collective` becomes `--collectives`.
    """
    try:
        yield
    except UsageError as error:
        name, colon, rest = str(error).partition(": ")
        typed = next((one for one in (name, name.removesuffix("s"), name.removesuffix("es")) if one in options), None)
        if not colon or typed is None:
            raise
        raise UsageError(f"{options[typed]}: {rest}") from None
    except ScenarioError:
        from gradtide.scenario.source import as_options

        with as_options({name.removesuffix("s"): option for name, option in options.items()} | options, known):
            raise


def split(option: str, text: str | None) -> list[str] | None:
    """Split the value of an option at commas outside brackets: `pp=2,stages=[7,9]` has two parts."""
    if text is None:
        return None
    parts = [part.strip() for part in re.split(r",(?![^\[]*\])", text)]
    if not all(parts):
        fail_usage(f"{option} {text!r}: a part of the list is empty; write values with one comma between them")
    return parts


def counts(option: str, text: str | None) -> list[int] | None:
    """Parse the value of an option as comma-separated whole numbers, e.g. `2,8`."""
    parts = split(option, text)
    if parts is not None and not all(part.isdecimal() for part in parts):
        fail_usage(f"{option} {text}: write whole numbers, as in 2,8")
    return None if parts is None else [int(part) for part in parts]


def check_target(output: Path | None) -> None:
    """Reject an output folder that is not writable or contains foreign files; note if results will be replaced."""
    if output is None:
        return
    from gradtide.studies.folder import FolderError, refuse_foreign, refuse_unwritable, what_is_replaced

    with as_usage_error(FolderError, option="--output"):
        refuse_foreign(output)
        refuse_unwritable(output)
    earlier = what_is_replaced(output)
    if earlier is not None:
        talk(f"note: {output} holds the results of an earlier {earlier}, and will be replaced")


def save(result: Any, output: Path) -> None:
    """Write a result to `output`; if foreign files have appeared there during the runs, to a new folder beside it."""
    from gradtide.studies.folder import FolderError, ForeignError

    try:
        result.save(output)
    except ForeignError as error:
        spare = next(one for n in count(2) if not (one := output.with_name(f"{output.name}-{n}")).exists())
        result.save(spare)
        raise FolderError(f"{error}. These results are in {spare}") from None
