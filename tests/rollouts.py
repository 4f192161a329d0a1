"""Stored rollouts, made by hand."""

from collections.abc import Sequence

from harness.records import GroupRecord, Rollout, Turn


def a_turn(
    tokens: Sequence[int],
    logprobs: Sequence[float] | None = None,
    learner: Sequence[float] | None = None,
    *,
    stop: str = "stop",
    seed: int = 0,
) -> Turn:
    """A turn of these tokens; the learner's log-probs are the sampler's, -1 each, by default."""
    sampled = [-1.0] * len(tokens) if logprobs is None else list(logprobs)
    return Turn(
        seed=seed,
        tokens_T=list(tokens),
        logprobs_T=sampled,
        learner_logprobs_T=list(sampled if learner is None else learner),
        stop=stop,
    )


def a_rollout(reward: float, *turns: Turn, advantage: float = 0.0, **scores: float) -> Rollout:
    """An episode of these turns, by default one of a token and the stop token."""
    said = list(turns) or [a_turn([5, 2])]
    graded = scores or {"correct": float(reward > 0.0), "format": 1.0}
    return Rollout(reward=reward, advantage=advantage, scores=graded, answer=None, turns=said)


def a_group(prompt: int, rollouts: Sequence[Rollout], *, dropped: bool = False) -> GroupRecord:
    """A group that came as it was asked for."""
    return GroupRecord(
        prompt=prompt, requested=len(rollouts), dropped=dropped, rollouts=list(rollouts)
    )


def set_rewards(group: GroupRecord, rewards: Sequence[float]) -> None:
    """Other rewards in the place of the group's own (G)."""
    for each, reward in zip(group["rollouts"], rewards, strict=True):
        each["reward"] = float(reward)


def set_advantages(group: GroupRecord, advantages: Sequence[float]) -> None:
    """Other advantages in the place of the group's own (G)."""
    for each, advantage in zip(group["rollouts"], advantages, strict=True):
        each["advantage"] = float(advantage)


def turns_of(group: GroupRecord) -> list[Turn]:
    """All turns of a group."""
    return [turn for each in group["rollouts"] for turn in each["turns"]]
