"""Mistakes that people make in a training loop, each as an edit of the harness's own code.

An edit takes pytest's monkeypatch. The words beside it in `MISTAKES` are what the capability
preflight says of the first steps that are taken with it.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tinker
from tinker_cookbook.rl.types import TrajectoryGroup

from harness.audit.probes import throw_away
from harness.tasks.sec_search import env as search
from harness.tasks.sec_search import reward as search_reward
from harness.training import loop, snapshots
from harness.training.completers import GroupCompleter, Sampling, TurnCompleter
from harness.training.estimators import Estimate, Estimator
from harness.training.rollouts import SampledGroup
from harness.training.searches import SearchAdapter
from harness.training.snapshots import Snapshots
from harness.training.word_problems import ProblemAdapter

Edit = Callable[[Any], None]
Row = np.ndarray[Any, Any]


def method(owner: Any, name: str, wrapper: Callable[..., Any]) -> Edit:
    """`wrapper(original, ...)` in the place of a function or method."""

    def edit(monkeypatch: Any) -> None:
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *these: wrapper(original, *these))

    return edit


def datums_with(**changes: Callable[[Row], Row]) -> Edit:
    """`logprobs` or `advantages` (T) of every datum are changed before they are sent."""

    def changed(datum: tinker.Datum) -> tinker.Datum:
        inputs = dict(datum.loss_fn_inputs)
        for key, change in changes.items():
            row = change(np.asarray(inputs[key].tolist()))
            inputs[key] = tinker.TensorData.from_numpy(row.astype(np.float32))
        return dataclasses.replace(datum, loss_fn_inputs=inputs)

    return sent_with(lambda batches, arm: ([[changed(d) for d in b] for b in batches], arm))


def sent_with(change: Callable[[Any, Any], tuple[Any, Any]]) -> Edit:
    """The update gets other batches, or another arm's loss."""

    async def updated(original: Any, client: Any, batches: Any, arm: Any, *more: Any) -> Any:
        return await original(client, *change(batches, arm), *more)

    return method(loop, "update", updated)


def updated_with(change: Callable[[Any, tinker.AdamParams, int], dict[str, float]]) -> Edit:
    """The update gets other Adam parameters, by arm, those registered and the update's number."""

    def edit(monkeypatch: Any) -> None:
        counts: dict[str, int] = {}

        async def updated(original: Any, client: Any, batches: Any, arm: Any, *more: Any) -> Any:
            number = counts[arm.name] = counts.get(arm.name, -1) + 1
            by, adam = more
            other = adam.model_copy(update=change(arm, adam, number))
            return await original(client, batches, arm, by, other)

        method(loop, "update", updated)(monkeypatch)

    return edit


def advantages_as(change: Callable[[list[Row], Any], list[Row]]) -> Edit:
    """What the estimator returns is worked over, given the rewards."""

    def estimate(original: Any, self: Any, problems: Any, rewards_P_G: Any) -> Estimate:
        found = original(self, problems, rewards_P_G)
        return Estimate(change(found.advantages_P_G, rewards_P_G), found.kernel)

    return method(Estimator, "estimate", estimate)


def rewards_as(change: Callable[[list[float]], list[float]]) -> Edit:
    """The rewards of a group are changed where they are read."""
    return method(TrajectoryGroup, "get_total_rewards", lambda original, g: change(original(g)))


def sampled_with(**settings: Any) -> Edit:
    """Rollouts are sampled with other settings."""
    return method(
        Sampling,
        "params",
        lambda original, *these: original(*these).model_copy(update=settings),
    )


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


def prompts_from(place: Callable[[Any, int], int]) -> Edit:
    """A step draws the stretch of the order that begins at this place."""

    def drawn(_original: Any, context: Any, step: int) -> list[Any]:
        start, n = place(context.arm, step), context.arm.groups_per_batch
        return [(i, context.train[i]) for i in context.order[start : start + n]]

    return method(loop, "step_prompts", drawn)


def other_question(original: Any, self: Any, problem: Any, *more: Any) -> Any:
    """The environment asks something else than the item's question."""
    return original(self, dataclasses.replace(problem, question=f"{problem.question} Hm."), *more)


def other_gold(original: Any, self: Any, problem: Any, *more: Any) -> Any:
    """The environment compares with another answer than the item's."""
    return original(self, dataclasses.replace(problem, gold="1"), *more)


async def first_sample(original: Any, self: Any, *these: Any) -> Any:
    """Every environment of a group gets the first sample."""
    self._asked = 0
    return await original(self, *these)


