"""Pilots that are changed on purpose, to try whether a gate can fail at all.

Each changes one thing in every step of every arm, by more than an honest run would. Nothing of the
pilot itself is written to: what a change leaves alone is shared.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from harness.audit.pilot import Executed
from harness.records import GroupRecord, Rollout, StepRecord, Turn

FAR = 1e6
"""Beyond what a figure of an honest step is."""


def changed_pilots(pilot: Executed) -> Iterator[Executed]:
    """The same pilot under each change."""
    for change in CHANGES.values():
        yield replace(
            pilot, arms=tuple((arm, [change(r) for r in records]) for arm, records in pilot.arms)
        )


Change = Callable[[StepRecord], StepRecord]


def _rollouts(edit: Callable[[Rollout], Rollout]) -> Change:
    return _groups(lambda group: {**group, "rollouts": [edit(r) for r in group["rollouts"]]})


def _groups(edit: Callable[[GroupRecord], GroupRecord]) -> Change:
    return lambda record: {**record, "groups": [edit(group) for group in record["groups"]]}


def _turns(edit: Callable[[Turn], Turn]) -> Change:
    return _rollouts(lambda rollout: {**rollout, "turns": [edit(t) for t in rollout["turns"]]})


def _figures(edit: Callable[[float], float]) -> Change:
    return lambda r: {**r, "metrics": {name: edit(x) for name, x in r["metrics"].items()}}


def _scores(value: float) -> Change:
    return _rollouts(lambda r: {**r, "scores": dict.fromkeys(r["scores"], value)})


def _learner(shift: float) -> Change:
    return _turns(
        lambda turn: {**turn, "learner_logprobs_T": [x + shift for x in turn["logprobs_T"]]}
    )


def _cut(turn: Turn) -> Turn:
    return {
        **turn,
        "tokens_T": turn["tokens_T"][:1],
        "logprobs_T": turn["logprobs_T"][:1],
        "learner_logprobs_T": turn["learner_logprobs_T"][:1],
    }


def _once(group: GroupRecord) -> GroupRecord:
    return {**group, "rollouts": group["rollouts"][:1], "requested": 1}


def _twice(group: GroupRecord) -> GroupRecord:
    return {**group, "rollouts": group["rollouts"] * 2, "requested": group["requested"] * 2}


CHANGES: Mapping[str, Change] = MappingProxyType(
    {
        "rewards 0": _rollouts(lambda r: {**r, "reward": 0.0}),
        "rewards 1": _rollouts(lambda r: {**r, "reward": 1.0}),
        "rewards far below": _rollouts(lambda r: {**r, "reward": -FAR}),
        "rewards far above": _rollouts(lambda r: {**r, "reward": FAR}),
        "advantages 0": _rollouts(lambda r: {**r, "advantage": 0.0}),
        "advantages far": _rollouts(lambda r: {**r, "advantage": FAR * (1 + r["advantage"])}),
        "learner as sampler": _learner(0.0),
        "learner above sampler": _learner(5.0),
        "learner below sampler": _learner(-5.0),
        "one token a turn": _turns(_cut),
        "one turn a rollout": _rollouts(lambda r: {**r, "turns": r["turns"][:1]}),
        "turns twice": _rollouts(lambda r: {**r, "turns": r["turns"] * 2}),
        "one rollout a prompt": _groups(_once),
        "rollouts twice": _groups(_twice),
        "one prompt a step": lambda r: {**r, "groups": r["groups"][:1]},
        "the same prompt": _groups(lambda group: {**group, "prompt": 0}),
        "scores 0": _scores(0.0),
        "scores far": _scores(FAR),
        "figures 0": _figures(lambda _: 0.0),
        "figures far below": _figures(lambda x: -FAR * (1 + abs(x))),
        "figures far above": _figures(lambda x: FAR * (1 + abs(x))),
        "another model": lambda r: {**r, "model": "another/model"},
        "the first sampler": lambda r: {**r, "sampled_version": 0},
    }
)
