"""Step records of the arms of a lag experiment, as a sound run leaves them."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from rollouts import a_group, a_rollout, a_turn, set_advantages

from harness.audit.recomputed import loss_and_surrogate
from harness.cards import Arm, Experiment
from harness.records import GroupRecord, Turn, rewards_of, tokens_of
from harness.training.estimators import estimator
from harness.training.staleness_metrics import staleness_metrics

DRIFT = 0.05
"""How far one update moves a log-prob, nats."""

TEXTS = [
    f"{name} has {n} {thing} and buys {n % 7} more"
    for n, name in enumerate(["Ada", "Ben", "Cleo", "Dan", "Eve"] * 26)
    for thing in ("pens", "apples", "old books")
]
"""The questions of the train split."""


def sound_pilot(experiment: Experiment) -> dict[str, list[dict[str, Any]]]:
    """The registered pilot of every arm."""
    steps = range(experiment.registration.training.pilot_steps)
    return {
        arm.name: [record(arm, step, experiment.card.base_model) for step in steps]
        for arm in experiment.arms
    }


def record(arm: Arm, step: int, model: str = "m") -> dict[str, Any]:
    """One step: behaviour log-probs of the weights after update max(0, step - lag)."""
    generator = np.random.Generator(np.random.PCG64([step, arm.seed, arm.lag]))
    lag = min(step, arm.lag)
    size = arm.groups_per_batch
    groups = [group(arm, step * size + index, generator, lag) for index in range(size)]
    problems = [SimpleNamespace(question=TEXTS[group["prompt"]]) for group in groups]
    estimate = estimator(arm, TEXTS).estimate(problems, [rewards_of(group) for group in groups])
    for each, advantages_G in zip(groups, estimate.advantages_P_G, strict=True):
        set_advantages(each, advantages_G)
    made = {
        "step": step,
        "version": step,
        "sampled_version": step - lag,
        "model": model,
        "groups": groups,
        "kernel": estimate.kernel,
        "metrics": {},
        "seconds": {},
        "fingerprints": {"sampler_T": text_print(step - lag), "learner_T": text_print(step)},
    }
    measure(arm, made)
    return made


def measure(arm: Arm, made: dict[str, Any]) -> None:
    """Put the record's figures down, as the loop does."""
    made["metrics"] = staleness_metrics("here", arm, made["groups"], *sent(made["groups"]))
    made["metrics"]["service/loss:sum"] = loss_and_surrogate(arm, made)[0]


def group(arm: Arm, prompt: int, generator: np.random.Generator, lag: int) -> GroupRecord:
    """One prompt's rollouts: half of them right, a few tokens each; advantages come later."""
    size = arm.group_size
    rewards = (generator.random(size) < 0.5).astype(float).tolist()
    lengths = generator.integers(2, 6, size=size)
    learner = [generator.uniform(-3.0, -0.1, size=n) for n in lengths]
    behaviour = [row + lag * DRIFT * generator.normal(size=row.size) for row in learner]
    rows = zip(rewards, behaviour, learner, strict=True)
    return a_group(
        prompt,
        [a_rollout(reward, a_turn([1] * p.size, q.tolist(), p.tolist())) for reward, q, p in rows],
    )


def sent(groups: list[GroupRecord]) -> tuple[list[Any], list[Any]]:
    """What the update was sent, and the turn of each target: one token, then the turn's own."""
    data, turns = [], []
    for each in groups:
        for made in each["rollouts"]:
            rows = [each["logprobs_T"] for each in made["turns"]]
            turn_T = np.asarray([t for k, row in enumerate(rows) for t in (-1, *[k] * len(row))])
            inputs = {
                "logprobs": np.zeros(turn_T.size),
                "advantages": np.zeros(turn_T.size, dtype=np.float32),
            }
            inputs["logprobs"][turn_T >= 0] = [x for row in rows for x in row]
            inputs["advantages"][turn_T >= 0] = made["advantage"]
            data.append(SimpleNamespace(loss_fn_inputs=inputs))
            turns.append(turn_T)
    return data, turns


def text_print(version: int) -> list[float]:
    """What the weights after so many updates make of the fixed text."""
    return (-1.0 - np.linspace(0.0, 1.0, 8) - 0.01 * version).tolist()


def episodes(arm: Arm, step: int, model: str = "m") -> dict[str, Any]:
    """A step whose rollouts have one to three turns, without figures yet."""
    made = record(arm, step, model)
    for each in (each for group in made["groups"] for each in group["rollouts"]):
        (whole,) = each["turns"]
        each["turns"] = list(split(whole))
        each["scores"]["turns"] = float(len(each["turns"]))
    return made


def split(whole: Turn) -> Iterator[Turn]:
    """One to three turns that say the same."""
    n, at = len(whole["tokens_T"]), 0
    for length in {2: [1, 1], 3: [3], 4: [1, 2, 1]}.get(n, [2, n - 2]):
        part = slice(at, at + length)
        yield a_turn(
            whole["tokens_T"][part], whole["logprobs_T"][part], whole["learner_logprobs_T"][part]
        )
        at += length


def measure_kept(arm: Arm, made: dict[str, Any]) -> None:
    """Mark zero-variance groups as dropped, and put all figures down as the loop then does."""
    for each in made["groups"]:
        each["dropped"] = len(set(rewards_of(each))) == 1
    kept = [each for each in made["groups"] if not each["dropped"]]
    measure(arm, made)
    rollouts = [made for each in kept for made in each["rollouts"]]
    made["metrics"] |= {"kept/rollouts": float(len(rollouts)), "updated": float(bool(kept))}
    if kept:
        made["metrics"] |= {
            **staleness_metrics("here", arm, kept, *sent(kept), "kept/"),
            "kept/reward": float(np.mean([made["reward"] for made in rollouts])),
            "kept/tokens": float(sum(len(tokens_of(made)) for made in rollouts)),
        }
