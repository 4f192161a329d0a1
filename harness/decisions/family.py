"""From the criteria of one experiment to its one verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from pydantic.dataclasses import dataclass

from harness.decisions.looks import agreed, wanted
from harness.decisions.outcome import Outcome, Verdict
from harness.errors import CardError
from harness.statistics.exact import holm

if TYPE_CHECKING:
    from harness.cards import DecisionRule

Outcomes = Mapping[str, Outcome]
"""Every criterion of a rule, by id, in the rule's order."""


class CombineRule(StrEnum):
    """How the claims of one experiment, its criteria but for premises, make one verdict.

    ALL_MUST_PASS: every claim must be VALIDATED, each at its full alpha (intersection-union,
    no correction needed); one REFUTED claim refutes.
    ALL_MUST_PASS_HOLM_REFUTED: the same, but a refutation counts only if it survives Holm over the
    claims, since "any claim refuted" is a choice among several.
    ANY_MAY_PASS: one claim that survives Holm validates; all must be REFUTED to refute.
    ALL_MUST_AGREE: all must be VALIDATED to validate and all REFUTED to refute; what they disagree
    on is INCONCLUSIVE.

    Under each of them one INVALID criterion, premise or claim, makes the whole INVALID, and a
    premise that is not VALIDATED makes it INCONCLUSIVE; a premise that is counts for nothing more.
    """

    ALL_MUST_PASS = "all_must_pass"
    ALL_MUST_PASS_HOLM_REFUTED = "all_must_pass_holm_refuted"
    ANY_MAY_PASS = "any_may_pass"
    ALL_MUST_AGREE = "all_must_agree"


@dataclass(frozen=True)
class Decision:
    """The experiment's verdict with its sentence, and each criterion as it stands in it.

    `post_hoc` if what was registered was amended after an outcome; `record` is the record's head,
    as `<lines>:<sha256>`, where there is a record.
    """

    verdict: Verdict
    sentence: str
    outcomes: Outcomes
    post_hoc: bool = False
    record: str = ""


def decision(rule: DecisionRule, first: Outcomes, second: Outcomes | None = None) -> Decision:
    """The experiment's one verdict.

    Each look is taken by itself, as `standing` has it; of two looks a criterion keeps what both
    say. What is left to a claim after that, it may say for the whole.

    Args:
        rule: the decision rule.
        first: the criteria on the first look, each decided by itself.
        second: the same on the second look, None if it was not taken.

    Raises:
        CardError: no criterion claims anything, or Holm would have to share unequal alphas.
    """
    outcomes = standing(rule, first)
    if second is not None:
        again = standing(rule, second)
        outcomes = {id: agreed(outcome, again[id]) for id, outcome in outcomes.items()}
    verdict = _whole(rule, outcomes)
    said = [outcome.sentence for outcome in outcomes.values() if outcome.verdict is verdict]
    # the word already stands in front of the whole
    sentence = "; ".join(each.removeprefix(f"{verdict}: ") for each in said)
    return Decision(verdict, sentence, outcomes)


def with_assertions(decided: Decision, asserted: Mapping[str, tuple[str, str]]) -> Decision:
    """The verdict with the author's own decisions, each of which must hold beside the rule.

    An assertion has no error rate, whatever the rule's is. One that is REFUTED refutes, else one
    that is INCONCLUSIVE leaves the whole so.

    Args:
        decided: the registered rule's decision.
        asserted: (word, message) of each assertion that came to VALIDATED, REFUTED or INCONCLUSIVE.
    """
    if not asserted or decided.verdict is Verdict.INVALID:
        return decided
    words = [decided.verdict, *(Verdict(word) for word, _ in asserted.values())]
    worst = (Verdict.REFUTED, Verdict.INCONCLUSIVE, Verdict.VALIDATED)
    verdict = next(word for word in worst if word in words)
    said = [decided.sentence] if decided.verdict is verdict else []
    said += [
        f"{name}, an assertion without an error rate: {message.partition(chr(10))[0]}"
        for name, (word, message) in asserted.items()
        if word == verdict
    ]
    return replace(decided, verdict=verdict, sentence="; ".join(said))


