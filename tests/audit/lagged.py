"""Step records of the arms of a lag experiment, as a sound run leaves them."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.audit.recomputed import loss_and_surrogate
from harness.cards import Arm, Experiment
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
    estimate = estimator(arm, TEXTS).estimate(problems, [group["rewards_G"] for group in groups])
    for each, advantages_G in zip(groups, estimate.advantages_P_G, strict=True):
        each["advantages_G"] = advantages_G.tolist()
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


def group(arm: Arm, prompt: int, generator: np.random.Generator, lag: int) -> dict[str, Any]:
    """One prompt's rollouts: half of them right, a few tokens each; advantages come later."""
    size = arm.group_size
    rewards = (generator.random(size) < 0.5).astype(float).tolist()
    lengths = generator.integers(2, 6, size=size)
    learner = [generator.uniform(-3.0, -0.1, size=n) for n in lengths]
    behaviour = [row + lag * DRIFT * generator.normal(size=row.size) for row in learner]
    return {
        "prompt": prompt,
        "requested": size,
        "seed": 0,
        "rewards_G": rewards,
        "advantages_G": [],
        "correct_G": [reward == 1.0 for reward in rewards],
        "format_G": [True] * size,
        "stop_G": ["stop"] * size,
        "tokens_G_T": [[1] * row.size for row in learner],
        "logprobs_G_T": [row.tolist() for row in behaviour],
        "learner_logprobs_G_T": [row.tolist() for row in learner],
    }


def sent(groups: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """What the update was sent, and the turn of each target: one token, then the turn's own."""
    data, turns = [], []
    for each in groups:
        lengths_G = each.get("turn_lengths_G_K") or [[len(row)] for row in each["logprobs_G_T"]]
        rows = zip(each["logprobs_G_T"], each["advantages_G"], lengths_G, strict=True)
        for logprobs, advantage, lengths in rows:
            turn_T = np.asarray([t for k, n in enumerate(lengths) for t in (-1, *[k] * n)])
            inputs = {
                "logprobs": np.zeros(turn_T.size),
                "advantages": np.zeros(turn_T.size, dtype=np.float32),
            }
            inputs["logprobs"][turn_T >= 0] = logprobs
            inputs["advantages"][turn_T >= 0] = advantage
            data.append(SimpleNamespace(loss_fn_inputs=inputs))
            turns.append(turn_T)
    return data, turns


def text_print(version: int) -> list[float]:
    """What the weights after so many updates make of the fixed text."""
    return (-1.0 - np.linspace(0.0, 1.0, 8) - 0.01 * version).tolist()


def episodes(arm: Arm, step: int, model: str = "m") -> dict[str, Any]:
    """A step whose rollouts have one to three turns, without figures yet."""
    made = record(arm, step, model)
    for each in made["groups"]:
        each["turn_lengths_G_K"] = [split(len(row)) for row in each["tokens_G_T"]]
        each["episodes_G"] = [{"turns": float(len(x))} for x in each["turn_lengths_G_K"]]
    return made


def split(length: int) -> list[int]:
    """Turn lengths that add up."""
    return {2: [1, 1], 3: [3], 4: [1, 2, 1]}.get(length, [2, length - 2])


def measure_kept(arm: Arm, made: dict[str, Any]) -> None:
    """Mark zero-variance groups as dropped, and put all figures down as the loop then does."""
    for each in made["groups"]:
        each["dropped"] = len(set(each["rewards_G"])) == 1
    kept = [each for each in made["groups"] if not each["dropped"]]
    measure(arm, made)
    rewards = [reward for each in kept for reward in each["rewards_G"]]
    made["metrics"] |= {"kept/rollouts": float(len(rewards)), "updated": float(bool(kept))}
    if kept:
        made["metrics"] |= {
            **staleness_metrics("here", arm, kept, *sent(kept), "kept/"),
            "kept/reward": float(np.mean(rewards)),
            "kept/tokens": float(sum(len(row) for each in kept for row in each["tokens_G_T"])),
        }
