"""The finished part of a study that is not whole yet: kept as it grows, found again by the next attempt.

    DIR.incomplete/finished/SCENARIO_SHA256.json.gz     one per finished run
    DIR.incomplete/...                                  after an interruption: what is known, as DIR would show it

`DIR` itself appears whole or not at all. A run is found again by its scenario and by the core that made it. If `DIR`
has to stay where it is, as a mount point has, the unfinished part is in `DIR/incomplete`. With a store, finished runs
are in that instead, and stay there.
"""

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from gradtide import _core, files
from gradtide.errors import Unfinished
from gradtide.results import RunResult
from gradtide.scenario import Scenario
from gradtide.studies.folder import FolderError, as_folder_error, refuse_foreign, write_json, write_versions
from gradtide.studies.store import Store, encoded

SCHEMA = "gradtide.finished/1"


class Kept:
    """Finished runs beside the folder that a study is to be written to.

    Attributes:
        folder: `DIR.incomplete` for a study that goes to `DIR`, or `DIR/incomplete`.

    Raises:
        FolderError: if `DIR.incomplete` holds something that is not ours.
    """

    def __init__(self, output: Path, say: Callable[[str], object] | None = None) -> None:
        """Take the finished runs beside `output`; `say` is told of those that are damaged."""
        output = Path(os.path.realpath(output))
        name = files.INCOMPLETE
        self.folder = output / name if files.is_fixed(output) else output.with_name(f"{output.name}.{name}")
        self._runs = self.folder / "finished"
        self._used: set[Path] = set()
        self._say = say
        refuse_foreign(self.folder, self._runs.name)
        files.heal_all(self._runs)

    def find(self, scenario: Scenario) -> RunResult | None:
        """Return the finished run of a scenario, if an earlier attempt with this core got that far.

        A damaged one is set aside, and is to be run again.
        """
        path = self._path(scenario)
        if not path.exists():
            return None
        try:
            head, _, text = gzip.decompress(path.read_bytes()).partition(b"\n")
            about = json.loads(head)
            if (about["schema"], about["core"]) != (SCHEMA, _core_digest()):
                return None
            result = RunResult(scenario, _core.RunOutput.from_json(text.decode()), about["cost"])
        except Unfinished:
            raise
        except Exception as error:  # whatever a damaged file leads to
            self._set_aside(path, error)
            return None
        self._used.add(path)
        return result

    def _set_aside(self, path: Path, error: Exception) -> None:
        aside = path.with_name(path.name + ".damaged")
        with suppress(OSError):
            os.replace(path, aside)
        if self._say is not None:
            self._say(f"warning: {os.path.relpath(aside)} is a damaged finished run ({error}); it is run again")

    def add(self, result: RunResult) -> None:
        """Keep a finished run; it is there whole or not at all."""
        path = self._path(result.scenario)
        costs = {name: result.summary["cost"][name] for name in ("cpu_s", "wall_s", "peak_rss_mb")}
        head = json.dumps({"schema": SCHEMA, "core": _core_digest(), "cost": costs})
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
            with files.whole(path) as file, gzip.GzipFile("", "wb", 1, file, mtime=0) as packed:
                for piece in encoded(head, "\n", result.output.to_json()):
                    packed.write(piece)
        except OSError as error:
            self._clear()
            raise FolderError(f"cannot keep a finished run in {self._runs}: {error.strerror or error}") from error
        self._used.add(path)

    def show(self, write: Callable[[Path], object]) -> None:
        """Write what is known so far beside the finished runs, in place of what an earlier attempt wrote."""
        with as_folder_error(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with files.folder_inside(self.folder) as part:
                write(part)

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

        def write(folder: Path) -> None:
            write_json(folder / files.SUMMARY, summary)
            write_versions(folder)

        self.show(write)

    def forget(self) -> None:
        """Delete what this study kept; what another study with the same folder kept stays."""
        for path in self._used:
            path.unlink(missing_ok=True)
        self._clear()

    def _clear(self) -> None:
        """Delete the folder if no finished run is in it, and nothing of anybody else."""
        if not self._files and not files.foreign(self.folder, self._runs.name):
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _files(self) -> list[Path]:
        return list(self._runs.glob("*.json.gz"))

    @property
    def count(self) -> int:
        """Finished runs that are kept, of whatever study."""
        return len(self._files)

    @property
    def place(self) -> Path:
        """Where finished runs are."""
        return self.folder

    def close(self) -> None:
        """End the use of what is open."""

    def _path(self, scenario: Scenario) -> Path:
        return self._runs / f"{scenario.sha256}.json.gz"


class Stored(Kept):
    """Finished runs in a store; `DIR.incomplete` has what is known of an interrupted study, and no runs."""

    def __init__(self, store: Store, output: Path | None, say: Callable[[str], object] | None = None) -> None:
        """Take the finished runs of a store; without an `output` nothing is written beside it."""
        self._store, self._has_folder = store, output is not None
        self._known: set[str] = set()
        if output is not None:
            super().__init__(output, say)

    def find(self, scenario: Scenario) -> RunResult | None:
        """Return the finished run of a scenario, whichever study ran it."""
        result = self._store.find_result(scenario)
        if result is not None:
            self._known.add(scenario.sha256)
        return result

    def add(self, result: RunResult) -> None:
        """Keep a finished run; it is there whole or not at all."""
        self._store.add_result(result)
        self._known.add(result.scenario.sha256)

    def show_part(self, stop: Unfinished) -> None:
        """Write what is known of an interrupted study, if it has a folder."""
        if self._has_folder:
            super().show_part(stop)

    def forget(self) -> None:
        """Delete what is known of an interrupted study; its runs stay in the store."""
        if self._has_folder:
            super().forget()

    @property
    def count(self) -> int:
        """Runs of this study that are in the store."""
        return len(self._known)

    @property
    def place(self) -> Path:
        """The store."""
        return Path(str(self._store.path))

    def close(self) -> None:
        """Close the store."""
        self._store.close()


@cache
def _core_digest() -> str:
    """Another core may predict another thing under the same version, while it is worked on."""
    return hashlib.sha256(Path(str(_core.__file__)).read_bytes()).hexdigest()
