"""What the two earlier GS1 cards say in prose, against what their registered rules decide.

Every combination of gaps and of gains over the base model comes to exactly one verdict, the one
that a reader of the card would give.
"""

from itertools import product
from pathlib import Path

import pytest

from harness.cards import load_experiment
from harness.decisions import Criterion, Verdict, calls_for_second_look, decide, decision

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
N = 1000  # a point is ten items
GAPS = (-40, -31, -30, -25, -20, -16, -15, -10, 0, 15, 16, 20, 21, 40)
GAINS = (-10, 0, 1, 29, 30, 60)


def scores(correct):
    """An arm that is right on the first items."""
    return {f"item-{i}": float(i < correct) for i in range(N)}


def alone(rule, base, baseline, treatment):
    """Each criterion by itself on one look, from numbers of right items."""
    rows = {"base": scores(base), "baseline": scores(baseline), "treatment": scores(treatment)}
    ids = list(rows["base"])
    return {c.id: decide(Criterion.resolved(c, rule), rows, ids) for c in rule.criteria}


@pytest.mark.parametrize("name", ["cosine", "softmax"])
def test_rule_is_the_same_at_both_scales(name):
    """The embedded scale shortens arms and leaves the rule alone."""
    path = CARDS / f"gs1_vs_grpo_gsm8k_08b_{name}.json"
    assert load_experiment(path, "full").rule == load_experiment(path, "embedded").rule


def test_cosine_card_says_what_its_prose_says():
    """Validated: within 2 points of GRPO and 3 above base. Failed: one of them not."""
    rule = load_experiment(CARDS / "gs1_vs_grpo_gsm8k_08b_cosine.json", "full").rule
    for gap, gain in product(GAPS, GAINS):
        base, baseline = 300, 300 + gain
        made = decision(rule, alone(rule, base, baseline, baseline + gap))
        expected = Verdict.VALIDATED if gap >= -20 and gap + gain >= 30 else Verdict.REFUTED
        if gain <= 0:
            expected = Verdict.INCONCLUSIVE  # GRPO did not beat the base model either
        assert made.verdict is expected, (gap, gain)
        sentence = made.outcomes["primary_noninferiority"].sentence
        assert ("this is a win" in sentence) is (gap > 20)


def test_softmax_card_says_what_its_prose_says():
    """A close first gap needs a second seed that agrees; without 3 points over base none counts."""
    rule = load_experiment(CARDS / "gs1_vs_grpo_gsm8k_08b_softmax.json", "full").rule
    assert rule.second_look is not None
    look = {
        (gap, gain): alone(rule, 300, 300 + gain, 300 + gain + gap)
        for gap, gain in product(GAPS, GAINS)
    }
    for first, second, gain in product(GAPS, GAPS, GAINS):
        once = look[first, gain]
        counts = gain >= 30 and gain + first >= 30
        called = calls_for_second_look(rule, once)
        assert called is (counts and -30 <= first <= 15), (first, gain)

        expected = Verdict.VALIDATED if first >= -15 else Verdict.REFUTED
        if called:
            counts = counts and gain + second >= 30
            if (second >= -15) is not (first >= -15):
                expected = Verdict.INCONCLUSIVE
        if not counts:
            expected = Verdict.INCONCLUSIVE
        again = look[second, gain] if called else None
        assert decision(rule, once, again).verdict is expected, (first, second, gain)
