"""Several criteria to one verdict."""

from collections.abc import Sequence
from enum import StrEnum

from harness.decisions.outcome import Outcome, Verdict
from harness.errors import CardError
from harness.statistics.exact import holm


class CombineRule(StrEnum):
    """How the criteria of one experiment make one verdict.

    ALL_MUST_PASS: every criterion must be VALIDATED, each at its full alpha (intersection-union,
    no correction needed); one REFUTED criterion refutes.
    ALL_MUST_PASS_HOLM_REFUTED: the same, but a refutation counts only if it survives Holm over the
    criteria, since "any criterion refuted" is a choice among several.
    ANY_MAY_PASS: one criterion that survives Holm validates; all must be REFUTED to refute.
    """

    ALL_MUST_PASS = "all_must_pass"
    ALL_MUST_PASS_HOLM_REFUTED = "all_must_pass_holm_refuted"
    ANY_MAY_PASS = "any_may_pass"


def combine(outcomes: Sequence[Outcome], rule: CombineRule = CombineRule.ALL_MUST_PASS) -> Verdict:
    """Return the verdict of the whole: INVALID over REFUTED over INCONCLUSIVE over VALIDATED.

    Raises CardError for no outcomes, or for unequal alphas where Holm has to share one.
    """
    if not outcomes:
        raise CardError("no criterion was decided, so there is no verdict to combine")
    said = {outcome.verdict for outcome in outcomes}
    if Verdict.INVALID in said:
        return Verdict.INVALID
    if rule is CombineRule.ANY_MAY_PASS:
        if _survives_holm(outcomes, Verdict.VALIDATED):
            return Verdict.VALIDATED
        return Verdict.REFUTED if said == {Verdict.REFUTED} else Verdict.INCONCLUSIVE
    refuted = Verdict.REFUTED in said
    if rule is CombineRule.ALL_MUST_PASS_HOLM_REFUTED:
        refuted = _survives_holm(outcomes, Verdict.REFUTED)
    if refuted:
        return Verdict.REFUTED
    return Verdict.VALIDATED if said == {Verdict.VALIDATED} else Verdict.INCONCLUSIVE


def _survives_holm(outcomes: Sequence[Outcome], verdict: Verdict) -> bool:
    alphas = {outcome.alpha for outcome in outcomes}
    if len(alphas) > 1:
        raise CardError(f"Holm shares one alpha, the criteria have {sorted(alphas)}; register one")
    p_values = [o.p_validated if verdict is Verdict.VALIDATED else o.p_refuted for o in outcomes]
    survived = holm([1.0 if p is None else p for p in p_values], alphas.pop()).reject
    # the criterion's own verdict stands as well: it has resolved ties that a p in doubles has not
    return any(
        alive and outcome.verdict is verdict
        for alive, outcome in zip(survived, outcomes, strict=True)
    )
