"""The nano search agent: what it was taught, in which tokens, and on worlds of its own."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_single_rollout
from transformers import AutoTokenizer, DynamicCache, Qwen3ForCausalLM

import harness.tasks.sec_search.env as search_envs
from harness.cards import load_experiment
from harness.embedded import SEARCH_MODEL_DIR, SEARCH_WARM_UP_SEEDS
from harness.embedded.pretrain import IGNORED
from harness.embedded.search_plans import MAX_TURNS, demonstrate
from harness.embedded.search_warm_up import (
    DEFAULT_K,
    RECIPE,
    make_model,
    make_tokenizer,
    plan_row,
    plan_rows,
    warm_up,
)
from harness.tasks.sec_search import (
    SearchSession,
    SearchTask,
    Selection,
    SessionLimits,
    World,
    score,
    synthetic_task,
)
from harness.tasks.sec_search.compact import CHUNK_LETTERS, CompactCall, CompactDesk, parse_call
from harness.tasks.sec_search.compact_env import CompactRenderer
from harness.tasks.sec_search.limits import EpisodeLimits
from harness.tasks.sec_search.synthetic import TINY

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
LIMITS = EpisodeLimits(
    max_turns=MAX_TURNS,
    max_tokens=256,
    max_generation_tokens=16,
    session=SessionLimits(default_k=DEFAULT_K),
)


@pytest.fixture(scope="module")
def unseen(tmp_path_factory) -> SearchTask:
    """A small world whose seed is neither a warm-up's nor an experiment's."""
    world = World(seed=77, companies=16, lexical_overlap=1.0)
    selection = Selection(n_train=24, n_test=8, background=None)
    return synthetic_task(world, tmp_path_factory.mktemp("unseen") / "world", selection)


@pytest.fixture(scope="module")
def nano():
    """The committed model and its tokenizer."""
    model = Qwen3ForCausalLM.from_pretrained(SEARCH_MODEL_DIR, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(SEARCH_MODEL_DIR)


def desk_of(task: SearchTask, query) -> CompactDesk:
    """A desk on a fresh session."""
    session = SearchSession(task.retriever, SessionLimits(default_k=DEFAULT_K))
    return CompactDesk(session, task.retriever, query.text)


def test_the_model_is_a_nano_qwen3_in_float32(nano) -> None:
    """Qwen3 architecture, under one million weights, finite float32, at most 4 MB in all."""
    model, tokenizer = nano
    config = json.loads((SEARCH_MODEL_DIR / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert model.num_parameters() < 1_000_000
    assert config["vocab_size"] == len(tokenizer)
    assert config["eos_token_id"] == tokenizer.eos_token_id
    assert sum(file.stat().st_size for file in SEARCH_MODEL_DIR.iterdir()) <= 4_000_000
    for tensor in load_file(SEARCH_MODEL_DIR / "model.safetensors").values():
        assert tensor.dtype == torch.float32
        assert torch.isfinite(tensor).all()


def test_the_summary_names_what_it_was_made_with() -> None:
    """pretraining.json has today's recipe and the seeds of the worlds."""
    summary = json.loads((SEARCH_MODEL_DIR / "pretraining.json").read_text())
    assert summary["recipe"] == vars(RECIPE)
    assert tuple(summary["world_seeds"]) == SEARCH_WARM_UP_SEEDS
    assert summary["mean_loss_per_100_steps"][-1] < summary["mean_loss_per_100_steps"][0]


def test_no_experiment_uses_a_world_of_the_warm_up() -> None:
    """No registered world, nor the one of the tests, has a seed that the model was taught on."""
    used = {TINY.seed}
    for card in CARDS.glob("*.registration.json"):
        name = card.name.removesuffix(".registration.json")
        search = load_experiment(CARDS / f"{name}.json", "embedded").registration.search
        if search is not None:
            assert search.world is not None
            used.add(search.world.seed)
    assert len(used) > 1
    assert used.isdisjoint(SEARCH_WARM_UP_SEEDS)


def test_the_tokenizer_knows_every_word_of_a_question(unseen, nano) -> None:
    """A word, a number and a symbol of any synthetic question is one token each."""
    _, tokenizer = nano
    for query in (*unseen.train, *unseen.test):
        words = desk_of(unseen, query).prompt.split()
        assert all(len(tokenizer.encode(f" {word}")) == 1 for word in words)
    for symbol in [*CHUNK_LETTERS, *"123456789=?-\n"]:
        assert len(tokenizer.encode(symbol)) == 1
    assert make_tokenizer().get_vocab() == tokenizer.get_vocab()


def test_plans_are_calls_and_repeat_with_their_seed(unseen) -> None:
    """Every reply of a plan is a call, no plan is longer than its bound, and a seed fixes it."""
    for number, query in enumerate(unseen.train):
        plan, again = (demonstrate(desk_of(unseen, query), Random(number)) for _ in range(2))
        assert plan == again
        assert 1 <= len(plan) <= MAX_TURNS
        assert all(isinstance(parse_call(reply), CompactCall) for reply, _ in plan)


