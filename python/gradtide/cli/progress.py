"""The progress bar of a command, on stderr if it is a terminal: the remaining time of the runs, and later stages."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Bar:
    """Shows the finished share of the runs, weighted by the estimated time of each run.

    The bar never shows 100 %. When all runs are finished, it shows the name of the current stage without a share,
    because the duration of that stage is unknown.
    """

    def __init__(self, progress: Any, what: str) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=1.0)

    def __call__(self, share: float) -> None:
        """Show the share of the runs that is done."""
        if share < 1:
            self._progress.update(self._task, completed=share)
        else:
            self.stage("evaluating the runs")

    def stage(self, what: str) -> None:
        """Show the current stage after the runs."""
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
