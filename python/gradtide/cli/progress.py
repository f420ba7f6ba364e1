"""The progress of a command on stderr, on a terminal: a bar with the time left, then what else is being done."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Bar:
    """Shows which share of the runs is done; runs count by the time that they are likely to take.

    It never shows 100 %: when all runs are finished it says what is done instead, without a share, because that has no
    known duration.
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
    """Show a bar while the block runs; without a terminal, or if `quiet`, yield None."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, what)
