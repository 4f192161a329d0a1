"""Reuse, gradient probes and passes over the split, crossed: no arm trains on a probe's prompts."""

import asyncio
import dataclasses
from itertools import product

import pytest
from service_doubles import GRPO, GS1, STEPS, arm_context, small_experiment

from harness.audit.executed import execution_problems
from harness.cards.registration import GradientProbe
from harness.errors import DataError
from harness.protocol.data import refuse_too_few_prompts
from harness.store import content_key
from harness.training.identity import arm_parts
from harness.training.loop import train_until

BATCH = 4
PROBES = {
    "none": None,
    "every": GradientProbe(groups=2, every=1),
    "second": GradientProbe(groups=3, every=2),
}
# steps that a pass has prompts for: all, three of five, one; and not even one
STEPS_A_PASS = {"one pass": STEPS, "two passes": 3, "a pass a step": 1, "no step": 0}
CELLS = list(product((False, True), PROBES, STEPS_A_PASS, (STEPS, STEPS + 4)))


def experiment_of(reuse, probe, other_steps):
    """Two arms of four prompts a step; the other one may take more steps, and so more probes."""
    small = small_experiment()
    shapes = {GRPO: {}, GS1: {"groups_per_batch": BATCH, "steps": other_steps}}
    arms = [arm.model_copy(update=shapes[arm.name]) for arm in small.card.arms]
    training = small.registration.training.model_copy(update={"reuse_prompts": reuse})
    changes = {"training": training, "gradient_probe": PROBES[probe]}
    return dataclasses.replace(
        small,
        card=small.card.model_copy(update={"arms": arms}),
        registration=small.registration.model_copy(update=changes),
    )


def held_out(probe, longest):
    """Prompts that the probes of the arm of most steps take."""
    spec = PROBES[probe]
    return 0 if spec is None else spec.groups * len(range(0, longest, spec.every))


def split_of(words, probe, length, longest):
    """A train split for so many steps of a pass, one prompt that fills no step, and the probes."""
    left = STEPS_A_PASS[length] * BATCH + 1
    return dataclasses.replace(words, train=words.train[: left + held_out(probe, longest)])


@pytest.mark.parametrize(("reuse", "probe", "length", "other_steps"), CELLS)
def test_probes_have_prompts_that_no_arm_trains_on(
    words, service, renderer, tmp_path, reuse, probe, length, other_steps
):
    """Every arm trains beside the probes of all arms, or is refused with one line."""
    experiment = experiment_of(reuse, probe, other_steps)
    task = split_of(words, probe, length, other_steps)
    context = arm_context(experiment, GRPO, task, service, renderer, tmp_path)
    if STEPS_A_PASS[length] < (1 if reuse else STEPS):
        with pytest.raises(DataError, match=r"^arm grpo_gs8_seed0: .* prompts need [^\n]*$"):
            asyncio.run(train_until(context, None, STEPS))
        with pytest.raises(DataError, match=r"arm grpo_gs8_seed0: .* prompts need "):
            refuse_too_few_prompts(experiment, task)
        return

    asyncio.run(train_until(context, None, STEPS))

    records = [context.entry.read_step(step) for step in range(STEPS)]
    assert execution_problems(experiment, context.arm, records, task.train) == []
    trained = {group["prompt"] for record in records for group in record["groups"]}
    asked = {
        index
        for index, item in enumerate(task.train)
        for request in service.requests
        if item.question in request.prompt
    }
    spec = PROBES[probe]
    assert len(trained) >= STEPS_A_PASS[length] * BATCH
    assert len(asked - trained) == (0 if spec is None else spec.prompts(STEPS))
    other = arm_context(experiment, GS1, task, service, renderer, tmp_path)
    assert not (asked - trained) & set(other.order), "nor does the other arm"
    assert not set(other.fresh) & (trained | set(other.order))


@pytest.mark.parametrize(("reuse", "probe"), list(product((False, True), PROBES)))
def test_a_split_is_refused_exactly_where_a_probe_prompt_is_lacking(words, reuse, probe):
    """Of a prompt less than arms and probes need one line an arm is made, of so many none."""
    experiment = experiment_of(reuse, probe, STEPS)
    needed = (BATCH if reuse else BATCH * STEPS) + held_out(probe, STEPS)

    refuse_too_few_prompts(experiment, dataclasses.replace(words, train=words.train[:needed]))
    with pytest.raises(DataError) as caught:
        refuse_too_few_prompts(
            experiment, dataclasses.replace(words, train=words.train[: needed - 1])
        )
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(("reuse", "probe"), list(product((False, True), PROBES)))
def test_the_other_arms_probes_are_in_a_key_where_they_change_the_order(reuse, probe):
    """More steps of another arm hold more prompts out, which changes later passes alone."""
    shorter, longer = (experiment_of(reuse, probe, n) for n in (STEPS, STEPS + 4))
    keys = [content_key(arm_parts(each, each.arm(GRPO), {})) for each in (shorter, longer)]

    assert (keys[0] != keys[1]) is (reuse and probe != "none")
