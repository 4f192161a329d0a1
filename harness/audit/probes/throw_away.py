"""Evidence for `capability` and `feasibility`: timed steps of every arm, then a slice of items."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.audit.executed import execution_problems
from harness.audit.probes.arms import throw_away_arms
from harness.audit.probes.restoration import LONGEST
from harness.audit.probes.resumed import resumed_arm
from harness.audit.requests import ArmTrace
from harness.audit.throw_away import PromptLengths, RoundTrip, ThrowAwayEvidence, ThrowAwaySteps
from harness.audit.tracing import trace_evaluation
from harness.cards import Experiment
from harness.cards.registration import LossBackend
from harness.records import Row, StepRecord, tokens_of
from harness.tasks.task import Item, Task
from harness.traces import StepTrace
from harness.training.checkpoints import delete_checkpoints, open_arm
from harness.training.context import ArmContext, ArmState
from harness.training.evaluate import evaluate
from harness.training.fingerprints import sampler_fingerprint
from harness.training.gather import gather
from harness.training.loop import run_step
from harness.training.task_adapter import AnyAdapter

if TYPE_CHECKING:
    import tinker

ITEMS = 128
ROUND_TRIPS = 64


async def collect(
    service: tinker.ServiceClient,
    adapter: AnyAdapter,
    experiment: Experiment,
    task: Task,
    losses: Mapping[str, LossBackend] | None = None,
) -> ThrowAwayEvidence:
    """The arm's own loop code, for the registered number of timed steps.

    Arms run one after another, so that none is timed against another's load. `losses` says who was
    chosen to compute the loss of each arm, by default the first that it names.
    """
    chosen = losses or {arm.name: arm.loss_backends[0] for arm in experiment.arms}
    timed, spec = (
        experiment.registration.feasibility.timed_steps,
        experiment.registration.evaluation,
    )
    arms, traces, states = [], [], {}
    with throw_away_arms(service, adapter, experiment, task, chosen) as contexts:
        for context in contexts.values():
            states[context.arm.name] = state = await open_arm(context)
            records = [await run_step(context, state) for _ in range(timed)]
            arms.append(steps_evidence(context, state, records))
            traces.append(
                ArmTrace(
                    arm=context.arm.name,
                    multi_turn=adapter.multi_turn,
                    loss_backend=chosen[context.arm.name],
                    steps=[StepTrace.of(record["trace"]) for record in records],
                    unregistered=execution_problems(experiment, context.arm, records, task.train),
                )
            )
        _, sampler = state.snapshots.sampler(timed)
        items = task.test[:ITEMS]
        started = time.perf_counter()
        rows = await evaluate(sampler, adapter, spec, items, _ignore)
        seconds, evaluated = time.perf_counter() - started, state.proxy.take()
        # of all arms the one that needs most snapshots
        stalest = max(contexts.values(), key=lambda context: context.arm.lag)
        prompt_logprobs = (
            await sampler_fingerprint(sampler, adapter.text(task.train[0])) is not None
        )
        text = adapter.text(task.train[0])[:LONGEST]
        resumed = await resumed_arm(stalest, states[stalest.arm.name], text[:LONGEST])
        await gather(
            *(delete_checkpoints(c.service, c.entry, states[n]) for n, c in contexts.items())
        )
    consumed = max(arm.prompts for arm in experiment.arms)
    order = next(iter(contexts.values())).order
    drawn = [task.train[index] for index in order[:consumed]]
    return ThrowAwayEvidence(
        arms=arms,
        round_trip=round_trip(adapter, [*drawn[:ROUND_TRIPS], *task.test[:ROUND_TRIPS]]),
        lengths={"train": lengths(adapter, drawn), "test": lengths(adapter, task.test)},
        evaluated=len(items),
        evaluation_seconds=seconds,
        prompt_logprobs=prompt_logprobs,
        traces=traces,
        evaluation_trace=await trace_evaluation(evaluated, rows, items, adapter, spec),
        resumed=resumed,
    )


def steps_evidence(
    context: ArmContext, state: ArmState, records: Sequence[StepRecord]
) -> ThrowAwaySteps:
    """What the first step gave, and how long each took."""
    rollouts = [rollout for group in records[0]["groups"] for rollout in group["rollouts"]]
    responses = [tokens_of(rollout) for rollout in rollouts]
    return ThrowAwaySteps(
        arm=context.arm.name,
        model=state.model,
        rollouts=len(responses),
        stopped=sum(ends_with_stop(context.adapter, tokens) for tokens in responses),
        parsed=sum(rollout["scores"]["format"] == 1.0 for rollout in rollouts),
        tokens=sum(map(len, responses)),
        reward=records[0]["metrics"]["reward"],
        seconds=[record["seconds"] for record in records],
    )


def ends_with_stop(adapter: AnyAdapter, tokens: Sequence[int]) -> bool:
    """Whether a response ends with one of the renderer's stop tokens or texts."""
    for stop in adapter.stop:
        if isinstance(stop, int):
            if tokens and tokens[-1] == stop:
                return True
        elif str(adapter.renderer.tokenizer.decode(list(tokens))).endswith(stop):
            return True
    return False


def round_trip(adapter: AnyAdapter, problems: Sequence[Item]) -> RoundTrip:
    """Prompts as tokens, to text, and to tokens again."""
    tokenizer = adapter.renderer.tokenizer
    broken = []
    for problem in problems:
        tokens = adapter.tokens(problem).to_ints()
        if tokenizer.encode(str(tokenizer.decode(tokens)), add_special_tokens=False) != tokens:
            broken.append(problem.id)
    return RoundTrip(prompts=len(problems), broken=broken)


def lengths(adapter: AnyAdapter, problems: Sequence[Item]) -> PromptLengths:
    """The longest rendered prompt."""
    longest = max(problems, key=lambda problem: adapter.tokens(problem).length)
    return PromptLengths(
        prompts=len(problems), longest=adapter.tokens(longest).length, item=longest.id
    )


def _ignore(row: Row) -> None:
    """A probe shows no live line."""
