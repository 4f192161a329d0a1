"""Evidence for `capability` and `feasibility`: timed steps of every arm, then a slice of items."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.cards import Experiment
from harness.cards.registration import LossClient
from harness.checks.executed import execution_problems
from harness.checks.sent import SentArm, SentStep
from harness.checks.throw_away import PromptLengths, RoundTrip, ThrowAwayEvidence, ThrowAwaySteps
from harness.records import Row, StepRecord
from harness.tasks.task import Item, Task
from harness.training.checkpoints import let_go, open_arm
from harness.training.context import ArmContext, ArmState
from harness.training.evaluate import evaluate
from harness.training.loop import run_step
from harness.training.prints import sampler_print
from harness.training.probes.arms import throw_away_arms
from harness.training.probes.restoration import LONGEST
from harness.training.probes.resumed import resumed_arm
from harness.training.prompts import AnyPrompter
from harness.training.sent import sent_evaluation
from harness.training.together import together

if TYPE_CHECKING:
    import tinker

ITEMS = 128
ROUND_TRIPS = 64


async def collect(
    service: tinker.ServiceClient,
    prompter: AnyPrompter,
    experiment: Experiment,
    task: Task,
    losses: Mapping[str, LossClient] | None = None,
) -> ThrowAwayEvidence:
    """The arm's own loop code, for the registered number of timed steps.

    Arms run one after another, so that none is timed against another's load.
    """
    timed, spec = (
        experiment.registration.feasibility.timed_steps,
        experiment.registration.evaluation,
    )
    arms, sent, states = [], [], {}
    with throw_away_arms(service, prompter, experiment, task, losses) as contexts:
        for context in contexts.values():
            states[context.arm.name] = state = await open_arm(context)
            records = [await run_step(context, state) for _ in range(timed)]
            arms.append(steps_evidence(context, state, records))
            sent.append(
                SentArm(
                    arm=context.arm.name,
                    by_turns=prompter.by_turns,
                    steps=[SentStep.of(record["sent"]) for record in records],
                    unregistered=execution_problems(experiment, context.arm, records, task.train),
                )
            )
        _, sampler = state.snapshots.sampler(timed)
        items = task.test[:ITEMS]
        started = time.perf_counter()
        rows = await evaluate(sampler, prompter, spec, items, _ignore)
        seconds, evaluated = time.perf_counter() - started, state.witness.take()
        # of all arms the one that needs most snapshots
        stalest = max(contexts.values(), key=lambda context: context.arm.lag)
        printed = await sampler_print(sampler, prompter.text(task.train[0])) is not None
        text = prompter.text(task.train[0])[:LONGEST]
        resumed = await resumed_arm(stalest, states[stalest.arm.name], text)
        await together(let_go(c.service, c.entry, states[name]) for name, c in contexts.items())
    consumed = max(arm.prompts for arm in experiment.arms)
    order = next(iter(contexts.values())).order
    drawn = [task.train[index] for index in order[:consumed]]
    return ThrowAwayEvidence(
        arms=arms,
        round_trip=round_trip(prompter, [*drawn[:ROUND_TRIPS], *task.test[:ROUND_TRIPS]]),
        lengths={"train": lengths(prompter, drawn), "test": lengths(prompter, task.test)},
        evaluated=len(items),
        evaluation_seconds=seconds,
        printed=printed,
        sent=sent,
        sent_evaluation=await sent_evaluation(evaluated, rows, items, prompter, spec),
        resumed=resumed,
    )


def steps_evidence(
    context: ArmContext, state: ArmState, records: Sequence[StepRecord]
) -> ThrowAwaySteps:
    """What the first step gave, and how long each took."""
    groups = records[0]["groups"]
    responses = [tokens for group in groups for tokens in group["tokens_G_T"]]
    return ThrowAwaySteps(
        arm=context.arm.name,
        model=state.model,
        rollouts=len(responses),
        stopped=sum(ends_with_stop(context.prompter, tokens) for tokens in responses),
        parsed=sum(flag for group in groups for flag in group["format_G"]),
        tokens=sum(map(len, responses)),
        reward=records[0]["metrics"]["reward"],
        seconds=[record["seconds"] for record in records],
    )


def ends_with_stop(prompter: AnyPrompter, tokens: Sequence[int]) -> bool:
    """Whether a response ends with one of the renderer's stop tokens or texts."""
    for stop in prompter.stop:
        if isinstance(stop, int):
            if tokens and tokens[-1] == stop:
                return True
        elif str(prompter.renderer.tokenizer.decode(list(tokens))).endswith(stop):
            return True
    return False


def round_trip(prompter: AnyPrompter, problems: Sequence[Item]) -> RoundTrip:
    """Prompts as tokens, to text, and to tokens again."""
    tokenizer = prompter.renderer.tokenizer
    broken = []
    for problem in problems:
        tokens = prompter.tokens(problem).to_ints()
        if tokenizer.encode(str(tokenizer.decode(tokens)), add_special_tokens=False) != tokens:
            broken.append(problem.id)
    return RoundTrip(prompts=len(problems), broken=broken)


def lengths(prompter: AnyPrompter, problems: Sequence[Item]) -> PromptLengths:
    """The longest rendered prompt."""
    longest = max(problems, key=lambda problem: prompter.tokens(problem).length)
    return PromptLengths(
        prompts=len(problems), longest=prompter.tokens(longest).length, item=longest.id
    )


def _ignore(row: Row) -> None:
    """A probe shows no live line."""
