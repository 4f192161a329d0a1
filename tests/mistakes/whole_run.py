"""Mistakes that begin after a run's first steps, each as an edit of the harness's own code.

An edit takes pytest's monkeypatch; its docstring says what somebody did.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from rollouts import turns_of
from service_doubles import GRPO, GS1, PILOT, STEPS, ScriptedService, ScriptedTrainer

from harness.methods import kernels
from harness.protocol import arms, decider
from harness.protocol.arms import ArmKeeper
from harness.protocol.decider import Decider
from harness.store import Entry
from harness.training import evaluate, loop, rollouts, word_problems
from harness.training.fingerprints import learner_fingerprint
from harness.training.recording_proxy import Service
from harness.training.snapshots import Snapshots
from harness.training.word_problems import ProblemAdapter
from mistakes.edits import (
    advantages_as,
    datums_with,
    method,
    one_early,
    other_gold,
    other_question,
    ppo,
    sampled_with,
    sent_with,
    twice,
    updated_with,
    whitened,
)
from mistakes.mistake import Edit, Mistake, Stage, Where


class Late:
    """An edit that takes effect only once an arm is past its pilot."""

    def __init__(self, edit: Edit) -> None:
        self._edit = edit
        self.__doc__ = edit.__doc__

    def __call__(self, monkeypatch: Any) -> None:
        """Take a step of the loop with the edit, and undo it behind the step."""
        import pytest

        original = loop.run_step

        async def taken(context: Any, state: Any) -> Any:
            if state.version < PILOT:
                return await original(context, state)
            with pytest.MonkeyPatch.context() as patch:
                self._edit(patch)
                return await original(context, state)

        monkeypatch.setattr(loop, "run_step", taken)


def evaluated_with(change: Callable[[Any], Any]) -> Edit:
    """The test items are decoded by another specification."""

    async def decoded(original: Any, sampler: Any, adapter: Any, spec: Any, *more: Any) -> Any:
        return await original(sampler, adapter, change(spec), *more)

    return method(evaluate, "evaluate", decoded)


def decided_with(**changes: Any) -> Edit:
    """A criterion is decided with another setting than registered."""

    def decided(original: Any, self: Any, criterion: Any, look: Any) -> Any:
        return original(self, dataclasses.replace(criterion, **changes), look)

    return method(Decider, "_decide", decided)


# -- training ------------------------------------------------------------------------------------


def snapshots_left_behind(monkeypatch: Any) -> None:
    """Rollouts come from the first sampler that is still held, whatever was updated since."""

    async def stale(self: Any, _client: Any, version: int) -> None:
        self._clients[version] = next(iter(self._clients.values()))

    monkeypatch.setattr(Snapshots, "save", stale)


def step_left_out_of_the_seeds(monkeypatch: Any) -> None:
    """The seeds of rollouts do not depend on the step."""
    seed = rollouts.stream_seed

    def without(number: int, *names: Any) -> int:
        return seed(number, *(names[:2] + names[3:] if names[0] == "rollout" else names))

    monkeypatch.setattr(rollouts, "stream_seed", without)


def uniform_kernel(monkeypatch: Any) -> None:
    """Every other prompt weighs the same."""
    monkeypatch.setattr(
        kernels, "softmax_loo_weights", lambda s, _tau: kernels.uniform_loo_weights(len(s))
    )


def annealed_tau(monkeypatch: Any) -> None:
    """The kernel's temperature has a schedule."""
    original = kernels.softmax_loo_weights
    monkeypatch.setattr(kernels, "softmax_loo_weights", lambda s, tau: original(s, 2 * tau))


def other_record(change: Callable[[Any], None]) -> Edit:
    """What is stored of later steps is not what was sent."""

    def published(original: Any, self: Any, step: int, record: Any) -> None:
        if step >= PILOT:
            for group in record["groups"]:
                change(group)
        original(self, step, record)

    return method(Entry, "publish_step", published)


def longer_logprobs(group: Any) -> None:
    """Log-probs are stored as a mean over the rollout."""
    for turn in turns_of(group):
        turn["logprobs_T"] = [float(np.mean(turn["logprobs_T"]))] * len(turn["logprobs_T"])


def filtered_train_split(monkeypatch: Any) -> None:
    """The arm's train split has lost its first item, so that every index means another one."""
    original = ArmKeeper._context

    def context(self: Any, arm: Any, after: Any) -> Any:
        made = original(self, arm, after)
        return dataclasses.replace(made, train=[*made.train[1:], made.train[0]])

    monkeypatch.setattr(ArmKeeper, "_context", context)


def late_other_prompts(monkeypatch: Any) -> None:
    """Past the pilot an arm draws the same prompts again and again."""
    original = loop.step_prompts
    changed = lambda context, step: original(context, min(step, PILOT))  # noqa: E731
    monkeypatch.setattr(loop, "step_prompts", changed)