def calls_for_second_look(rule: DecisionRule, first: Outcomes) -> bool:
    """Whether the rule has a second look, and the first, each criterion by itself, calls for it."""
    look = rule.second_look
    return look is not None and wanted(look, standing(rule, first)[look.criterion])


def standing(rule: DecisionRule, alone: Outcomes) -> dict[str, Outcome]:
    """The criteria of one look as they stand together, so that none says more than its rule allows.

    A premise is never REFUTED, and while one is not VALIDATED the claims decide nothing; every
    sentence then names the premise's next step.
    What does not survive the rule's Holm correction is INCONCLUSIVE. INVALID stays as it is.
    Raises CardError as `decision` does.
    """
    combine = CombineRule(rule.combine)
    premises = {criterion.id for criterion in rule.criteria if criterion.premise}
    stand = {id: _as_premise(o) if id in premises else o for id, o in alone.items()}
    missing = [id for id in stand if id in premises and not stand[id].validated]
    claims = {id: outcome for id, outcome in stand.items() if id not in premises}
    if not claims:
        raise CardError("every criterion is a premise, so nothing is claimed; register a claim")
    if missing:
        why = f"the comparison does not count, since the premise {missing[0]} was not shown"
        stand |= {id: _withdrawn(outcome, why) for id, outcome in claims.items()}
        steps = [c.next_step for c in rule.criteria if c.id in missing and c.next_step]
        return {id: _followed_by(outcome, steps) for id, outcome in stand.items()}
    for verdict, corrected in (
        (Verdict.VALIDATED, combine is CombineRule.ANY_MAY_PASS),
        (Verdict.REFUTED, combine is CombineRule.ALL_MUST_PASS_HOLM_REFUTED),
    ):
        if corrected:
            why = f"alone it would be {verdict}, but not after Holm over {len(claims)} criteria"
            kept = _surviving_holm(claims, verdict)
            lost = [id for id, o in claims.items() if o.verdict is verdict and id not in kept]
            stand |= {id: _withdrawn(claims[id], why) for id in lost}
    refuted = all(outcome.refuted for outcome in claims.values())
    if combine in _ALONE and not refuted:
        why = f"{_ALONE[combine]}, so one alone refutes nothing"
        stand |= {id: _withdrawn(o, why) for id, o in claims.items() if o.refuted}
    return stand


_ALONE = {
    CombineRule.ANY_MAY_PASS: "any criterion may pass",
    CombineRule.ALL_MUST_AGREE: "all criteria must agree",
}


def _whole(rule: DecisionRule, outcomes: Outcomes) -> Verdict:
    """What criteria that stand together, on every look, make of the experiment.

    Without its premises no claim stands any more, so that nothing is left to ask of them here.
    """
    claims = [outcomes[c.id] for c in rule.criteria if not c.premise]
    if any(outcome.invalid for outcome in outcomes.values()):
        return Verdict.INVALID
    if any(outcome.refuted for outcome in claims):
        return Verdict.REFUTED
    enough = any if CombineRule(rule.combine) is CombineRule.ANY_MAY_PASS else all
    shown = enough(outcome.validated for outcome in claims)
    return Verdict.VALIDATED if shown else Verdict.INCONCLUSIVE


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
    named = "; ".join(dict.fromkeys(steps))
    return replace(outcome, sentence=f"{outcome.sentence} Next step: {named}.")


def _surviving_holm(claims: Outcomes, verdict: Verdict) -> set[str]:
    """The claims whose p value for `verdict` is small enough among the p values of all."""
    alphas = {outcome.alpha for outcome in claims.values()}
    if len(alphas) > 1:
        raise CardError(f"Holm shares one alpha, the criteria have {sorted(alphas)}; register one")
    validated = verdict is Verdict.VALIDATED
    p_values = [o.p_validated if validated else o.p_refuted for o in claims.values()]
    survived = holm([1.0 if p is None else p for p in p_values], alphas.pop()).reject
    return {id for id, alive in zip(claims, survived, strict=True) if alive}
