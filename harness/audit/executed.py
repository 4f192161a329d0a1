"""What an arm's stored steps must show whatever it learns: the registered prompts, rewards as they
were graded, the estimator's advantages, groups dropped as registered, whole responses, rollouts
that are drawn independently.

Read again from card, registration and records alone, by code that shares nothing with the loop's.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from harness.audit.advantages import Again, Difference, own_baselines
from harness.audit.episodes import episode_fault
from harness.cards import Arm, Experiment
from harness.cards.registration import SearchSpec
from harness.errors import HarnessError
from harness.records import Rollout, StepRecord, logprobs_of, rewards_of, tokens_of
from harness.tasks.sec_search import Query
from harness.tasks.task import Item

CLOSE = 1e-9
"""Two float64 computations of one reward or advantage, at most a few units large."""

LOOKED_AT = 8
"""Steps of an arm whose baselines are worked out again from the texts: a few milliseconds each."""

STAKE = 0.5
"""Of the wealth that each pair of tokens bets, in (0, 1); see `sameness`."""

CERTAIN = math.log(1e9)
"""Wealth, as a logarithm, that independent rollouts reach once in 10^9 arms."""

Fault = str | None


def execution_problems(
    experiment: Experiment, arm: Arm, records: Sequence[StepRecord], train: Sequence[Item]
) -> list[str]:
    """Where steps are not what card and registration say, one line a kind of mistake.

    Args:
        experiment: the card and its registration.
        arm: the arm that took the steps.
        records: its steps from the first one on.
        train: the train split.
    """
    training, search = experiment.registration.training, experiment.registration.search
    checks: list[Callable[[StepRecord], Fault]] = [
        partial(_other_weights, arm),
        partial(_other_prompts, experiment, arm, len(train)),
        partial(_other_seeds, arm, search is not None),
        _advantages_check(arm, train, records),
        partial(_other_drops, training.drop_zero_variance_groups),
        partial(_other_rewards, training.format_coefficient)
        if search is None
        else partial(_other_episodes, search, train),
        partial(_other_lengths, training.max_tokens),
    ]
    problems = []
    for check in checks:
        faults = {r["step"]: fault for r in records if (fault := check(r)) is not None}
        if faults:
            first = min(faults)
            problems.append(
                f"arm {arm.name}: step {first}{_more(len(faults) - 1)}: {faults[first]}"
            )
    # log-probs are of the untempered policy, so they say nothing of draws at another temperature
    if training.temperature == 1.0 and (evidence := sameness(records)) > CERTAIN:
        problems.append(
            f"arm {arm.name}: rollouts of one prompt are alike beyond chance (odds of e^"
            f"{evidence:.0f}, bound e^{CERTAIN:.0f}); draw each with a random stream of its own"
        )
    return problems


def step_prompts(experiment: Experiment, arm: Arm, n_train: int, step: int) -> list[int]:
    """The train items that a step draws: its stretch of the registered order of that pass.

    What is held out for gradient probes, the end of the first pass, is in no pass.
    """
    registration, size = experiment.registration, arm.groups_per_batch
    training, probe = registration.training, registration.gradient_probe
    left = n_train
    if probe is not None:
        longest = max(each.steps for each in experiment.arms)
        left -= math.ceil(longest / probe.every) * probe.groups
    first = order = _permutation(training.data_order_seed, n_train)
    if training.reuse_prompts and arm.prompts > left >= size:
        number, step = divmod(step, left // size)
        if number:
            order = _permutation(_stream(f"{training.data_order_seed}/pass/{number}"), n_train)
    own = order[np.isin(order, first[:left])]
    drawn: list[int] = own[step * size : (step + 1) * size].tolist()
    return drawn


def sameness(records: Sequence[StepRecord]) -> float:
    """The log of what a bet on equal tokens wins; above log(1/a) with probability a at most.

    Two independent rollouts that have been equal so far go on with the same token with probability
    sum p^2, which is also the mean of p over what either draws. So 1[equal] - (p + p') / 2 has mean
    0 whatever the policy, and wealth that stakes a share on it is a martingale, of which Ville's
    inequality says how seldom it grows. Rollouts of a group are taken in disjoint pairs.
    """
    wealth = 0.0
    for record in records:
        for group in record["groups"]:
            rows = [(tokens_of(each), logprobs_of(each)) for each in group["rollouts"]]
            for (tokens, logprobs), (others, their) in zip(rows[::2], rows[1::2], strict=False):
                for a, b, p, q in zip(tokens, others, logprobs, their, strict=False):
                    wealth += math.log1p(STAKE * ((a == b) - (math.exp(p) + math.exp(q)) / 2))
                    if a != b:
                        break
    return wealth


def _other_weights(arm: Arm, record: StepRecord) -> Fault:
    step, sampled = record["step"], max(0, record["step"] - arm.lag)
    if (record["version"], record["sampled_version"]) == (step, sampled):
        return None
    return (
        f"updated version {record['version']} with rollouts of version "
        f"{record['sampled_version']}, {step} and {sampled} registered; a step counts once"
    )


def _other_prompts(experiment: Experiment, arm: Arm, n_train: int, record: StepRecord) -> Fault:
    expected = step_prompts(experiment, arm, n_train, record["step"])
    drawn = [group["prompt"] for group in record["groups"]]
    sizes = sorted({len(group["rollouts"]) for group in record["groups"]})
    if sizes != [arm.group_size]:
        return (
            f"groups of {sizes} rollouts, {arm.group_size} registered; draw every prompt so often"
        )
    if drawn == expected:
        return None
    other = next((pair for pair in zip(drawn, expected, strict=False) if pair[0] != pair[1]), None)
    found = f"{len(drawn)} prompts" if other is None else f"train item {other[0]}"
    wanted = f"{len(expected)}" if other is None else f"train item {other[1]}"
    return f"drew {found}, {wanted} is next in the registered order; walk it from its start"


def _other_seeds(arm: Arm, each_turn: bool, record: StepRecord) -> Fault:
    """Turns of other seeds than the group's own, or, where `each_turn` has one, than its own."""
    for prompt, g, rollout in _rollouts(record):
        of_group = f"{arm.seed}/rollout/{arm.name}/{record['step']}/{prompt}"
        for k, turn in enumerate(rollout["turns"]):
            name = f"{_stream(of_group)}/{g}/{k}" if each_turn else of_group
            if turn["seed"] != _stream(name):
                return (
                    f"train item {prompt} was sampled with the seed {turn['seed']}, the stream "
                    f"{name} has {_stream(name)}; name arm, step and prompt in each seed, and "
                    "rollout and turn where each turn is a request"
                )
    return None


def _other_rewards(coefficient: float, record: StepRecord) -> Fault:
    for prompt, g, rollout in _rollouts(record):
        scores, reward = rollout["scores"], rollout["reward"]
        graded = coefficient * (scores["format"] - 1) + scores["correct"]
        if not abs(reward - graded) <= CLOSE:
            return (
                f"train item {prompt}, rollout {g} has the reward {reward:.6g}, its grades make "
                f"{graded:.6g}; give each rollout the environment's own reward"
            )
    return None


def _advantages_check(
    arm: Arm, train: Sequence[Item], records: Sequence[StepRecord]
) -> Callable[[StepRecord], Fault]:
    """Compare advantages with those of the rewards; those of a kernel's texts in a few steps."""
    again = Again.of(arm, [item.question for item in train])
    before = {record["step"] + 1: record for record in records}
    steps = [record["step"] for record in records]
    looked_at = {*steps}
    if arm.declared.kernel != "none":
        looked_at = {*steps[:: max(1, len(steps) // LOOKED_AT)], *steps[-1:]}

    def check(record: StepRecord) -> Fault:
        if (record["kernel"] is None) != (arm.declared.kernel == "none"):
            return "has baselines of prompts where its estimator has none, or none where it has"
        found = own_baselines(record)
        if record["step"] in looked_at:
            found = chain(found, again.differences(record, before.get(record["step"])))
        return _first_other(arm, found)

    return check


def _first_other(arm: Arm, found: Iterable[Difference]) -> Fault:
    try:
        other = next((each for each in found if not each.size <= CLOSE), None)
    except (HarnessError, ValueError) as error:
        return f"can't be worked out again ({error}); record what the estimator got and gave"
    if other is None:
        return None
    weighed = arm.declared.kernel != "none"
    cure = (
        "weigh prompts by the registered kernel, each without itself"
        if weighed
        else "change it in the estimator alone"
    )
    return (
        f"train item {other.prompt} has the {other.what} {other.found:.6g}, the rewards make "
        f"{other.wanted:.6g} by {arm.estimator}; {cure}"
    )


def _other_drops(drops: bool, record: StepRecord) -> Fault:
    for group in record["groups"]:
        expected = drops and len(set(rewards_of(group))) == 1
        if group["dropped"] is not expected:
            return (
                f"train item {group['prompt']} is recorded as dropped: {group['dropped']}, its "
                f"rewards and the registration say {expected}; drop zero-variance groups alone"
            )
    return None


def _other_episodes(search: SearchSpec, train: Sequence[Item], record: StepRecord) -> Fault:
    for prompt, g, rollout in _rollouts(record):
        figures, turns = rollout["scores"], len(rollout["turns"])
        item, answer = train[prompt], rollout["answer"]
        assert isinstance(item, Query)
        chosen = [str(chunk) for chunk in answer] if isinstance(answer, list) else []
        fault = episode_fault(figures, rollout["reward"], search, chosen, item.facts)
        if fault is None and figures["turns"] != turns:
            fault = f"has {figures['turns']:g} turns, {turns} were sampled"
        graded = (figures["f4"] == 1.0, figures["off_format"] == 0.0)
        if fault is None and (figures["correct"], figures["format"]) != graded:
            fault = f"is marked other than {graded}, correct and in format"
        if fault is not None:
            return (
                f"train item {prompt}, rollout {g} {fault}; give each rollout the environment's "
                "own reward"
            )
    return None


def _other_lengths(max_tokens: int, record: StepRecord) -> Fault:
    for prompt, g, rollout in _rollouts(record):
        for k, turn in enumerate(rollout["turns"]):
            length, stop = len(turn["tokens_T"]), turn["stop"]
            if length > max_tokens or (stop == "length" and length != max_tokens):
                return (
                    f"train item {prompt}, rollout {g}, turn {k} ended by {stop} after {length} "
                    f"tokens, max_tokens is {max_tokens}; sample with the registered number"
                )
    return None


def _rollouts(record: StepRecord) -> Iterator[tuple[int, int, Rollout]]:
    """Each rollout with its prompt and its place in the group."""
    for group in record["groups"]:
        for g, rollout in enumerate(group["rollouts"]):
            yield group["prompt"], g, rollout


def _more(others: int) -> str:
    return f" (and {others} more)" if others else ""


def _permutation(seed: int, n: int) -> NDArray[np.int64]:
    generator = np.random.Generator(np.random.PCG64(_stream(f"{seed}/data_order")))
    return generator.permutation(n)


def _stream(name: str) -> int:
    """A named stream's seed: the last 31 bits of the BLAKE2b-64 of its name."""
    return int(hashlib.blake2b(name.encode(), digest_size=8).hexdigest(), 16) & (2**31 - 1)
