"""Several criteria to one verdict."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
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
    ALL_MUST_AGREE: all must be VALIDATED to validate and all REFUTED to refute; what they disagree
    on is INCONCLUSIVE.
    """

    ALL_MUST_PASS = "all_must_pass"
    ALL_MUST_PASS_HOLM_REFUTED = "all_must_pass_holm_refuted"
    ANY_MAY_PASS = "any_may_pass"
    ALL_MUST_AGREE = "all_must_agree"


def combine(outcomes: Sequence[Outcome], rule: CombineRule = CombineRule.ALL_MUST_PASS) -> Verdict:
    """Return the verdict of the whole, as the rule has it; one INVALID makes the whole INVALID.

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
    if rule is CombineRule.ALL_MUST_AGREE:
        return said.pop() if len(said) == 1 else Verdict.INCONCLUSIVE
    refuted = Verdict.REFUTED in said
    if rule is CombineRule.ALL_MUST_PASS_HOLM_REFUTED:
        refuted = _survives_holm(outcomes, Verdict.REFUTED)
    if refuted:
        return Verdict.REFUTED
    return Verdict.VALIDATED if said == {Verdict.VALIDATED} else Verdict.INCONCLUSIVE


def settled(
    outcomes: Mapping[str, Outcome],
    premises: Collection[str],
    rule: CombineRule,
    next_steps: Mapping[str, str] | None = None,
) -> dict[str, Outcome]:
    """Outcomes by id as they stand together, so that each says no more than its family allows.

    A premise is never REFUTED, and while one is not VALIDATED the other criteria decide nothing;
    every sentence then says what `next_steps` has for it.
    What does not survive the rule's Holm correction is INCONCLUSIVE. INVALID stays as it is.
    """
    stand = {id: _as_premise(o) if id in premises else o for id, o in outcomes.items()}
    missing = [id for id in stand if id in premises and not stand[id].validated]
    claims = {id: outcome for id, outcome in stand.items() if id not in premises}
    if missing:
        why = f"the comparison does not count, since the premise {missing[0]} was not shown"
        stand |= {id: _withdrawn(outcome, why) for id, outcome in claims.items()}
        steps = [step for id in missing if (step := (next_steps or {}).get(id))]
        return {id: _followed_by(outcome, steps) for id, outcome in stand.items()}
    for verdict, corrected in (
        (Verdict.VALIDATED, rule is CombineRule.ANY_MAY_PASS),
        (Verdict.REFUTED, rule is CombineRule.ALL_MUST_PASS_HOLM_REFUTED),
    ):
        if corrected:
            kept = _surviving(list(claims.values()), verdict)
            lost = [id for id, k in zip(claims, kept, strict=True) if not k]
            for id in lost:
                if claims[id].verdict is verdict:
                    why = f"alone it would be {verdict}, but not after Holm over {len(claims)}"
                    stand[id] = _withdrawn(claims[id], f"{why} criteria")
    refuted = all(outcome.refuted for outcome in claims.values())
    alone = {
        CombineRule.ANY_MAY_PASS: "any criterion may pass, so one alone refutes nothing",
        CombineRule.ALL_MUST_AGREE: "all criteria must agree, so one alone refutes nothing",
    }
    if rule in alone and not refuted:
        stand |= {id: _withdrawn(o, alone[rule]) for id, o in claims.items() if o.refuted}
    return stand


def _as_premise(outcome: Outcome) -> Outcome:
    if not outcome.refuted:
        return outcome
    return _withdrawn(outcome, "a premise that does not hold makes the comparison not count")


def _withdrawn(outcome: Outcome, why: str) -> Outcome:
    if outcome.invalid:
        return outcome
    sentence = f"{Verdict.INCONCLUSIVE}: {why}. Alone: {outcome.sentence}"
    return replace(outcome, verdict=Verdict.INCONCLUSIVE, sentence=sentence)


def _followed_by(outcome: Outcome, steps: Sequence[str]) -> Outcome:
    """An outcome that is not VALIDATED, with the next steps behind its sentence."""
    if outcome.validated or outcome.invalid or not steps:
        return outcome
    told = "; ".join(dict.fromkeys(steps))
    return replace(outcome, sentence=f"{outcome.sentence} Next step: {told}.")


def _survives_holm(outcomes: Sequence[Outcome], verdict: Verdict) -> bool:
    return any(_surviving(outcomes, verdict))


def _surviving(outcomes: Sequence[Outcome], verdict: Verdict) -> list[bool]:
    """Which outcomes say `verdict` and go on saying it after Holm over all of them."""
    alphas = {outcome.alpha for outcome in outcomes}
    if len(alphas) > 1:
        raise CardError(f"Holm shares one alpha, the criteria have {sorted(alphas)}; register one")
    p_values = [o.p_validated if verdict is Verdict.VALIDATED else o.p_refuted for o in outcomes]
    survived = holm([1.0 if p is None else p for p in p_values], alphas.pop()).reject
    # the criterion's own verdict stands as well: it has resolved ties that a p in doubles has not
    return [
        alive and outcome.verdict is verdict
        for alive, outcome in zip(survived, outcomes, strict=True)
    ]
