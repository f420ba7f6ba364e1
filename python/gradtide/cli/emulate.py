"""`gradtide emulate`."""

from typing import TYPE_CHECKING, Annotated

import typer

from gradtide.cli.bursts import print_bursts
from gradtide.cli.checks import apply_checks, parse_check, refuse_unknown
from gradtide.cli.ends import as_usage_error, fail_usage
from gradtide.cli.options import (
    Changes,
    FailIfOption,
    JsonOption,
    OutputOption,
    QuietOption,
    WideOption,
    check_target,
    option,
)
from gradtide.cli.printing import cell, print_json, print_table, say, talk_of_files
from gradtide.cli.progress import progress_bar

if TYPE_CHECKING:
    from gradtide.studies.emulate import EmulationResult


def emulate(  # noqa: PLR0913 - options of the command
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A scenario (.toml, .json, or a preset such as paper/pcn).")
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND",
            help="Run this command once for each rank of the job, or on each host without a job. Default: play the job "
            "and the flows of the scenario.",
        ),
    ] = None,
    *,
    on: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST=COMMAND", help="Run a shell command on one host, as in h0='iperf3 -s'. Repeatable."),
    ] = None,
    max_late: float = option(
        "SHARE", "Fail if more than this share of packets leaves over 100 us late. Default: 0.001.", 0.001
    ),
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Replay all packets in the simulator, and count the decisions that differ."),
    ] = False,
    fail_if: FailIfOption = None,
    changes: Changes,
    output: OutputOption = None,
    as_json: JsonOption = False,
    wide: WideOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run programs on real packets through a scenario's switches.

    Hosts are network namespaces of this machine, with Linux's TCP. Their packets pass the queues of the packet engine
    in real time. Needs Linux, and root or a user namespace.
    """
    loaded = changes.load(scenario)
    check_target(output)
    if not 0 <= max_late <= 1:
        fail_usage(f"--max-late {max_late:g} is not a share; write a number from 0 to 1, as in --max-late 0.01")
    from gradtide.studies.emulate import emulate as study
    from gradtide.studies.emulate.results import FIGURES, figures

    checks = [parse_check(text) for text in fail_if or ()]
    refuse_unknown(checks, lambda: dict.fromkeys(FIGURES))

    with progress_bar("emulating", quiet) as progress, as_usage_error(ValueError):
        result = study(
            loaded,
            on=_by_host(on or []),
            command=command or (),
            max_late=max_late,
            compares=compare,
            progress=progress,
        )
    if output is not None:
        result.save(output)
    if as_json:
        print_json(result.summary)
    else:
        _show(result)
        if output is not None and not quiet:
            talk_of_files(output)
    apply_checks(checks, [("emulation", figures(result.summary))])


def _by_host(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        host, equals, command = text.partition("=")
        if not (host and equals and command):
            fail_usage(f"--on {text}: write HOST=COMMAND, as in --on h0='iperf3 -s'")
        if host in found:
            fail_usage(f"--on {host} is given twice; join the commands, as in --on {host}='first & second'")
        found[host] = command
    return found


def _show(result: "EmulationResult") -> None:
    from gradtide import words

    links = [row for row in result.links.to_dicts() if row["packets"]]
    columns = ["link", "packets", "utilisation", "drops", "CE marks", "longest queue"]
    names = ("link", "packets", "utilisation", "drops", "ce_marks", "max_queue_packets")
    print_table(columns, [[cell(row[name]) for name in names] for row in links])
    if len(result.bursts):
        say("")
        print_bursts(result.bursts)
    for name, classes in result.summary["traffic"].items():
        say("")
        print_table(*words.flow_rows(name, classes))
    for name, job in result.summary["jobs"].items():
        say("", f"Job {name}: {job['iteration_time_ms']:.2f} ms an iteration, mean of {job['iterations']}.")
    say("", result.summary["headline"])