def test_plans_are_of_mixed_quality(unseen) -> None:
    """Some earn nothing, some well, and their mean is far from both."""
    rewards = []
    for query in unseen.train:
        for number in range(8):
            desk = desk_of(unseen, query)
            demonstrate(desk, Random(number))
            rewards.append(score(desk.session.curated, query.facts).reward)
    assert min(rewards) == -0.2
    assert max(rewards) > 0.6
    assert 0.05 < sum(rewards) / len(rewards) < 0.35


class Played:
    """A completer that plays the replies of a plan, and keeps the last prompt and reply."""

    def __init__(self, renderer: CompactRenderer, replies: list[str]) -> None:
        self._renderer, self._replies = renderer, iter(replies)
        self.tokens: list[int] = []

    async def __call__(self, model_input, stop, *, max_tokens=None):  # noqa: ARG002  played
        """The next reply and its stop token."""
        text = next(self._replies)
        encode = self._renderer.tokenizer.encode
        reply = [*(encode(symbol)[0] for symbol in text), stop[0]]
        self.tokens = [*model_input.to_ints(), *reply]
        return TokensWithLogprobs(reply, [0.0] * len(reply), "stop")


def test_rows_are_what_an_environment_shows(unseen, nano) -> None:
    """A plan's row has the very tokens of its episode, and only replies are labelled."""
    renderer = CompactRenderer(nano[1])
    for number, query in enumerate(unseen.train[:6]):
        desk = desk_of(unseen, query)
        plan = demonstrate(desk, Random(number))
        ids_T, labels_T = plan_row(renderer, desk.prompt, plan)
        env = search_envs.search_env(query, unseen.retriever, renderer, LIMITS, "compact")
        policy = Played(renderer, [reply for reply, _ in plan])
        asyncio.run(do_single_rollout(policy, env))

        assert ids_T.tolist() == policy.tokens
        taught = nano[1].decode(labels_T[labels_T != IGNORED])
        assert taught == "".join(f"{reply}<|im_end|>" for reply, _ in plan)


def test_a_few_steps_lower_the_loss_and_repeat_exactly(unseen, nano) -> None:
    """Two short runs from one seed give one loss curve and the same weights."""
    rows, rewards = plan_rows([unseen], CompactRenderer(nano[1]), 64, seed=3)
    assert len(rows) == len(rewards) == 64
    recipe = replace(RECIPE, steps=6, warmup_steps=1, batch_size=8)
    curves, weights = [], []
    for _ in range(2):
        model = make_model(len(nano[1]), seed=3)
        curves.append(warm_up(model, rows, recipe, seed=3))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert curves[0] == curves[1]
    assert curves[0][-1] < curves[0][0]
    assert torch.equal(*weights)


class Sampled:
    """A completer that samples the committed model at temperature 1, for one episode."""

    def __init__(self, model: Qwen3ForCausalLM, seed: int) -> None:
        self._model = model
        self._generator = torch.Generator().manual_seed(seed)
        self._cache = DynamicCache(config=model.config)
        self._read: list[int] = []

    @torch.no_grad()
    async def __call__(self, model_input, stop, *, max_tokens=None):  # noqa: ARG002  sampled
        """A reply up to its stop token, or cut off."""
        tokens, start = model_input.to_ints(), model_input.length
        while len(tokens) - start < LIMITS.max_generation_tokens and tokens[-1] != stop[0]:
            # each turn's prompt is the one before with what was said since
            assert tokens[: len(self._read)] == self._read
            new_T = torch.tensor([tokens[len(self._read) :]])
            logits_V = self._model(
                new_T, past_key_values=self._cache, use_cache=True, logits_to_keep=1
            ).logits[0, -1]
            self._read = list(tokens)
            weights_V = logits_V.softmax(-1)
            tokens.append(int(torch.multinomial(weights_V, 1, generator=self._generator)))
        ended = "stop" if tokens[-1] == stop[0] else "length"
        return TokensWithLogprobs(tokens[start:], [0.0] * (len(tokens) - start), ended)


def test_the_model_has_something_to_learn_and_to_learn_from(unseen, nano) -> None:
    """It writes calls, groups of 8 differ in reward, and its F4 is far below what plans reach."""
    model, tokenizer = nano
    renderer, groups, off_format = CompactRenderer(tokenizer), [], []
    for query in unseen.test[:5]:
        rewards = []
        for draw in range(8):
            env = search_envs.search_env(query, unseen.retriever, renderer, LIMITS, "compact")
            trajectory = asyncio.run(do_single_rollout(Sampled(model, draw), env))
            rewards.append(sum(each.reward for each in trajectory.transitions))
            off_format += [each.metrics["turn/off_format"] for each in trajectory.transitions]
        groups.append(rewards)
    assert sum(len(set(rewards)) > 1 for rewards in groups) >= 0.6 * len(groups)
    assert sum(off_format) / len(off_format) < 0.05
    assert -0.1 < sum(map(sum, groups)) / 40 < 0.4
