"""What a step and an evaluation leave behind, as it is stored."""

from typing import NotRequired, TypedDict, final

from pydantic import JsonValue

CUSTOM_LOSS = "custom/loss"
"""The metric that holds the loss that this client computed; `loss:sum` is then its surrogate."""


class Turn(TypedDict):
    """One sampled reply of T tokens, the stop token included.

    `seed` is that of the request that sampled it and `stop` says why it ended. `logprobs_T` are the
    sampler's, in nats, `learner_logprobs_T` those of the weights that were updated; of a reply on
    which nothing was trained there are none.
    """

    seed: int
    tokens_T: list[int]
    logprobs_T: list[float]
    learner_logprobs_T: list[float]
    stop: str


class Rollout(TypedDict):
    """One episode: its turns in order, at least one; a single reply is an episode of one turn.

    `reward` is what the environment paid and `advantage` what the datum carried at every action
    token. `scores` is what the task says of the episode, by names of its own, and `answer` what it
    answered where its tokens alone do not say so, such as the chunks that a search chose.
    """

    reward: float
    advantage: float
    scores: dict[str, float]
    answer: JsonValue
    turns: list[Turn]


class GroupRecord(TypedDict):
    """The rollouts of one prompt in one step, in sampling order (G).

    `prompt` is the index in the train split and `requested` the number of rollouts that were asked
    for. `dropped` says whether the group was left out of the update.

    A group of single replies takes one request, whose seed all of its rollouts share. Else each
    turn takes one: turn k of rollout g has the seed stream of (the group's seed, g, k).
    """

    prompt: int
    requested: int
    dropped: bool
    rollouts: list[Rollout]


class KernelRecord(TypedDict):
    """What a baseline of other prompts was made of, per prompt (P)."""

    contributors_P: list[float]
    baselines_P: list[float]


class Fingerprints(TypedDict):
    """Log-probs of one fixed text (T) under the weights that sampled and those that are updated."""

    sampler_T: list[float]
    learner_T: list[float]


class StepRecord(TypedDict):
    """One optimizer step of one arm.

    `version` counts the updates behind the weights that were updated, `sampled_version` those
    behind the weights that sampled. `seconds` has the phases sample, train and snapshot.
    `fingerprints` say which weights sampled where arms lag; in the first step of every arm they say
    how far apart the service reads the same weights. `loss_backend` says who computed the loss if
    it was not the service. `estimator_state` is what the estimator keeps for the next step, where
    it keeps anything. `trace` is what was asked of the service meanwhile, a
    `harness.traces.StepTrace` as plain values.
    """

    step: int
    version: int
    sampled_version: int
    model: str
    groups: list[GroupRecord]
    kernel: KernelRecord | None
    estimator_state: NotRequired[JsonValue]
    metrics: dict[str, float]
    seconds: dict[str, float]
    fingerprints: NotRequired[Fingerprints]
    loss_backend: NotRequired[str]
    trace: NotRequired[dict[str, JsonValue]]


class StepFigures(TypedDict):
    """What is left of a step without its rollouts."""

    step: int
    metrics: dict[str, float]


class Checkpoint(TypedDict):
    """Where an arm can go on: after `version` updates, from `state_path`.

    `snapshots` are the sampler weights that later steps still need, by version, and
    `fingerprint` is what the learner made of a fixed text when it was saved.
    """

    version: int
    state_path: str
    snapshots: dict[str, str]
    fingerprint: NotRequired[list[float]]


@final
class ItemRow(TypedDict):
    """One evaluated item. `answer` is None if the response holds no number.

    With several samples an item, `correct_S` has one flag a sample, `n_tokens` counts the tokens
    of all, and the rest is of the first sample.
    """

    item_id: str
    correct: bool
    answer: str | None
    gold: str
    response: str
    n_tokens: int
    stop: str
    correct_S: NotRequired[list[bool]]


@final
class EpisodeRow(TypedDict):
    """One draw of one evaluated item whose answer takes an episode; draws are counted from 0.

    `scores` has the episode's figures by name, `curated` the chunks that it chose, `n_tokens`
    counts its action tokens, and `stop` says why it ended.
    """

    item_id: str
    draw: int
    stop: str
    n_tokens: int
    curated: list[str]
    scores: dict[str, float]


Row = ItemRow | EpisodeRow
"""What an evaluation stores."""


def rewards_of(group: GroupRecord) -> list[float]:
    """The rewards of a group's rollouts (G)."""
    return [rollout["reward"] for rollout in group["rollouts"]]


def advantages_of(group: GroupRecord) -> list[float]:
    """The advantages of a group's rollouts (G)."""
    return [rollout["advantage"] for rollout in group["rollouts"]]


def tokens_of(rollout: Rollout) -> list[int]:
    """The action tokens of all turns (T)."""
    return [token for turn in rollout["turns"] for token in turn["tokens_T"]]


def logprobs_of(rollout: Rollout) -> list[float]:
    """The sampler's log-probs of all action tokens (T), nats."""
    return [x for turn in rollout["turns"] for x in turn["logprobs_T"]]


def learner_logprobs_of(rollout: Rollout) -> list[float]:
    """The learner's log-probs of all action tokens before the update (T), nats."""
    return [x for turn in rollout["turns"] for x in turn["learner_logprobs_T"]]
