"""A decision worked out again from what was stored: estimate and margin, criteria, and verdict."""

import itertools
import math
from collections.abc import Mapping, Sequence

from harness.cards import CriterionSpec, DecisionRule, Threshold
from harness.cards.card import SecondLook
from harness.decisions.criterion import Criterion
from harness.decisions.family import Decision
from harness.decisions.method import Method
from harness.decisions.outcome import Outcome, Verdict
from harness.decisions.pairing import Rows
from harness.decisions.rule import joined_sample
from harness.errors import RunError
from harness.names import BY_ESTIMATE, POINT_ESTIMATE
from harness.records import EpisodeRow, ItemRow, Row, StepFigures

CLOSE = 1e-9
"""Two float64 means of the same thousand scores."""

BEST_OF = "_best_of_"

Outcomes = Mapping[str, Outcome]
"""Every criterion, by id."""

ArmMeans = Mapping[str, Sequence[float]]
"""The mean score of each arm, by role."""


def outcome_problems(
    rule: DecisionRule, stated: CriterionSpec, outcome: Outcome, arm_means: ArmMeans
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
        reported, wanted = (", ".join(map(str, each)) for each in (found, level))
        problems.append(
            f"{where}: decided with alpha, sides, unit and metric {reported}, "
            f"{wanted} are registered"
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


def limit_problems(
    criterion: Criterion,
    outcome: Outcome,
    scores_by_arm: Mapping[str, Rows],
    item_ids: Sequence[str],
    clusters: Mapping[str, str | int] | None,
) -> list[str]:
    """Where the limits of an experiment's own method are not those of its reference."""
    method = criterion.own
    if not isinstance(method, Method) or method.reference is None or outcome.estimate is None:
        return []
    expected = method.reference(
        joined_sample(criterion, scores_by_arm, item_ids, clusters), criterion
    )
    return [
        f"criterion {criterion.id}: {name} {found:.6g} by {method.name}, its reference makes "
        f"{wanted:.6g}; they must be of one mind"
        for name, found, wanted in (
            ("lower limit", outcome.lower, expected.lower),
            ("upper limit", outcome.upper, expected.upper),
            ("estimate", outcome.estimate, expected.estimate),
        )
        if found is not None and not abs(found - wanted) <= CLOSE
    ]


def threshold_verdicts(stated: CriterionSpec, arm_means: ArmMeans) -> set[Verdict]:
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


def decision_problems(
    rule: DecisionRule,
    first: Outcomes,
    second: Outcomes | None,
    decision: Decision,
) -> list[str]:
    """Where an experiment's decision is not what its rule makes of each criterion by itself.

    Holm's correction is worked out again from the p-values that the criteria were decided with.

    Args:
        rule: the decision rule of card or registration.
        first: each of its criteria decided by itself, on the first look.
        second: the same on the second look, None if it was not taken.
        decision: the verdict as it is reported, with the criteria that make it.
    """
    looks = [first] if second is None else [first, second]
    if list(decision.outcomes) != [criterion.id for criterion in rule.criteria]:
        return [f"decided on the criteria {list(decision.outcomes)}, others are registered"]
    left = [left_beside_others(rule, alone) for alone in looks]
    called = calls(rule.second_look, first, left[0])
    if (second is not None) not in called:
        return [f"decided on {len(looks)} look(s), the first calls for {1 + called.pop()}"]
    lacking = [c for c in rule.criteria if c.premise and not all(x[c.id].validated for x in looks)]
    steps = [criterion.next_step for criterion in lacking if criterion.next_step]
    problems = []
    for id, found in decision.outcomes.items():
        alone = [outcomes[id] for outcomes in looks]
        possible = {both_say(verdicts) for verdicts in itertools.product(*(x[id] for x in left))}
        if found.verdict not in possible:
            own = " and ".join(outcome.verdict for outcome in alone)
            problems.append(
                f"criterion {id}: {found.verdict} beside the others, {own} alone makes "
                f"{' or '.join(sorted(possible))} under {rule.combine}"
            )
        unsaid = [step for step in steps if step not in found.sentence]
        if unsaid and found.inconclusive:
            problems.append(f"criterion {id}: does not say the registered next step: {unsaid[0]}")
        problems += figure_problems(alone, found)
    return problems + whole_problems(rule, decision)


def calls(look: SecondLook | None, first: Outcomes, left: Mapping[str, set[Verdict]]) -> set[bool]:
    """Whether a first look decided something, near enough to be looked at twice."""
    if look is None or (estimate := first[look.criterion].estimate) is None:
        return {False}
    near = look.low <= estimate <= look.high
    return {near and verdict in _DECIDED for verdict in left[look.criterion]}


def left_beside_others(rule: DecisionRule, alone: Outcomes) -> dict[str, set[Verdict]]:
    """What the rule leaves each criterion of one look; more than one where Holm is at its bound."""
    claims = {c.id: alone[c.id] for c in rule.criteria if not c.premise}
    lacking = any(c.premise and not alone[c.id].validated for c in rule.criteria)
    left = {}
    for criterion in rule.criteria:
        own = alone[criterion.id].verdict
        left[criterion.id] = {own}
        if own is Verdict.INVALID:
            continue
        if criterion.premise:
            left[criterion.id] = {Verdict.INCONCLUSIVE if own is Verdict.REFUTED else own}
        elif lacking:
            left[criterion.id] = {Verdict.INCONCLUSIVE}
        elif own is Verdict.REFUTED and rule.combine in ("all_must_agree", "any_may_pass"):
            all_refuted = all(outcome.refuted for outcome in claims.values())
            left[criterion.id] = {own if all_refuted else Verdict.INCONCLUSIVE}
        elif (own, rule.combine) in _BY_HOLM:
            left[criterion.id] = holm_verdicts(own, criterion.id, claims)
    return left


def both_say(looks: Sequence[Verdict]) -> Verdict:
    """What one look, or two, say of a criterion: INVALID wins, and what they differ on is open."""
    if Verdict.INVALID in looks:
        return Verdict.INVALID
    return looks[0] if len(set(looks)) == 1 else Verdict.INCONCLUSIVE


def figure_problems(alone: Sequence[Outcome], found: Outcome) -> list[str]:
    """Where the figures of two looks are not their mean and their outermost limits."""
    if len(alone) == 1 or found.invalid:
        return []
    figures = [(o.estimate or 0.0, o.lower or 0.0, o.upper or 0.0) for o in alone]
    centres, lowers, uppers = zip(*figures, strict=True)
    reported = [found.estimate, found.lower, found.upper]
    expected = [_mean(centres), min(lowers), max(uppers)]
    if all(x is not None and abs(x - y) <= CLOSE for x, y in zip(reported, expected, strict=True)):
        return []
    return [
        f"criterion {found.id}: two looks make the estimate {expected[0]:.6g} in "
        f"[{expected[1]:.6g}, {expected[2]:.6g}], {reported} is reported"
    ]


def whole_problems(rule: DecisionRule, decision: Decision) -> list[str]:
    """Where the experiment's verdict is not that of its criteria, or leaves one of them out."""
    expected = whole_verdict(rule, {id: o.verdict for id, o in decision.outcomes.items()})
    if decision.verdict is not expected:
        return [f"the experiment is {decision.verdict}, its criteria make it {expected}"]
    return [
        f"the experiment is {decision.verdict}, and its sentence leaves out criterion {id}"
        for id, outcome in decision.outcomes.items()
        if outcome.verdict is expected
        and outcome.sentence.removeprefix(f"{expected}: ") not in decision.sentence
    ]


def whole_verdict(rule: DecisionRule, stand: Mapping[str, Verdict]) -> Verdict:
    """The experiment's verdict, from how many claims say what.

    A rule takes so many to validate and so many to refute; premises must hold and count no further.
    """
    claims = [stand[criterion.id] for criterion in rule.criteria if not criterion.premise]
    premises = [stand[criterion.id] for criterion in rule.criteria if criterion.premise]
    if Verdict.INVALID in claims + premises:
        return Verdict.INVALID
    every = len(claims)
    to_validate = 1 if rule.combine == "any_may_pass" else every
    to_refute = every if rule.combine in ("any_may_pass", "all_must_agree") else 1
    if premises.count(Verdict.VALIDATED) < len(premises):
        return Verdict.INCONCLUSIVE
    if claims.count(Verdict.REFUTED) >= to_refute:
        return Verdict.REFUTED
    validated = claims.count(Verdict.VALIDATED) >= to_validate
    return Verdict.VALIDATED if validated else Verdict.INCONCLUSIVE


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


_DECIDED = (Verdict.VALIDATED, Verdict.REFUTED)

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
