"""Stored steps read again: the registered prompts by another hand, and rollouts too much alike."""

import copy
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from harness.audit.episodes import BROKEN
from harness.audit.executed import CERTAIN, execution_problems, sameness, step_prompts
from harness.cards import load_experiment
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
    group = {"tokens_G_T": draws.tolist(), "logprobs_G_T": logprobs[draws].tolist()}
    return {"groups": [group]}


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
    assert "name arm, step and prompt in each seed" in spoiled(lambda _, g: g.update(seed=7))
    assert "its grades make 0" in spoiled(lambda _, g: g["correct_G"].__setitem__(0, False))
    assert "by group_mean" in spoiled(lambda _, g: g["advantages_G"].__setitem__(0, 0.1))
    assert "ended by length after 2" in spoiled(lambda _, g: g["stop_G"].__setitem__(0, "length"))
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
    assert "is recorded as dropped: None" in spoiled(lambda g: g.pop("dropped"))
    assert "are paid -0.2" in spoiled(
        lambda g: g.update(rewards_G=[0.0] * 8, advantages_G=[0.0] * 8)
    )
    assert "has 0 curated chunks, 1 are stored" in spoiled(
        lambda g: g["curated_G"].__setitem__(2, ["c0"])
    )
    assert "has recall 1, its curated set makes 0" in spoiled(
        lambda g: g["episodes_G"][3].update(recall=1.0)
    )
    assert "has F4 0.5" in spoiled(lambda g: g["episodes_G"][3].update(f4=0.5))
    assert "is marked other than" in spoiled(lambda g: g["correct_G"].__setitem__(0, True))
    assert "has 2 turns, 3 were sampled" in spoiled(
        lambda g: g["turn_lengths_G_K"].__setitem__(0, [1, 1, 1])
    )
    assert "has 3 tokens in turns of [1, 1]" in spoiled(
        lambda g: g["turn_lengths_G_K"].__setitem__(0, [1, 1])
    )
    assert "ended by length after 1 tokens" in spoiled(
        lambda g: g["stop_G"].__setitem__(5, "length")
    )


@pytest.fixture(name="search")
def _search():
    """Two steps of the TailRL arm in which every episode ends empty, so that all are dropped."""
    experiment = load_experiment(CARD, "embedded")
    arm = experiment.arm("tailrl_lag0_seed0")
    ended = {f"stop={why}": float(why == "tool_stopped") for why in (*BROKEN, "tool_stopped")}
    empty = dict.fromkeys(("f4", "precision", "recall", "curated", "off_format"), 0.0)
    records = []
    for step in range(2):
        groups = [
            {
                "prompt": prompt,
                "seed": stream_seed(arm.seed, "rollout", arm.name, step, prompt),
                "rewards_G": [-0.2] * 8,
                "advantages_G": [0.0] * 8,
                "correct_G": [False] * 8,
                "format_G": [True] * 8,
                "stop_G": ["stop"] * 8,
                "tokens_G_T": [[5 + g, 6, 2] for g in range(8)],
                "logprobs_G_T": [[-2.0, -0.5, -0.1]] * 8,
                "turn_lengths_G_K": [[2, 1]] * 8,
                "curated_G": [[] for _ in range(8)],
                "episodes_G": [{**empty, **ended, "empty": 1.0, "turns": 2.0} for _ in range(8)],
                "dropped": True,
            }
            for prompt in step_prompts(experiment, arm, N_TRAIN, step)
        ]
        records.append(
            {"step": step, "version": step, "sampled_version": step, "groups": groups}
            | {"kernel": None}
        )
    return experiment, arm, records


def one_more(step: dict) -> dict:
    """A group with a rollout more."""
    group = copy.deepcopy(step["groups"][1])
    for key in [key for key in group if "_G" in key]:
        group[key] = [*group[key], group[key][0]]
    return group


@pytest.fixture(name="sound_steps")
def _sound_steps(experiment):
    """Two steps of a group_mean arm with 4 groups of 2, as the loop stores them."""
    arm = dataclasses.replace(experiment.role("baseline")[0], group_size=2, groups_per_batch=4)
    training = experiment.registration.training
    records = []
    for step in range(2):
        groups = [
            {
                "prompt": prompt,
                "requested": 2,
                "seed": stream_seed(arm.seed, "rollout", arm.name, step, prompt),
                "rewards_G": [1.0, -training.format_coefficient],
                "advantages_G": [0.55, -0.55],
                "correct_G": [True, False],
                "format_G": [True, False],
                "stop_G": ["stop", "stop"],
                "tokens_G_T": [[5, 2], [4, 2]],
                "logprobs_G_T": [[-0.5, -0.1], [-1.0, -0.1]],
            }
            for prompt in step_prompts(experiment, arm, N_TRAIN, step)
        ]
        records.append(
            {"step": step, "version": step, "sampled_version": step, "groups": groups}
            | {"kernel": None}
        )
    return arm, records
