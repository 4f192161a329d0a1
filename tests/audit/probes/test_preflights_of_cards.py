"""Every registered card's correctness and restoration preflights are held to something."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from harness.audit import baseline_correctness, reference_correctness, restoration
from harness.audit.correctness import tolerances
from harness.audit.probes import baseline_correctness as baseline_probe
from harness.audit.probes import reference_correctness as reference_probe
from harness.audit.restoration import ClientState, RestorationEvidence, equal_starts
from harness.cards import load_experiment
from harness.cards.consistency import experiment_problems
from harness.errors import CardError
from harness.methods import advantages, kernels

CARDS = Path(__file__).parents[3] / "experiments" / "cards"
EXPERIMENTS = {
    path.name.split(".")[0]: load_experiment(
        path.with_name(f"{path.name.split('.')[0]}.json"), "embedded"
    )
    for path in sorted(CARDS.glob("*.registration.json"))
}
ESTIMATORS = [
    (name, estimator)
    for name, experiment in EXPERIMENTS.items()
    for estimator in dict.fromkeys(arm.estimator for arm in experiment.arms)
]
every_card = pytest.mark.parametrize("name", EXPERIMENTS)


def compared(name, task, estimator):
    """The reference preflight's finding of an experiment's arms of one estimator."""
    experiment = EXPERIMENTS[name]
    arms = [arm for arm in experiment.registration.arms if arm.estimator == estimator]
    registration = experiment.registration.model_copy(update={"arms": arms})
    part = dataclasses.replace(experiment, registration=registration)
    return reference_correctness.check(reference_probe.collect(part, task, CARDS), part)


def without(name, **update):
    """The experiment, its registration without what the update takes away."""
    experiment = EXPERIMENTS[name]
    registration = experiment.registration.model_copy(update=update)
    card = experiment.card.model_copy(
        update={"correctness_preflight": None, "restoration_preflight": None}
    )
    return dataclasses.replace(experiment, registration=registration, card=card)


@every_card
def test_every_arm_agrees_with_another_computation_of_its_estimator(name, task):
    """Each is within stated tolerances; without tolerances, or without an arm, it is red."""
    experiment = EXPERIMENTS[name]
    evidence = reference_probe.collect(experiment, task, CARDS)
    kept = reference_correctness.ReferenceEvidence.of(evidence.plain())
    finding = reference_correctness.check(kept, experiment)
    untold = reference_correctness.check(kept, without(name, correctness_tolerances={}))
    fewer = kept.model_copy(update={"computations": kept.computations[1:]})

    assert finding.ok, finding.message
    assert tolerances(experiment)
    assert all(arm.name in "".join(finding.notes) for arm in experiment.arms)
    assert "nothing was compared" in untold.message
    assert f"arm {kept.computations[0].arms[0]}: no reward pattern was compared" in (
        reference_correctness.check(fewer, experiment).message
    )


@every_card
def test_every_baseline_agrees_with_the_stock_cookbook(name):
    """The path to the datums is the cookbook's, within tolerances that are stated."""
    evidence = baseline_probe.collect(EXPERIMENTS[name])
    finding = baseline_correctness.check(evidence, EXPERIMENTS[name])
    untold = baseline_correctness.check(evidence, without(name, correctness_tolerances={}))

    assert finding.ok, finding.message
    assert "nothing was compared" in untold.message


@pytest.mark.parametrize(("name", "estimator"), ESTIMATORS)
def test_an_estimator_that_is_a_tenth_off_is_found_in_its_card(name, estimator, task, monkeypatch):
    """Of each estimator that a card's arms use, the harness's own formula is spoilt."""
    formula = {"uniform_loo": "gs1"}.get(estimator, estimator)
    true = getattr(advantages, formula)
    monkeypatch.setattr(advantages, formula, lambda *a, **k: 1.1 * true(*a, **k))

    assert "rewards random: advantages: differs by" in compared(name, task, estimator).message


@pytest.mark.parametrize(
    "name", [n for n, e in EXPERIMENTS.items() if any(a.kernel and a.kernel.tau for a in e.arms)]
)
def test_a_kernel_at_three_times_tau_is_found(name, task, monkeypatch):
    """On every card whose kernel has a temperature."""
    true = kernels.softmax_loo_weights
    monkeypatch.setattr(kernels, "softmax_loo_weights", lambda s, tau: true(s, 3 * tau))

    assert (
        "gs1_seed0, rewards random: advantages: differs by" in compared(name, task, "gs1").message
    )


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, experiment in EXPERIMENTS.items()
        if any(arm.kernel and arm.kernel.weighting == "cosine" for arm in experiment.arms)
    ],
)
def test_squared_cosine_weights_are_found(name, task, monkeypatch):
    """On every card whose kernel weighs by the cosine itself."""
    true = kernels.cosine_loo_weights
    monkeypatch.setattr(
        kernels, "cosine_loo_weights", lambda s: true(np.square(np.maximum(s, 0.0)))
    )

    assert (
        "gs1_seed0, rewards random: advantages: differs by" in compared(name, task, "gs1").message
    )


