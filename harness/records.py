"""What a step and an evaluation leave behind, as it is stored."""

from typing import NotRequired, TypedDict, final

from pydantic import JsonValue

CUSTOM_LOSS = "custom/loss"
"""The metric that holds the loss that this client computed; `loss:sum` is then its surrogate."""


class GroupRecord(TypedDict):
    """The rollouts of one prompt in one step, in sampling order (G).

    `prompt` is the index in the train split, `requested` the number of rollouts that were
    asked for, `tokens_G_T` and `logprobs_G_T` the action tokens with the sampler's log-probs,
    `learner_logprobs_G_T` those of the weights that were updated, `advantages_G` what the datums
    carried.

    Of episodes of several turns, the action tokens of all turns stand one after another:
    `turn_lengths_G_K` has how many each turn sampled, `episodes_G` figures of each episode by name,
    and `curated_G` the chunks that it chose. Turn k of rollout g was sampled with the seed stream
    of (`seed`, g, k). `dropped` says, where zero-variance groups are dropped, whether this one
    was left out of the update.
    """

    prompt: int
    requested: int
    seed: int
    rewards_G: list[float]
    advantages_G: list[float]
    correct_G: list[bool]
    format_G: list[bool]
    stop_G: list[str]
    tokens_G_T: list[list[int]]
    logprobs_G_T: list[list[float]]
    learner_logprobs_G_T: list[list[float]]
    turn_lengths_G_K: NotRequired[list[list[int]]]
    episodes_G: NotRequired[list[dict[str, float]]]
    curated_G: NotRequired[list[list[str]]]
    dropped: NotRequired[bool]


class KernelRecord(TypedDict):
    """What the GS1 baseline was made of, per prompt (P)."""

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
    it was not the service. `trace` is what was asked of the service meanwhile, a
    `harness.traces.StepTrace` as plain values.
    """

    step: int
    version: int
    sampled_version: int
    model: str
    groups: list[GroupRecord]
    kernel: KernelRecord | None
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