async def twice(original: Any, *these: Any) -> Any:
    """The batch is applied twice."""
    await original(*these)
    return await original(*these)


async def first_snapshot_for_ever(original: Any, self: Any, client: Any, version: int) -> None:
    """Later weights are never saved for the sampler."""
    if not self._clients:
        await original(self, client, version)
    else:
        self._clients[version] = next(iter(self._clients.values()))


def whitened(rows: list[Row], _rewards: Any) -> list[Row]:
    """Advantages of mean 0 and deviation 1 over the batch."""
    flat = np.concatenate(rows)
    return [(row - flat.mean()) / (flat.std() + 1e-6) for row in rows]


def without_stop(row: Row) -> Row:
    """The last token carries nothing."""
    return np.append(row[:-1], 0.0)


def token_mean(row: Row) -> Row:
    """Divided by the number of tokens that carry it."""
    return row / max(1, np.count_nonzero(row))


def ppo(batches: Any, arm: Any) -> tuple[Any, Any]:
    """The GS1 arm trains with a clipped loss."""
    bounds = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    clipped = dataclasses.replace(arm, loss="ppo", loss_config=bounds)
    return batches, clipped if arm.estimator == "gs1" else arm


def one_early(row: Row) -> Row:
    """Shifted by one token."""
    return np.roll(row, -1)


def decayed(arm: Any, adam: tinker.AdamParams, number: int) -> dict[str, float]:
    """A linear schedule that nobody registered."""
    return {"learning_rate": adam.learning_rate * (1 - number / arm.steps)}


def tripled_in_one_arm(arm: Any, adam: tinker.AdamParams, _number: int) -> dict[str, float]:
    """The GS1 arm learns faster."""
    return {"learning_rate": adam.learning_rate * (3 if arm.estimator == "gs1" else 1)}


ALIGNED = "are not what was sampled and estimated"
STOCK = "the stock environment gives"
ESTIMATOR = "change it in the estimator alone"

MISTAKES: dict[str, tuple[Edit, str]] = {
    # the datums
    "advantages_shifted": (datums_with(advantages=one_early), f"advantages {ALIGNED}"),
    "advantages_negated": (datums_with(advantages=lambda x: -x), f"advantages {ALIGNED}"),
    "logprobs_shifted": (datums_with(logprobs=one_early), f"logprobs {ALIGNED}"),
    "logprobs_dropped": (datums_with(logprobs=np.zeros_like), f"logprobs {ALIGNED}"),
    "stop_token_masked": (datums_with(advantages=without_stop), f"advantages {ALIGNED}"),
    "prompt_trained_on": (
        datums_with(advantages=lambda x: np.full_like(x, x[-1])), f"advantages {ALIGNED}",
    ),
    "mean_over_tokens": (datums_with(advantages=token_mean), f"advantages {ALIGNED}"),
    "batch_twice": (sent_with(lambda b, arm: ([*b, *b], arm)), "sent 16 datums for 8 rollouts"),
    # rewards and advantages
    "rewards_of_the_neighbour": (rewards_as(lambda r: [*r[1:], r[0]]), STOCK),
    "rewards_clipped": (rewards_as(lambda r: [max(x, 0.0) for x in r]), "its grades make -0.1"),
    "another_gold": (method(ProblemAdapter, "group", other_gold), STOCK),
    "advantages_of_the_neighbour": (
        advantages_as(lambda rows, _: [*rows[1:], rows[0]]), ESTIMATOR,
    ),
    "advantages_whitened": (advantages_as(whitened), ESTIMATOR),
    "no_baseline": (
        advantages_as(lambda _, rewards: [np.asarray(r) for r in rewards]),
        ESTIMATOR,
    ),
    # sampling
    "cold_sampling": (sampled_with(temperature=0.7), "temperature 0.7 in 4 of 4 requests, 1 reg"),
    "nucleus_sampling": (sampled_with(top_p=0.95), "top_p 0.95"),
    "short_rollouts": (sampled_with(max_tokens=9), "max_tokens 9"),
    "one_seed": (sampled_with(seed=7), "sampled 4 requests with 1 different seeds"),
    "one_sample_for_all": (
        method(GroupCompleter, "__call__", first_sample),
        "sampled less often; use every sample once",
    ),
    "stale_sampler": (method(Snapshots, "save", first_snapshot_for_ever), "version 0 in 4 of 4"),
    "another_prompt": (
        method(ProblemAdapter, "group", other_question), "did not send the prompts",
    ),
    # the data's order
    "other_prompts_in_one_arm": (
        prompts_from(lambda arm, t: t * 8 + 8 if arm.estimator == "gs1" else t * 4),
        "arm gs1_seed0: step 0 (and 1 more): drew train item",
    ),
    "the_same_batch_again": (prompts_from(lambda *_: 0), "step 1: drew train item"),
    # the optimizer
    "decayed_rate": (
        updated_with(decayed),
        "step 1 updated with learning_rate 0.00024",
    ),
    "scaled_rate_in_one_arm": (
        updated_with(tripled_in_one_arm),
        "updated with learning_rate 0.0009",
    ),
    "torch_betas": (updated_with(lambda *_: {"beta2": 0.999}), "beta2 0.999"),
    "weight_decay": (updated_with(lambda *_: {"weight_decay": 0.1}), "weight_decay 0.1"),
    "clipped_gradient": (
        updated_with(lambda arm, *_: {"grad_clip_norm": float(arm.estimator == "gs1")}),
        "arm gs1_seed0: step 0 updated with grad_clip_norm 1",
    ),
    "two_updates": (method(loop, "update", twice), "updated 2 times, 1 expected"),
    "another_loss": (sent_with(ppo), "asked for a gradient with loss 'ppo'"),
    # the client
    "another_rank": (opened_with(lambda _: {"lora_rank": 8}), "created a client with rank 8"),
    "no_unembedding": (opened_with(without_unembedding), "with train_unembed 0"),
    "another_init": (
        opened_with(lambda c: {"arm": dataclasses.replace(c.arm, seed=1)}), "with seed 1",
    ),
    "warm_start": (
        method(throw_away, "open_arm", warm_start), "step 0 loaded a state 1 times, 0 expected",
    ),
}  # fmt: skip

