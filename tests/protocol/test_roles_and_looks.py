"""Ablation arms, several seeds a role, a second look: what is trained, what decides."""

from dataclasses import replace

import pytest
from service_doubles import GRPO, GS1, STEPS

from harness.cards.card import ClusterFile, CriterionSpec, Schedule, SecondLook
from harness.cards.consistency import (
    combine_problems,
    look_problems,
    seed_problems,
    tuning_problems,
)
from harness.cards.registration import ArmSpec, Tuning
from harness.errors import BudgetExceeded


@pytest.fixture(name="other")
def _other(small):
    """The small experiment with arms, rule and tuning of the registration's own."""

    def build(arms=(), tuning=None, **rule):
        stated = {arm.name: arm for arm in small.arms}
        specs = [
            spec.model_copy(update={"schedule": schedule(stated[spec.name])})
            for spec in small.registration.arms
        ]
        kernel = small.arm(GS1).kernel
        specs = [s.model_copy(update={"kernel": kernel if s.kernel else None}) for s in specs]
        extra = [again(specs, **arm) for arm in arms]
        registration = small.registration.model_copy(
            update={
                "arms": [*specs, *extra],
                "decision_rule": small.rule.model_copy(update=rule),
                "tuning": tuning,
            }
        )
        card = small.card.model_copy(update={"arms": None, "decision_rule": None})
        return replace(small, card=card, registration=registration)

    return build


def schedule(arm, seed=None):
    """An arm's schedule, with another seed."""
    return Schedule(
        seed=arm.seed if seed is None else seed,
        group_size=arm.group_size,
        groups_per_batch=arm.groups_per_batch,
        steps=arm.steps,
        learning_rate=arm.learning_rate,
    )


def again(specs, name, seed, look=1):
    """A further seed of a registered arm."""
    spec = next(s for s in specs if s.name == name)
    other = spec.schedule.model_copy(update={"seed": seed})
    return spec.model_copy(update={"name": f"{name}_again{seed}", "schedule": other, "look": look})


def both(*seeds, look=1):
    """Both arms with further seeds."""
    return [{"name": name, "seed": seed, "look": look} for seed in seeds for name in (GRPO, GS1)]


def finished(run):
    """A run to its end."""
    run.pilot()
    run.train()
    return run


def ablated(experiment):
    """With a third arm of uniform weights that no criterion weighs."""
    gs1 = next(s for s in experiment.registration.arms if s.name == GS1)
    spec = ArmSpec(name="uniform", role="ablation", estimator="uniform_loo", schedule=gs1.schedule)
    arms = [*experiment.registration.arms, spec]
    registration = experiment.registration.model_copy(update={"arms": arms})
    return replace(experiment, registration=registration)


def test_ablation_is_reported_beside_the_verdict_and_decides_nothing(fakes, other):
    """With it every criterion says the same as without, and two more lines compare it."""
    run = finished(fakes.run("with", experiment=ablated(other())))
    decided, lines = run.decision(), run.diagnostics()
    fakes.unbound()
    without = finished(fakes.run("without", experiment=other()))

    assert run.arm("uniform").steps == STEPS
    assert decided.outcomes == without.decision().outcomes
    lines = [line for line in lines if line.startswith("ablation")]
    assert len(lines) == 2
    assert all("not used for the verdict" in line and "- ablation" in line for line in lines)


def test_a_criterion_may_weigh_the_base_model(fakes, other):
    """Its estimate is the arm's accuracy less the base model's."""
    criterion = CriterionSpec(
        id="above", metric="accuracy", weights={"treatment": 1, "base": -1}, bounds=(0, 1),
        margin=0.03,
    )  # fmt: skip
    run = finished(fakes.run(experiment=other(criteria=[criterion])))

    gap = run.arm(GS1).accuracy - run.base().accuracy
    assert run.decision().outcomes["above"].estimate == pytest.approx(gap)


