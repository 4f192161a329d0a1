"""What a step sent, against what came back: datums, prompts and rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.checks.sent import SentStep
from harness.records import GroupRecord, StepRecord
from harness.tasks.gsm8k import Problem
from harness.training.probes.witness import Response, Seen
from harness.training.prompts import GRADING_SECONDS, Prompter

if TYPE_CHECKING:
    import tinker
    from tinker_cookbook.recipes.math_rl.math_env import MathEnv


async def sent_step(
    seen: Seen, record: StepRecord, prompter: Prompter, train: Sequence[Problem]
) -> SentStep:
    """One step's requests, and where they do not fit its responses and its record."""
    drawn = [train[group["prompt"]] for group in record["groups"]]
    return SentStep(
        samples=seen.samples,
        losses=seen.losses,
        optimizer=seen.optimizer,
        faults=[
            *datum_faults(record, seen.datums, seen.responses),
            *await prompt_faults(drawn, seen.responses, prompter),
            *await reward_faults(record, drawn, prompter),
        ],
    )


def datum_faults(
    record: StepRecord, data_D: Sequence[tinker.Datum], responses: Sequence[Response]
) -> list[str]:
    """Datums that do not carry their rollout: one each, in order, aligned with the targets.

    Action tokens are those that the sampler returned after what stands before them. They carry
    its log-probs and the rollout's advantage, everything else carries 0. Of a loss that this
    client computes only the tokens are sent.
    """
    rollouts = [(group, g) for group in record["groups"] for g in range(len(group["rewards_G"]))]
    if len(data_D) != len(rollouts):
        return [f"sent {len(data_D)} datums for {len(rollouts)} rollouts; send one each, once"]
    faults = []
    for datum, (group, g) in zip(data_D, rollouts, strict=True):
        what = datum_fault(datum, group, g, responses)
        if what is not None:
            faults.append(
                f"sent a datum of train item {group['prompt']}, rollout {g}, whose {what} are not "
                "what was sampled and estimated; keep them aligned with the targets"
            )
    drawn = Counter(tuple(response.prompt + response.tokens) for response in responses)
    again = sum((Counter(tuple(whole(datum)) for datum in data_D) - drawn).values())
    if again and not faults:
        faults.append(
            f"sent {again} datums of sequences that were sampled less often; use every sample once"
        )
    return faults


def whole(datum: tinker.Datum) -> list[int]:
    """All tokens of a datum, the last target included."""
    last = datum.loss_fn_inputs["target_tokens"].tolist()[-1:]
    return [*datum.model_input.to_ints(), *(int(token) for token in last)]


def datum_fault(
    datum: tinker.Datum, group: GroupRecord, g: int, responses: Iterable[Response]
) -> str | None:
    """What of a datum is not its rollout's, None if all is."""
    targets = [int(token) for token in datum.loss_fn_inputs["target_tokens"].tolist()]
    full = whole(datum)
    if full[1:] != targets:
        return "targets"
    logprobs, acted = np.zeros(len(targets), np.float32), np.zeros(len(targets), bool)
    for response in responses:
        start, end = len(response.prompt), len(response.prompt) + len(response.tokens)
        if full[:start] == response.prompt and full[start:end] == response.tokens:
            logprobs[start - 1 : end - 1] = response.logprobs
            acted[start - 1 : end - 1] = True
    if [token for token, acts in zip(targets, acted, strict=True) if acts] != group["tokens_G_T"][
        g
    ]:
        return "action tokens"
    if np.asarray(group["logprobs_G_T"][g], np.float32).tolist() != logprobs[acted].tolist():
        return "recorded log-probs"
    expected = {
        "logprobs": logprobs,
        "advantages": np.where(acted, np.float32(group["advantages_G"][g]), np.float32(0.0)),
    }
    for key, row in expected.items():
        if key in datum.loss_fn_inputs and datum.loss_fn_inputs[key].tolist() != row.tolist():
            return key
    return None


async def prompt_faults(
    problems: Sequence[Problem], responses: Sequence[Response], prompter: Prompter
) -> list[str]:
    """Items whose prompt, as the stock environment renders it, was not among the requests."""
    asked = Counter(tuple(response.prompt) for response in responses)
    missing = [
        problem.id
        for problem in problems
        if not asked[tuple(await stock_prompt(problem, prompter))]
    ]
    if not missing:
        return []
    return [
        f"did not send the prompts of {len(missing)} of {len(problems)} items ({missing[0]}, ...); "
        "render each as the stock environment does"
    ]


async def reward_faults(
    record: StepRecord, problems: Sequence[Problem], prompter: Prompter
) -> list[str]:
    """Rollouts to which the stock environment, given their tokens again, grants another reward."""
    faults = []
    for group, problem in zip(record["groups"], problems, strict=True):
        for g, tokens in enumerate(group["tokens_G_T"]):
            again = (await stock_env(problem, prompter).step(tokens)).reward
            if again != group["rewards_G"][g]:
                faults.append(
                    f"gave train item {group['prompt']}, rollout {g} the reward "
                    f"{group['rewards_G'][g]:.6g}, the stock environment gives {again:.6g}; use it"
                )
    return faults


async def stock_prompt(problem: Problem, prompter: Prompter) -> list[int]:
    """The tokens of an item's prompt."""
    observation, _ = await stock_env(problem, prompter).initial_observation()
    return observation.to_ints()


def stock_env(problem: Problem, prompter: Prompter) -> MathEnv:
    """The cookbook's environment with the registered settings, whatever the prompter makes."""
    from tinker_cookbook.recipes.math_rl.math_env import MathEnv

    training = prompter.training
    return MathEnv(
        problem.question,
        problem.gold,
        prompter.renderer,
        convo_prefix=MathEnv.standard_fewshot_prefix() if training.few_shot == "standard" else [],
        format_coef=training.format_coefficient,
        timeout=GRADING_SECONDS,
    )
