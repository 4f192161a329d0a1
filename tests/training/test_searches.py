"""The search adapter at full scale: JSON calls, rendered by the cookbook."""

import asyncio
import dataclasses
import json

import pytest
import tinker
from search_doubles import CARD, seed_of
from service_doubles import sequence
from tinker_cookbook.tokenizer_utils import get_tokenizer

from harness.cards import load_experiment
from harness.embedded import MODEL_DIR
from harness.errors import CardError
from harness.tasks.sec_search.compact_env import CompactRenderer
from harness.tasks.sec_search.limits import EpisodeLimits
from harness.training.completers import Sampling
from harness.training.rollouts import sample_episodes
from harness.training.searches import search_adapter, search_renderer


@pytest.fixture(scope="module", name="full")
def _full():
    return load_experiment(CARD, "full")


@pytest.fixture(scope="module", name="adapter")
def _adapter(full, task):
    """The registered adapter on the nano tokenizer, which spells in bytes and needs more room."""
    made = search_adapter(get_tokenizer(str(MODEL_DIR)), full, task)
    roomy = EpisodeLimits(max_tokens=60_000, max_generation_tokens=3_000)
    return dataclasses.replace(made, limits=roomy)


def call(name, **arguments):
    """A reply with one tool call as the Qwen3.5 template writes it."""
    parameters = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"\n\n<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


class Player:
    """Doubles a sampler: one script for every rollout, by the seeds of a group."""

    def __init__(self, adapter, seed, scripts):
        self.adapter = adapter
        self.replies = {
            seed_of(seed, g, k): reply
            for g, script in enumerate(scripts)
            for k, reply in enumerate(script)
        }

    async def sample_async(self, prompt, num_samples, sampling_params):
        """The reply of the request's seed, with the stop token."""
        assert prompt.length > 0
        assert num_samples == 1
        text = self.replies[sampling_params.seed]
        encode = self.adapter.renderer.tokenizer.encode
        tokens = [*encode(text, add_special_tokens=False), self.adapter.stop[0]]
        return tinker.SampleResponse(sequences=[sequence(tokens, [-1.0] * len(tokens))])


def test_limits_and_syntax_are_the_registered_ones(full, task):
    """Turns, tokens of an episode and of a reply, and what a session shows."""
    made = search_adapter(get_tokenizer(str(MODEL_DIR)), full, task)
    spec = full.registration.search

    assert made.syntax == "json"
    assert (made.limits.max_turns, made.limits.max_tokens) == (12, 8192)
    assert made.limits.max_generation_tokens == full.registration.training.max_tokens
    assert made.limits.broken_reply == spec.broken_reply
    shown = dataclasses.asdict(made.limits.session)
    assert {k: shown[k] for k in spec.session.model_dump()} == spec.session.model_dump()


def test_the_prompt_shows_tools_and_question_and_the_text_the_facts(adapter, task):
    """What prints and preflights score starts with the very prompt of an episode."""
    query = task.train[0]
    tokenizer = adapter.renderer.tokenizer
    prompt, text = adapter.tokens(query).to_ints(), adapter.text(query)
    shown = str(tokenizer.decode(prompt))

    assert "bm25_search" in shown
    assert query.text in shown
    assert text[: len(prompt)] == prompt
    assert str(tokenizer.decode(text[len(prompt) :])).startswith(query.facts[0].text)


def test_scripted_episodes_are_graded_as_the_task_says(adapter, task):
    """An oracle has F4 1 and is correct; an empty finish earns -0.2; a bad call is off format."""
    query = task.test[0]
    gold = [fact.chunk_ids[0] for fact in query.facts]
    looks = []
    for chunk_id in gold:
        chunk = task.retriever.get(chunk_id)
        words = f"{chunk.title} {chunk.text}"[:990].replace("\n", " ")
        looks.append(call("bm25_search", query=words, k=5))
    oracle = [*looks, call("curate", document_ids=json.dumps(gold)), call("finish")]
    broken = "\n\n<tool_call>\n<function=>\n</function>\n</tool_call>"
    player = Player(adapter, 7, [oracle, [call("finish")], [broken], ["I am done."]])
    sampling = Sampling(player, 3_000, 1.0, adapter.stop)

    group = asyncio.run(sample_episodes(adapter.group(query, 4), sampling, 7, "here"))

    assert group.get_total_rewards() == [1.0, -0.2, -0.2, -0.2]
    found = [adapter.graded(trajectory) for trajectory in group.trajectories_G]
    first, *others = scores = [graded.scores for graded in found]
    assert [each["correct"] for each in scores] == [1.0, 0.0, 0.0, 0.0]
    assert [each["format"] for each in scores] == [1.0, 1.0, 0.0, 0.0]
    assert sorted(found[0].answer) == sorted(gold)
    assert found[1].answer == []
    assert (first["f4"], first["curated"], first["turns"]) == (1.0, len(gold), len(oracle))
    ends = [
        name for each in (first, *others) for name, on in each.items() if name[:5] == "stop=" and on
    ]
    assert ends[:2] == ["stop=tool_stopped"] * 2
    assert ends[2] in ("stop=parse_error", "stop=completed")
    assert ends[3] == "stop=completed"
    # every episode has the same figures, so that a step can average them
    assert all(each.keys() == first.keys() for each in others)


def test_the_compact_renderer_goes_by_its_registered_name(adapter):
    """Any other name is the cookbook's to know."""
    tokenizer = adapter.renderer.tokenizer

    assert isinstance(search_renderer("harness/compact", tokenizer), CompactRenderer)
    assert not isinstance(search_renderer("qwen3_5", tokenizer), CompactRenderer)


def test_a_registration_without_settings_is_refused(full, task):
    """The task can't be rendered without its settings."""
    registration = full.registration.model_copy(update={"search": None})
    bare = dataclasses.replace(full, registration=registration)
    with pytest.raises(CardError, match="register the task's settings"):
        search_adapter(get_tokenizer(str(MODEL_DIR)), bare, task)
