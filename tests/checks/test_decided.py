from dataclasses import replace

import pytest

from harness.cards import Criterion as Stated
from harness.checks.decided import joint_problems, outcome_problems, rows_mean, steps_mean
from harness.decisions import Criterion, Verdict, decide
from harness.errors import RunError

ITEMS = [f"test/{index:03d}" for index in range(200)]
MEANS = {"treatment": [0.8], "baseline": [0.1]}


@pytest.fixture(name="stated")
def _stated(experiment) -> Stated:
    """The card's criterion: treatment minus baseline above -0.05."""
    return experiment.rule.criteria[0]


@pytest.fixture(name="outcome")
def _outcome(experiment, stated):
    """A treatment that is right on 160 of 200 items, a baseline that is on 20."""
    right = {"treatment": 160, "baseline": 20}
    scores = {
        role: {item: float(place < n) for place, item in enumerate(ITEMS)}
        for role, n in right.items()
    }
    return decide(Criterion.from_card(stated, experiment.rule), scores, ITEMS)


def test_a_decision_that_follows_is_let_through(experiment, stated, outcome):
    """Estimate, margin and limits are those of the criterion and the means."""
    assert outcome.verdict is Verdict.VALIDATED
    assert outcome_problems(experiment.rule, stated, outcome, MEANS) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"estimate": -0.7}, "look for arms or signs exchanged"),
        ({"margin": 0.05}, "decided at the margin 0.05, -0.05 is registered"),
        ({"verdict": Verdict.REFUTED}, "REFUTED does not follow from limits"),
        ({"lower": -0.06}, "VALIDATED does not follow from limits"),
        ({"method": "paired_tango"}, "decided by paired_tango, paired_hoeffding is registered"),
    ],
)
def test_a_decision_that_does_not_follow_is_named(experiment, stated, outcome, change, words):
    """Each figure that decides is held against the stored results."""
    (line,) = outcome_problems(experiment.rule, stated, replace(outcome, **change), MEANS)

    assert words in line


def test_exchanged_arms_are_named(experiment, stated, outcome):
    """The means of the roles say which one is ahead."""
    exchanged = {"treatment": MEANS["baseline"], "baseline": MEANS["treatment"]}

    (line,) = outcome_problems(experiment.rule, stated, outcome, exchanged)
    assert "estimate 0.7, the stored results of baseline and treatment make -0.7" in line


def test_an_invalid_outcome_has_nothing_to_compare(experiment, stated, outcome):
    """It says itself what is wrong."""
    invalid = replace(outcome, estimate=None, verdict=Verdict.INVALID)

    assert outcome_problems(experiment.rule, stated, invalid, MEANS) == []


def test_means_are_of_items_and_of_steps():
    """pass@2 of 1 right in 3 is 2/3; a mean over steps has every step."""
    rows = [
        {"item_id": "a", "correct": True, "correct_S": [True, False, False]},
        {"item_id": "b", "correct": False},
    ]
    figures = [{"step": step, "metrics": {"a/b": float(step)}} for step in range(5)]

    assert rows_mean(rows[:1], "pass@2") == pytest.approx(2 / 3)
    assert rows_mean(rows, "accuracy") == pytest.approx(1 / 6)
    assert steps_mean(figures, "a/b", 2, 4) == 3.0
    with pytest.raises(RunError, match="2 values in steps 3 to 5"):
        steps_mean(figures, "a/b", 3, 5)
