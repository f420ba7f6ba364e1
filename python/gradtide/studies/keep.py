"""The finished part of a study that is not whole yet: kept as it grows, found again by the next attempt.

    DIR.incomplete/finished/SCENARIO_SHA256.json.gz     one per finished run
    DIR.incomplete/...                                  after an interruption: what is known, as DIR would show it

`DIR` itself appears whole or not at all. A run is found again by its scenario and by the core that made it.
"""

import gzip
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from gradtide import _core
from gradtide.errors import Unfinished
from gradtide.files import write_whole
from gradtide.results import RunResult
from gradtide.scenario import Scenario
from gradtide.studies.folder import FolderError, refuse_foreign, write_json

SCHEMA = "gradtide.finished/1"


class Kept:
    """Finished runs beside the folder that a study is to be written to.

    Attributes:
        folder: `DIR.incomplete` for a study that goes to `DIR`.

    Raises:
        FolderError: if `DIR.incomplete` holds something that is not ours.
    """

    def __init__(self, output: Path) -> None:
        output = Path(os.path.abspath(output))
        self.folder = output.with_name(output.name + ".incomplete")
        self._runs = self.folder / "finished"
        self._used: set[Path] = set()
        if not self._runs.is_dir():
            refuse_foreign(self.folder)

    def find(self, scenario: Scenario) -> RunResult | None:
        """Return the finished run of a scenario, if an earlier attempt with this core got that far."""
        path = self._path(scenario)
        try:
            head, _, text = gzip.decompress(path.read_bytes()).decode().partition("\n")
            about = json.loads(head)
            if (about["schema"], about["core"]) != (SCHEMA, _core_digest()):
                return None
            result = RunResult(scenario, _core.RunOutput.from_json(text), about["cost"])
        except (OSError, EOFError, ValueError, KeyError):
            return None
        self._used.add(path)
        return result

    def add(self, result: RunResult) -> None:
        """Keep a finished run; it is there whole or not at all."""
        path = self._path(result.scenario)
        costs = {name: result.summary["cost"][name] for name in ("cpu_s", "wall_s", "peak_rss_mb")}
        head = json.dumps({"schema": SCHEMA, "core": _core_digest(), "cost": costs})
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
            write_whole(path, gzip.compress(f"{head}\n{result.output.to_json()}".encode(), 1, mtime=0))
        except OSError as error:
            self._clear()
            raise FolderError(f"cannot keep a finished run in {self._runs}: {error.strerror or error}") from error
        self._used.add(path)

    def show(self, write: Callable[[Path], object]) -> None:
        """Write what is known so far beside the finished runs, in place of what an earlier attempt wrote."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=self.folder, suffix=".partial"))
            try:
                write(part)
                for old in self.folder.iterdir():
                    if old not in (self._runs, part):
                        _remove(old)
                for new in part.iterdir():
                    new.rename(self.folder / new.name)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        except OSError as error:
            raise FolderError(f"cannot write {self.folder}: {error.strerror or error}") from error

    def show_part(self, stop: Unfinished) -> None:
        """Write what is known of an interrupted study; `summary.json` says that it is not complete."""
        if stop.study is not None:
            self.show(stop.study.write)
            return
        summary = {
            "schema": "gradtide.incomplete/1",
            "version": _core.__version__,
            "complete": False,
            "runs_finished": sum(result is not None for result in stop.results),
            "runs": len(stop.results),
        }
        self.show(lambda folder: write_json(folder / "summary.json", summary))

    def forget(self) -> None:
        """Delete what this study kept; what another study with the same folder kept stays."""
        for path in self._used:
            path.unlink(missing_ok=True)
        self._clear()

    def _clear(self) -> None:
        """Delete the folder if no finished run is in it."""
        if not self.count:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def count(self) -> int:
        """Finished runs that are kept, of whatever study."""
        return len(list(self._runs.glob("*.json.gz")))

    def _path(self, scenario: Scenario) -> Path:
        return self._runs / f"{scenario.sha256}.json.gz"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


@cache
def _core_digest() -> str:
    """Another core may predict another thing under the same version, while it is worked on."""
    return hashlib.sha256(Path(str(_core.__file__)).read_bytes()).hexdigest()
