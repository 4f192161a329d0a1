"""Whether evaluations make sense: two ruined policies are not inferior to each other.

A rule looks at the contrast alone. These checks look at each policy beside the base model, at how
its responses end and what they answer, and at the base model on the two splits.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import JsonValue

from harness.audit.acceptance import settle
from harness.audit.second_reading import disagreements
from harness.cards import Experiment
from harness.cards.registration import Sense
from harness.decisions import Criterion
from harness.names import BASE
from harness.records import ItemRow, Row, StepRecord
from harness.statistics.special import binomial_cdf_half

Scores = Mapping[str, float]
"""The headline score by item."""


@dataclass(frozen=True)
class Policy:
    """An evaluated policy: an arm, or the base model as `base`."""

    name: str
    rows: Sequence[Row]
    scores: Scores


@dataclass(frozen=True)
class Doubt:
    """A line that speaks against an evaluation, the check that says it, and what it is about."""

    check: str
    line: str
    given_for: Mapping[str, JsonValue]


def doubts(
    experiment: Experiment,
    base: Policy,
    arms: Sequence[Policy],
    pilot: Mapping[str, Sequence[StepRecord]],
) -> list[Doubt]:
    """What speaks against the evaluations of the base model and of the arms that a rule weighs."""
    found = [doubt for policy in (base, *arms) for doubt in _cut(experiment, policy)]
    found += [doubt for policy in (base, *arms) for doubt in _one_answer(experiment, policy)]
    for arm in arms:
        found += [*_unanswered(experiment, arm), *_below_base(experiment, arm, base)]
    found += [doubt for policy in (base, *arms) for doubt in _read_otherwise(experiment, policy)]
    found += _other_split(experiment, base, pilot)
    # of an arm that is below the base model no more has to be said
    ruined = {str(doubt.given_for["arm"]) for doubt in found if doubt.check == "below_base"}
    unlearned = [arm for arm in arms if arm.name not in ruined]
    return found + _not_learned(experiment, unlearned, base)


def settled(experiment: Experiment, found: Sequence[Doubt]) -> tuple[list[str], list[str]]:
    """(problems, notes): doubts that block, and those that the registration accepts.

    Bounds that are none of the defaults are said.
    """
    problems: list[str] = []
    stated = experiment.registration.sense.model_dump(exclude_defaults=True)
    notes = [
        f"sense: {name} is registered as {value:g}, by default {getattr(Sense(), name):g}"
        for name, value in stated.items()
    ]
    for doubt in found:
        made = settle(experiment, "sense", doubt.check, [doubt.line], doubt.given_for)
        problems += made.problems
        notes += made.notes
    return problems, notes


def sign_p(arm: Scores, base: Scores) -> tuple[float, float]:
    """One-sided exact sign test over paired items: (p of "arm above base", p of "below")."""
    differences = [score - base[item] for item, score in arm.items() if item in base]
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return binomial_cdf_half(losses, wins + losses), binomial_cdf_half(wins, wins + losses)


def _below_base(experiment: Experiment, arm: Policy, base: Policy) -> list[Doubt]:
    bound = experiment.registration.sense.below_base_p
    p = sign_p(arm.scores, base.scores)[1]
    if p >= bound:
        return []
    line = (
        f"arm {arm.name}: scores {fmean(arm.scores.values()):.4f}, the base model "
        f"{fmean(base.scores.values()):.4f} on the same items (sign test p {p:.2g}, bound "
        f"{bound:g}); training has ruined it: lower its learning rate, or look at its rewards"
    )
    return [Doubt("below_base", line, {"arm": arm.name, "below_base_p": bound})]


def _not_learned(experiment: Experiment, arms: Sequence[Policy], base: Policy) -> list[Doubt]:
    """Arms of a rule of non-inferiority that are not shown to be above the base model."""
    bound, found = experiment.registration.sense.learned_p, []
    roles = {arm.name: arm.role for arm in experiment.arms}
    criteria = [
        Criterion.resolved(stated, experiment.rule, experiment.components)
        for stated in experiment.rule.criteria
    ]
    lenient = [c for c in criteria if c.margin < 0.0 and sorted(c.weights.values()) == [-1.0, 1.0]]
    held = {role for criterion in lenient for role in criterion.weights} - {BASE}
    for arm in arms:
        p = sign_p(arm.scores, base.scores)[0]
        if roles[arm.name] in held and p > bound:
            line = (
                f"arm {arm.name}: scores {fmean(arm.scores.values()):.4f}, the base model "
                f"{fmean(base.scores.values()):.4f} (sign test p {p:.2g}, bound {bound:g}); of "
                "arms that have learned nothing none is inferior: train longer, or register a "
                "margin above 0"
            )
            found.append(Doubt("not_learned", line, {"arm": arm.name, "learned_p": bound}))
    return found


def _cut(experiment: Experiment, policy: Policy) -> list[Doubt]:
    bound = experiment.registration.sense.max_cut
    share = _share(row["stop"] in ("length", "max_tokens") for row in policy.rows)
    if share <= bound:
        return []
    limit = experiment.registration.evaluation.max_tokens
    line = (
        f"evaluation of {policy.name}: {share:.1%} of the responses are cut at {limit} tokens, "
        f"bound {bound:.0%}; raise evaluation.max_tokens, or look for a stop token that never comes"
    )
    return [Doubt("cut", line, {"policy": policy.name, "max_tokens": limit, "max_cut": bound})]


def _unanswered(experiment: Experiment, policy: Policy) -> list[Doubt]:
    bound, rows = experiment.registration.sense.max_unanswered, _items(policy.rows)
    share = _share(row["answer"] is None for row in rows)
    if share <= bound:
        return []
    line = (
        f"evaluation of {policy.name}: {share:.1%} of the responses hold no answer, bound "
        f"{bound:.0%}, for instance {rows[0]['response'][:60]!r}; look at prompt, renderer and "
        f"evaluation.answer, which is {experiment.registration.evaluation.answer}"
    )
    return [Doubt("unanswered", line, {"policy": policy.name, "max_unanswered": bound})]


def _one_answer(experiment: Experiment, policy: Policy) -> list[Doubt]:
    """A policy that says the same to most items, unless that is what most items ask for."""
    bound, rows = experiment.registration.sense.max_commonest, _items(policy.rows)
    answers = Counter(row["answer"] for row in rows if row["answer"] is not None)
    if not answers:
        return []
    (commonest, count), *_ = answers.most_common(1)
    share, asked = count / len(rows), _share(row["gold"] == commonest for row in rows)
    if share <= max(bound, 2.0 * asked):
        return []
    line = (
        f"evaluation of {policy.name}: the answer to {share:.1%} of the items is {commonest!r}, "
        f"which is right for {asked:.1%}, bound {bound:.0%}; the policy has collapsed: look at its "
        "rewards and at its learning rate"
    )
    return [Doubt("one_answer", line, {"policy": policy.name, "max_commonest": bound})]


def _read_otherwise(experiment: Experiment, policy: Policy) -> list[Doubt]:
    """Responses that another reader of numbers grades otherwise, if they are many."""
    bound, rows = experiment.registration.sense.max_read_otherwise, _items(policy.rows)
    odd = disagreements(rows)
    share = len(odd) / len(rows) if rows else 0.0
    if share <= bound:
        return []
    shown = ", ".join(row["item_id"] for row in odd[:3])
    line = (
        f"evaluation of {policy.name}: {share:.1%} of the responses are graded otherwise by a "
        f"second reader ({shown}), bound {bound:.0%}; read these responses: grader or format is "
        "not what it was taken for"
    )
    return [Doubt("read_otherwise", line, {"policy": policy.name, "max_read_otherwise": bound})]


def _other_split(
    experiment: Experiment, base: Policy, pilot: Mapping[str, Sequence[StepRecord]]
) -> list[Doubt]:
    """The base model far worse on test than it was on train at the pilot's first step.

    By Hoeffding's inequality for both means, prompts being the units of the pilot's.
    """
    bound, rows = experiment.registration.sense.other_split_p, _items(base.rows)
    right = {
        group["prompt"]: fmean(rollout["scores"]["correct"] for rollout in group["rollouts"])
        for records in pilot.values()
        for record in records
        if record["step"] == 0
        for group in record["groups"]
        if all("correct" in rollout["scores"] for rollout in group["rollouts"])
    }
    if not rows or not right:
        return []
    train, test = fmean(right.values()), fmean(row["correct"] for row in rows)
    room = sum(math.sqrt(math.log(1.0 / bound) / (2.0 * n)) for n in (len(right), len(rows)))
    if train - test <= room:
        return []
    line = (
        f"the base model solves {train:.1%} of {len(right)} train prompts and {test:.1%} of "
        f"{len(rows)} test items, {train - test:.1%} apart, bound {room:.1%}; look for test "
        "answers that belong to other questions, or for another prompt in the evaluation"
    )
    return [Doubt("other_split", line, {"other_split_p": bound})]


def _items(rows: Sequence[Row]) -> list[ItemRow]:
    return [row for row in rows if "correct" in row]


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / len(values) if values else 0.0
