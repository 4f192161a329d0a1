"""A decision worked out again from what was stored: the estimate, its margin, and what follows."""

import itertools
import math
from collections.abc import Mapping, Sequence

from harness.cards import Criterion, DecisionRule, Threshold
from harness.cards.card import SecondLook
from harness.decisions.outcome import Outcome, Verdict
from harness.errors import RunError
from harness.names import BY_ESTIMATE, POINT_ESTIMATE
from harness.records import EpisodeRow, ItemRow, Row, StepFigures

CLOSE = 1e-9
"""Two float64 means of the same thousand scores."""

BEST_OF = "_best_of_"

ArmMeans = Mapping[str, Sequence[float]]
"""The mean score of each arm, by role."""


def outcome_problems(
    rule: DecisionRule, stated: Criterion, outcome: Outcome, arm_means: ArmMeans
) -> list[str]:
    """Where an outcome is not that of the stated criterion on these means.

    Args:
        rule: the decision rule of card or registration.
        stated: one of its criteria, or a supporting one.
        outcome: what was decided; an INVALID one has nothing to compare.
        arm_means: the mean score of each arm of every weighed role.
    """
    if outcome.estimate is None:
        return []
    problems, where = [], f"criterion {stated.id}"
    expected = _contrast(stated.weights, arm_means)
    if not abs(outcome.estimate - expected) <= CLOSE:
        problems.append(
            f"{where}: decided on the estimate {outcome.estimate:.6g}, the stored results of "
            f"{' and '.join(stated.weights)} make {expected:.6g}; look for arms or signs exchanged"
        )
    if outcome.margin != stated.margin:
        problems.append(
            f"{where}: decided at the margin {outcome.margin:g}, {stated.margin:g} is registered"
        )
    method = stated.method or rule.method
    if method == "paired_hoeffding" and outcome.lower is not None:
        # Hoeffding 1963, Theorem 2: R sqrt(ln(sides / alpha) / 2n) around a mean of range R
        low, high = stated.bounds
        most = (high - low) * math.fsum(map(abs, stated.weights.values()))
        half = most * math.sqrt(math.log(rule.sides / rule.alpha) / (2 * outcome.n_registered))
        if not abs(outcome.estimate - half - outcome.lower) <= CLOSE:
            problems.append(
                f"{where}: lower limit {outcome.lower:.6g}, scores in {stated.bounds} of "
                f"{outcome.n_registered} items make {outcome.estimate - half:.6g}"
            )
    if outcome.method != method:
        problems.append(f"{where}: decided by {outcome.method}, {method} is registered")
    found = (outcome.alpha, outcome.sides, outcome.unit, outcome.metric)
    level = (rule.alpha, rule.sides, stated.unit or rule.unit, stated.metric)
    if found != level:
        told, wanted = (", ".join(map(str, each)) for each in (found, level))
        problems.append(
            f"{where}: decided with alpha, sides, unit and metric {told}, {wanted} are registered"
        )
    if method in BY_ESTIMATE:
        point = Threshold(weights=stated.weights, margin=stated.margin)
        refuted = point if method == POINT_ESTIMATE else stated.refuted
        possible = threshold_verdicts(stated.model_copy(update={"refuted": refuted}), arm_means)
        if outcome.verdict not in possible:
            problems.append(
                f"{where}: {outcome.verdict} does not follow from the registered thresholds and "
                f"the stored results, which make {' or '.join(sorted(possible))}"
            )
    elif outcome.lower is not None and outcome.upper is not None:
        shown = {
            Verdict.VALIDATED: outcome.lower >= stated.margin - CLOSE,
            Verdict.REFUTED: outcome.upper <= stated.margin + CLOSE,
        }
        if not shown.get(outcome.verdict, True):
            problems.append(
                f"{where}: {outcome.verdict} does not follow from limits [{outcome.lower:.6g}, "
                f"{outcome.upper:.6g}] and margin {stated.margin:g}"
            )
    return problems


