import asyncio
import dataclasses
import subprocess
import sys

import pytest
from service_doubles import GRPO, ScriptedSampler, arm_context

from harness.training.loop import step_prompts
from harness.training.rollouts import sample_step
from harness.training.streams import arm_order, data_order, stream_seed


@pytest.mark.parametrize(
    ("names", "seed"),
    [
        (("data_order",), 0),
        (("rollout", "gs1_seed0", 3, 17), 0),
        (("rollout", "gs1_seed0", 3, 17), 1),
    ],
)
def test_a_stream_is_its_names_and_its_seed(names, seed):
    """The same names and seed give the same stream, in the range that a service takes."""
    value = stream_seed(seed, *names)

    assert value == stream_seed(seed, *names)
    assert 0 <= value < 2**31


def test_streams_are_the_same_on_every_machine():
    """Streams are pinned: another value would make every stored run irreproducible."""
    assert stream_seed(0, "data_order") == 1777593546
    assert stream_seed(0, "rollout", "gs1_seed0", 3, 17) == 519740219
    assert data_order(0, 12) == [9, 11, 5, 1, 2, 8, 6, 3, 4, 0, 7, 10]


def test_streams_do_not_depend_on_the_process():
    """Python's own hash differs from process to process; a stream's does not."""
    code = "from harness.training.streams import stream_seed; print(stream_seed(0, 'data_order'))"
    reported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert int(reported.stdout) == stream_seed(0, "data_order")


def test_every_name_and_seed_has_a_stream_of_its_own():
    """Over arms, steps, prompts and seeds no two requests share a stream."""
    seeds = {
        stream_seed(seed, "rollout", arm, step, prompt)
        for seed in range(3)
        for arm in ("a", "b")
        for step in range(20)
        for prompt in range(20)
    }

    assert len(seeds) == 3 * 2 * 20 * 20


def test_names_are_not_run_together():
    """Step 1 of prompt 23 is not step 12 of prompt 3."""
    assert stream_seed(0, "rollout", "a", 1, 23) != stream_seed(0, "rollout", "a", 12, 3)


@pytest.mark.parametrize("n", [1, 2, 7473])
def test_data_order_is_a_permutation(n):
    """Every prompt is drawn once."""
    assert sorted(data_order(0, n)) == list(range(n))


def test_data_orders_of_different_seeds_differ():
    """Field case R08: different base seeds gave one shuffle."""
    assert data_order(42, 100) != data_order(7, 100)


def test_the_rollout_seed_does_not_reshuffle_the_data(small, words, service, renderer, tmp_path):
    """Field case R05: with another arm seed the prompts are the same, and the requests are not."""
    context = arm_context(small, GRPO, words, service, renderer, tmp_path)
    reseeded = dataclasses.replace(context, arm=dataclasses.replace(context.arm, seed=1))

    assert step_prompts(context, 2) == step_prompts(reseeded, 2)
    assert rollout_seeds(context) != rollout_seeds(reseeded)


def test_the_data_seed_does_not_change_rollouts_of_a_prompt(
    small, words, service, renderer, tmp_path
):
    """With another data order the prompts differ; a prompt's stream at a step is the same."""
    context = arm_context(small, GRPO, words, service, renderer, tmp_path)
    shuffled = dataclasses.replace(context, order=data_order(1, len(words.train)))

    assert step_prompts(context, 0) != step_prompts(shuffled, 0)
    assert rollout_seeds(context) == rollout_seeds(shuffled)


def rollout_seeds(context):
    """The seeds of step 0's requests for the first 5 train items, as they reach the service."""
    service = context.service
    prompts = list(enumerate(context.train[:5]))
    sampler = ScriptedSampler(service, 0.0, "base")
    before = len(service.requests)
    asyncio.run(sample_step(sampler, context.adapter, context.arm, 0, prompts))
    return [request.params.seed for request in service.requests[before:]]


def test_reused_prompts_come_in_a_new_order_and_never_twice_in_a_step():
    """Of 11 prompts at 4 a step a pass is two steps; the first pass is the order without reuse."""
    order = arm_order(3, 11, 4, 24, reuse=True)

    assert len(order) >= 24
    assert order[:8] == data_order(3, 11)[:8]
    steps = [order[at : at + 4] for at in range(0, 24, 4)]
    assert all(len(set(step)) == 4 for step in steps)
    assert all(len({*one, *other}) == 8 for one, other in zip(steps[::2], steps[1::2], strict=True))
    assert order[:8] != order[8:16]
    assert order == arm_order(3, 11, 4, 24, reuse=True)


@pytest.mark.parametrize(("draws", "reuse"), [(24, False), (11, True), (8, True)])
def test_order_is_the_plain_one_where_nothing_is_reused(draws, reuse):
    """An arm that the split is enough for draws what it drew before there was reuse."""
    assert arm_order(3, 11, 4, draws, reuse=reuse) == data_order(3, 11)
