"""The search card: everything that it leaves open is settled, at both scales, on pinned data."""

import hashlib
from pathlib import Path

import pytest

from harness import cards
from harness.cards.consistency import rule_problems
from harness.decisions import Criterion, can_come_out_both_ways
from harness.embedded import SEARCH_MODEL_DIR, SEARCH_MODEL_NAME
from harness.errors import DataError
from harness.tasks.sec_search import Selection, World, published_task, synthetic_task

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
CARD = CARDS / "tailrl_lag8_sec_search_4b.json"


@pytest.fixture(params=["full", "embedded"])
def experiment(request):
    """The card at a scale."""
    return cards.load_experiment(CARD, request.param)


def test_the_cells_are_those_of_the_card(experiment):
    """Two estimators by two lags, one seed; what else they train with is one and the same."""
    cells = {(arm.estimator, arm.lag) for arm in experiment.arms}
    assert cells == {("group_mean", 0), ("group_mean", 8), ("tailrl", 0), ("tailrl", 8)}
    shared = {
        (a.seed, a.steps, a.rollouts_per_step, a.group_size, a.learning_rate, a.loss)
        for a in experiment.arms
    }
    assert shared == {(0, 24, 128, 8, experiment.card.optimizer.lr, "ppo")}
    bounds = {tuple(sorted(arm.loss_config.items())) for arm in experiment.arms}
    assert bounds == {(("clip_high_threshold", 1.2), ("clip_low_threshold", 0.8))}
    assert experiment.registration.training.drop_zero_variance_groups


def test_every_open_point_is_settled_with_a_reason(experiment):
    """Sixteen numbered points, and those of the rule."""
    settled = experiment.registration.settled
    numbers = [each.question.partition(".")[0] for each in settled]
    assert [n for n in numbers if n.isdecimal()] == [str(n) for n in range(1, 17)]
    assert len(settled) > 16
    assert all(each.answer and each.reason for each in settled)


def test_the_rule_averages_the_last_twelve_updates_and_can_come_out_both_ways(experiment):
    """Steps 12 to 23 for mass, past the ramp for KL, questions for F4."""
    rule = experiment.rule
    steps = {stated.id: stated.steps for stated in rule.criteria}
    assert steps == {
        "lag_bites_tailrl": (8, 23),
        "lag_bites_drgrpo": (8, 23),
        "clip_mass_ratio": (12, 23),
        "f4_drop_difference": None,
    }
    assert rule.combine == "all_must_agree"
    for stated in rule.criteria:
        assert stated.premise == stated.id.startswith("lag_bites")
        assert can_come_out_both_ways(Criterion.resolved(stated, rule), 64) == []
        assert ("lag 16" in (stated.next_step or "")) == stated.premise


def test_the_embedded_data_and_weights_are_the_pinned_ones(tmp_path):
    """World, selection and model give the registered hashes, and no question is drawn twice."""
    experiment = cards.load_experiment(CARD, "embedded")
    search, pins = experiment.registration.search, experiment.registration.data
    selection = Selection(
        n_train=experiment.card.dataset.n_examples,
        n_test=experiment.card.eval.n_examples,
        **search.selection.model_dump(),
    )
    task = synthetic_task(World(**search.world.model_dump()), tmp_path / "world", selection)
    assert task.sha256s == {
        "train": pins.train_sha256,
        "test": pins.test_sha256,
        "corpus": pins.corpus_sha256,
    }
    assert len(task.train) == max(arm.prompts for arm in experiment.arms)
    assert experiment.card.base_model == SEARCH_MODEL_NAME
    weights = (SEARCH_MODEL_DIR / "model.safetensors").read_bytes()
    pinned = experiment.registration.pins.base_weights_sha256
    assert hashlib.sha256(weights).hexdigest() == pinned


def test_the_full_scale_names_the_published_data_and_no_other(tmp_path, monkeypatch):
    """Without the folder one line says which variable must point at what."""
    experiment = cards.load_experiment(CARD, "full")
    assert experiment.registration.search.world is None
    assert experiment.card.dataset.n_examples == 1_024
    selection = Selection(n_train=1_024, n_test=64)
    for value in (None, str(tmp_path / "nothing")):
        monkeypatch.delenv("HARNESS_SEC_DIR", raising=False)
        if value is not None:
            monkeypatch.setenv("HARNESS_SEC_DIR", value)
        with pytest.raises(DataError, match="point HARNESS_SEC_DIR at a folder of") as caught:
            published_task(None, tmp_path / "prepared", selection)
        assert "\n" not in str(caught.value)


def test_criteria_that_must_agree_need_something_that_refutes_each():
    """Without it the experiment could never be REFUTED; and only a premise has a next step."""
    experiment = cards.load_experiment(CARD, "full")
    rule = experiment.registration.decision_rule

    def problems(**changes):
        criteria = [
            each if each.premise else each.model_copy(update=changes) for each in rule.criteria
        ]
        bent = rule.model_copy(update={"criteria": criteria})
        registration = experiment.registration.model_copy(update={"decision_rule": bent})
        return rule_problems(experiment.card, registration)

    assert problems() == []
    assert [p.partition(":")[0] for p in problems(refuted=None)] == [
        "criterion clip_mass_ratio",
        "criterion f4_drop_difference",
    ]
    assert all("is no premise" in p for p in problems(next_step="again"))
    assert len(problems(next_step="again")) == 2