def test_several_seeds_are_averaged_item_by_item(fakes, other):
    """Items stay the unit, the sentence says whose they are, the spread stands beside."""
    run = finished(fakes.run(experiment=other(both(7), seeds=[0, 7])))
    outcome = run.decision().outcomes[run.criteria[0]]

    mean = {
        name: (run.arm(name).accuracy + run.arm(f"{name}_again7").accuracy) / 2
        for name in (GRPO, GS1)
    }
    assert outcome.n == 20
    assert outcome.estimate == pytest.approx(mean[GS1] - mean[GRPO])
    assert "these checkpoints (2 seeds an arm, averaged item by item)" in outcome.sentence
    line = next(line for line in run.diagnostics() if "t over 2 seeds" in line)
    assert "fewer than 3 seeds, no claim about the method" in line
    assert "the verdict speaks of these checkpoints" in line


def test_with_seeds_as_the_unit_the_verdict_speaks_of_the_method(fakes, other):
    """Three seeds are three observations, one accuracy an arm each."""
    rule = {"unit": "seeds", "method": "seed_t", "seeds": [0, 7, 8]}
    run = finished(fakes.run(experiment=other(both(7, 8), **rule)))
    outcome = run.decision().outcomes[run.criteria[0]]

    assert outcome.n == 3
    assert "the method over 3 seeds" in outcome.sentence
    assert any("the verdict speaks of the method" in line for line in run.diagnostics())


@pytest.mark.parametrize(("low", "high", "looks"), [(-1.0, 1.0, 2), (1.5, 2.0, 1)])
def test_second_seed_is_trained_only_if_the_first_gap_calls_for_it(fakes, other, low, high, looks):
    """Within the range both looks have to agree; outside no arm of the second is touched."""
    look = SecondLook(criterion=other().rule.criteria[0].id, low=low, high=high)
    rule = {"method": "point_estimate", "second_look": look}
    run = finished(fakes.run(experiment=other(both(7, look=2), **rule)))

    assert len(fakes.scripted.named("optim_step")) == 2 * STEPS * looks
    later = run.arm(f"{GS1}_again7")
    assert later.steps == later.planned_steps == (STEPS if looks == 2 else 0)
    outcome = run.decision().outcomes[run.criteria[0]]
    assert ("look 2: " in outcome.sentence) is (looks == 2)
    assert not outcome.invalid


def test_arms_that_differ_in_more_than_their_seed_share_no_role(other):
    """Their average would be a method that nobody registered."""
    fine = other(both(7), seeds=[0, 7])
    arms = list(fine.registration.arms)
    longer = arms[-1].schedule.model_copy(update={"learning_rate": 0.5})
    arms[-1] = arms[-1].model_copy(update={"schedule": longer})
    registration = fine.registration.model_copy(update={"arms": arms})

    assert seed_problems(fine) == []
    (problem,) = seed_problems(replace(fine, registration=registration))
    assert "must differ in their seed, and in nothing else" in problem
    assert "the rule says [0]" in seed_problems(other(both(7)))[0]


def test_second_look_needs_its_arms_and_a_range(other):
    """Arms of look 2 without a rule, and a rule without its arms, are refused."""
    look = SecondLook(criterion=other().rule.criteria[0].id, low=-0.03, high=0.015)

    assert look_problems(other(both(7, look=2), second_look=look)) == []
    assert "no second look" in look_problems(other(both(7, look=2)))[0]
    assert "need arms of look 2" in look_problems(other(second_look=look))[0]
    narrow = look.model_copy(update={"low": 0.02})
    assert "holds no interval" in look_problems(other(both(7, look=2), second_look=narrow))[0]


@pytest.mark.parametrize("of_rule", ["fixed_checkpoint_items", "seeds"])
@pytest.mark.parametrize("of_criterion", [None, "fixed_checkpoint_items", "seeds"])
def test_a_second_look_has_items_for_its_unit(other, of_rule, of_criterion):
    """Seeds of a later look were not registered as units, whether rule or criterion counts them."""
    stated = other().rule.criteria[0]
    look = SecondLook(criterion=stated.id, low=-0.03, high=0.015)
    criterion = stated.model_copy(update={"unit": of_criterion})
    rule = {"unit": of_rule, "criteria": [criterion], "second_look": look}

    problems = look_problems(other(both(7, look=2), **rule))
    seeds = (of_criterion or of_rule) == "seeds"
    assert [f"criterion {stated.id} has the unit seeds" in line for line in problems] == [
        True
    ] * seeds


