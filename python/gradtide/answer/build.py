"""Builds the answer of every study from its headline and its candidates."""

from collections.abc import Iterable, Sequence
from typing import Any

from gradtide.answer import Answer, Candidate, Premise, ranked
from gradtide.answer.again import again, command
from gradtide.answer.premises import premises_of
from gradtide.answer.uncertainty import uncertainty_of
from gradtide.scenario import Scenario


def build(
    question: str,
    headline: str,
    scenarios: Scenario | Sequence[Scenario],
    candidates: Iterable[Candidate] = (),
    *,
    most: bool = False,
    varied: Sequence[str] = (),
    more: Sequence[Premise] = (),
    scenario: str | None = None,
) -> Answer:
    """Return the answer of a study.

    Args:
        question: name of the study, as in `compare`.
        headline: the answer as text.
        scenarios: scenarios of the runs, in the order of the study; at least one.
        candidates: the compared candidates, which are ranked here.
        most: whether the candidate with the largest figure is the best; otherwise the smallest is.
        varied: keys that the study varies.
        more: premises that no scenario contains.
        scenario: path of the resolved scenario in the folder of results.
    """
    given = [scenarios] if isinstance(scenarios, Scenario) else list(scenarios)
    return Answer(
        headline,
        (*premises_of(given, varied, command() or question), *more),
        ranked(candidates, most=most),
        errors_of(given, question),
        again(scenario),
    )


def errors_of(scenarios: Sequence[Scenario], question: str) -> dict[str, Any]:
    """Return the uncertainty of a study as a JSON object; `question` is the command whose figure the answer has.

    If its runs are of several kinds, the errors are those of the least certain kind; `sentence` describes all kinds.
    """
    kinds = list(dict.fromkeys(uncertainty_of(one, question) for one in scenarios))
    if not kinds:
        return {}
    least = min(kinds, key=lambda one: (one.is_compared, -(one.mean_error or 0.0)))
    return {**least.to_dict(), "sentence": " ".join(dict.fromkeys(one.to_dict()["sentence"] for one in kinds))}
