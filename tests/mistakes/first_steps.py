"""Mistakes in the loop that the capability preflight finds in the first steps, before training.

Each is an edit of the harness's own code. `problems` are rollouts of one turn, `episodes` those of
the search experiment, which have several.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tinker

from harness.audit.probes import throw_away
from harness.tasks.sec_search import env as search
from harness.tasks.sec_search import reward as search_reward
from harness.training import datums, loop, snapshots
from harness.training.completers import GroupCompleter, TurnCompleter
from harness.training.searches import SearchAdapter
from harness.training.snapshots import Snapshots
from harness.training.word_problems import ProblemAdapter
from mistakes.edits import (
    Row,
    advantages_as,
    datums_with,
    method,
    one_early,
    other_gold,
    other_question,
    ppo,
    prompts_from,
    rewards_as,
    sampled_with,
    sent_with,
    twice,
    updated_with,
    whitened,
)
from mistakes.mistake import Edit, Mistake, Setting, Where


def opened_with(change: Callable[[Any], dict[str, Any]]) -> Edit:
    """The GS1 arm opens its client from a changed context."""

    async def opened(original: Any, context: Any) -> Any:
        other = change(context) if context.arm.estimator == "gs1" else {}
        return await original(dataclasses.replace(context, **other))

    return method(throw_away, "open_arm", opened)


async def warm_start(original: Any, context: Any) -> Any:
    """A fresh arm loads a state before its first step."""
    state = await original(context)
    saved = await (await state.client.save_state_async("warm", 60)).result_async()
    await (await state.client.load_state_async(saved.path)).result_async()
    return state


async def gradient_in_sync(original: Any, client: Any, batches: Any, arm: Any, *more: Any) -> Any:
    """The gradient is asked for once more, by the SDK's synchronous form."""
    client.forward_backward(batches[0], arm.loss)
    return await original(client, batches, arm, *more)


async def step_in_sync(original: Any, client: Any, batches: Any, arm: Any, *more: Any) -> Any:
    """The optimizer steps once more, by the SDK's synchronous form."""
    client.optim_step(more[-1])
    return await original(client, batches, arm, *more)


async def sample_in_sync(_original: Any, self: Any, prompt: Any) -> Any:
    """Rollouts are sampled by the SDK's synchronous form."""
    params = self._sampling.params(self._seed)
    return self._sampling.sampler.sample(prompt, self._num_samples, params).result()


async def unnamed_snapshot(_original: Any, self: Any, client: Any, version: int) -> None:
    """Snapshots are saved by the SDK's asynchronous form, which nothing records."""
    self._clients[version] = await client.save_weights_and_get_sampling_client_async()


def without_unembedding(context: Any) -> dict[str, Any]:
    """The unembedding does not train."""
    training = context.registration.training.model_copy(update={"train_unembed": False})
    return {"registration": context.registration.model_copy(update={"training": training})}


async def first_sample(original: Any, self: Any, *these: Any) -> Any:
    """Every environment of a group gets the first sample."""
    self._asked = 0
    return await original(self, *these)


async def first_snapshot_for_ever(original: Any, self: Any, client: Any, version: int) -> None:
    """Later weights are never saved for the sampler."""
    if not self._clients:
        await original(self, client, version)
    else:
        self._clients[version] = next(iter(self._clients.values()))


def without_stop(row: Row) -> Row:
    """The last token carries nothing."""
    return np.append(row[:-1], 0.0)


def token_mean(row: Row) -> Row:
    """Divided by the number of tokens that carry it."""
    return row / max(1, np.count_nonzero(row))


def decayed(arm: Any, adam: tinker.AdamParams, number: int) -> dict[str, float]:
    """A linear schedule that nobody registered."""
    return {"learning_rate": adam.learning_rate * (1 - number / arm.steps)}


def tripled_in_one_arm(arm: Any, adam: tinker.AdamParams, _number: int) -> dict[str, float]:
    """The GS1 arm learns faster."""
    return {"learning_rate": adam.learning_rate * (3 if arm.estimator == "gs1" else 1)}


def hurried(original: Any, self: Any, *these: Any) -> Any:
    """Training episodes have three turns less than registered."""
    limits = dataclasses.replace(self.limits, max_turns=self.limits.max_turns - 3)
    return original(dataclasses.replace(self, limits=limits), *these)


def one_stream(
    original: Any, self: Any, sampling: Any, seed: int, _rollout: int, *more: Any
) -> None:
    """All rollouts of a group draw from the stream of the first."""
    original(self, sampling, seed, 0, *more)


