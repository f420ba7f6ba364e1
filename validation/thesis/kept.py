"""Figures of finished runs in a file of JSON lines, so that no run is repeated."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gradtide.scenario import Scenario
from gradtide.studies.result import RunResult
from gradtide.studies.run import run_all

Key = tuple[Any, ...]
Figures = dict[str, float]


class KeptRuns:
    """Runs by key, whose parts are called `names`."""

    def __init__(self, file: Path, names: tuple[str, ...]) -> None:
        self.file, self.names = file, names

    def known(self) -> dict[Key, Figures]:
        """Return the runs in the file."""
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        rows = [json.loads(line) for line in lines]
        return {tuple(row[name] for name in self.names): row["figures"] for row in rows}

    def make(
        self,
        keys: Iterable[Key],
        scenario: Callable[[Key], Scenario],
        figures: Callable[[RunResult], Figures],
        jobs: int,
    ) -> None:
        """Run the missing scenarios, and keep their figures."""
        done = self.known()
        missing = [key for key in keys if key not in done]
        for first in range(0, len(missing), jobs):
            part = missing[first : first + jobs]
            results = run_all([scenario(key) for key in part], jobs, None)
            with self.file.open("a", encoding="utf-8") as file:
                for key, result in zip(part, results, strict=True):
                    names = dict(zip(self.names, key, strict=True))
                    rounded = {name: round(value, 6) for name, value in figures(result).items()}
                    file.write(json.dumps({**names, "figures": rounded}) + "\n")
