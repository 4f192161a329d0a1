"""Advantages worked out again from stored rewards: by the declared function, and by its reference.

The declared function tells whether what was recorded is what it returns; its reference, other code,
whether that is the estimator. A kernel's weights are made again from the texts by its reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from harness.audit.metrics.metric import Unmeasurable, Values
from harness.audit.pilot import Executed
from harness.cards import Arm
from harness.components import Estimate, StepRewards
from harness.components.kernel import WeightsOf
from harness.errors import HarnessError
from harness.records import StepRecord, advantages_of, rewards_of


class Difference(NamedTuple):
    """A recorded number beside what the rewards make of it: `found` at `prompt`, `wanted`."""

    prompt: int
    what: str
    found: float
    wanted: float

    @property
    def size(self) -> float:
        """|found - wanted|; NaN where either is."""
        return abs(self.found - self.wanted)


@dataclass(frozen=True)
class Again:
    """What an arm's records are worked out from: its estimator, and a kernel's weights.

    `texts` are the train questions by the index that a group's `prompt` is; `weights` are made by
    the kernel's reference, or by the kernel itself where it has none.
    """

    arm: Arm
    texts: Sequence[str]
    weights: WeightsOf | None

    @classmethod
    def of(cls, arm: Arm, texts: Sequence[str]) -> Again:
        """Read the texts once, where the arm's kernel needs them."""
        return cls(arm, texts, reference_weights(arm, texts))

    def given(self, record: StepRecord, before: StepRecord | None) -> StepRewards | None:
        """What the estimator got in that step; None if it takes weights that can't be had."""
        rewards_P_G = [rewards_of(group) for group in record["groups"]]
        state = None if before is None else before.get("estimator_state")
        if not self.texts:  # then an estimator that reads the questions is told none
            questions_P = [""] * len(rewards_P_G)
        else:
            questions_P = [self.texts[group["prompt"]] for group in record["groups"]]
        if self.arm.declared.kernel == "none":
            return StepRewards(record["step"], questions_P, rewards_P_G, state)
        if self.weights is None:
            return None
        weights_P_P = self.weights(questions_P)
        return StepRewards(record["step"], questions_P, rewards_P_G, state, weights_P_P)

    def differences(self, record: StepRecord, before: StepRecord | None) -> Iterator[Difference]:
        """Every recorded advantage, baseline and state beside what this step's rewards make."""
        given = self.given(record, before)
        if given is None:
            return
        for function in (self.arm.declared.reference, self.arm.declared.function):
            if function is not None:
                yield from _against(record, function(given, self.arm.settings))


def reference_weights(arm: Arm, texts: Sequence[str]) -> WeightsOf | None:
    """What an estimator's weights are made by, other code than the loop's where there is some.

    None for an estimator that takes none, and for a kernel without the texts that it reads.
    """
    if arm.declared.kernel == "uniform":
        return lambda questions: _uniform(len(questions))
    kernel = arm.declared_kernel if arm.declared.kernel == "registered" else None
    if kernel is None or not texts:
        return None
    declared, settings = kernel
    return (declared.reference or declared.fit)(texts, settings)


def own_baselines(record: StepRecord) -> Iterator[Difference]:
    """Advantages of a step beside reward minus the recorded baseline, where baselines are."""
    kernel = record["kernel"]
    if kernel is None:
        return
    for group, baseline in zip(record["groups"], kernel["baselines_P"], strict=True):
        for rollout in group["rollouts"]:
            wanted = rollout["reward"] - baseline
            yield Difference(group["prompt"], "advantage", rollout["advantage"], wanted)


def advantage_errors(pilot: Executed) -> Values:
    """|recorded - recomputed| of every advantage, baseline and number of a state."""
    errors: list[float] = []
    for arm, records in pilot.arms:
        again, before = Again.of(arm, pilot.texts), None
        for record in records:
            _refuse(arm, record, pilot.texts)
            try:
                errors += [each.size for each in own_baselines(record)]
                errors += [each.size for each in again.differences(record, before)]
            except HarnessError as error:
                raise Unmeasurable(f"arm {arm.name}: step {record['step']}: {error}") from error
            before = record
    return errors


def _refuse(arm: Arm, record: StepRecord, texts: Sequence[str]) -> None:
    """Stop where a record lacks what the estimator works on."""
    where, sizes = (
        f"arm {arm.name}: step {record['step']}",
        {group["prompt"]: len(group["rollouts"]) for group in record["groups"]},
    )
    declared = arm.declared
    for prompt, size in sizes.items():
        if size < declared.min_group_size:
            raise Unmeasurable(
                f"{where}, prompt {prompt} has {size} rollout, {declared.name} needs at least "
                f"{declared.min_group_size}; sample larger groups"
            )
    if declared.kernel == "none":
        return
    recorded = [] if record["kernel"] is None else record["kernel"]["baselines_P"]
    rollouts = sum(len(group["rollouts"]) for group in record["groups"])
    if not len(recorded) == rollouts == len(record["groups"]) or rollouts < declared.min_prompts:
        raise Unmeasurable(
            f"{where} recorded {len(recorded)} baselines for {len(record['groups'])} prompts with "
            f"{rollouts} rollouts; record one for each of at least {declared.min_prompts} prompts "
            "with 1 rollout"
        )
    if texts and not all(0 <= prompt < len(texts) for prompt in sizes):
        raise Unmeasurable(
            f"{where} drew a prompt that is none of the {len(texts)} of the train split; record "
            "the index of each"
        )


def _against(record: StepRecord, expected: Estimate) -> Iterator[Difference]:
    groups, kernel = record["groups"], record["kernel"]
    for group, wanted_G in zip(groups, expected.advantages_P_G, strict=True):
        for found, wanted in zip(advantages_of(group), wanted_G, strict=True):
            yield Difference(group["prompt"], "advantage", found, float(wanted))
    if kernel is not None and expected.baselines_P is not None:
        rows = zip(groups, kernel["baselines_P"], expected.baselines_P, strict=True)
        for group, found, wanted in rows:
            yield Difference(group["prompt"], "baseline", found, wanted)
    pairs = _numbers(record.get("estimator_state"), expected.state)
    for found, wanted in pairs:
        yield Difference(groups[0]["prompt"], "state", found, wanted)


def _numbers(found: JsonValue, wanted: JsonValue) -> Iterator[tuple[float, float]]:
    """The numbers of two states in pairs; whatever else differs is a pair of NaNs."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping) and found.keys() == wanted.keys():
        for key in found:
            yield from _numbers(found[key], wanted[key])
    elif isinstance(found, list) and isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            yield float(len(found)), float(len(wanted))
        for a, b in zip(found, wanted, strict=False):
            yield from _numbers(a, b)
    elif isinstance(found, int | float) and isinstance(wanted, int | float):
        yield float(found), float(wanted)
    elif found != wanted:
        yield float("nan"), float("nan")


def _uniform(prompts: int) -> NDArray[np.float64]:
    weights_P_P = np.full((prompts, prompts), 1.0 / max(1, prompts - 1))
    np.fill_diagonal(weights_P_P, 0.0)
    return weights_P_P
