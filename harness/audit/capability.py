"""Preflight: the service can do one step of each arm's exact configuration."""

import math

from harness.audit import requests
from harness.audit.finding import Finding
from harness.audit.resumed import resumed_problems
from harness.audit.throw_away import ThrowAwayEvidence, ThrowAwaySteps
from harness.cards import Arm, Experiment

SHOWN = 3


def check(evidence: ThrowAwayEvidence, experiment: Experiment) -> Finding:
    """The right model, steps as registered, responses that end and parse, prompts that fit."""
    by_name = {steps.arm: steps for steps in evidence.arms}
    traces = {trace.arm: trace for trace in evidence.traces}
    problems = [
        problem
        for arm in experiment.arms
        for problem in step_problems(by_name.get(arm.name), arm, experiment.card.base_model)
    ]
    for arm in experiment.arms:
        problems.extend(requests.arm_problems(traces.get(arm.name), arm, experiment))
    problems.extend(requests.evaluation_problems(evidence.evaluation_trace, experiment))
    problems.extend(resumed_problems(evidence.resumed, experiment))
    if not evidence.prompt_logprobs:
        problems.append(
            "a sampler returns no log-probs of a prompt, by which evaluated weights are known from "
            "others; use a service that does"
        )
    problems.extend(text_problems(evidence))
    problems.extend(length_problems(evidence, experiment))
    notes = [
        f"{steps.arm}: {steps.rollouts} rollouts of {steps.model}, {steps.stopped} ended with the "
        f"stop token, {steps.parsed} parsed, "
        f"{steps.tokens / max(1, steps.rollouts):.1f} tokens each"
        for steps in evidence.arms
    ]
    notes.extend(
        f"{split}: longest of {lengths.prompts} prompts has {lengths.longest} tokens "
        f"({lengths.item})"
        for split, lengths in evidence.lengths.items()
    )
    steps_seen = sum(len(trace.steps) for trace in evidence.traces)
    notes.append(
        f"recorded between this client and the service: {steps_seen} steps and "
        f"{len(evidence.evaluation_trace.samples)} requests of an evaluation, "
        f"{evidence.resumed.arm} resumed after {evidence.resumed.version} updates"
    )
    notes.extend(requests.not_held(evidence.traces, experiment))
    metrics = {f"{split}_longest_prompt": float(x.longest) for split, x in evidence.lengths.items()}
    for steps in evidence.arms:
        metrics[f"{steps.arm}.rollouts"] = float(steps.rollouts)
        metrics[f"{steps.arm}.share_stopped"] = steps.stopped / max(1, steps.rollouts)
        metrics[f"{steps.arm}.share_parsed"] = steps.parsed / max(1, steps.rollouts)
    return Finding("capability", tuple(problems), tuple(notes), metrics)


def step_problems(steps: ThrowAwaySteps | None, arm: Arm, base_model: str) -> list[str]:
    """Where one arm's throw-away step is not what the arm will need."""
    if steps is None:
        return [f"arm {arm.name}: no step was tried; try one"]
    problems = []
    if steps.model != base_model:
        problems.append(
            f"arm {arm.name}: the service trains {steps.model!r}, the card says {base_model!r}; "
            "use a service of that model"
        )
    if steps.rollouts != arm.rollouts_per_step:
        problems.append(
            f"arm {arm.name}: a step gave {steps.rollouts} rollouts, {arm.rollouts_per_step} "
            "expected; the service must return every sample that is asked for"
        )
    if steps.stopped < 1:
        problems.append(
            f"arm {arm.name}: 0 of {steps.rollouts} responses end with the stop token, at least 1 "
            "expected; check renderer, stop condition and max_tokens"
        )
    if steps.parsed < 1:
        problems.append(
            f"arm {arm.name}: 0 of {steps.rollouts} responses could be parsed, at least 1 "
            "expected; check renderer and prompt"
        )
    if not math.isfinite(steps.reward):
        problems.append(
            f"arm {arm.name}: the mean reward is {steps.reward}, not a finite number; "
            "correct the grader"
        )
    return problems


def text_problems(evidence: ThrowAwayEvidence) -> list[str]:
    """Prompts that the tokenizer does not give back."""
    trip = evidence.round_trip
    if trip.prompts == 0:
        return ["round trip: no prompt was tried; try at least 1"]
    if not trip.broken:
        return []
    return [
        f"round trip: {len(trip.broken)} of {trip.prompts} prompts come back as other tokens, "
        f"bound 0: {', '.join(trip.broken[:SHOWN])}; use the model's own tokenizer and renderer"
    ]


def length_problems(evidence: ThrowAwayEvidence, experiment: Experiment) -> list[str]:
    """Prompts that leave no room for a whole response within max_seq_len."""
    room = {
        "train": experiment.registration.training.max_tokens,
        "test": experiment.registration.evaluation.max_tokens,
    }
    problems = []
    for split, max_tokens in room.items():
        lengths = evidence.lengths.get(split)
        if lengths is None or lengths.prompts == 0:
            problems.append(f"{split}: no prompt was measured; measure at least 1")
        elif lengths.longest + max_tokens > experiment.card.max_seq_len:
            problems.append(
                f"{split}: prompt {lengths.item} has {lengths.longest} tokens, with max_tokens "
                f"{max_tokens} that is {lengths.longest + max_tokens}, above max_seq_len "
                f"{experiment.card.max_seq_len}; lower max_tokens or drop the few-shot prefix"
            )
    return problems