def test_a_rule_of_premises_alone_is_refused(other):
    """It could be INCONCLUSIVE and nothing else; one claim beside the premise is enough."""
    claim = other().rule.criteria[0]
    premise = claim.model_copy(update={"id": "premise", "premise": True})

    (problem,) = combine_problems(other(criteria=[premise]).rule)
    assert "nothing is claimed; register a claim" in problem
    assert combine_problems(other(criteria=[premise, claim]).rule) == []


TUNING = Tuning(
    learning_rates=[1e-4, 3e-4, 9e-4], steps=2, heldout=8, factor=3.0, max_extensions=1,
    max_wall_minutes=60.0,
)  # fmt: skip


@pytest.fixture(name="sealed")
def _sealed(fakes, words, monkeypatch):
    """The test split is behind a seal: `opened` notes when it is read."""
    opened = []

    def task(*_arguments):
        opened.append(len(fakes.scripted.named("optim_step")))
        return words

    only_train = replace(words, test=(), sha256s={"train": words.sha256s["train"]})
    monkeypatch.setattr("harness.protocol.run.experiment_task", task)
    monkeypatch.setattr("harness.protocol.run.train_task", lambda *_arguments: only_train)
    monkeypatch.setattr("harness.protocol.run.preflights.PREFLIGHTS", {})
    return opened


def test_learning_rates_are_chosen_before_the_test_split_is_read(fakes, other, sealed):
    """Every trial is done when the split is opened; arms then train at the chosen rates."""
    run = fakes.run(experiment=other(tuning=TUNING))
    run._tune()
    trials = len(fakes.scripted.named("optim_step"))

    assert sealed == []
    assert set(run.experiment.learning_rates) == {"baseline", "treatment"}
    finished(run)
    assert sealed == [trials]
    rates = run.experiment.learning_rates
    assert {arm.learning_rate for arm in run.experiment.arms} <= set(rates.values())
    text = "\n".join(run.pilot_notes())
    assert "tuning treatment: learning rate" in text
    assert "s predicted for 6 trials" in text
    assert f"trials took 2 of the arms' {STEPS} steps" in text


def test_roles_try_the_same_rates(fakes, other, sealed):
    """Where one best sits at an edge the grid grows for all: as many trials for each role."""
    run = fakes.run(experiment=other(tuning=TUNING))
    run._tune()

    entries = run._store.root / "entries" / "tuning"
    counts = [len(list((entries / name).iterdir())) for name in (GRPO, GS1)]
    assert counts[0] == counts[1] >= 3
    assert sealed == []


@pytest.mark.usefixtures("sealed")
def test_stage_above_its_time_is_refused_before_a_trial(fakes, other):
    """The prediction is compared with the registered minutes; nothing is chosen."""
    tight = TUNING.model_copy(update={"max_wall_minutes": 1e-9})
    run = fakes.run(experiment=other(tuning=tight))

    with pytest.raises(BudgetExceeded, match="predicted for the first grid"):
        run._tune()
    assert not (run._store.root / "entries" / "tuning" / GS1).exists()


def test_held_out_prompts_are_not_trained_on(other):
    """A trial that would reach the slice is refused with the card."""
    assert tuning_problems(other(tuning=TUNING)) == []
    n = other().card.dataset.n_examples
    (problem,) = tuning_problems(other(tuning=TUNING.model_copy(update={"heldout": n})))
    assert "are held out" in problem


def test_registered_clusters_reach_the_decision(fakes, other, words, monkeypatch):
    """Under clustered_t the clusters are counted, not the items; without them it is INVALID."""
    clusters = {problem.id: index // 4 for index, problem in enumerate(words.test)}
    monkeypatch.setattr("harness.protocol.decider.read_clusters", lambda *_arguments: clusters)
    pinned = ClusterFile(path="clusters.json", sha256="0" * 64)

    run = finished(fakes.run(experiment=other(method="clustered_t", clusters=pinned)))
    outcome = run.decision().outcomes[run.criteria[0]]
    assert outcome.n == 5
    assert outcome.n_registered == 20
    fakes.unbound()
    clustered = finished(fakes.run(experiment=other(method="clustered_t")))
    assert clustered.decision().outcomes[outcome.id].invalid
