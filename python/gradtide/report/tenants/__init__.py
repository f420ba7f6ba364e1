"""The reports of `gradtide tenants`, and what they share: bands (traffic classes), colours, heading, texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gradtide.report import pieces
from gradtide.report.folder import Row, RunFolderError, entry

BANDS = {"same": "same band", "low": "lower band"}


class Verdict(NamedTuple):
    """Mark and texts that go with a colour, for readers who cannot distinguish colours."""

    mark: str
    badge: str
    meaning: str


# The colours and their limits follow fig. 5.19 of Gao (2020).
VERDICTS = {
    "green": Verdict("✓", "green: free for the job", "free: the job pays less than 1 %"),
    "yellow": Verdict("!", "yellow: the job pays", "the job pays 1 to 30 %"),
    "red": Verdict("✕", "red: too expensive for the job", "the job pays more than 30 %"),
    "unclear": Verdict("~", "unclear", "the 95 % interval spans several colours"),
    "unknown": Verdict(
        "?", "unknown: too few flows or iterations completed", "too few flows or iterations completed to judge"
    ),
}


def colour_of(path: Path, row: Row) -> str:
    """Return the colour of a row; `unknown` if this version has no such colour."""
    colour: str = entry(path, row, "colour", str)
    return colour if colour in VERDICTS else "unknown"


@dataclass(frozen=True)
class Head:
    """The heading of a page: job, seeds, model, and the subject of the study in words."""

    job: str
    seeds: list[int]
    model: str
    subject: str

    @classmethod
    def of(cls, path: Path, summary: Row) -> "Head":
        """Return the heading for a study's summary."""
        job, model = entry(path, summary, "job", str), entry(path, summary, "model", str)
        seeds = entry(path, summary, "seeds", list)
        if not seeds or not all(isinstance(seed, int) for seed in seeds):
            raise RunFolderError(f"{path}: key `seeds`: a list of whole numbers was expected")
        model = pieces.clip(model, 40)
        return cls(job, seeds, model, f"{pieces.clip(job, 30)}: {model} beside background flows")

    @property
    def several(self) -> str:
        """The seeds as text, as in `3 seeds` or `seed 0`."""
        return f"{len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"


def saved(value: float | None) -> str:
    """Return a saving in percent as text; a dash for None."""
    text = "–" if value is None else f"{value:.1f}".replace("-", "−")
    return "0.0" if text == "−0.0" else text


def change(value: float | None) -> str:
    """Return a change in percent as text with its sign; a dash for None."""
    text = saved(value)
    return text if text in ("–", "0.0") or text.startswith("−") else f"+{text}"


def tint(value: float | None, ends: Any = None) -> str:
    """Return the CSS class of a saving: `agrees` if positive, `differs` if negative.

    The class is empty if the saving is below 0.5 %, or if its interval `ends` includes 0.
    """
    is_clear = value is not None and abs(value) >= 0.5 and (ends is None or ends[0] * ends[1] > 0)
    return "" if value is None or not is_clear else "agrees" if value > 0 else "differs"


def maybe(value: float | None) -> str:
    """Return a time in milliseconds as text; a dash for None."""
    return "–" if value is None else pieces.ms(value)


def count(value: float | None) -> str:
    """Return a mean number of flows as text; a dash for None."""
    return "–" if value is None else f"{value:.1f}".removesuffix(".0")
