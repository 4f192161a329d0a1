"""The script that made the nano search agent.

    python -m harness.embedded.search_warm_up [--out DIR] [--seed N]

It imitates the plans of `search_plans` on synthetic worlds of its own, which no experiment uses,
and writes config, tokenizer, weights and `pretraining.json`. Rendering, session and tools are the
task's own, so the model is taught the very tokens that it will be shown. One thread and explicit
seeds, so that a machine gives the same weights again.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from tinker_cookbook.renderers.base import Message
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from harness.embedded import SEARCH_MODEL_DIR, SEARCH_WARM_UP_SEEDS
from harness.embedded.pretrain import (
    IGNORED,
    Recipe,
    Row,
    fit,
    nano_model,
    per_100_steps,
    write_model,
)
from harness.embedded.search_plans import demonstrate
from harness.embedded.tokenizer import build_tokenizer
from harness.tasks.sec_search import (
    SearchSession,
    SearchTask,
    Selection,
    SessionLimits,
    World,
    score,
    synthetic_task,
)
from harness.tasks.sec_search.compact import CompactDesk
from harness.tasks.sec_search.compact_env import CompactRenderer
from harness.tasks.sec_search.index import words_of
from harness.tasks.sec_search.synthetic.attributes import ATTRIBUTES, RELATIONS, Term
from harness.tasks.sec_search.synthetic.questions import TEMPLATES

RECIPE = Recipe(steps=800, batch_size=64, learning_rate=3e-3, warmup_steps=100)
PLANS = 16_384
COMPANIES, LEXICAL_OVERLAP, DEFAULT_K = 84, 1.0, 3
SELECTION = Selection(n_train=256, n_test=8, background=None)
# words and numbers with the space before them, all else symbol by symbol
PIECES = r" (?:\p{L}+|\d+)|[\s\S]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Warm up, measure and write the model folder."""
    parser = argparse.ArgumentParser(description="Warm up the nano search agent.")
    parser.add_argument("--out", type=Path, default=SEARCH_MODEL_DIR, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="of weights, data order and plans")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    started = time.monotonic()
    tokenizer = make_tokenizer()
    model = make_model(len(tokenizer), options.seed)
    with TemporaryDirectory() as name:
        worlds = [warm_up_task(seed, Path(name)) for seed in SEARCH_WARM_UP_SEEDS]
        renderer = CompactRenderer(tokenizer)  # type: ignore[arg-type] # named after the slow class, takes both
        rows, rewards = plan_rows(worlds, renderer, PLANS, options.seed)
    losses = warm_up(model, rows, RECIPE, options.seed)
    summary = {
        "seed": options.seed,
        "world_seeds": list(SEARCH_WARM_UP_SEEDS),
        "recipe": vars(RECIPE),
        "parameters": model.num_parameters(),
        "mean_reward_of_the_plans": round(statistics.fmean(rewards), 4),
        "mean_loss_per_100_steps": per_100_steps(losses),
    }
    write_model(options.out, model, tokenizer, summary)
    print(json.dumps(summary, indent=2))  # noqa: T201 -- the script's own output
    print(f"{time.monotonic() - started:.0f} s, written to {options.out}")  # noqa: T201 -- as above


def warm_up_task(seed: int, folder: Path) -> SearchTask:
    """The synthetic world of a warm-up seed, prepared under `folder`."""
    world = World(seed, COMPANIES, lexical_overlap=LEXICAL_OVERLAP)
    return synthetic_task(world, folder / f"world-{seed}", SELECTION)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """All words that questions of any synthetic world can hold, and the symbols of the syntax."""
    terms = [*RELATIONS, *chain.from_iterable((a.topic, *a.pool) for a in ATTRIBUTES)]
    texts = [*chain.from_iterable(map(_both, terms)), *TEMPLATES]
    words = sorted({word for text in texts for word in words_of(text)})
    numbers = [str(slot) for slot in range(1, 10)]
    return build_tokenizer([f" {word}" for word in [*numbers, *words]], 1, PIECES)


def make_model(vocabulary: int, seed: int) -> Qwen3ForCausalLM:
    """The freshly initialised model that searches."""
    return nano_model(
        vocabulary,
        seed,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
    )


def warm_up(model: Qwen3ForCausalLM, rows: Sequence[Row], recipe: Recipe, seed: int) -> list[float]:
    """Train in place on plans; returns each step's mean loss per reply token."""
    return fit(model, _batches(rows, recipe.batch_size, Random(seed)), recipe)


def plan_rows(
    worlds: Sequence[SearchTask], renderer: CompactRenderer, count: int, seed: int
) -> tuple[list[Row], list[float]]:
    """So many plans on questions drawn from all worlds, and what each of them would have earned."""
    questions = [(task, query) for task in worlds for query in task.train]
    rng, rows, rewards = Random(seed), list[Row](), list[float]()
    for _ in range(count):
        task, query = rng.choice(questions)
        session = SearchSession(task.retriever, SessionLimits(default_k=DEFAULT_K))
        desk = CompactDesk(session, task.retriever, query.text)
        rows.append(plan_row(renderer, desk.prompt, demonstrate(desk, rng)))
        rewards.append(score(session.curated, query.facts).reward)
    return rows, rewards


def plan_row(renderer: CompactRenderer, prompt: str, turns: Sequence[tuple[str, str]]) -> Row:
    """A plan as (ids, labels), both (T,), as an environment lays it out; only replies are labelled.

    The last answer is left out: the session has ended, and no reply follows it.
    """
    messages = [Message(role="user", content=prompt)]
    ids: list[int] = []
    labels: list[int] = []
    for reply, answer in turns:
        shown = renderer.build_generation_prompt(messages).to_ints()
        labels += [IGNORED] * (len(shown) - len(ids))
        messages.append(Message(role="assistant", content=reply))
        ids = renderer.build_generation_prompt(messages).to_ints()
        labels += ids[len(shown) :]
        messages.append(Message(role="tool", content=answer))
    return torch.tensor(ids), torch.tensor(labels)


def _batches(rows: Sequence[Row], size: int, rng: Random) -> Iterator[Sequence[Row]]:
    """Epoch after epoch in a fresh order."""
    while True:
        order = rng.sample(rows, len(rows))
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]


def _both(term: Term) -> tuple[str, str]:
    return term.exact, term.paraphrase


if __name__ == "__main__":
    main()
