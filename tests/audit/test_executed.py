"""Stored steps read again: the registered prompts by another hand, and rollouts too much alike."""

import copy
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from rollouts import a_group, a_rollout, a_turn, set_rewards

from harness.audit.episodes import BROKEN
from harness.audit.executed import CERTAIN, execution_problems, sameness, step_prompts
from harness.cards import Arm, load_experiment
from harness.records import Rollout
from harness.tasks.sec_search import Fact, Query
from harness.training.streams import arm_order, stream_seed

CARD = Path(__file__).parents[2] / "experiments/cards/tailrl_lag8_sec_search_4b.json"
TRAIN = [Query(f"q_{i}", "Which?", "x", (Fact("a", ("c0",), False),)) for i in range(100)]
N_TRAIN = len(TRAIN)


@pytest.mark.parametrize(("n_train", "reuse"), [(2560, False), (100, True), (64, True)])
def test_the_registered_order_is_that_of_the_loop(experiment, n_train, reuse):
    """Two computations of one order agree at every step of every pass."""
    training = experiment.registration.training.model_copy(update={"reuse_prompts": reuse})
    registration = experiment.registration.model_copy(update={"training": training})
    reusing = dataclasses.replace(experiment, registration=registration)
    for arm in reusing.arms:
        size = arm.groups_per_batch
        order = arm_order(training.data_order_seed, n_train, size, arm.prompts, reuse=reuse)
        for step in range(arm.steps):
            drawn = step_prompts(reusing, arm, n_train, step)
            assert drawn == order[step * size : (step + 1) * size]
            assert len(drawn) == size


def rows_of(draws: np.ndarray, logits: np.ndarray) -> dict:
    """A record of one group whose rollouts are the rows of `draws`."""
    logprobs = logits - np.log(np.exp(logits).sum())
    rows = zip(draws.tolist(), logprobs[draws].tolist(), strict=True)
    return {"groups": [a_group(0, [a_rollout(0.0, a_turn(tokens, q)) for tokens, q in rows])]}


def test_independent_rollouts_are_not_too_much_alike():
    """Over 400 arms of independent draws nothing comes near the bound, whatever the policy."""
    generator = np.random.Generator(np.random.PCG64(5))
    for scale in (0.1, 1.0, 3.0, 8.0):
        logits = scale * generator.normal(size=20)
        p = np.exp(logits) / np.exp(logits).sum()
        for _ in range(100):
            records = [rows_of(generator.choice(20, size=(8, 30), p=p), logits) for _ in range(10)]
            assert sameness(records) < CERTAIN / 2


def test_rollouts_of_one_stream_are_too_much_alike():
    """The same draw for all of a group is found within a few groups."""
    generator = np.random.Generator(np.random.PCG64(6))
    logits = 2.0 * generator.normal(size=20)
    p = np.exp(logits) / np.exp(logits).sum()
    records = [rows_of(np.tile(generator.choice(20, size=30, p=p), (8, 1)), logits)]

    assert sameness(records) > CERTAIN == math.log(1e9)


def test_every_kind_of_mistake_has_its_line(experiment, sound_steps):
    """Weights, prompts, groups, rewards, advantages and lengths of the steps as stored."""
    arm, records = sound_steps
    assert execution_problems(experiment, arm, records, TRAIN) == []

    def spoiled(change) -> str:
        steps = copy.deepcopy(records)
        change(steps[1], steps[1]["groups"][0])
        line, *_ = execution_problems(experiment, arm, steps, TRAIN)
        return line

    assert "updated version 7" in spoiled(lambda step, _: step.update(version=7))
    assert "is next in the registered order" in spoiled(lambda _, group: group.update(prompt=-1))
    assert "name arm, step and prompt in each seed" in spoiled(
        lambda _, g: g["rollouts"][1]["turns"][0].update(seed=7)
    )
    assert "its grades make 0" in spoiled(
        lambda _, g: g["rollouts"][0]["scores"].update(correct=0.0)
    )
    assert "by group_mean" in spoiled(lambda _, g: g["rollouts"][0].update(advantage=0.1))
    assert "ended by length after 2" in spoiled(
        lambda _, g: g["rollouts"][0]["turns"][0].update(stop="length")
    )
    assert "groups of [2, 3] rollouts" in spoiled(
        lambda step, _: step["groups"].__setitem__(1, one_more(step))
    )