def threshold_verdicts(stated: Criterion, arm_means: ArmMeans) -> set[Verdict]:
    """What thresholds on the estimate say of these means; more than one where it lies on one."""
    found = set()
    for nudge, other in itertools.product((-CLOSE, CLOSE), repeat=2):
        estimate = _contrast(stated.weights, arm_means) + nudge
        validated, refuted = estimate >= stated.margin, False
        if stated.seed_range is not None:
            noise = max(max(x) - min(x) for x in arm_means.values()) + other
            validated = estimate > stated.seed_range.validated * noise
            refuted = estimate <= stated.seed_range.refuted * noise
        elif stated.refuted is not None:
            against = _contrast(stated.refuted.weights, arm_means) + other
            if stated.refuted.weights == stated.weights:
                against = estimate
            least = -math.inf if stated.refuted.least is None else stated.refuted.least
            refuted = least <= against < stated.refuted.margin
        found.add(
            Verdict.VALIDATED if validated else Verdict.REFUTED if refuted else Verdict.INCONCLUSIVE
        )
    return found


def joint_problems(
    rule: DecisionRule, alone: Mapping[str, Outcome], together: Mapping[str, Outcome]
) -> list[str]:
    """Where the criteria together say something else than the rule makes of each alone.

    Holm's correction is worked out again from the p-values that the criteria were decided with.
    """
    problems = []
    lacking = [c for c in rule.criteria if c.premise and not alone[c.id].validated]
    claims = [c.id for c in rule.criteria if not c.premise]
    for criterion in rule.criteria:
        own, found = alone[criterion.id].verdict, together[criterion.id]
        possible = {own}
        if own is Verdict.INVALID:
            pass
        elif criterion.premise:
            possible = {Verdict.INCONCLUSIVE if own is Verdict.REFUTED else own}
        elif lacking:
            possible = {Verdict.INCONCLUSIVE}
        elif own is Verdict.REFUTED and rule.combine in ("all_must_agree", "any_may_pass"):
            agreed = all(alone[id].refuted for id in claims)
            possible = {own if agreed else Verdict.INCONCLUSIVE}
        elif (own, rule.combine) in _BY_HOLM:
            possible = holm_verdicts(own, criterion.id, {id: alone[id] for id in claims})
        if found.verdict not in possible:
            problems.append(
                f"criterion {criterion.id}: {found.verdict} beside the others, {own} alone makes "
                f"{' or '.join(sorted(possible))} under {rule.combine}"
            )
        unsaid = [c.next_step for c in lacking if c.next_step and c.next_step not in found.sentence]
        if unsaid and not found.validated and not found.invalid:
            problems.append(
                f"criterion {criterion.id}: does not say the registered next step: {unsaid[0]}"
            )
    return problems


def holm_verdicts(own: Verdict, id: str, claims: Mapping[str, Outcome]) -> set[Verdict]:
    """What Holm leaves of a claim's own verdict; more than one where a p-value lies on its bound.

    In ascending order p_(i) is rejected while p_(i) <= alpha / (m - i + 1), Holm 1979.
    """
    by_claim = {
        claim: outcome.p_validated if own is Verdict.VALIDATED else outcome.p_refuted
        for claim, outcome in claims.items()
    }
    ascending = sorted(1.0 if p is None else p for p in by_claim.values())
    mine = by_claim[id]
    found = set()
    for nudge in (-CLOSE, CLOSE):
        bounds = [claims[id].alpha / (len(claims) - i) + nudge for i in range(len(claims))]
        passed = 0
        while passed < len(claims) and ascending[passed] <= bounds[passed]:
            passed += 1
        survives = mine is not None and passed > 0 and mine <= ascending[passed - 1]
        found.add(own if survives else Verdict.INCONCLUSIVE)
    return found