@pytest.mark.parametrize(
    "name", [n for n, e in EXPERIMENTS.items() if any(a.loss == "ppo" for a in e.arms)]
)
def test_a_loss_that_does_not_clip_is_found(name, task, monkeypatch):
    """On every card whose loss clips the ratio."""
    from harness.audit.probes import correctness

    true = correctness.loss_and_gradient
    monkeypatch.setattr(
        correctness,
        "loss_and_gradient",
        lambda _, p, q, a, __: true("importance_sampling", p, q, a, {}),
    )

    estimator = EXPERIMENTS[name].arms[-1].estimator
    assert "rewards random: loss: differs by" in compared(name, task, estimator).message


def started(name):
    """Every group of arms as a sound service starts them: equal, and moved alike by one step."""
    return RestorationEvidence(
        groups=[
            [
                ClientState(
                    arm=arm.name,
                    sent=dict(arm.optimizer_config),
                    reported_rank=32,
                    before_T=[-1.0, -2.0],
                    after_T=[-0.9, -2.2 - arm.optimizer_config["init_seed"]],
                )
                for arm in group.arms
            ]
            for group in equal_starts(EXPERIMENTS[name])
        ]
    )


ARMS = [
    (name, number, place)
    for name, experiment in EXPERIMENTS.items()
    for number, group in enumerate(equal_starts(experiment))
    for place in range(len(group.arms))
]


@every_card
def test_every_arm_is_in_a_group_that_must_start_equal(name):
    """Every arm of every card has another to be equal to, and no group is stated that is none."""
    experiment = EXPERIMENTS[name]
    grouped = [arm.name for group in equal_starts(experiment) for arm in group.arms]

    assert sorted(grouped) == sorted(arm.name for arm in experiment.arms)
    assert restoration.check(started(name), experiment).ok
    assert "nothing was compared" in (
        restoration.check(RestorationEvidence(groups=[]), without(name, restoration=[])).message
    )


@pytest.mark.parametrize(("name", "number", "place"), ARMS)
def test_another_init_seed_in_any_arm_is_found(name, number, place):
    """What was sent says so, and so does A after the step, each by itself."""
    evidence = started(name)
    client = evidence.groups[number][place]
    said = client.model_copy(update={"sent": {**client.sent, "init_seed": 7.0}})
    shown = client.model_copy(update={"after_T": [-0.9, -9.2]})

    for spoilt, words in ((said, "init_seed was sent as 7"), (shown, "init seed is not honoured")):
        groups = [list(group) for group in evidence.groups]
        groups[number][place] = spoilt
        finding = restoration.check(RestorationEvidence(groups=groups), EXPERIMENTS[name])
        assert words in finding.message


REGISTERED = [n for n, e in EXPERIMENTS.items() if e.registration.restoration]


@pytest.mark.parametrize("name", REGISTERED)
def test_groups_are_the_arms_of_one_seed(name):
    """An arm that is left out, unknown or put with another seed is refused at once."""
    experiment = EXPERIMENTS[name]
    groups = experiment.registration.restoration
    for wrong in ([groups[0][1:], *groups[1:]], [[*groups[0], "nobody"]], [sum(groups, ["x"])]):
        registration = experiment.registration.model_copy(update={"restoration": wrong})
        (problem,) = experiment_problems(dataclasses.replace(experiment, registration=registration))
        assert "the arms of one seed start equal, and no others" in problem


def test_what_the_card_states_is_not_registered_again():
    """Two sources of one bound could disagree."""
    stated = EXPERIMENTS["gs1_vs_grpo_gsm8k_2b"]
    other = EXPERIMENTS[REGISTERED[0]].registration
    changes = ({"correctness_tolerances": other.correctness_tolerances}, {"restoration": [["a"]]})
    for change in changes:
        registration = stated.registration.model_copy(update=change)
        (problem,) = experiment_problems(dataclasses.replace(stated, registration=registration))
        assert "the card states" in problem


def test_a_misspelt_tolerance_is_no_tolerance(tmp_path):
    """A name that no comparison asks for is refused when the registration is read."""
    name = REGISTERED[0]
    for part in ("json", "registration.json", "embedded.json"):
        (tmp_path / f"{name}.{part}").write_bytes((CARDS / f"{name}.{part}").read_bytes())
    path = tmp_path / f"{name}.registration.json"
    path.write_text(path.read_text().replace('"reference_loss"', '"refrence_loss"'))

    with pytest.raises(CardError, match="correctness_tolerances/refrence_loss"):
        load_experiment(tmp_path / f"{name}.json", "embedded")


def test_a_clipped_loss_without_its_bounds_is_refused():
    """Servers differ in their defaults, and every check reads the bounds."""
    experiment = EXPERIMENTS["maxrl_lag4_clip_mass_gsm8k_08b"]
    specs = [s.model_copy(update={"loss_config": {}}) for s in experiment.registration.arms]
    registration = experiment.registration.model_copy(update={"arms": specs})
    problems = experiment_problems(dataclasses.replace(experiment, registration=registration))

    assert len(problems) == len(specs)
    assert "loss_config of ppo has [], it takes ['clip_high_threshold', 'clip_low" in problems[0]
