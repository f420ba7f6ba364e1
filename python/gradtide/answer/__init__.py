"""What every study ends in: one `Answer`, from which the terminal, `--json`, reports and notebooks print.

    headline     the answer to the question
    premises     what the answer rests on; what nobody stated has the option that changes it
    candidates   what was compared: does it fit, what carries it out, why is it refused; only what fits has a rank
    uncertainty  how far off answers of this kind were when they were compared with measurements
    again        the command, or the resolved scenario, that gives the same answer

The types are here; `premises` reads a scenario, `uncertainty` has what was compared, `again` the command line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Verdict = Literal["fits", "does not fit", "too close to call", "not checked"]
"""Whether a candidate fits in the memory of a rank. Unknown without a device, and for models without parameter counts.
"""


@dataclass(frozen=True)
class Premise:
    """One thing that an answer rests on.

    Attributes:
        name: what it is, as in `device`.
        value: what was taken, as in `V100`.
        stated: whether a file or an option says so; otherwise it is a default.
        key: the key of the scenario that holds it; empty where none does.
        change: the option that states another value; empty where none does.
    """

    name: str
    value: str
    stated: bool
    key: str = ""
    change: str = ""


@dataclass(frozen=True)
class Feasibility:
    """Whether a candidate fits in the memory of its device.

    Attributes:
        verdict: does it fit?
        needed_bytes: memory that a rank needs; None if not checked.
        device_bytes: memory that its device has; None if not checked.
        would_fit: changes that would make it fit, each as an option.
    """

    verdict: Verdict = "not checked"
    needed_bytes: int | None = None
    device_bytes: int | None = None
    would_fit: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """One of the things that a study compares.

    Attributes:
        name: what the study calls it.
        figure: what it is ranked by, in the study's own unit; None if it was not run.
        feasibility: whether it fits in memory.
        runs_on: the runtime that carries it out on the device; None if none is known.
        why_not: why no runtime carries it out; empty if one does, or the question does not arise.
        refused: why it was not run, or could not go on; empty if it ran.
        is_bound: a limit that nobody can reach; it is no advice and has no rank.
        group: what it competes within, as in `10 Gbit/s`; empty if all of them compete.
        rank: 1 for the best of its group among those that are feasible; None for the others.
    """

    name: str
    figure: float | None
    feasibility: Feasibility = field(default_factory=Feasibility)
    runs_on: str | None = None
    why_not: str = ""
    refused: str = ""
    is_bound: bool = False
    group: str = ""
    rank: int | None = None

    @property
    def is_feasible(self) -> bool:
        """Whether it may be ranked: it ran, is no bound, and nothing says that it does not fit."""
        return (
            self.figure is not None
            and not self.refused
            and not self.is_bound
            and self.feasibility.verdict != "does not fit"
        )


def ranked(candidates: Iterable[Candidate], *, most: bool = False) -> tuple[Candidate, ...]:
    """Return the candidates with their ranks: in each group the feasible ones first, sorted by time.

    Args:
        candidates: what was compared.
        most: whether the largest figure is the best; otherwise the smallest is.
    """
    groups: dict[str, list[Candidate]] = {}
    for one in candidates:
        groups.setdefault(one.group, []).append(one)
    found: list[Candidate] = []
    for group in groups.values():
        feasible = [one for one in group if one.is_feasible]
        feasible.sort(key=lambda one: one.figure or 0.0, reverse=most)
        found += (replace(one, rank=place) for place, one in enumerate(feasible, 1))
        found += (replace(one, rank=None) for one in group if not one.is_feasible)
    return tuple(found)


@dataclass(frozen=True)
class Again:
    """How to have the same answer again.

    Attributes:
        command: the command line without what changes no result, such as `-o`; None from Python.
        scenario: the resolved scenario, by its path in the folder of results; None if the folder has several.
    """

    command: str | None = None
    scenario: str | None = None


@dataclass(frozen=True)
class Answer:
    """The answer to a question; what its parts mean stands at the top of the module."""

    headline: str
    premises: tuple[Premise, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    uncertainty: Mapping[str, Any] = field(default_factory=dict)
    again: Again = field(default_factory=Again)

    def to_dict(self) -> dict[str, Any]:
        """Return the five keys of a summary."""
        return {
            "headline": self.headline,
            "premises": [asdict(one) for one in self.premises],
            "candidates": [_plain(one) for one in self.candidates],
            "uncertainty": dict(self.uncertainty),
            "again": asdict(self.again),
        }

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> "Answer":
        """Return the answer that a summary holds."""
        return cls(
            summary["headline"],
            tuple(Premise(**one) for one in summary.get("premises", ())),
            tuple(_candidate(one) for one in summary.get("candidates", ())),
            summary.get("uncertainty", {}),
            Again(**summary.get("again", {})),
        )


KEYS: Sequence[str] = ("headline", "premises", "candidates", "uncertainty", "again")
"""Keys of a summary that hold its answer."""


def _plain(one: Candidate) -> dict[str, Any]:
    plain = asdict(one)
    plain["feasibility"]["would_fit"] = list(one.feasibility.would_fit)
    return plain


def _candidate(plain: Mapping[str, Any]) -> Candidate:
    fits = plain["feasibility"]
    return Candidate(**{**plain, "feasibility": Feasibility(**{**fits, "would_fit": tuple(fits["would_fit"])})})


__all__ = ["KEYS", "Again", "Answer", "Candidate", "Feasibility", "Premise", "Verdict", "ranked"]
