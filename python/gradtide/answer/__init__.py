"""The `Answer` of a study, which the terminal, `--json`, reports and notebooks show.

    headline     the answer to the question
    premises     the inputs on which the answer depends, each with the option that changes it
    candidates   the compared alternatives: feasibility in memory, runtime, reason of a refusal, and a rank if feasible
    uncertainty  the errors of earlier answers of the same kind against measurements
    again        the command, or the resolved scenario, that gives the same answer

This module has the types. The submodule `premises` reads premises from a scenario, `uncertainty` looks up errors, and
`again` records the command line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Verdict = Literal["fits", "does not fit", "too close to call", "not checked"]
"""Whether a candidate fits in device memory; "not checked" if the device or the parameter counts are unknown."""


@dataclass(frozen=True)
class Premise:
    """One input on which an answer depends.

    Attributes:
        name: name of the input, as in `device`.
        value: its value, as in `V100`.
        stated: whether a file or an option states the value; otherwise the value is a default.
        key: scenario key that contains the value; empty if there is none.
        change: command-line option that sets another value; empty if there is none.
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
        verdict: whether the candidate fits.
        needed_bytes: memory that a rank needs; None if not checked.
        device_bytes: memory of the device; None if not checked.
        would_fit: changes with which the candidate would fit, each as a command-line option.
    """

    verdict: Verdict = "not checked"
    needed_bytes: int | None = None
    device_bytes: int | None = None
    would_fit: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """One of the alternatives that a study compares.

    Attributes:
        name: name of the alternative.
        figure: value by which candidates are ranked, in the study's unit; None if the candidate was not run.
        feasibility: whether the candidate fits in memory.
        runs_on: runtime that supports the candidate on the device; None if none is known.
        why_not: reason why no runtime supports the candidate; empty if one does, or if no runtime is needed.
        refused: reason why the run was refused or could not continue; empty if the candidate was run.
        is_bound: whether the candidate is a bound that cannot be realised, and therefore has no rank.
        group: group within which candidates are ranked, as in `10 Gbit/s`; empty if all are ranked together.
        rank: 1 for the best feasible candidate of its group; None for infeasible candidates.
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
        """Whether the candidate may be ranked: it was run, is not a bound, and is not known to exceed the memory."""
        return (
            self.figure is not None
            and not self.refused
            and not self.is_bound
            and self.feasibility.verdict != "does not fit"
        )


def ranked(candidates: Iterable[Candidate], *, most: bool = False) -> tuple[Candidate, ...]:
    """Return the candidates with their ranks: in each group first the feasible ones, the best first, then the rest.

    Args:
        candidates: the compared candidates.
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
    """The means to reproduce an answer.

    Attributes:
        command: command line without options that do not affect the result, such as `-o`; None from Python.
        scenario: the resolved scenario, by its path in the folder of results; None if the folder has several.
    """

    command: str | None = None
    scenario: str | None = None


@dataclass(frozen=True)
class Answer:
    """The answer of a study; the header of the module describes its parts."""

    headline: str
    premises: tuple[Premise, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    uncertainty: Mapping[str, Any] = field(default_factory=dict)
    again: Again = field(default_factory=Again)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as the keys `KEYS` of a summary."""
        return {
            "headline": self.headline,
            "premises": [asdict(one) for one in self.premises],
            "candidates": [_plain(one) for one in self.candidates],
            "uncertainty": dict(self.uncertainty),
            "again": asdict(self.again),
        }

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> "Answer":
        """Return the answer that a summary contains."""
        return cls(
            summary["headline"],
            tuple(Premise(**one) for one in summary.get("premises", ())),
            tuple(_candidate(one) for one in summary.get("candidates", ())),
            summary.get("uncertainty", {}),
            Again(**summary.get("again", {})),
        )


KEYS: Sequence[str] = ("headline", "premises", "candidates", "uncertainty", "again")
"""Keys of the answer in a summary."""


def _plain(one: Candidate) -> dict[str, Any]:
    plain = asdict(one)
    plain["feasibility"]["would_fit"] = list(one.feasibility.would_fit)
    return plain


def _candidate(plain: Mapping[str, Any]) -> Candidate:
    fits = plain["feasibility"]
    return Candidate(**{**plain, "feasibility": Feasibility(**{**fits, "would_fit": tuple(fits["would_fit"])})})


__all__ = ["KEYS", "Again", "Answer", "Candidate", "Feasibility", "Premise", "Verdict", "ranked"]