def test_every_kind_of_mistake_in_episodes_has_its_line(search):
    """Turns, figures, rewards and drops of the steps as stored."""
    experiment, arm, records = search
    assert execution_problems(experiment, arm, records, TRAIN) == []

    def spoiled(change) -> str:
        steps = copy.deepcopy(records)
        change(steps[1]["groups"][0])
        line, *_ = execution_problems(experiment, arm, steps, TRAIN)
        return line

    assert "is recorded as dropped: False" in spoiled(lambda g: g.update(dropped=False))
    assert "are paid -0.2" in spoiled(lambda g: set_rewards(g, [0.0] * 8))
    assert "has 0 curated chunks, 1 are stored" in spoiled(
        lambda g: g["rollouts"][2].update(answer=["c0"])
    )
    assert "has recall 1, its curated set makes 0" in spoiled(
        lambda g: g["rollouts"][3]["scores"].update(recall=1.0)
    )
    assert "has F4 0.5" in spoiled(lambda g: g["rollouts"][3]["scores"].update(f4=0.5))
    assert "is marked other than" in spoiled(
        lambda g: g["rollouts"][0]["scores"].update(correct=1.0)
    )
    assert "has 2 turns, 1 were sampled" in spoiled(lambda g: g["rollouts"][0]["turns"].pop())
    assert "name arm, step and prompt in each seed, and rollout and turn" in spoiled(
        lambda g: g["rollouts"][5]["turns"].reverse()
    )
    for turn_k in (0, 1):
        assert f"turn {turn_k} ended by length after {2 - turn_k} tokens" in spoiled(
            lambda g, k=turn_k: g["rollouts"][5]["turns"][k].update(stop="length")
        )


@pytest.fixture(name="search")
def _search():
    """Two steps of the TailRL arm in which every episode ends empty, so that all are dropped."""
    experiment = load_experiment(CARD, "embedded")
    arm = experiment.arm("tailrl_lag0_seed0")
    records = []
    for step in range(2):
        groups = [
            a_group(
                prompt, [episode(seed_of(arm, step, prompt), g) for g in range(8)], dropped=True
            )
            for prompt in step_prompts(experiment, arm, N_TRAIN, step)
        ]
        records.append(
            {"step": step, "version": step, "sampled_version": step, "groups": groups}
            | {"kernel": None}
        )
    return experiment, arm, records


def episode(seed: int, g: int) -> Rollout:
    """Rollout g of a group with this seed: two turns, nothing curated."""
    ended = {f"stop={why}": float(why == "tool_stopped") for why in (*BROKEN, "tool_stopped")}
    zeros = dict.fromkeys(("correct", "f4", "precision", "recall", "curated", "off_format"), 0.0)
    scores = {**zeros, **ended, "format": 1.0, "empty": 1.0, "turns": 2.0}
    first = a_turn([5 + g, 6], [-2.0, -0.5], seed=stream_seed(seed, g, 0))
    last = a_turn([2], [-0.1], seed=stream_seed(seed, g, 1))
    return {**a_rollout(-0.2, first, last, **scores), "answer": []}


def seed_of(arm: Arm, step: int, prompt: int) -> int:
    """The seed of a group."""
    return stream_seed(arm.seed, "rollout", arm.name, step, prompt)


def one_more(step: dict) -> dict:
    """A group with a rollout more."""
    group = copy.deepcopy(step["groups"][1])
    return {**group, "rollouts": [*group["rollouts"], group["rollouts"][0]]}


def replies(seed: int, coefficient: float) -> list[Rollout]:
    """A right reply and one that is wrong and out of format, of one request."""
    right, wrong = a_turn([5, 2], [-0.5, -0.1], seed=seed), a_turn([4, 2], [-1.0, -0.1], seed=seed)
    return [
        a_rollout(1.0, right, advantage=0.55, correct=1.0, format=1.0),
        a_rollout(-coefficient, wrong, advantage=-0.55, correct=0.0, format=0.0),
    ]


@pytest.fixture(name="sound_steps")
def _sound_steps(experiment):
    """Two steps of a group_mean arm with 4 groups of 2, as the loop stores them."""
    arm = dataclasses.replace(experiment.role("baseline")[0], group_size=2, groups_per_batch=4)
    training = experiment.registration.training
    records = []
    for step in range(2):
        groups = [
            a_group(prompt, replies(seed_of(arm, step, prompt), training.format_coefficient))
            for prompt in step_prompts(experiment, arm, N_TRAIN, step)
        ]
        records.append(
            {"step": step, "version": step, "sampled_version": step, "groups": groups}
            | {"kernel": None}
        )
    return arm, records
