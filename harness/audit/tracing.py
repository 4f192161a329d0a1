"""From recorded requests to the stored trace, and where they contradict the records."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from pydantic import JsonValue

from harness.cards import Experiment
from harness.cards.registration import EvaluationSpec
from harness.records import Rollout, Row, StepRecord, Turn, logprobs_of, tokens_of
from harness.tasks.task import Item
from harness.traces import (
    Carried,
    EvaluationTrace,
    Settings,
    StepTrace,
    asked_digest,
    digest,
    rows_digest,
)
from harness.training.context import Tracer
from harness.training.gather import gather
from harness.training.recording_proxy import RequestTrace, Response
from harness.training.streams import stream_seed
from harness.training.task_adapter import AnyAdapter

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.rl.types import ActionExtra, Env

REPLAYED = 8
"""Few enough to cost a percent of a step, and every rollout has its turn."""

BySeed = Mapping[int, Sequence[Response]]
"""Responses by the seed of their request."""


class Replay(NamedTuple):
    """The prompts that an environment showed, what it paid, and what it wants replies to end at."""

    prompts: list[list[int]]
    reward: float
    stop: str


def step_tracer(
    experiment: Experiment,
    adapter: AnyAdapter,
    replayed: int | None = REPLAYED,
) -> Tracer:
    """What an arm stores of each step's requests; `replayed` as in `trace_step`."""
    probed = experiment.registration.gradient_probe is not None

    async def trace(
        seen: RequestTrace, record: StepRecord, train: Sequence[Item]
    ) -> dict[str, JsonValue]:
        found = await trace_step(seen, record, adapter, train, probed=probed, replayed=replayed)
        return found.plain()

    return trace


