import asyncio
import dataclasses

import pytest
import tinker
from service_doubles import GRPO, GS1, ScriptedSampler, sequence

from harness.errors import RunError
from harness.training.rollouts import sample_step, training_sampling


@pytest.fixture
def sample(service, renderer, words, small):
    """Sample one step of an arm for the train items with these indices."""

    def sampled(name=GRPO, step=3, indices=(5, 9, 11), arm=()):
        changed = dataclasses.replace(small.arm(name), **dict(arm))
        prompts = [(index, words.train[index]) for index in indices]
        sampler = ScriptedSampler(service, 0.0, "base")
        return asyncio.run(sample_step(sampler, renderer, changed, step, prompts))

    return sampled


def test_one_request_a_prompt_asks_for_the_whole_group(sample, service):
    """GRPO asks once a prompt with num_samples = group size, and counts what it asked for."""
    groups = sample(arm={"group_size": 4})

    assert [request.num_samples for request in service.requests] == [4, 4, 4]
    assert [group.requested for group in groups] == [4, 4, 4]
    assert [len(group.rollouts.trajectories_G) for group in groups] == [4, 4, 4]


def test_a_gs1_group_is_one_request_for_one_sample(sample, service):
    """A group of one asks for one sample."""
    groups = sample(GS1)

    assert [request.num_samples for request in service.requests] == [1, 1, 1]
    assert [group.requested for group in groups] == [1, 1, 1]


def test_the_count_of_a_group_comes_from_its_request(sample, monkeypatch):
    """A completer that asks for other than the registered number is counted as it asked."""
    import harness.training.rollouts as rollouts

    class Doubling(rollouts.GroupCompleter):
        def __init__(self, sampling, seed, num_samples, where):
            super().__init__(sampling, seed, 2 * num_samples, where)

    monkeypatch.setattr(rollouts, "GroupCompleter", Doubling)

    assert [group.requested for group in sample()] == [4, 4, 4]


def test_sample_k_goes_to_environment_k(sample, service, words):
    """Rewards and tokens stand in the order of the response's samples."""
    right, wrong, none = "\\boxed{{{}}}", "\\boxed{{0}}", "none {}"
    texts = [wrong, right, none, right]
    gold = {p.question: p.gold for p in words.train}
    service.reply = lambda request: [
        text.format(*(g for question, g in gold.items() if question in request.prompt))
        for text in texts
    ]

    for group in sample(arm={"group_size": 4}):
        assert group.rollouts.get_total_rewards() == pytest.approx([0.0, 1.0, -0.1, 1.0])
        turns = [trajectory.transitions[0] for trajectory in group.rollouts.trajectories_G]
        decoded = [service.tokenizer.decode(turn.ac.tokens[:-1]) for turn in turns]
        assert decoded[0] == "\\boxed{0}"
        assert decoded[1] == decoded[3]
        assert decoded[2].startswith("none")


def test_a_right_answer_that_was_cut_off_earns_nine_tenths(sample, service, words):
    """Without the stop sequence the format is not met: 1 - 0.1, as the cookbook grades it."""
    service.reply = lambda _request: [f"\\boxed{{{words.train[5].gold}}}"]

    def cut(text):
        tokens = service.tokenizer.encode(text, add_special_tokens=False)
        return sequence(tokens, [-0.5] * len(tokens), "length")

    service.sequence = cut

    (group,) = sample(GS1, indices=(5,))

    assert group.rollouts.get_total_rewards() == pytest.approx([0.9])


def test_groups_stand_in_the_order_of_the_prompts(sample):
    """Groups are gathered in the order in which prompts were given, not in which they came."""
    assert [group.prompt for group in sample(indices=(11, 2, 30))] == [11, 2, 30]


def test_all_requests_are_under_way_at_once(sample, service):
    """64 prompts must not be sampled one by one."""
    sample(GS1, indices=range(40))

    assert service.most_under_way == 40