def free_silence(original: Any, session: Any, *more: Any) -> float:
    """Curating nothing costs nothing."""
    return max(0.0, original(session, *more))


def facts_of_others(original: Any, self: Any, query: Any, size: int) -> Any:
    """Episodes are graded by the facts of another question, in which nothing was found."""
    facts = tuple(dataclasses.replace(fact, chunk_ids=("no_0",)) for fact in query.facts)
    return original(self, dataclasses.replace(query, facts=facts), size)


def all_that_was_met(original: Any, self: Any, *these: Any) -> Any:
    """What an episode met is stored as what it curated."""
    result = original(self, *these)
    return dataclasses.replace(
        result, logs={**result.logs, search.CURATED: json.dumps(list(self.session.encountered))}
    )


def never_zero_variance(monkeypatch: Any) -> None:
    """Groups of equal rewards are trained on too."""
    monkeypatch.setattr(datums, "is_zero_variance", lambda _rewards: False)


def f1(monkeypatch: Any) -> None:
    """The curated set is graded by F1."""
    original = search_reward.f_beta
    monkeypatch.setattr(search_reward, "f_beta", lambda p, r, _beta: original(p, r, 1.0))


ALIGNED = "are not what was sampled and estimated"
STOCK = "the stock environment gives"
ESTIMATOR = "change it in the estimator alone"
NEIGHBOUR = rewards_as(lambda r: [*r[1:], r[0]])
COLD, ONE_SEED = sampled_with(temperature=0.7), sampled_with(seed=7)
BATCH_TWICE = sent_with(lambda batches, arm: ([*batches, *batches], arm))

P: tuple[Setting, ...] = ("problems",)
E: tuple[Setting, ...] = ("episodes",)
BOTH: tuple[Setting, ...] = ("problems", "episodes")