async def trace_step(
    seen: RequestTrace,
    record: StepRecord,
    adapter: AnyAdapter,
    train: Sequence[Item],
    *,
    probed: bool = False,
    replayed: int | None = None,
) -> StepTrace:
    """One step's requests, and where they do not fit its responses and its record.

    Where a gradient is `probed`, requests of other seeds than the record's are the probe's. So many
    rollouts, evenly spread, are `replayed` for their prompts and rewards, by default all.
    """
    by_seed = seen.by_seed()
    episodes = [
        (f"train item {group['prompt']}, rollout {g}", group["prompt"], rollout)
        for group in record["groups"]
        for g, rollout in enumerate(group["rollouts"])
    ]
    own = {float(turn["seed"]) for *_, rollout in episodes for turn in rollout["turns"]}
    others = [asked for asked in seen.samples if probed and asked["seed"] not in own]
    every = 1 if replayed is None else max(1, len(episodes) // replayed)
    # another place in each step, so that none is left out for ever
    looked_at = episodes[record["step"] % every :: every]
    max_tokens = adapter.training.max_tokens
    replayed_R = await replays(
        [(train[prompt], rollout["turns"]) for _, prompt, rollout in looked_at],
        lambda item: adapter.stock(item, max_tokens),
    )
    beside = list(zip(looked_at, replayed_R, strict=True))
    carried, faults = datum_faults(record, seen.datums, by_seed)
    faults += prompt_faults(
        [(train[at].id, each["turns"], again.prompts) for (_, at, each), again in beside], by_seed
    )
    faults += reward_faults(
        [(where, each["reward"], again.reward) for (where, _, each), again in beside]
    )
    return StepTrace(
        created=seen.created,
        loaded=seen.loaded,
        samples=in_order(asked for asked in seen.samples if asked not in others),
        probed=in_order(others),
        losses=seen.losses,
        optimizer=seen.optimizer,
        datums_sha256=digest(carried),
        questions_sha256=asked_digest([train[group["prompt"]] for group in record["groups"]]),
        faults=[*faults, *stop_faults(seen, replayed_R)],
        replies=sum(len(rollout["turns"]) for *_, rollout in episodes),
        updates=int(not all(group["dropped"] for group in record["groups"])),
    )


async def trace_evaluation(
    seen: RequestTrace,
    rows: Sequence[Row],
    items: Sequence[Item],
    adapter: AnyAdapter,
    spec: EvaluationSpec,
) -> EvaluationTrace:
    """The requests of an evaluation, and where they do not fit its rows.

    A reply is graded again from the stored response of its row whenever rows are read, so only its
    prompt is looked at; an episode is paid again from its turns.
    """
    by_seed, by_id = seen.by_seed(), {item.id: item for item in items}
    turns_R = [evaluated_turns(row, by_seed) for row in rows]
    again = await replays(
        [
            (by_id[row["item_id"]], turns if adapter.multi_turn else [])
            for row, turns in zip(rows, turns_R, strict=True)
        ],
        lambda item: adapter.stock(item, spec.max_tokens),
    )
    of_draws = [
        (f"item {row['item_id']}, draw {row['draw']}", row["scores"]["reward"], reward)
        for row, (_, reward, _) in zip(rows, again, strict=True)
        if "draw" in row
    ]
    return EvaluationTrace(
        multi_turn=adapter.multi_turn,
        samplers=seen.samplers,
        rows_sha256=rows_digest(rows),
        samples=in_order(seen.samples),
        faults=[
            *prompt_faults(
                [
                    (row["item_id"], turns, prompts)
                    for row, turns, (prompts, *_) in zip(rows, turns_R, again, strict=True)
                ],
                by_seed,
            ),
            *reward_faults(of_draws),
            *stop_faults(seen, again),
            *reply_faults(rows, turns_R, adapter),
        ],
        replies=sum(int(row["scores"]["turns"]) if "draw" in row else 1 for row in rows),
    )


def in_order(samples: Iterable[Settings]) -> list[Settings]:
    """Requests by their seed: those that are under way at once come in any order."""
    return sorted(samples, key=lambda asked: float(asked.get("seed") or 0.0))


def evaluated_turns(row: Row, by_seed: BySeed) -> list[Turn]:
    """The turns of an evaluated row, as they came back: of one reply, or of one draw."""
    seed = stream_seed(0, "evaluation", row["item_id"])
    seeds = [seed]
    if "draw" in row:
        every = (stream_seed(seed, row["draw"], k) for k in itertools.count())
        seeds = list(itertools.takewhile(lambda each: each in by_seed, every))
    return [
        Turn(
            seed=response.seed,
            tokens_T=response.tokens,
            logprobs_T=response.logprobs,
            learner_logprobs_T=[],
            stop=response.stop,
        )
        for each in seeds
        for response in by_seed.get(each, ())[:1]
    ]


def datum_faults(
    record: StepRecord, data_D: Sequence[tinker.Datum], by_seed: BySeed
) -> tuple[list[Carried], list[str]]:
    """What datums carry, and those that do not carry their rollout: one each, in order, aligned.

    Rollouts of dropped groups have none. Action tokens are those that the sampler returned after
    what stands before them, in any turn. They carry its log-probs and the rollout's advantage,
    everything else carries 0. Of a loss that this client computes only the tokens are sent.
    """
    rollouts = [
        (group["prompt"], g, rollout)
        for group in record["groups"]
        if not group["dropped"]
        for g, rollout in enumerate(group["rollouts"])
    ]
    if len(data_D) != len(rollouts):
        wrong = f"sent {len(data_D)} datums for {len(rollouts)} rollouts; send one each, once"
        return [], [wrong]
    carried, faults = list[Carried](), list[str]()
    for datum, (prompt, g, rollout) in zip(data_D, rollouts, strict=True):
        what = carried_by(datum, rollout, by_seed)
        if isinstance(what, Carried):
            carried.append(what)
        else:
            faults.append(
                f"sent a datum of train item {prompt}, rollout {g}, whose {what} are not "
                "what was sampled and estimated; keep them aligned with the targets"
            )
    # the last turn of an episode comes after the whole of it
    drawn = Counter(tuple(r.prompt + r.tokens) for each in by_seed.values() for r in each)
    again = sum((Counter(tuple(whole(datum)) for datum in data_D) - drawn).values())
    if again and not faults:
        faults.append(
            f"sent {again} datums of sequences that were sampled less often; use every sample once"
        )
    return carried, faults


def whole(datum: tinker.Datum) -> list[int]:
    """All tokens of a datum, the last target included."""
    last = datum.loss_fn_inputs["target_tokens"].tolist()[-1:]
    return [*datum.model_input.to_ints(), *(int(token) for token in last)]


def carried_by(datum: tinker.Datum, rollout: Rollout, by_seed: BySeed) -> Carried | str:
    """What a datum carries where its rollout acted, or what of it is not its rollout's."""
    targets = [int(token) for token in datum.loss_fn_inputs["target_tokens"].tolist()]
    full = whole(datum)
    if full[1:] != targets:
        return "targets"
    logprobs, acted = np.zeros(len(targets), np.float32), np.zeros(len(targets), bool)
    for turn in rollout["turns"]:
        own = np.asarray(turn["logprobs_T"], np.float32).tolist()
        found = [
            (len(response.prompt), response.logprobs)
            for response in by_seed.get(turn["seed"], ())
            if response.tokens == turn["tokens_T"]
            and full[: len(response.prompt + response.tokens)] == response.prompt + response.tokens
        ]
        if not found:
            return "action tokens"
        # samples of the same tokens may differ in their log-probs
        start, sampled = next(
            (each for each in found if np.asarray(each[1], np.float32).tolist() == own), found[-1]
        )
        logprobs[start - 1 : start - 1 + len(sampled)] = sampled
        acted[start - 1 : start - 1 + len(sampled)] = True
    if [t for t, acts in zip(targets, acted, strict=True) if acts] != tokens_of(rollout):
        return "action tokens"
    if np.asarray(logprobs_of(rollout), np.float32).tolist() != logprobs[acted].tolist():
        return "recorded log-probs"
    expected = {
        "logprobs": logprobs,
        "advantages": np.where(acted, np.float32(rollout["advantage"]), np.float32(0.0)),
    }
    rows = {k: datum.loss_fn_inputs[k] for k in expected if k in datum.loss_fn_inputs}
    for key, row in rows.items():
        if row.tolist() != expected[key].tolist():
            return key
    acting = {
        key: np.asarray(row.tolist(), np.float32)[acted].tolist() for key, row in rows.items()
    }
    return Carried(
        [token for token, acts in zip(targets, acted, strict=True) if acts],
        acting.get("logprobs", []),
        acting.get("advantages", []),
    )


def prompt_faults(
    episodes: Sequence[tuple[str, Sequence[Turn], Sequence[Sequence[int]]]], by_seed: BySeed
) -> list[str]:
    """Items of whose turns some were asked with another prompt than the stock environment shows."""
    wrong = [
        id
        for id, turns, prompts in episodes
        if len(turns) != len(prompts)
        or not all(
            list(prompt) in [response.prompt for response in by_seed.get(turn["seed"], ())]
            for turn, prompt in zip(turns, prompts, strict=True)
        )
    ]
    if not wrong:
        return []
    items = {id for id, *_ in episodes}
    return [
        f"did not send the prompts of {len(set(wrong))} of {len(items)} items "
        f"({wrong[0]}, ...); render each turn as the stock environment does"
    ]


def reward_faults(episodes: Sequence[tuple[str, float, float]]) -> list[str]:
    """Episodes (name, reward, again) whose tokens the stock environment, given again, pays else."""
    return [
        f"gave {which} the reward {reward:.6g}, the stock environment gives {again:.6g}; use it"
        for which, reward, again in episodes
        if reward != again
    ]


def stop_faults(seen: RequestTrace, again: Sequence[Replay]) -> list[str]:
    """Requests that end replies at something else than the stock environments want."""
    wanted, asked = {replay.stop for replay in again}, [each.get("stop") for each in seen.samples]
    other = [stop for stop in asked if stop not in wanted]
    if not other:
        return []
    return [
        f"sampled with stop {other[0]} in {len(other)} of {len(asked)} requests, the stock "
        f"environment wants {' or '.join(sorted(wanted))}; end replies there"
    ]


def reply_faults(
    rows: Sequence[Row], turns_R: Sequence[Sequence[Turn]], adapter: AnyAdapter
) -> list[str]:
    """Evaluated rows whose response or length is not what came back for their item."""
    decode = adapter.renderer.tokenizer.decode
    wrong = []
    for row, turns in zip(rows, turns_R, strict=True):
        tokens = [token for turn in turns for token in turn["tokens_T"]]
        if "draw" in row:
            same = row["n_tokens"] == len(tokens)
        else:
            same = row["response"] == str(decode(tokens, skip_special_tokens=True))
        if not same:
            wrong.append(row["item_id"])
    if not wrong:
        return []
    return [
        f"stored {len(wrong)} of {len(rows)} rows of other replies than came back ({wrong[0]}, "
        "...); keep each reply with its item"
    ]


async def replays(
    episodes: Sequence[tuple[Item, Sequence[Turn]]], env: Callable[[Item], Env]
) -> list[Replay]:
    """What fresh environments make of these turns."""
    return list(await gather(*(replay(env(item), turns) for item, turns in episodes)))


async def replay(env: Env, turns: Sequence[Turn]) -> Replay:
    """One episode again; a prompt more than there are turns is of an episode that was cut short."""
    first = await env.initial_observation()
    if not isinstance(first, tuple):
        return Replay([], first.reward, "")
    prompts, reward = [first[0].to_ints()], 0.0
    for turn in turns:
        # what the cookbook's rollouts tell an environment of a reply
        extra = cast("ActionExtra", {"stop_reason": turn["stop"]})
        result = await env.step(turn["tokens_T"], extra=extra)
        reward += result.reward
        if result.episode_done:
            break
        prompts.append(result.next_observation.to_ints())
    return Replay(prompts, reward, str(first[1]))