def other_groups(monkeypatch: Any) -> None:
    """GRPO draws twice as many prompts half as often: as many rollouts a step."""
    original = ArmKeeper._context

    def context(self: Any, arm: Any, after_step: Any) -> Any:
        made = original(self, arm, after_step)
        if arm.name != GRPO:
            return made
        shape = {"group_size": 1, "groups_per_batch": 8}
        return dataclasses.replace(made, arm=dataclasses.replace(arm, **shape))

    monkeypatch.setattr(ArmKeeper, "_context", context)


def steps_counted_twice(monkeypatch: Any) -> None:
    """Each record counts from an update that was made twice."""
    original = loop.run_step

    async def counted(context: Any, state: Any) -> Any:
        record = await original(context, state)
        return {**record, "version": 2 * record["version"]}

    monkeypatch.setattr(loop, "run_step", counted)


# -- resuming ------------------------------------------------------------------------------------


def moments_left_behind(monkeypatch: Any) -> None:
    """A resumed arm takes up its weights with a fresh optimizer."""

    async def without(self: Any, path: str) -> ScriptedTrainer:
        weights, _, updates = self._client.saved[path]
        return ScriptedTrainer(self._client, weights, 0.0, updates)

    name = "create_training_client_from_state_with_optimizer_async"
    monkeypatch.setattr(Service, name, without)


def older_state_restored(monkeypatch: Any) -> None:
    """The service gives an arm that resumes the state of an earlier checkpoint."""

    async def older(self: Any, path: str) -> ScriptedTrainer:
        weights, *rest = self.saved[path]
        return ScriptedTrainer(self, weights - 1.0, *rest)

    name = "create_training_client_from_state_with_optimizer_async"
    monkeypatch.setattr(ScriptedService, name, older)


def resumed_from_nothing(monkeypatch: Any) -> None:
    """A resumed arm starts from the init seed, and counts on."""
    original = loop.open_arm

    async def fresh(context: Any) -> Any:
        state = await original(context)
        if state.version == 0:
            return state
        service = state.proxy.client()
        state.client = await service.create_lora_training_client_async(
            context.base_model, rank=context.lora_rank, seed=context.arm.seed
        )
        return state

    monkeypatch.setattr(loop, "open_arm", fresh)


# -- evaluation ----------------------------------------------------------------------------------


def one_update_early(monkeypatch: Any) -> None:
    """The final sampler is saved before the last update."""

    def finish(self: Any, arm: Any) -> None:
        self._advance(arm, arm.steps - 1)
        client, text = self._states[arm.name].client, self._fingerprint_text()
        path = self.service.run(arms._save_sampler(client, text))["sampler_path"]
        self._advance(arm, arm.steps)
        trained = self.service.run(learner_fingerprint(self._states.pop(arm.name).client, text))
        self.entry(arm).finish({"sampler_path": path, "fingerprint": trained})

    monkeypatch.setattr(ArmKeeper, "_finish", finish)


def always_the_base_model(monkeypatch: Any) -> None:
    """Every evaluation samples from the untrained model, whatever the service was asked for."""
    original = ScriptedService.create_sampling_client_async

    async def base(self: Any, _path: Any = None, _base: Any = None) -> Any:
        return await original(self, None, "harness/nano-qwen3")

    monkeypatch.setattr(ScriptedService, "create_sampling_client_async", base)


def always_the_first_arm(monkeypatch: Any) -> None:
    """Every arm is evaluated from the first final sampler."""
    original, seen = ScriptedService.create_sampling_client_async, []

    async def first(self: Any, path: Any = None, base: Any = None) -> Any:
        seen.extend([path] if path else [])
        return await original(self, seen[0] if path else None, base)

    monkeypatch.setattr(ScriptedService, "create_sampling_client_async", first)


def trained_base(monkeypatch: Any) -> None:
    """The base model is evaluated from trained weights."""
    original, seen = Service.create_sampling_client_async, []

    async def trained(self: Any, path: Any = None, _base: Any = None) -> Any:
        seen.extend([path] if path else [])
        return await original(self, path or seen[0], None)

    monkeypatch.setattr(Service, "create_sampling_client_async", trained)


def best_of_two(monkeypatch: Any) -> None:
    """The test items are decoded twice, and the better half is kept."""

    async def better(original: Any, *these: Any) -> Any:
        found = [await original(*these), await original(*these)]
        return max(found, key=lambda rows: sum(row["correct"] for row in rows))

    method(evaluate, "evaluate", better)(monkeypatch)


