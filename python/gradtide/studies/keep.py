"""Checkpointing of studies: the folder of an unfinished study, and the store of its finished runs.

    DIR.incomplete/finished/CODE.store     finished runs, reused by the next attempt with the same code
    DIR.incomplete/...                     partial results after an interruption, in the format of DIR

CODE is a digest of gradtide's code. `DIR` itself appears atomically. If `DIR` is a mount point, which cannot be
renamed, the unfinished part is in `DIR/incomplete`. If a study uses a shared store, its finished runs are added to that
store permanently instead.
"""

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gradtide import _core, files
from gradtide.errors import Unfinished
from gradtide.scenario import Scenario
from gradtide.studies.folder import FolderError, as_folder_error, refuse_foreign, write_json, write_versions
from gradtide.studies.result import RunResult
from gradtide.studies.store import Store, StoreError, code_digest, key_of

RUNS = "finished"
"""Subfolder of the store. Stores of other versions of gradtide in this subfolder are ignored, and deleted with the
unfinished folder."""

MOST_PATH_BYTES = 504
"""Longest path of a store in bytes. SQLite allows 512 bytes, which include the suffix `-journal`."""


class Kept:
    """Finished runs of a study, and its partial results if it is interrupted.

    Attributes:
        folder: `DIR.incomplete` or `DIR/incomplete` for a study that is saved to `DIR`; `None` if it is not saved.
        place: where finished runs are kept: `folder`, or the path of the shared store.

    Raises:
        FolderError: if `DIR.incomplete` contains foreign files, or its path is too long.
        StoreError: if the store of finished runs exists and cannot be read.
    """

    def __init__(
        self, output: Path | None, say: Callable[[str], object] | None = None, store: Store | None = None
    ) -> None:
        """Use `store`, or else the store beside `output`; `say` receives warnings about damaged runs."""
        self._say, self._store, self._is_own = say, store, store is None
        self._used: set[bytes] = set()
        self._is_over = False
        self._lock = threading.Lock()
        self.folder = None if output is None else _folder_of(output)
        if self.folder is not None:
            refuse_foreign(self.folder, RUNS)
            self._path = self.folder / RUNS / f"{code_digest().hex()[:16]}.store"
            if self._is_own and len(os.fsencode(self._path)) > MOST_PATH_BYTES:
                most = f"its path has more than {MOST_PATH_BYTES} bytes, and SQLite takes no more"
                raise FolderError(f"cannot keep finished runs in {self._path}: {most}; name another folder")
            if self._is_own and self._path.exists():
                self._store = Store(self._path, say)
        place = self.folder if store is None else store.path
        assert place is not None
        self.place = place

    def find(self, scenario: Scenario) -> RunResult | None:
        """Return the stored result of a scenario by the same code; `None` if it is missing or damaged."""
        result = None if self._store is None else self._store.find_result(scenario)
        if result is not None:
            self._used.add(key_of(scenario))
        return result

    def add(self, result: RunResult) -> None:
        """Store a finished run atomically. A run that ends after the study was closed is not stored."""
        with self._lock:
            if self._is_over:
                return
            if self._store is None:
                self._store = self._made()
            store = self._store
        store.add_result(result)
        self._used.add(key_of(result.scenario))

    def _made(self) -> Store:
        is_first = not self._path.parent.exists()
        try:
            return Store(self._path, self._say)
        except StoreError:
            if is_first:
                shutil.rmtree(self._path.parent, ignore_errors=True)
            self._remove_if_empty()
            raise

    def show(self, write: Callable[[Path], object]) -> None:
        """Replace the partial results of the unfinished folder by those that `write` writes; finished runs are kept."""
        if self.folder is None:
            return
        with as_folder_error(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with files.folder_inside(self.folder) as part:
                write(part)

    def show_part(self, stop: Unfinished) -> None:
        """If the study has a folder, write an interrupted study's partial results into it, marked as incomplete."""
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
        """Delete the unfinished folder of a completed study.

        Runs in a shared store are kept, and so are runs that another study has stored in the same folder.
        """
        self._end(self._used)
        if self.folder is not None and not self._path.exists() and not files.foreign(self.folder, RUNS):
            shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Close the store."""
        with suppress(StoreError):
            self._end(set())

    def _end(self, done: set[bytes]) -> None:
        """Close the store. If it belongs to this study only, delete the runs with the keys `done` first."""
        with self._lock:
            self._is_over = True
            store, self._store = self._store, None
        if store is None:
            return
        try:
            if self._is_own:
                store.drop(done)
        finally:
            store.close()
        if self._is_own:
            self._remove_if_empty()

    def _remove_if_empty(self) -> None:
        with suppress(OSError):
            self._path.parent.rmdir()
            self._path.parent.parent.rmdir()

    @property
    def count(self) -> int:
        """Number of stored runs; in a shared store, only the runs that this study found or added."""
        if self._is_own:
            return 0 if self._store is None else len(self._store.keys())
        return len(self._used)


def _folder_of(output: Path) -> Path:
    output = Path(os.path.realpath(output))
    name = files.INCOMPLETE
    return output / name if files.is_fixed(output) else output.with_name(f"{output.name}.{name}")
