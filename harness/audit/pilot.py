"""The pilot as it was executed: the stored step records of every arm."""

import math
from collections.abc import Iterator, Mapping, Sequence

from harness.cards import Arm, Experiment
from harness.records import GroupRecord, StepRecord

Pilot = Mapping[str, Sequence[StepRecord]]
"""Step records by arm name, in the order of their steps."""


def pilot_problems(experiment: Experiment, pilot: Pilot) -> list[str]:
    """Where the records are not a whole pilot: steps or rows are missing, a number is not finite.

    A gate that was measured on such records would say nothing.
    """
    problems = []
    wanted = list(range(experiment.registration.training.pilot_steps))
    for arm in experiment.look(1):
        steps = [record["step"] for record in pilot.get(arm.name, ())]
        if steps != wanted:
            problems.append(
                f"arm {arm.name}: the pilot holds steps {steps}, {wanted} expected; "
                "run the pilot to its end"
            )
        for record in pilot.get(arm.name, ()):
            problems.extend(_step_problems(arm, record))
    return problems


def groups(records: Sequence[StepRecord]) -> Iterator[GroupRecord]:
    """Every group of every step."""
    return (group for record in records for group in record["groups"])


def step_rewards(record: StepRecord) -> list[float]:
    """The rewards of one step's rollouts, group-major."""
    return [reward for group in record["groups"] for reward in group["rewards_G"]]


def step_advantages(record: StepRecord) -> list[float]:
    """The advantages that one step's datums carried, group-major."""
    return [advantage for group in record["groups"] for advantage in group["advantages_G"]]


def _step_problems(arm: Arm, record: StepRecord) -> list[str]:
    where = f"arm {arm.name}: step {record['step']}"
    if not any(group["rewards_G"] for group in record["groups"]):
        return [f"{where} has 0 rollouts, at least 1 expected; look at the sampler"]
    problems = []
    for group in record["groups"]:
        lengths_G_K = group.get("turn_lengths_G_K", [[len(row)] for row in group["tokens_G_T"]])
        rows = ("rewards_G", "advantages_G", "tokens_G_T", "logprobs_G_T", "stop_G", "turns")
        sizes = [len(group["rewards_G"]), len(group["advantages_G"]), len(group["tokens_G_T"])]
        sizes += [len(group["logprobs_G_T"]), len(group["stop_G"]), len(lengths_G_K)]
        if len(set(sizes)) != 1 or group["requested"] != sizes[0]:
            counts = ", ".join(f"{size} {row}" for row, size in zip(rows, sizes, strict=True))
            problems.append(
                f"{where}, prompt {group['prompt']}: {group['requested']} rollouts requested, "
                f"{counts} recorded; every requested rollout must be graded and trained on"
            )
        # rows that are too few have been told already
        whole = zip(lengths_G_K, group["tokens_G_T"], strict=False)
        for g, (turns_K, tokens_T) in enumerate(whole):
            if sum(turns_K) != len(tokens_T):
                problems.append(
                    f"{where}, prompt {group['prompt']}, rollout {g}: turns of {turns_K} tokens "
                    f"are recorded, {len(tokens_T)} tokens in all; record what was sampled"
                )
        for name, values in (("reward", group["rewards_G"]), ("advantage", group["advantages_G"])):
            bad = [value for value in values if not math.isfinite(value)]
            if bad:
                problems.append(
                    f"{where}, prompt {group['prompt']}: {name} {bad[0]} is not a finite number; "
                    "find where it was born"
                )
    return problems