_ROWS: list[tuple[str, tuple[Setting, ...], Where, str, Edit]] = [
    # the datums
    ("advantages_shifted", BOTH, "loop", f"advantages {ALIGNED}",
        datums_with(advantages=one_early)),
    ("advantages_negated", BOTH, "loop", f"advantages {ALIGNED}",
        datums_with(advantages=lambda x: -x)),
    ("logprobs_shifted", BOTH, "loop", f"logprobs {ALIGNED}", datums_with(logprobs=one_early)),
    ("logprobs_dropped", P, "loop", f"logprobs {ALIGNED}", datums_with(logprobs=np.zeros_like)),
    ("stop_token_masked", P, "loop", f"advantages {ALIGNED}",
        datums_with(advantages=without_stop)),
    ("prompt_trained_on", BOTH, "loop", f"advantages {ALIGNED}",
        datums_with(advantages=lambda x: np.full_like(x, x[-1]))),
    ("mean_over_tokens", BOTH, "loop", f"advantages {ALIGNED}", datums_with(advantages=token_mean)),
    ("batch_twice", P, "loop", "sent 16 datums for 8 rollouts", BATCH_TWICE),
    ("batch_twice", E, "loop", "send one each, once", BATCH_TWICE),
    # rewards and advantages
    ("rewards_of_the_neighbour", BOTH, "reward", STOCK, NEIGHBOUR),
    ("rewards_clipped", P, "reward", "its grades make -0.1",
        rewards_as(lambda r: [max(x, 0.0) for x in r])),
    ("another_gold", P, "task", STOCK, method(ProblemAdapter, "group", other_gold)),
    ("advantages_of_the_neighbour", P, "estimator", ESTIMATOR,
        advantages_as(lambda rows, _: [*rows[1:], rows[0]])),
    ("advantages_whitened", BOTH, "estimator", ESTIMATOR, advantages_as(whitened)),
    ("no_baseline", P, "estimator", ESTIMATOR,
        advantages_as(lambda _, rewards: [np.asarray(r) for r in rewards])),
    ("free_silence", E, "reward", "of F4 0 are paid -0.2",
        method(search, "episode_reward", free_silence)),
    ("f1", E, "reward", "precision", f1),
    ("facts_of_others", E, "task", STOCK, method(SearchAdapter, "group", facts_of_others)),
    ("all_that_was_met", E, "task", "curated chunks, ",
        method(search.SearchEnv, "_end", all_that_was_met)),
    ("zero_variance_groups_kept", E, "estimator", "is recorded as dropped: False",
        never_zero_variance),
    # sampling
    ("cold_sampling", P, "loop", "temperature 0.7 in 4 of 4 requests, 1 reg", COLD),
    ("cold_sampling", E, "loop", "sampled with temperature 0.7", COLD),
    ("nucleus_sampling", P, "loop", "top_p 0.95", sampled_with(top_p=0.95)),
    ("short_rollouts", P, "loop", "max_tokens 9", sampled_with(max_tokens=9)),
    ("one_seed", P, "loop", "sampled 4 requests with 1 different seeds", ONE_SEED),
    ("one_seed", E, "loop", "with 1 different seeds", ONE_SEED),
    ("one_stream", E, "loop", "give each a seed of its own",
        method(TurnCompleter, "__init__", one_stream)),
    ("one_sample_for_all", P, "loop", "sampled less often; use every sample once",
        method(GroupCompleter, "__call__", first_sample)),
    ("stale_sampler", P, "loop", "version 0 in 4 of 4",
        method(Snapshots, "save", first_snapshot_for_ever)),
    ("fresh_sampler", E, "loop", "sampled with version 1",
        method(snapshots, "sampled_version", lambda _, step, _lag: step)),
    ("another_prompt", P, "task", "did not send the prompts",
        method(ProblemAdapter, "group", other_question)),
    ("fewer_turns", E, "task", "did not send the prompts",
        method(SearchAdapter, "group", hurried)),
    # the data's order
    ("other_prompts_in_one_arm", P, "data",
        "arm gs1_seed0: step 0 (and 1 more): drew train item",
        prompts_from(lambda arm, t: (t + (arm.estimator == "gs1")) * arm.groups_per_batch)),
    ("the_same_batch_again", BOTH, "data", "step 1: drew train item",
        prompts_from(lambda *_: 0)),
    # the optimizer
    ("decayed_rate", P, "loop", "step 1 updated with learning_rate 0.00024", updated_with(decayed)),
    ("scaled_rate_in_one_arm", P, "loop", "updated with learning_rate 0.0009",
        updated_with(tripled_in_one_arm)),
    ("torch_betas", P, "loop", "beta2 0.999", updated_with(lambda *_: {"beta2": 0.999})),
    ("weight_decay", BOTH, "loop", "weight_decay 0.1",
        updated_with(lambda *_: {"weight_decay": 0.1})),
    ("clipped_gradient", P, "loop", "arm gs1_seed0: step 0 updated with grad_clip_norm 1",
        updated_with(lambda arm, *_: {"grad_clip_norm": float(arm.estimator == "gs1")})),
    ("two_updates", P, "loop", "updated 2 times, 1 expected", method(loop, "update", twice)),
    ("another_loss", P, "loop", "asked for a gradient with loss 'ppo'", sent_with(ppo)),
    # the client
    ("another_rank", P, "service", "created a client with rank 8",
        opened_with(lambda _: {"lora_rank": 8})),
    ("no_unembedding", P, "service", "with train_unembed 0", opened_with(without_unembedding)),
    ("another_init", P, "service", "with seed 1",
        opened_with(lambda c: {"arm": dataclasses.replace(c.arm, seed=1)})),
    ("warm_start", P, "service", "step 0 loaded a state 1 times, 0 expected",
        method(throw_away, "open_arm", warm_start)),
]  # fmt: skip

_REFUSED: list[tuple[str, str, Edit]] = [
    ("gradient_in_sync", "TrainingClient.forward_backward: not among",
        method(loop, "update", gradient_in_sync)),
    ("step_in_sync", "TrainingClient.optim_step: not among", method(loop, "update", step_in_sync)),
    ("sample_in_sync", "SamplingClient.sample: not among",
        method(GroupCompleter, "_request", sample_in_sync)),
    ("unnamed_snapshot",
        "TrainingClient.save_weights_and_get_sampling_client_async: not among",
        method(Snapshots, "save", unnamed_snapshot)),
]  # fmt: skip

LIVE = ("stop_token_masked", "other_prompts_in_one_arm")
"""In a session the second shows behind the pilot, if the preflight was sound."""

MISTAKES = tuple(
    Mistake(name, where, "preflight", frozenset({"capability"}), words, edit, "first_steps", on,
        live=name in LIVE)
    for name, on, where, words, edit in _ROWS
)  # fmt: skip

REFUSED = tuple(
    Mistake(name, "loop", "preflight", frozenset({"capability"}), words, edit, "first_steps")
    for name, words, edit in _REFUSED
)
"""Calls that no request trace would show: the recording proxy refuses them, so the item errs."""
