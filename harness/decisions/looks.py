"""A second look: another set of seeds, trained only if the first look calls for it.

Each look is decided on its own by the registered method. After two looks a verdict stands only if
both say it, so a second look can take a verdict back and can't make one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.decisions.outcome import Outcome, Verdict

if TYPE_CHECKING:
    from harness.cards.card import SecondLook


def wanted(look: SecondLook, first: Outcome) -> bool:
    """Whether the first look's outcome of the look's criterion calls for a second one.

    A first look that decided nothing is final: the second could not change that.
    """
    if first.estimate is None or first.verdict not in (Verdict.VALIDATED, Verdict.REFUTED):
        return False
    return look.low <= first.estimate <= look.high


def agreed(first: Outcome, second: Outcome) -> Outcome:
    """What two looks say together: their common verdict, else INCONCLUSIVE; INVALID wins.

    The estimate is the mean of the two, the limits are the outermost of both.
    """
    for outcome in (first, second):
        if outcome.invalid:
            return outcome
    verdict = first.verdict if first.verdict is second.verdict else Verdict.INCONCLUSIVE
    values = _numbers(first), _numbers(second)
    lower, upper = min(v[1] for v in values), max(v[2] for v in values)
    said = " and ".join(f"look {i}: {o.sentence}" for i, o in enumerate((first, second), start=1))
    how = "both looks agree" if first.verdict is second.verdict else "the two looks differ"
    return replace(
        first,
        verdict=verdict,
        estimate=(values[0][0] + values[1][0]) / 2.0,
        lower=lower,
        upper=upper,
        half_width=(upper - lower) / 2.0,
        p_validated=_larger(first.p_validated, second.p_validated),
        p_refuted=_larger(first.p_refuted, second.p_refuted),
        counts=None,
        notes=(*first.notes, *second.notes),
        sentence=f"{verdict}: {how}. {said}",
    )


def _numbers(outcome: Outcome) -> tuple[float, float, float]:
    assert outcome.estimate is not None
    assert outcome.lower is not None
    assert outcome.upper is not None
    return outcome.estimate, outcome.lower, outcome.upper


def _larger(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else max(a, b)