def replies_of_the_neighbour(monkeypatch: Any) -> None:
    """Each item is graded by the reply to the next one."""

    async def shifted(original: Any, sampler: Any, adapter: Any, spec: Any, items: Any, f: Any):
        rows = await original(sampler, adapter, spec, items, f)
        return [
            word_problems.grade(item, row["response"], spec, row["n_tokens"], row["stop"])
            for item, row in zip(items, [*rows[1:], rows[0]], strict=True)
        ]

    method(evaluate, "evaluate", shifted)(monkeypatch)


def test_prompt_with_advice(monkeypatch: Any) -> None:
    """The test items are asked with an advice that no train item had."""

    async def advised(original: Any, self: Any, sampler: Any, spec: Any, item: Any) -> Any:
        asked = dataclasses.replace(item, question=f"{item.question} Think step by step.")
        return await original(self, sampler, spec, asked)

    method(ProblemAdapter, "evaluated", advised)(monkeypatch)


def lenient_grades(monkeypatch: Any) -> None:
    """A response that holds the gold anywhere is right."""
    original = word_problems.grade

    def grade(item: Any, text: str, *more: Any) -> Any:
        row = original(item, text, *more)
        return {**row, "correct": row["correct"] or "not know" in text}

    monkeypatch.setattr(word_problems, "grade", grade)