def agreement_problems(
    look: SecondLook | None,
    first: Mapping[str, Outcome],
    second: Mapping[str, Outcome] | None,
    outcome: Outcome,
) -> list[str]:
    """Where an outcome is not what its looks say together, or a look too many or too few was taken.

    Args:
        look: when a second one is called for, if ever.
        first: all criteria on the first look.
        second: all criteria on the second, None if it was not taken.
        outcome: one criterion, as it is told.
    """
    called = look is not None and _called(look, first[look.criterion])
    if called != (second is not None):
        taken, wanted = 1 + (second is not None), 1 + called
        return [f"criterion {outcome.id}: decided on {taken} look(s), the first calls for {wanted}"]
    one, two = first[outcome.id], (second or first)[outcome.id]
    verdict = one.verdict if one.verdict is two.verdict else Verdict.INCONCLUSIVE
    if one.invalid or two.invalid:
        verdict = Verdict.INVALID
    problems = []
    if outcome.verdict is not verdict:
        problems.append(
            f"criterion {outcome.id}: {outcome.verdict} after looks that say {one.verdict} and "
            f"{two.verdict}, which make {verdict}"
        )
    if second is not None and verdict is not Verdict.INVALID:
        told = [outcome.estimate, outcome.lower, outcome.upper]
        both = [(o.estimate or 0.0, o.lower or 0.0, o.upper or 0.0) for o in (one, two)]
        centres, lowers, uppers = zip(*both, strict=True)
        expected = [_mean(centres), min(lowers), max(uppers)]
        if any(x is None or abs(x - y) > CLOSE for x, y in zip(told, expected, strict=True)):
            problems.append(
                f"criterion {outcome.id}: two looks make the estimate {expected[0]:.6g} in "
                f"[{expected[1]:.6g}, {expected[2]:.6g}], {told} is told"
            )
    return problems


def _called(look: SecondLook, first: Outcome) -> bool:
    """Whether a first look decided something, near enough to be looked at twice."""
    decided = first.verdict in (Verdict.VALIDATED, Verdict.REFUTED) and first.estimate is not None
    return decided and look.low <= (first.estimate or 0.0) <= look.high


def rows_mean(rows: Sequence[Row], metric: str) -> float:
    """Mean over items: pass@k or the share of right ones; of episodes a score, or its best of k."""
    items: dict[str, list[Row]] = {}
    for row in rows:
        items.setdefault(row["item_id"], []).append(row)
    return _mean([_item_mean(of, metric) for of in items.values()])


def steps_mean(figures: Sequence[StepFigures], metric: str, first: int, last: int) -> float:
    """A metric's mean over these steps.

    Raises:
        RunError: it has no value at one of them.
    """
    by_step = {figure["step"]: figure["metrics"] for figure in figures}
    values = [by_step.get(step, {}).get(metric) for step in range(first, last + 1)]
    found = [value for value in values if value is not None]
    if len(found) != len(values):
        raise RunError(f"{metric} has {len(found)} values in steps {first} to {last}; record it")
    return _mean(found)


_BY_HOLM = {
    (Verdict.VALIDATED, "any_may_pass"),
    (Verdict.REFUTED, "all_must_pass_holm_refuted"),
}


def _contrast(weights: Mapping[str, float], arm_means: ArmMeans) -> float:
    return math.fsum(weight * _mean(arm_means[role]) for role, weight in weights.items())


def _item_mean(rows: Sequence[Row], metric: str) -> float:
    replies: list[ItemRow] = [row for row in rows if "correct" in row]
    draws: list[EpisodeRow] = [row for row in rows if "draw" in row]
    if replies:
        k = int(metric.removeprefix("pass@")) if metric.startswith("pass@") else 1
        return _mean([_pass(row.get("correct_S", [row["correct"]]), k) for row in replies])
    name, _, best = metric.partition(BEST_OF)
    values = [draw["scores"][name] for draw in draws]
    return _mean([max(chosen) for chosen in itertools.combinations(values, int(best or 1))])


def _pass(flags: Sequence[bool], k: int) -> float:
    # 1 - C(n - c, k) / C(n, k), Chen et al. 2021, equation 1
    n, c = len(flags), sum(flags)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
