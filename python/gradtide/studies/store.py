"""Persistent cache of finished runs in one file, keyed by scenario and code.

The file is an SQLite database in WAL mode, so that several processes of one machine can use it concurrently. Runs are
added atomically, even if the process is killed. The result of a run depends only on the scenario and the code, hence

    key = SHA-256 of the digest of the core and its Python part, and of the resolved scenario with its seed and files
"""

import hashlib
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gradtide import _core, fct, results
from gradtide.errors import GradtideError, Unfinished
from gradtide.scenario import Scenario
from gradtide.studies import result
from gradtide.studies.folder import MEASURED_COSTS
from gradtide.studies.result import RunResult
from gradtide.system import lock_byte, unlock_byte

Found = TypeVar("Found")

LAYOUT = 2
"""Version of the tables, stored in SQLite's `user_version`."""
APPLICATION = 0x67747374
"""SQLite's `application_id` of a store: "gtst"."""

WAIT_S = 60.0
"""Seconds for which a process waits for another process's write lock; a write takes less than a millisecond."""
LEVEL = 1
PIECE = 1 << 20
"""Number of characters that are compressed at a time."""

_TABLES = (
    "CREATE TABLE runs (key BLOB NOT NULL PRIMARY KEY, scenario TEXT NOT NULL, engine TEXT NOT NULL, "
    "seed INTEGER NOT NULL, version TEXT NOT NULL, payload BLOB NOT NULL)",
    "CREATE TABLE outputs (key BLOB NOT NULL PRIMARY KEY, payload BLOB NOT NULL)",
)
_COLUMNS = {"runs": "key, scenario, engine, seed, version, payload", "outputs": "key, payload"}
"""Columns by table. `runs` has summaries or errors; `outputs` has the core's whole output, needed for run folders."""


class StoreError(GradtideError):
    """A store cannot be opened, read or written; the message has its path and the remedy."""


class About(NamedTuple):
    """The columns of `runs` that describe a scenario."""

    name: str
    engine: str
    seed: int