REFUSED: dict[str, tuple[Edit, str]] = {
    "gradient_in_sync": (
        method(loop, "update", gradient_in_sync), "TrainingClient.forward_backward: not among",
    ),
    "step_in_sync": (method(loop, "update", step_in_sync), "TrainingClient.optim_step: not among"),
    "sample_in_sync": (
        method(GroupCompleter, "_request", sample_in_sync), "SamplingClient.sample: not among",
    ),
    "unnamed_snapshot": (
        method(Snapshots, "save", unnamed_snapshot),
        "TrainingClient.save_weights_and_get_sampling_client_async: not among",
    ),
}  # fmt: skip
"""Calls that no request trace would show: the recording proxy refuses them, so the item errs."""


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


def never_constant(monkeypatch: Any) -> None:
    """Groups of equal rewards are trained on too."""
    monkeypatch.setattr(SampledGroup, "zero_variance", False)


def f1(monkeypatch: Any) -> None:
    """The curated set is graded by F1."""
    original = search_reward.f_beta
    monkeypatch.setattr(search_reward, "f_beta", lambda p, r, _beta: original(p, r, 1.0))


BY_TURNS: dict[str, tuple[Edit, str]] = {
    **{
        name: MISTAKES[name]
        for name in (
            "advantages_shifted", "advantages_negated", "logprobs_shifted", "prompt_trained_on",
            "mean_over_tokens", "advantages_whitened", "the_same_batch_again", "weight_decay",
        )
    },
    "cold_sampling": (sampled_with(temperature=0.7), "sampled with temperature 0.7"),
    "fresh_sampler": (
        method(snapshots, "sampled_version", lambda _, step, _lag: step), "sampled with version 1",
    ),
    "one_seed": (sampled_with(seed=7), "with 1 different seeds"),
    "one_stream": (method(TurnCompleter, "__init__", one_stream), "give each a seed of its own"),
    "rewards_of_the_neighbour": (rewards_as(lambda r: [*r[1:], r[0]]), STOCK),
    "fewer_turns": (method(SearchAdapter, "group", hurried), "did not send the prompts"),
    "free_silence": (method(search, "episode_reward", free_silence), "of F4 0 are paid -0.2"),
    "f1": (f1, "precision"),
    "facts_of_others": (method(SearchAdapter, "group", facts_of_others), STOCK),
    "all_that_was_met": (
        method(search.SearchEnv, "_end", all_that_was_met), "curated chunks, ",
    ),
    "constant_groups_kept": (never_constant, "is recorded as dropped: False"),
    "batch_twice": (MISTAKES["batch_twice"][0], "send one each, once"),
}  # fmt: skip
"""The same, and others, in the search experiment, whose episodes have several turns."""
