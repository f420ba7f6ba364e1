"""Runs a study for a command: checks, progress bar, output, and the store of finished runs."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from gradtide import signals
from gradtide.cli.checks import apply_checks, refuse_unknown
from gradtide.cli.ends import Stopped, as_usage_error
from gradtide.cli.options import Common, check_target, save
from gradtide.cli.printing import print_json, print_table, say, talk, talk_of_cost, talk_of_files
from gradtide.cli.progress import Bar, progress_bar
from gradtide.errors import GradtideError, Unfinished

if TYPE_CHECKING:
    from gradtide.scenario import Scenario
    from gradtide.studies.keep import Kept

Result = TypeVar("Result", bound=Any)


class Checked(NamedTuple):
    """The figures that `--fail-if` can check.

    Attributes:
        figures: returns the figures of a result by name of the run or row, then by name of the figure.
        example: returns the figures of a small result. `--fail-if` accepts only their names; with None, any name.
    """

    figures: Callable[[Any], dict[str, dict[str, Any]]]
    example: Callable[[], dict[str, Any]] | None = None


def conduct(
    what: str,
    common: Common,
    *,
    make: Callable[[dict[str, Any]], Result],
    show: Callable[[Result], None],
    checked: Checked | None = None,
    check_output: Callable[[Path | None], None] = check_target,
    name_files: Callable[[Path], None] = talk_of_files,
    usage_errors: tuple[type[Exception], ...] = (ValueError,),
) -> None:
    """Run a study, print its result, write its folder and apply its checks.

    Args:
        what: text beside the progress bar, as in `16 runs`.
        common: output, checks and limits of the command line.
        make: runs the study; its argument is a dict of keyword arguments: jobs, progress, keep and limits.
        show: prints the result as tables and text.
        checked: the figures for `--fail-if`; None if the command does not have this option.
        check_output: rejects an output folder that is not writable or contains foreign files.
        name_files: prints the names of written files on stderr.
        usage_errors: exceptions of the study that are reported as errors of the command line.
    """
    if common.estimate:
        with as_usage_error(*usage_errors), closing_kept(common) as keep:
            how = {"jobs": common.jobs, "progress": None, "keep": keep, "limits": common.limits}
            show_estimate(lambda: make(how), common)
        return
    check_output(common.output)
    if checked is not None and checked.example is not None:
        refuse_unknown(common.checks, checked.example)

    def print_result(result: Result) -> None:
        if common.as_json:
            print_json(result.summary)
        else:
            show(result)

    with as_usage_error(*usage_errors), _under_way(what, common, print_result) as (progress, keep):
        result = make({"jobs": common.jobs, "progress": progress, "keep": keep, "limits": common.limits})
        if common.output is not None and keep is not None:
            if progress is not None:
                progress.stage("writing the report")
            save(result, common.output)
            keep.forget()
    print_result(result)
    if common.output is not None and common.names_files:
        name_files(common.output)
    if common.verbose:
        talk_of_cost(result.summary["cost"])
    for name, why in result.summary.get("failed", {}).items():
        talk(f"warning: run {name} failed, and results that depend on it are unknown: {why}")
    if checked is not None:
        apply_checks(common.checks, checked.figures(result).items())


@contextmanager
def closing_kept(common: Common) -> Iterator["Kept | None"]:
    """Yield the store of finished runs if its file exists; they are not simulated again, so they cost nothing."""
    keep = _keep(common) if common.store is not None and common.store.exists() else None
    try:
        yield keep
    finally:
        if keep is not None:
            keep.close()


def seeds_of(scenario: "Scenario", count: int) -> list[int]:
    """Return `count` consecutive seeds, beginning with the scenario's; only its seed if no random number is drawn."""
    return scenario.different(range(scenario.seed, scenario.seed + count))


def show_estimate(study: Callable[[], object], common: Common) -> None:
    """Print the estimated memory and time of all runs of a study, without running them."""
    from gradtide.estimate import COUNTED, work_of
    from gradtide.units import memory_words, time_words

    found = work_of(study, common.jobs).to_dict()
    if common.as_json:
        print_json(found)
        return
    rows = [["runs", f"{found['runs']:,}"]] if found["runs"] != 1 else []
    rows += [[name, f"{found[name]:,}"] for name in COUNTED]
    rows += [["memory", memory_words(found["memory_bytes"])], ["time", time_words(found["time_s"])]]
    print_table(["at most" if found["is_upper_bound"] else "about", "estimate"], rows)
    say("", f"Most of the time goes into {found['mostly']}, most of the memory into {found['memory_mostly']}.")
    if found["is_upper_bound"]:
        say(f"It may be less: {found['why']}.")
    if "note" in found:
        say(f"Not counted: {found['note']}.")


@contextmanager
def _under_way(what: str, common: Common, show: Callable[[Any], None]) -> Iterator[tuple[Bar | None, "Kept | None"]]:
    """Yield the progress bar and the store of a study; if the study is interrupted, show its partial result."""
    from gradtide.studies.folder import FolderError

    with as_usage_error(FolderError, option="--output"):
        keep = _keep(common)
    try:
        with progress_bar(what, common.quiet) as progress:
            yield progress, keep
    except BaseException as stop:
        is_signal = isinstance(stop, KeyboardInterrupt) or signals.has_raised()
        kept = _words_of_kept(keep)
        if not is_signal and not isinstance(stop, Unfinished):
            if isinstance(stop, GradtideError) and kept:
                talk(kept)
            raise
        said = kept or NOTHING_KEPT[keep is None]
        signals.tidy()
        talk(f"interrupted: {said}" if is_signal else said)
        if isinstance(stop, Unfinished):
            if keep is not None and keep.count:
                keep.show_part(stop)
            if stop.study is not None:
                show(stop.study)
        if is_signal:
            raise Stopped from stop
        raise
    finally:
        if keep is not None:
            keep.close()


def _keep(common: Common) -> "Kept | None":
    from gradtide.studies.keep import Kept
    from gradtide.studies.store import Store

    store = None if common.store is None else Store(common.store, talk)
    return None if store is None and common.output is None else Kept(common.output, talk, store)


NOTHING_KEPT = {
    False: "no run is finished, and no files remain",
    True: "finished runs are lost; with -o DIR or --store FILE they are kept, and the same command continues",
}
"""Messages of an interrupted study that has kept no runs, by whether it lacks a store in which to keep them."""


def _words_of_kept(keep: "Kept | None") -> str:
    if keep is None or not keep.count:
        return ""
    runs = "1 finished run is" if keep.count == 1 else f"{keep.count} finished runs are"
    return f"{runs} kept in {os.path.relpath(keep.place)}, and the same command continues from there"