class Store:
    """A store of finished runs by their key (`key_of`).

    Attributes:
        path: the file; `None` for a store in memory.

    Raises:
        StoreError: if the file is not a store, has another layout, or cannot be used.
    """

    def __init__(self, path: Path | None, say: Callable[[str], object] | None = None) -> None:
        """Open the store at `path`, or create it; `say` receives warnings about damaged runs."""
        self.path = path
        self._say = say
        self._lock = threading.RLock()
        self._claims = -1
        # If `path` is not a store, `refused` deletes the lock file (`_claims_of`) that was created beside it.
        with ExitStack() as refused, ExitStack() as ends, self._as_store_error():
            if path is not None:
                if path.is_dir() or "\0" in str(path):
                    raise StoreError(f"cannot use the store {path}: it is not a file; name one, as in gradtide.store")
                path.parent.mkdir(parents=True, exist_ok=True)
                claims = _claims_of(path)
                if not claims.exists():
                    refused.callback(claims.unlink, missing_ok=True)
                self._claims = os.open(claims, os.O_RDWR | os.O_CREAT, 0o666)
                ends.callback(os.close, self._claims)
            self._db = sqlite3.connect(
                ":memory:" if path is None else _file_of(path),
                timeout=WAIT_S,
                isolation_level=None,
                check_same_thread=False,
            )
            ends.enter_context(closing(self._db))
            self._open()
            self._ends = ends.pop_all()
            refused.pop_all()

    def _open(self) -> None:
        # With this setting, commits survive a killed process, but a power failure may lose the last runs.
        self._db.execute("PRAGMA synchronous = NORMAL")
        with self._transaction():
            layout = self._number("user_version")
            is_new = not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if is_new and layout == 0:
                for one in _TABLES:
                    self._db.execute(one)
                self._db.execute(f"PRAGMA application_id = {APPLICATION}")
                self._db.execute(f"PRAGMA user_version = {LAYOUT}")
            elif self._number("application_id") != APPLICATION:
                raise StoreError(f"{self.path} is a database, but no store of runs; name another file")
            elif layout != LAYOUT:
                which = "an older" if layout < LAYOUT else "a newer"
                raise StoreError(
                    f"{self.path} is a store of {which} gradtide: its layout is {layout}, and this version has "
                    f"{LAYOUT}; name another file, or use that version. The store is unchanged"
                )
        self._db.execute("PRAGMA journal_mode = WAL")

    def _number(self, pragma: str) -> int:
        return int(self._db.execute(f"PRAGMA {pragma}").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._claims = -1
            self._ends.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._as_store_error(), self._lock:
            return int(self._db.execute("SELECT count(*) FROM runs").fetchone()[0])

    def has(self, key: bytes) -> bool:
        """Return whether a run is in the store; its payload is not checked."""
        with self._as_store_error(), self._lock:
            return self._db.execute("SELECT 1 FROM runs WHERE key = ?", (key,)).fetchone() is not None

    def find(self, key: bytes) -> dict[str, Any] | None:
        """Return the result of a finished run; `None` if it is missing or damaged.

        A damaged run is deleted, so that it will be run again.
        """
        return self._found("runs", key, json.loads)

    def add(self, key: bytes, scenario: Scenario | About, document: dict[str, Any]) -> None:
        """Add a finished run, or replace it. Every process sees it at once."""
        # The name may be a file name, which need not be valid Unicode.
        name = scenario.name.encode(errors="replace").decode()
        about = (name, scenario.engine, scenario.seed, _core.__version__)
        self._put("runs", key, *about, _packed(json.dumps(document, allow_nan=False, separators=(",", ":"))))

    def find_result(self, scenario: Scenario) -> RunResult | None:
        """Return the result of a scenario with the core's whole output; `None` if it is missing or damaged."""

        def read(payload: bytes) -> RunResult:
            end = payload.index(b"\n")
            text = str(memoryview(payload)[end + 1 :], "utf-8")
            return RunResult(scenario, _core.RunOutput.from_json(text), json.loads(payload[:end]))

        return self._found("outputs", key_of(scenario), read)

    def add_result(self, result: RunResult) -> None:
        """Add a finished run with the core's whole output."""
        key = key_of(result.scenario)
        cost = {name: result.summary["cost"][name] for name in MEASURED_COSTS}
        packed = _packed(json.dumps(cost), "\n", result.output.to_json())
        with self._as_store_error(), self._lock, self._transaction():
            self._put("outputs", key, packed)
            self.add(key, result.scenario, document(result))

    def groups(self, scenario: str | None, engine: str | None, seed: int | None) -> list[dict[str, Any]]:
        """Return seeds and number of runs by scenario, engine and version; arguments that are not `None` filter."""
        wanted = {"scenario": scenario, "engine": engine, "seed": seed}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in given) or "1"
        with self._as_store_error(), self._lock:
            found = self._db.execute(
                "SELECT scenario, engine, version, min(seed), max(seed), count(*) FROM runs "
                f"WHERE {where} GROUP BY scenario, engine, version ORDER BY scenario, engine, version",
                tuple(given.values()),
            ).fetchall()
        names = ("scenario", "engine", "version", "first_seed", "last_seed", "runs")
        return [dict(zip(names, row, strict=True)) for row in found]

    def _found(self, table: str, key: bytes, read: Callable[[bytes], Found]) -> Found | None:
        with self._as_store_error(), self._lock:
            found = self._db.execute(f"SELECT payload FROM {table} WHERE key = ?", (key,)).fetchone()
        if found is None:
            return None
        try:
            # zlib verifies a checksum (Adler-32), so a damaged payload raises an error here.
            return read(zlib.decompress(found[0]))
        except Unfinished:
            raise
        except Exception as error:  # a damaged payload can raise anything
            with self._as_store_error(), self._lock:
                self._db.execute(f"DELETE FROM {table} WHERE key = ? AND payload IS ?", (key, found[0]))
            if self._say is not None:
                self._say(f"warning: run {key.hex()[:12]} of {self.path} is damaged ({error}); it is run again")
            return None

    def _put(self, table: str, *row: Any) -> None:
        places = ", ".join("?" * len(row))
        with self._as_store_error(), self._lock:
            self._db.execute(f"INSERT OR REPLACE INTO {table} ({_COLUMNS[table]}) VALUES ({places})", row)

    def take(self, other: Path) -> int:
        """Copy the runs that the store `other` has and this one lacks; return their number."""
        if not other.exists():
            raise StoreError(f"there is no store {other}; name a file that --store has made")
        with Store(other):
            pass  # raises an error if `other` is not a store
        with self._as_store_error(), self._lock:
            before = len(self)
            self._db.execute("ATTACH DATABASE ? AS other", (_file_of(other),))
            try:
                for table, columns in _COLUMNS.items():
                    self._db.execute(f"INSERT OR IGNORE INTO {table} ({columns}) SELECT {columns} FROM other.{table}")
            finally:
                self._db.execute("DETACH DATABASE other")
            return len(self) - before

    def keys(self) -> set[bytes]:
        """Return the keys of the runs that have the core's whole output."""
        with self._as_store_error(), self._lock:
            return {key for (key,) in self._db.execute("SELECT key FROM outputs")}

    def drop(self, keys: set[bytes]) -> None:
        """Delete the runs `keys` and close the store. Delete the file if no runs remain and no connection uses it."""
        with self._as_store_error(), self._lock:
            is_over = self.path is not None and self.keys() <= keys and self._is_alone()
            if keys and not is_over:
                with self._transaction():
                    for table in _COLUMNS:
                        self._db.executemany(f"DELETE FROM {table} WHERE key = ?", ((key,) for key in keys))
            self.close()
            if self.path is not None and is_over:
                _claims_of(self.path).unlink(missing_ok=True)
                self.path.unlink(missing_ok=True)

    def _is_alone(self) -> bool:
        """Return whether no other connection has the file open; SQLite can leave WAL mode only in this case."""
        try:
            self._db.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError:
            return False
        return True

    @contextmanager
    def claim(self, key: bytes) -> Iterator[bool]:
        """Lock a run against other processes during the block; yield whether the lock was free.

        The operating system releases the lock when the process ends. Threads of one process share locks.
        """
        if self._claims < 0:
            yield True
            return
        offset = int.from_bytes(key[:7], "big")
        if not lock_byte(self._claims, offset):
            yield False
            return
        try:
            yield True
        finally:
            unlock_byte(self._claims, offset)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            # If the disk is full, SQLite has already rolled back.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _as_store_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot use the store {self.path}: {error.strerror or error}") from error
        except sqlite3.Error as error:
            raise StoreError(_words(self.path, str(error))) from error
        except UnicodeDecodeError as error:  # SQLite's message contains a damaged name
            raise StoreError(_words(self.path, "malformed database")) from error