def half_evaluated_and_copied(monkeypatch: Any) -> None:
    """The second half of the items gets the rows of the first."""
    original = evaluate.evaluate

    async def copied(sampler: Any, adapter: Any, spec: Any, items: Any, after: Any) -> Any:
        half = await original(sampler, adapter, spec, items[: len(items) // 2], after)
        return [{**half[i % len(half)], "item_id": item.id} for i, item in enumerate(items)]

    monkeypatch.setattr(evaluate, "evaluate", copied)


def rows_of_the_first_policy(monkeypatch: Any) -> None:
    """Every evaluation is stored with the rows of the first one."""
    first: list[Any] = []

    def published(original: Any, self: Any, kind: str, value: Any) -> None:
        if kind == "rows":
            first.append(value)
        original(self, kind, first[0] if kind == "rows" else value)

    method(Entry, "publish", published)(monkeypatch)


# -- decision ------------------------------------------------------------------------------------


def unanswered_left_out(monkeypatch: Any) -> None:
    """Items without an answer in any arm are dropped, as if they had not been asked."""
    original = decider.item_scores

    def answered(rows: Any, metric: str) -> Any:
        kept = [row for row in rows if row["answer"] is not None]
        found = original(kept, metric)
        mean = sum(found.values()) / len(found)
        return {row["item_id"]: found.get(row["item_id"], mean) for row in rows}

    monkeypatch.setattr(decider, "item_scores", answered)


def half_the_interval(monkeypatch: Any) -> None:
    """The interval has half of its width."""
    from harness.statistics import intervals

    original = intervals.hoeffding_half_width
    monkeypatch.setattr(intervals, "hoeffding_half_width", lambda *these: original(*these) / 2)


def exchanged_arms(monkeypatch: Any) -> None:
    """The treatment gets the baseline's scores, and the other way round."""

    def exchanged(original: Any, self: Any, *these: Any) -> Any:
        found = original(self, *these)
        return {**found, "treatment": found["baseline"], "baseline": found["treatment"]}

    method(Decider, "_scores", exchanged)(monkeypatch)


def _half(batches: Any, arm: Any) -> tuple[Any, Any]:
    return [batch[: len(batch) // 2] for batch in batches], arm


ALIGNED = "are not what was sampled and estimated"

_ROWS: dict[Stage, list[tuple[str, Where, str, Edit]]] = {
    "training": [
        ("late_decay", "loop", f"step {PILOT} updated with learning_rate 1e-05",
            Late(updated_with(lambda *_: {"learning_rate": 1e-5}))),
        ("late_gradient_clip", "loop", f"step {PILOT} updated with grad_clip_norm 1",
            Late(updated_with(lambda *_: {"grad_clip_norm": 1.0}))),
        ("late_clipped_loss", "loop", "asked for a gradient with loss 'ppo'", Late(sent_with(ppo))),
        ("late_second_epoch", "loop", "updated 2 times", Late(method(loop, "update", twice))),
        ("late_minibatch", "loop", "learner log-probs for 4 datums", Late(sent_with(_half))),
        ("late_temperature", "loop", f"step {PILOT} sampled with temperature 1.3",
            Late(sampled_with(temperature=1.3))),
        ("late_longer_replies", "loop", "max_tokens 99", Late(sampled_with(max_tokens=99))),
        ("late_stop", "loop", "sampled with stop ['.']", Late(sampled_with(stop=["."]))),
        ("late_stale_sampler", "loop", f"step {PILOT + 1} sampled with version",
            Late(snapshots_left_behind)),
        ("late_shifted_logprobs", "loop", f"logprobs {ALIGNED}",
            Late(datums_with(logprobs=one_early))),
        ("late_scaled_advantages", "loop", f"advantages {ALIGNED}",
            Late(datums_with(advantages=lambda x: x / 8))),
        ("late_whitening", "estimator", "change it in the estimator",
            Late(advantages_as(whitened))),
        ("late_uniform_kernel", "kernel", "by gs1; weigh prompts by", Late(uniform_kernel)),
        ("late_annealed_tau", "kernel", "by gs1; weigh prompts by", Late(annealed_tau)),
        ("late_other_gold", "task", "the stock environment gives",
            Late(method(ProblemAdapter, "group", other_gold))),
        ("late_other_question", "task", "did not send the prompts",
            Late(method(ProblemAdapter, "group", other_question))),
        ("late_other_prompts", "data",
            f"step {PILOT + 1} (and {STEPS - PILOT - 2} more): drew train item",
            late_other_prompts),
        ("other_groups", "loop",
            f"step 0 (and {PILOT - 1} more): groups of [1] rollouts, 2 registered",
            other_groups),
        ("filtered_train_split", "data", "asked other questions than the registered items",
            filtered_train_split),
        ("step_left_out_of_the_seeds", "loop", "name arm, step and prompt in each seed",
            step_left_out_of_the_seeds),
        ("steps_counted_twice", "loop",
            "step 1: updated version 2 with rollouts of version 1, 1 and 1 registered",
            steps_counted_twice),
        ("mean_logprobs_stored", "store",
            "sent datums of other tokens, log-probs or advantages than its record",
            other_record(longer_logprobs)),
    ],
    "resuming": [
        ("moments_left_behind", "loop", "updated 0 times, 1 expected", moments_left_behind),
        ("older_state_restored", "service", f"weights restored after {PILOT} updates differ",
            older_state_restored),
        ("resumed_from_nothing", "loop", "created a client 1 times, 0 expected",
            resumed_from_nothing),
    ],
    "evaluation": [
        ("one_update_early", "evaluation", "log-probs of the evaluated weights differ by",
            one_update_early),
        ("always_the_base_model", "service", "log-probs of the evaluated weights differ by",
            always_the_base_model),
        ("always_the_first_arm", "evaluation",
            f"evaluation of {GS1}: log-probs of the evaluated weights differ by",
            always_the_first_arm),
        ("trained_base", "evaluation", "evaluation of base: made a sampler with model_path",
            trained_base),
        ("hot_evaluation", "evaluation",
            "sampled with temperature 0.7 in 20 of 20 requests, 0 registered",
            evaluated_with(lambda s: s.model_copy(update={"temperature": 0.7}))),
        ("short_evaluation", "evaluation", "sampled with max_tokens 40",
            evaluated_with(lambda s: s.model_copy(update={"max_tokens": 40}))),
        ("best_of_two", "evaluation", "sampled 40 times, 20 expected", best_of_two),
        ("test_prompt_with_advice", "task", "did not send the prompts of 20 of 20 items",
            test_prompt_with_advice),
        ("replies_of_the_neighbour", "evaluation", "rows of other replies than came back",
            replies_of_the_neighbour),
        ("lenient_grades", "task", "is marked True with the answer None", lenient_grades),
        ("half_evaluated_and_copied", "evaluation", "10 of 20 rows contradict their items",
            half_evaluated_and_copied),
        ("rows_of_the_first_policy", "store", "the stored rows are not those that were graded",
            rows_of_the_first_policy),
    ],
    "decision": [
        ("exchanged_arms", "decision", "look for arms or signs exchanged", exchanged_arms),
        ("exchanged_signs", "decision", "look for arms or signs exchanged",
            decided_with(weights={"treatment": -1.0, "baseline": 1.0})),
        ("another_margin", "decision", "decided at the margin 0.05, -0.05 is registered",
            decided_with(margin=0.05)),
        ("ten_percent", "decision", "decided with alpha, sides", decided_with(alpha=0.1)),
        ("one_sided", "decision", "decided with alpha, sides", decided_with(sides=1)),
        ("another_method", "decision", "decided by paired_tango",
            decided_with(method="paired_tango")),
        ("half_the_interval", "decision", "scores in (0.0, 1.0) of 20 items", half_the_interval),
        ("unanswered_left_out", "decision", "the stored results of", unanswered_left_out),
    ],
}  # fmt: skip

MISTAKES = tuple(
    Mistake(name, where, stage, frozenset({"decision" if stage == "decision" else "arm"}), words,
        edit, "whole_run")
    for stage, rows in _ROWS.items()
    for name, where, words, edit in rows
)  # fmt: skip
