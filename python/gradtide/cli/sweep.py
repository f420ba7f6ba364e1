"""`gradtide sweep`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gradtide import signals
from gradtide.cli.checks import failures, refuse_unknown
from gradtide.cli.ends import EXIT_CANNOT_GO_ON, EXIT_CHECK_FAILED, Stopped, as_usage_error, fail_usage
from gradtide.cli.options import Changes, Common, JsonOption, WideOption, Without, check_target, option, save
from gradtide.cli.printing import print_answer, print_json, print_table, say, talk
from gradtide.cli.progress import Bar, progress_bar
from gradtide.cli.run import example_figures, figures_of_run
from gradtide.errors import LimitReached

if TYPE_CHECKING:
    from gradtide.studies.store import Store
    from gradtide.studies.sweep import Study, SweepResult

STORE = "gradtide.store"
StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="File of a study (.toml).")]
STORE_OPTION = typer.Option(
    "--store", metavar="FILE", help=f"Keep finished runs in this file. Default: {STORE} beside the output folder."
)
StoreOption = Annotated[Path | None, STORE_OPTION]


ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        help="Run every scenario on this cluster: a preset with a number of nodes, as in h100-hgx/16, or a file.",
    ),
]
MAX_ROWS = 100
"""Largest number of points in each of the two printed tables: ranked points, and points without a rank."""


def sweep(  # noqa: PLR0913 - options of the command
    study: StudyArgument,
    *,
    cluster: ClusterOption = None,
    store: StoreOption = None,
    shard: str | None = option(
        "I/N", "Run only every N-th run, starting at the I-th, and keep it in the file of --store."
    ),
    executor: str = option(
        "NAME", "Run on this machine (local), or on a Ray cluster that is already running (ray).", "local"
    ),
    address: str | None = option(
        "ADDRESS",
        "Use the Ray cluster at this address, as in 10.0.0.1:6379. Default: RAY_ADDRESS, or the cluster of this "
        "machine.",
    ),
    jobs: Annotated[
        int | None,
        typer.Option(
            "-j",
            "--jobs",
            min=1,
            metavar="N",
            help="Run N simulations at once, which does not change results. Default: 2; on Ray, one for each "
            "processor.",
        ),
    ] = None,
    estimate: bool = option(
        None, "Estimate memory and time of the runs that are not in the store, and run nothing.", False, "--estimate"
    ),
    changes: Changes,
    common: Annotated[Common, Without("verbose")],
) -> None:
    """Run a scenario over the values of any of its keys.

    The study file names the scenario, the keys and their values. A run whose result is in the store is not run again.
    """
    from gradtide.studies.sweep import Study
    from gradtide.studies.sweep import sweep as run_study
    from gradtide.studies.sweep.choice import check

    part = _shard(shard)
    if shard is not None and store is None:
        fail_usage("--shard: name the store, which the shards or gradtide sweep merge share: --store FILE")
    if shard is not None and common.output is not None:
        fail_usage("--output: a shard writes no tables; gradtide sweep merge writes them when all shards have run")
    if shard is not None and common.checks:
        fail_usage("--fail-if: a shard has only some results; use it with gradtide sweep merge, after all shards")
    with as_usage_error(ValueError):
        check(executor, address)
    if executor == "local":
        jobs = jobs or 2
    loaded = Study.load(study, cluster, changes.values)
    if estimate:
        needs_runs = {"--output": common.output, "--fail-if": common.checks, "--shard": shard}
        for flag, given in {**needs_runs, "--executor": executor != "local"}.items():
            if given:
                fail_usage(f"{flag} needs runs, and --estimate runs nothing; leave one of them out")
        with changes.naming():
            _print_estimate(loaded, store, jobs or 2, common)
        return
    refuse_unknown(common.checks, example_figures)
    with changes.naming(), _under_way(f"{len(loaded)} runs", store, common) as (opened, progress):
        result = run_study(
            loaded,
            store=opened,
            shard=part,
            executor=executor,
            address=address,
            jobs=jobs,
            progress=progress,
            limits=common.limits,
            say=None if common.quiet else talk,
        )
        if shard is None:
            if progress is not None:
                progress.stage("writing the table")
            _give(result, common)
            failed = _failed(result, common)
        else:
            runs = len(range(part[0] - 1, len(loaded), part[1])) - result.refused_of(part)
            say(f"Shard {shard}: its {runs:,} runs of {len(loaded):,} are in {store}.")
    if shard is None:
        _exit(result, failed)


def merge(
    study: StudyArgument,
    stores: Annotated[
        list[Path] | None, typer.Argument(metavar="STORE", help="Stores to read finished runs from.")
    ] = None,
    *,
    cluster: ClusterOption = None,
    store: Annotated[list[Path] | None, STORE_OPTION] = None,
    take: list[Path] | None = option("FILE", "Read finished runs from this store, too. Repeatable.", None, "--from"),
    changes: Changes,
    common: Annotated[Common, Without("verbose", "jobs", "estimate")],
) -> None:
    """Write the table of a study from finished runs in stores.

    Nothing is simulated; the table says which runs no store contains.
    """
    from gradtide.studies.sweep import Study
    from gradtide.studies.sweep import merge as merge_study

    if store and len(store) > 1:
        fail_usage("--store: name one store, into which the runs are merged; name each source with --from FILE")
    loaded = Study.load(study, cluster, changes.values)
    refuse_unknown(common.checks, example_figures)
    taken = [*(stores or ()), *(take or ())]
    for one in taken:
        if not one.is_file():
            fail_usage(f"--from: there is no store {one}")
    target = store[0] if store else None
    with changes.naming(), _under_way("reading the study", target, common) as (opened, progress):
        result = merge_study(loaded, taken, store=opened, progress=progress, limits=common.limits)
        _give(result, common)
        failed = _failed(result, common)
    _exit(result, failed)


def list_store(
    store: Annotated[Path, typer.Argument(metavar="FILE", help="A store of finished runs.")],
    *,
    scenario: str | None = option(
        "NAME", "Count only runs of this scenario; its name is in the first column of the list."
    ),
    engine: str | None = option("NAME", "Count only runs of this engine: fluid or packet."),
    seed: int | None = option("N", "Count only runs with this seed.", min=0),
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """List the finished runs of a store."""
    from gradtide.studies.store import listed

    if not store.exists():
        fail_usage(f"there is no store {store}; name a file that --store has made")
    rows = listed(store, scenario=scenario, engine=engine, seed=seed)
    if as_json:
        print_json({"schema": "gradtide.store/1", "rows": rows})
        return
    columns = ["scenario", "engine", "version", "first seed", "last seed", "runs"]
    print_table(columns, [list(row.values()) for row in rows])
    say("", f"{sum(row['runs'] for row in rows):,} runs")


def _give(result: "SweepResult", common: Common) -> None:
    from gradtide.extras import how_to_install
    from gradtide.studies.sweep.table import has_parquet

    if common.output is not None:
        save(result, common.output)
    if common.as_json:
        print_json(result.summary)
    else:
        _print_ranking(result)
        print_answer(result.summary)
    if common.output is not None and common.names_files:
        talk("", f"report  {common.output / 'report.html'}", f"points  {common.output / 'points.csv'}")
        talk(f"table   {common.output / ('rows.parquet' if has_parquet() else 'rows.csv')}")
        if not has_parquet():
            talk(f"note: rows.parquet needs pyarrow: {how_to_install('pyarrow')}")


def _print_ranking(result: "SweepResult") -> None:
    """Print the ranked points, best first, and a table of the points without a rank with the reasons."""
    if result.study.points == 1:
        return
    is_first = True
    for columns, rows, left_out in result.ranking_rows(MAX_ROWS):
        if not rows:
            continue
        if not is_first:
            say("")
        print_table(columns, rows)
        if left_out:
            say(f"and {left_out:,} more; with -o DIR all are in points.csv")
        is_first = False


def _failed(result: "SweepResult", common: Common) -> list[str]:
    figures_of = (
        (f"{label}: {name}", figures)
        for label, summary in (result.finished() if common.checks else ())
        for name, figures in figures_of_run(summary)
    )
    return failures(common.checks, figures_of)


def _exit(result: "SweepResult", failed: list[str]) -> None:
    """Print failed checks, and exit with the code of the study.

    The code is 3 if runs were refused or failed, which takes precedence over code 1 of a failed check.
    """
    if failed:
        talk(*failed)
    if result.refused or result.summary["runs_failed"]:
        raise typer.Exit(EXIT_CANNOT_GO_ON)
    if failed:
        raise typer.Exit(EXIT_CHECK_FAILED)


def _print_estimate(study: "Study", path: Path | None, jobs: int, common: Common) -> None:
    """Print the estimated memory and time of the runs that the store does not contain."""
    from gradtide.studies.store import Store
    from gradtide.studies.sweep import estimated
    from gradtide.units import memory_words, time_words

    with Store(path if path is not None and path.exists() else None, talk) as store:
        found = estimated(study, store=store, jobs=jobs, limits=common.limits)
    if common.as_json:
        print_json(found)
        return
    counts = {name: value for name, value in found.items() if isinstance(value, int) and name != "memory_bytes"}
    rows = [[name, f"{value:,}"] for name, value in counts.items()]
    rows += [["memory", memory_words(found["memory_bytes"])], ["time", time_words(found["time_s"])]]
    print_table(["about", "estimate"], rows)
    if found["mostly"]:
        say("", f"Most of the time goes into {found['mostly']}, most of the memory into {found['memory_mostly']}.")


@contextmanager
def _under_way(what: str, path: Path | None, common: Common) -> "Iterator[tuple[Store, Bar | None]]":
    """Yield the open store and the progress bar; if a signal or limit ends the study, print how many runs are kept."""
    from gradtide.studies.store import Store

    check_target(common.output)
    if path is None and common.output is not None:
        path = common.output.absolute().parent / STORE
    with Store(path, talk) as store:
        try:
            with progress_bar(what, common.quiet) as progress:
                yield store, progress
        except BaseException as stop:
            is_signal = isinstance(stop, KeyboardInterrupt) or signals.has_raised()
            if not is_signal and not isinstance(stop, LimitReached):
                raise
            kept = f"{len(store):,} finished runs are in {path}, and the same command continues from there"
            kept = kept if path is not None else "finished runs are lost; with -o DIR or --store FILE they are kept"
            signals.tidy()
            talk(f"interrupted: {kept}" if is_signal else kept)
            if is_signal:
                raise Stopped from stop
            raise


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        fail_usage(f"--shard {text}: write I/N with I from 1 to N, as in 1/8")
    return int(match[1]), int(match[2])