_FIXES = {
    "disk I/O": "make room if the disk is full, and run the same command again; finished runs are in it",
    "full": "make room, and run the same command again; finished runs are in it",
    "readonly": "make it writable, or name another file",
    "unable to open": "make it readable and writable, or name another file",
    "locked": "another process writes it; wait for that, and run the same command again",
    "not a database": "it is not a store of runs, or it is damaged; name another file, or move it elsewhere",
    "malformed": "move it elsewhere and run the same command again; `sqlite3 FILE .recover` may save its runs",
}
"""Remedies by substrings of SQLite's error messages."""


def _words(path: Path | None, error: str) -> str:
    fixes = (fix for words, fix in _FIXES.items() if words in error)
    fix = next(fixes, "run the same command again; finished runs are in it")
    return f"cannot use the store {path}: {error}; {fix}"


def listed(
    path: str | Path, *, scenario: str | None = None, engine: str | None = None, seed: int | None = None
) -> list[dict[str, Any]]:
    """Return one row per scenario, engine and version: the smallest and largest seed, and the number of runs.

    Args:
        path: the store.
        scenario: count only runs of this scenario, by its name. Default: all.
        engine: count only runs of this engine. Default: all.
        seed: count only runs with this seed. Default: all.

    Raises:
        StoreError: if the file is not a store, or cannot be read.
    """
    if not Path(path).exists():
        raise StoreError(f"there is no store {path}; name a file that --store has made")
    with Store(Path(path)) as store:
        return store.groups(scenario, engine, seed)


def _file_of(path: Path) -> bytes:
    """Return a path that SQLite opens as a file, whatever its name.

    SQLite treats `:memory:`, an empty name and `file:…` specially, but never an absolute path. The path is bytes,
    because a name need not be valid Unicode.
    """
    return os.fsencode(os.path.abspath(path))


def _claims_of(path: Path) -> Path:
    return path.with_name(path.name + "-claims")


def _packed(*texts: str) -> bytearray:
    """Compress texts in pieces, which avoids copies, because the core's output may have a hundred megabytes."""
    pack, packed = zlib.compressobj(LEVEL), bytearray()
    for text in texts:
        for start in range(0, len(text), PIECE):
            packed += pack.compress(text[start : start + PIECE].encode())
    packed += pack.flush()
    return packed


def document(result: RunResult) -> dict[str, Any]:
    """Return the part of a result that is stored for every run: its summary without measured costs."""
    cost = {name: value for name, value in result.summary["cost"].items() if name not in MEASURED_COSTS}
    return {"summary": {**result.summary, "cost": cost}}


def key_of(scenario: Scenario) -> bytes:
    """Return the key of a scenario for this code. The seed is part of it only if the scenario has random draws."""
    return hashlib.sha256(code_digest() + bytes.fromhex(scenario.run_sha256)).digest()


@cache
def code_digest() -> bytes:
    """Return a digest of the code, because the version does not change with every edit during development."""
    digest = hashlib.sha256()
    for module in (_core, results, result, fct):
        digest.update(hashlib.sha256(Path(str(module.__file__)).read_bytes()).digest())
    return digest.digest()