def seeds_of(groups):
    """The seed of each group's request, as every reply of the group bears it."""
    found = [{t.transitions[0].ac.seed for t in g.rollouts.trajectories_G} for g in groups]
    return [seed for (seed,) in found]


@pytest.mark.parametrize(
    ("change", "arm"),
    [
        ({"step": 4}, {}),
        ({"indices": (6, 10, 12)}, {}),
        ({}, {"seed": 1}),
        ({}, {"name": "another"}),
    ],
    ids=["step", "prompt", "arm seed", "arm name"],
)
def test_the_seed_of_a_request_names_arm_seed_arm_step_and_prompt(sample, service, change, arm):
    """Changing any of the four changes every seed; repeating all four repeats it."""
    first, again = seeds_of(sample()), seeds_of(sample())
    other = seeds_of(sample(**change, arm=arm))

    assert again == first == [request.params.seed for request in service.requests[:3]]
    assert not set(first) & set(other)


def test_sampling_parameters_are_the_registered_ones(renderer, small):
    """Temperature, length and stop are registered; top_p and top_k leave the policy whole."""
    params = training_sampling(None, renderer).params(7)
    training = small.registration.training

    assert params == tinker.SamplingParams(
        max_tokens=training.max_tokens,
        temperature=training.temperature,
        stop=renderer.renderer.get_stop_sequences(),
        seed=7,
        top_p=1.0,
        top_k=-1,
    )


def test_a_sequence_without_logprobs_is_an_error(sample, service):
    """Without behaviour log-probs no ratio is defined; arm, step, prompt and rollout are named."""
    service.sequence = lambda text: dataclasses.replace(service.scored(text), logprobs_np=None)

    with pytest.raises(
        RunError, match=r"arm grpo_gs8_seed0: step 3, train item 5, rollout 0: .*0 finite"
    ):
        sample()


def test_a_logprob_that_is_not_finite_is_an_error(sample, service):
    """A NaN is named where it is born, before anything is sent."""

    def poisoned(text):
        scored = service.scored(text)
        return sequence(scored.tokens, [*scored.logprobs[:-1], float("nan")])

    service.sequence = poisoned

    with pytest.raises(RunError, match="train item 5, rollout 0"):
        sample()


def test_an_empty_response_is_an_error(sample, service):
    """A response without a token, not even the stop token, can't be trained on."""
    service.sequence = lambda _text: sequence([], [])

    with pytest.raises(RunError, match="0 tokens came back"):
        sample()


@pytest.mark.parametrize("returned", [0, 1, 3])
def test_another_number_of_samples_than_asked_for_is_an_error(sample, service, returned):
    """Fewer samples are no smaller group, and more are no larger one."""
    service.reply = lambda _request: ["\\boxed{1}"] * returned

    with pytest.raises(
        RunError, match=rf"{GRPO}: step 3, train item 5: {returned} samples .* 2 were"
    ):
        sample()


def test_a_response_that_the_cookbook_cant_read_is_an_error(sample, service):
    """Two stop tokens in one response make the renderer raise; the group is named."""

    def doubled(_text):
        return sequence([service.stop, service.stop], [-0.5, -0.5])

    service.sequence = doubled

    with pytest.raises(RunError, match="step 3, train item 5: the cookbook can't read"):
        sample()


def test_the_first_failure_ends_what_is_under_way(renderer, words, small):
    """A failed request leaves no other request running behind it."""
    ended = []

    class Failing:
        async def sample_async(self, **_request):
            if not ended:
                ended.append("failed")
                raise ValueError("refused")
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

    async def run():
        prompts = list(enumerate(words.train[:3]))
        with pytest.raises(ValueError, match="refused"):
            await sample_step(Failing(), renderer, small.arm(GS1), 0, prompts)
        await asyncio.sleep(0.01)
        # before the loop ends, which would cancel whatever is left
        assert ended == ["failed", "cancelled", "cancelled"]

    asyncio.run(run())
