"""A study of many runs on the command line: its progress bar, and the finished runs that are kept."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradtide.cli.ends import Stopped, as_usage_error
from gradtide.cli.printing import talk
from gradtide.errors import GradtideError, Interrupted

if TYPE_CHECKING:
    from gradtide.studies.keep import Kept


@contextmanager
def study_under_way(
    what: str, output: Path | None, quiet: bool, show: Callable[[Any], None]
) -> Iterator[tuple[Callable[[float], object] | None, "Kept | None"]]:
    """Give a study its progress and the place for its finished runs; when it is interrupted, show what is known."""
    from gradtide.studies.folder import FolderError
    from gradtide.studies.keep import Kept

    with as_usage_error(FolderError):
        keep = None if output is None else Kept(output)
    try:
        with progress_bar(what, quiet) as progress:
            yield progress, keep
    except Interrupted as stop:
        talk(_words_of_kept(str(stop), keep))
        if keep is not None and keep.count:
            keep.show_part(stop)
        if stop.study is not None:
            show(stop.study)
        raise Stopped from stop
    except (KeyboardInterrupt, GradtideError):
        if keep is not None and keep.count:
            talk(_words_of_kept("not finished", keep))
        raise


def _words_of_kept(what: str, keep: "Kept | None") -> str:
    if keep is None:
        return f"{what}; with -o DIR they would be kept"
    if not keep.count:
        return f"{what}; nothing is left behind"
    return f"{what}; they are kept in {os.path.relpath(keep.folder)}, and the same command goes on from there"


def save(result: Any, output: Path | None, keep: "Kept | None") -> None:
    """Write the folder of a finished study, and forget what was kept for it."""
    if output is not None and keep is not None:
        result.save(output)
        keep.forget()


@contextmanager
def progress_bar(what: str, quiet: bool) -> Iterator[Callable[[float], object] | None]:
    """Show a bar with the time left on stderr, if somebody looks."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)
