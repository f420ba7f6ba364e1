"""The schedules that a comparison names: texts, systems, order files and schedulers of the user's own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradtide import words
from gradtide.scenario import Scenario
from gradtide.studies.order import OrderScheduler
from gradtide.studies.own import ordered

_OWN = dict.fromkeys(
    ("fusion", "first_fusion", "cycle", "buckets", "chunk", "credit", "queues", "barrier", "depth", "order_file")
)
"""Keys of a schedule that a system's name puts back to their defaults, so that the scenario's are not in its way."""

SCHEDULE_KEYS = ("order", *_OWN)
"""What a schedule can say, by the names of `Scenario.replace`."""

SYSTEMS: dict[str, dict[str, Any]] = {
    # Li et al. (2020), 3.2.3, and DistributedDataParallel's defaults.
    "ddp": {"order": "fifo", "barrier": True, "first_fusion": "1MiB", "fusion": "25MiB"},
    # Sergeev & Del Balso (2018), section 4; the defaults of its documentation until version 0.21.
    "horovod": {"order": "fifo", "barrier": True, "fusion": "64MiB", "cycle": "5ms"},
    # Jayarajan et al. (2019), section 5.1: slices of 50,000 parameters.
    "p3": {"order": "priority", "fusion": "0B", "chunk": "200kB", "barrier": False},
    # Peng et al. (2019); its program's defaults: partitions of 1,000,000 parameters, a credit of four of them.
    "bytescheduler": {"order": "priority", "fusion": "0B", "chunk": "4MB", "credit": 4, "barrier": False},
    # With the defaults that these orders have.
    "caramel": {"order": "caramel"},
    "edf": {"order": "edf"},
    "optimal": {"order": "optimal"},
}
"""Schedules of whole systems, as keys of a scenario; `parse_schedule` knows them by name."""

GRAMMAR = (
    "ORDER[+barrier][+fusion=SIZE|adaptive][+first_fusion=SIZE][+cycle=TIME][+chunk=SIZE][+credit=N]"
    "[+depth=N|adaptive][+queues=N]"
)

FILE = "file:"
"""Before the path of an order file, where an order's name may stand."""

Schedule = str | Path | OrderScheduler
"""What is compared: a text as `parse_schedule` reads it, an order file, or a scheduler of the user's own."""


@dataclass(frozen=True)
class Contender:
    """One of the schedules that are compared.

    Attributes:
        name: the order, system, file or scheduler, as the user named it.
        extras: what the user added to it, as in `chunk 1MB`.
        by: the file or scheduler that orders transfers; None if a name in `changes` does.
    """

    name: str
    extras: tuple[str, ...]
    changes: Mapping[str, Any]
    by: Path | OrderScheduler | None = None

    def on(self, point: Scenario) -> tuple[Scenario, str]:
        """Return the scenario under this schedule, and what the schedule is called there."""
        is_pulled = all(job.is_pulled for job in point.jobs)
        # What every iteration begins with a pull has a barrier, and an order is all that a name stands for.
        changes = {k: v for k, v in self.changes.items() if not is_pulled or (k != "barrier" and v is not None)}
        scenario = point.replace(**changes)
        name, extras = self.name, self.extras
        if self.by is not None:
            scenario = ordered(scenario, self.by)
        elif not is_pulled and name not in SYSTEMS:
            schedule = scenario.jobs[0].schedule
            name = words.schedule(schedule.order, schedule.barrier)
            extras = tuple(f"{key} {value}" for key, value in changes.items() if key not in ("order", "barrier"))
        return scenario, ", ".join([name, *extras])


def contender(given: Schedule) -> Contender:
    """Read a schedule as a user gives it."""
    text = f"{FILE}{given}" if isinstance(given, Path) else given
    if isinstance(text, str):
        changes = parse_schedule(text)
        name, *extras = [part.strip().replace("=", " ") for part in text.split("+")]
        by = Path(name.removeprefix(FILE).strip()) if name.startswith(FILE) else None
        return Contender(name, tuple(extras), changes, by)
    if not callable(getattr(text, "ranks", None)):
        raise ValueError(f"{text!r} is neither the name of a schedule nor has a method `ranks(dag)`")
    return Contender(str(getattr(text, "name", type(text).__name__)), (), {"barrier": False}, text)


def parse_schedule(text: str) -> dict[str, Any]:
    """Return the changes that a schedule's name stands for, as `Scenario.replace` takes them.

    It is written as in `GRAMMAR`. What is not named stays as the scenario has it, except for the barrier. In place of
    an order, the name of one of `SYSTEMS`: then what neither it nor the text names is as if the scenario said nothing;
    or `file:PATH`, an order file, of which `ordered` makes the order.

    Raises:
        ValueError: if it is not written so.

    Example:
        >>> parse_schedule("priority+chunk=1MB")
        {'order': 'priority', 'barrier': False, 'chunk': '1MB'}
    """
    order, *extras = [part.strip() for part in text.split("+")]
    changes: dict[str, Any] = _OWN | SYSTEMS[order] if order in SYSTEMS else {"order": order, "barrier": False}
    if order.startswith(FILE):
        changes = {"barrier": False}
    for extra in extras:
        key, equals, value = extra.partition("=")
        if extra == "barrier":
            changes["barrier"] = True
        elif equals and (key in ("fusion", "first_fusion", "cycle", "chunk") or (key, value) == ("depth", "adaptive")):
            changes[key] = value
        elif equals and key in ("queues", "credit", "depth") and value.isdigit():
            changes[key] = int(value)
        else:
            raise ValueError(
                f"schedule {text!r}: cannot read {extra!r}; write {GRAMMAR}, as in priority+chunk=1MB, or one of "
                f"{', '.join(SYSTEMS)}, {FILE}PATH"
            )
    return changes
