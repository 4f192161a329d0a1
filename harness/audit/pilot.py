"""The pilot as it was executed: the stored step records of every arm."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.cards import Arm, Experiment
from harness.records import GroupRecord, StepRecord, Turn, advantages_of, rewards_of

Pilot = Mapping[str, Sequence[StepRecord]]
"""Step records by arm name, in the order of their steps."""

APART = 600.0
"""Log-probs of one token that are further apart, in nats, have no ratio that float64 can sum."""


@dataclass(frozen=True)
class Executed:
    """What a gate measures: the arms that a pilot holds, each with its records.

    `texts` are the questions of the train split, by the index that a group's `prompt` is; empty
    where they are not at hand.
    """

    experiment: Experiment
    arms: tuple[tuple[Arm, Sequence[StepRecord]], ...]
    texts: Sequence[str] = ()


def executed(
    experiment: Experiment,
    pilot: Pilot,
    texts: Sequence[str] = (),
    roles: Sequence[str] | None = None,
) -> Executed:
    """The arms of these roles that this pilot holds: of the first look, of the second if taken."""
    arms = tuple(
        (arm, pilot[arm.name])
        for arm in experiment.arms
        if arm.name in pilot and (roles is None or arm.role in roles)
    )
    return Executed(experiment, arms, texts)


def pilot_problems(experiment: Experiment, pilot: Pilot) -> list[str]:
    """Where the records are not a whole pilot: steps or rows are missing, a number is not finite.

    A gate that was measured on such records would say nothing. Arms of the first look must be
    there, others are looked at where they are.
    """
    problems = [
        f"arm {name}: the pilot holds it, the registration does not; register it"
        for name in sorted(set(pilot) - {arm.name for arm in experiment.arms})
    ]
    wanted = list(range(experiment.registration.training.pilot_steps))
    for arm in experiment.arms:
        if arm.look != 1 and arm.name not in pilot:
            continue
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
    return [reward for group in record["groups"] for reward in rewards_of(group)]


def step_advantages(record: StepRecord) -> list[float]:
    """The advantages that one step's datums carried, group-major."""
    return [advantage for group in record["groups"] for advantage in advantages_of(group)]


def _step_problems(arm: Arm, record: StepRecord) -> list[str]:
    where = f"arm {arm.name}: step {record['step']}"
    if not record["groups"]:
        return [f"{where} has 0 rollouts, at least 1 expected; look at the sampler"]
    return [
        f"{where}, prompt {group['prompt']}{problem}"
        for group in record["groups"]
        for problem in (*_missing_rows(group), *_broken_numbers(group))
    ]


def _missing_rows(group: GroupRecord) -> Iterator[str]:
    """Rollouts that were asked for and not recorded whole."""
    requested, recorded = group["requested"], len(group["rollouts"])
    if recorded != requested or requested < 1:
        yield (
            f": {requested} rollouts requested, {recorded} recorded; every requested rollout must "
            "be graded and trained on"
        )
    for g, rollout in enumerate(group["rollouts"]):
        if not rollout["turns"]:
            yield f", rollout {g}: 0 turns, at least 1 expected; record what was sampled"


def _broken_numbers(group: GroupRecord) -> Iterator[str]:
    """Rewards, advantages and log-probs with which nothing can be computed."""
    for name, values in (("reward", rewards_of(group)), ("advantage", advantages_of(group))):
        bad = [value for value in values if not math.isfinite(value)]
        if bad:
            yield f": {name} {bad[0]} is not a finite number; find where it was born"
    for g, rollout in enumerate(group["rollouts"]):
        for k, turn in enumerate(rollout["turns"]):
            yield from (f", rollout {g}, turn {k}: {fault}" for fault in _broken_turn(turn))


def _broken_turn(turn: Turn) -> Iterator[str]:
    rows = (turn["tokens_T"], turn["logprobs_T"], turn["learner_logprobs_T"])
    sizes = [len(row) for row in rows]
    if len(set(sizes)) != 1 or 0 in sizes:
        yield (
            f"{sizes[0]} tokens, {sizes[1]} log-probs of the sampler and {sizes[2]} of the "
            "learner; record one of each for every action token, 1 at least"
        )
    # a NaN is no number below the bound
    elif not (apart := _apart(rows[1], rows[2])) < APART:
        yield (
            f"log-probs of sampler and learner are {apart:.3g} nats apart, bound {APART:g}; find "
            "where they were born"
        )


def _apart(one_T: Sequence[float], other_T: Sequence[float]) -> float:
    import numpy as np  # not before there are records: a component's file imports this module

    return float(np.abs(np.subtract(one_T, other_T)).max())
