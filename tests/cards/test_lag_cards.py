import json
from pathlib import Path

import pytest

from harness.cards import load_experiment
from harness.cards.consistency import experiment_problems
from harness.decisions import Criterion, can_come_out_both_ways

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
ACCURACY = "tailrl_lag4_accuracy_gsm8k_08b"
MASS = "maxrl_lag4_clip_mass_gsm8k_08b"
SENSITIVITY = "tailrl_lag4_sensitivity_gsm8k_08b"
ALL = (ACCURACY, MASS, SENSITIVITY)


def load(card, scale="full"):
    """A lag card at a scale."""
    return load_experiment(CARDS / f"{card}.json", scale)


def bent(experiment, **changes):
    """The registration with changes in it, whatever they break."""
    import dataclasses

    return dataclasses.replace(
        experiment, registration=experiment.registration.model_copy(update=changes)
    )


@pytest.mark.parametrize("scale", ["embedded", "full"])
@pytest.mark.parametrize("card", ALL)
def test_a_design_of_two_by_two(card, scale):
    """Two objectives at lag 0 and 4, which differ in estimator and lag alone."""
    arms = load(card, scale).arms
    cells = {(arm.role, arm.lag, arm.estimator) for arm in arms}
    settings = {
        (a.steps, a.group_size, a.groups_per_batch, a.learning_rate, a.loss, a.loss_backends)
        for a in arms
    }

    assert len(cells) == 4
    assert len(settings) == 1
    assert sorted({arm.lag for arm in arms}) == [0, 4]
    assert {arm.seed for arm in arms} == ({0, 1} if card == MASS else {0})


@pytest.mark.parametrize("card", ALL)
def test_the_full_scale_is_the_cards(card):
    """Steps, batch, learning rate and items are those that the card states."""
    experiment = load(card)
    stated = json.loads((CARDS / f"{card}.json").read_text())

    for arm in experiment.arms:
        assert arm.steps == stated["steps"] == 60
        assert arm.rollouts_per_step == stated["batch_size"]
        assert arm.learning_rate == stated["optimizer"]["lr"]
        assert arm.group_size == 8
    assert experiment.card.eval.n_examples == 500


@pytest.mark.parametrize("card", ALL)
def test_the_embedded_scale_keeps_every_threshold(card):
    """A scale may shorten arms and evaluation; what decides is the registered rule."""
    rules = [load(card, scale).rule for scale in ("embedded", "full")]
    for embedded, full in zip(rules[0].criteria, rules[1].criteria, strict=True):
        assert embedded.model_copy(update={"steps": full.steps}) == full


@pytest.mark.parametrize("scale", ["embedded", "full"])
@pytest.mark.parametrize("card", ALL)
def test_every_criterion_is_exhaustive_and_exclusive(card, scale):
    """No data validate and refute at once, and thresholds can be met."""
    experiment = load(card, scale)
    for stated in experiment.rule.criteria:
        criterion = Criterion.resolved(stated, experiment.rule)
        assert can_come_out_both_ways(criterion, experiment.card.eval.n_examples) == []


def test_accuracy_alone_cannot_validate():
    """Where the card says so, no criterion is of accuracy alone; elsewhere it needs company."""
    mass, joint = load(MASS), load(SENSITIVITY)

    assert all(c.metric.startswith("staleness/") for c in mass.rule.criteria)
    assert {c.metric for c in mass.registration.supporting} == {"pass@1", "pass@8"}
    assert {c.metric for c in joint.rule.criteria} == {
        "greedy_exact_match_accuracy",
        "staleness/clip_raw",
    }


def test_averaged_steps_lie_past_the_ramp():
    """A step in which the lag still grows is no step at lag 4."""
    experiment = load(SENSITIVITY)
    rule = experiment.registration.decision_rule
    criteria = [rule.criteria[0], rule.criteria[1].model_copy(update={"steps": (3, 59)})]
    problems = experiment_problems(
        bent(experiment, decision_rule=rule.model_copy(update={"criteria": criteria}))
    )

    assert problems == [
        "criterion clip_fraction_ratio: averages steps 3 to 59; they must lie in 4 (past the "
        "ramp) to 59"
    ]


def test_a_pilot_within_the_ramp_is_refused():
    """Gates must see the registered lag at least once."""
    experiment = load(ACCURACY)
    training = experiment.registration.training.model_copy(update={"pilot_steps": 4})

    assert any(
        "make the pilot at least 5 steps long" in problem
        for problem in experiment_problems(bent(experiment, training=training))
    )


def test_maxrl_needs_binary_rewards():
    """A format bonus would make rewards that are neither 0 nor 1."""
    experiment = load(MASS)
    training = experiment.registration.training.model_copy(update={"format_coefficient": 0.1})

    assert any(
        "maxrl takes rewards of 0 and 1" in problem
        for problem in experiment_problems(bent(experiment, training=training))
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"samples": 4}, "pass@8 of 4 samples an item is not identified"),
        ({"temperature": 0.0}, "8 samples at temperature 0 are all the same"),
    ],
)
def test_samples_must_identify_what_is_measured(changes, problem):
    """pass@8 needs 8 different samples."""
    experiment = load(MASS)
    evaluation = experiment.registration.evaluation.model_copy(update=changes)

    problems = experiment_problems(bent(experiment, evaluation=evaluation))

    assert any(problem in line for line in problems)


def test_settings_of_an_estimator_are_complete():
    """ddof and eps are never taken from a library's default."""
    experiment = load(MASS)
    specs = [
        spec.model_copy(update={"estimator_config": {"ddof": 1}})
        if spec.estimator == "group_std"
        else spec
        for spec in experiment.registration.arms
    ]

    problems = experiment_problems(bent(experiment, arms=specs))

    assert len([p for p in problems if "eps is missing; it takes ddof, eps" in p]) == 4
