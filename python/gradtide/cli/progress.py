"""The progress bar of a command: share and remaining time of the runs, then the name of the current stage."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Bar:
    """Shows the finished share of the runs, which are weighted by their estimated times.

    When all runs are finished, it shows the name of the current stage instead of 100 %, because the duration of that
    stage is unknown.
    """

    def __init__(self, progress: Any, what: str) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=1.0)

    def __call__(self, share: float) -> None:
        """Show the finished share of the runs, from 0 to 1."""
        if share < 1:
            self._progress.update(self._task, completed=share)
        else:
            self.stage("evaluating the runs")

    def stage(self, what: str) -> None:
        """Show the name of a stage that follows the runs."""
        self._progress.update(self._task, description=what, completed=0, total=None)


@contextmanager
def progress_bar(what: str, quiet: bool) -> Iterator[Bar | None]:
    """Show a bar while the block runs; yield None if `quiet` is true or stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, what)
