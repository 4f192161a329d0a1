"""The script that made the nano base model.

    python -m harness.embedded.pretrain [--out DIR] [--seed N]

It reads the train side only, answers each problem in a style drawn by its family's habits, and
writes config, tokenizer, weights and `pretraining.json`. One thread and explicit seeds, so that a
machine gives the same weights again.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from harness.embedded import MODEL_DIR
from harness.embedded.problems import Problem, data_sha256, generate
from harness.embedded.sampling import boxed_answer, complete, last_answer, prompt_text
from harness.embedded.styles import STYLES, draw_style, write_answer
from harness.embedded.tokenizer import IM_END, build_tokenizer, save_tokenizer

IGNORED = -100  # the label that cross-entropy skips

Row = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters; `learning_rate` warms up, then falls to zero as a cosine."""

    steps: int = 1_200
    batch_size: int = 64
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    weight_decay: float = 0.05
    max_grad_norm: float = 1.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Pretrain, measure and write the model folder."""
    parser = argparse.ArgumentParser(description="Pretrain the nano base model.")
    parser.add_argument("--out", type=Path, default=MODEL_DIR, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="of weights, data order and styles")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    started = time.monotonic()
    recipe, splits = Recipe(), generate()
    tokenizer = make_tokenizer(splits.train)
    model = make_model(len(tokenizer), options.seed)
    losses = pretrain(model, tokenizer, splits.train, recipe, options.seed)
    summary = {
        "seed": options.seed,
        "recipe": vars(recipe),
        "parameters": model.num_parameters(),
        "data_sha256": data_sha256(),
        "mean_loss_per_100_steps": per_100_steps(losses),
        "greedy_on_test": measure(model, tokenizer, splits.test, seed=None),
        "sampled_on_train": measure(model, tokenizer, splits.train[:1024], seed=options.seed),
    }
    write_model(options.out, model, tokenizer, summary)
    print(json.dumps(summary, indent=2))  # noqa: T201 -- the script's own output
    print(f"{time.monotonic() - started:.0f} s, written to {options.out}")  # noqa: T201 -- as above


def write_model(
    directory: Path,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    summary: Mapping[str, object],
) -> None:
    """Write the model folder file by file; each file appears whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".model.", dir=directory.parent) as name:
        temporary = Path(name)
        model.save_pretrained(temporary)
        save_tokenizer(tokenizer, temporary)
        (temporary / "pretraining.json").write_text(json.dumps(summary, indent=2) + "\n")
        for file in temporary.iterdir():
            file.chmod(0o644)
            with file.open("rb") as written:
                os.fsync(written.fileno())
            file.replace(directory / file.name)


def make_tokenizer(problems: Sequence[Problem]) -> PreTrainedTokenizerFast:
    """The tokenizer whose pieces are common in prompts and answers of `problems`."""
    prompts = [prompt_text(problem.question) for problem in problems]
    answers = [write_answer(problem, style) for problem in problems for style in STYLES]
    return build_tokenizer([*prompts, *answers])


def make_model(vocabulary: int, seed: int) -> Qwen3ForCausalLM:
    """The freshly initialised model of word problems."""
    return nano_model(
        vocabulary,
        seed,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )


def nano_model(vocabulary: int, seed: int, **sizes: int) -> Qwen3ForCausalLM:
    """A freshly initialised Qwen3, float32, 256 positions; `sizes` as its config names them."""
    torch.manual_seed(seed)
    config = Qwen3Config.from_dict(
        {
            "vocab_size": vocabulary,
            **sizes,
            "head_dim": 32,
            "max_position_embeddings": 256,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "dtype": "float32",
        }
    )
    return Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call] # transformers' own untyped code


def pretrain(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    recipe: Recipe,
    seed: int,
) -> list[float]:
    """Train in place on answers to `problems`; returns each step's mean loss per answer token."""
    return fit(model, _batches(tokenizer, problems, recipe, Random(seed)), recipe)


def fit(model: Qwen3ForCausalLM, batches: Iterator[Sequence[Row]], recipe: Recipe) -> list[float]:
    """Train in place, a batch a step; returns each step's mean loss per labelled token, in nats."""
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.98), weight_decay=recipe.weight_decay
    )
    losses = list[float]()
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe)
        loss, n_tokens = answer_loss(model, *pad_batch(next(batches)))
        optimizer.zero_grad()
        (loss / recipe.batch_size).backward()  # type: ignore[no-untyped-call] # torch's own untyped code
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        losses.append(loss.item() / n_tokens)
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {losses[-1]:.3f}", flush=True)  # noqa: T201 -- progress
    return losses


def answer_loss(
    model: Qwen3ForCausalLM, ids_BT: torch.Tensor, labels_BT: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """Cross-entropy summed over the answer tokens, and how many there are."""
    states_BTD = model.model(input_ids=ids_BT[:, :-1]).last_hidden_state
    answers_BT = labels_BT[:, 1:] != IGNORED
    logits_NV = model.lm_head(states_BTD[answers_BT])
    loss = cross_entropy(logits_NV, labels_BT[:, 1:][answers_BT], reduction="sum")
    return loss, int(answers_BT.sum())


def encode_answer(tokenizer: PreTrainedTokenizerFast, problem: Problem, style: str) -> Row:
    """Prompt and answer as (ids, labels), both (T,); the prompt's labels are ignored."""
    prompt_T = tokenizer.encode(prompt_text(problem.question), add_special_tokens=False)
    answer = write_answer(problem, style) + IM_END
    answer_T = tokenizer.encode(answer, add_special_tokens=False)
    return torch.tensor(prompt_T + answer_T), torch.tensor([IGNORED] * len(prompt_T) + answer_T)


def pad_batch(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels, (batch, longest row), padded on the right; the padding is ignored."""
    ids = pad_sequence([row[0] for row in rows], batch_first=True)
    return ids, pad_sequence([row[1] for row in rows], batch_first=True, padding_value=IGNORED)


def _batches(
    tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem], recipe: Recipe, rng: Random
) -> Iterator[list[Row]]:
    """Epoch after epoch in a fresh order, each problem in a freshly drawn style.

    Rows are not sorted by length: that would sort them by style, and the model would swing from
    one style to the next.
    """
    while True:
        order = rng.sample(problems, len(problems))
        for start in range(0, len(order) - recipe.batch_size + 1, recipe.batch_size):
            batch = order[start : start + recipe.batch_size]
            yield [encode_answer(tokenizer, problem, draw_style(problem, rng)) for problem in batch]


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine that reaches zero after the last step."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / (recipe.steps - recipe.warmup_steps)
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def per_100_steps(losses: Sequence[float]) -> list[float]:
    """Means of 100 losses each, of the last by as many as are left, to 4 places."""
    parts = [losses[i : i + 100] for i in range(0, len(losses), 100)]
    return [round(sum(part) / len(part), 4) for part in parts]


def measure(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    seed: int | None,
) -> dict[str, float]:
    """Shares right by the boxed and by the last answer; greedy, or sampled from `seed`."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    boxed, last, lengths = [], [], []
    for start in range(0, len(problems), 128):
        chunk = problems[start : start + 128]
        rows = complete(model, tokenizer, [p.question for p in chunk], generator=generator)
        for problem, row in zip(chunk, rows, strict=True):
            text = str(tokenizer.decode(row, skip_special_tokens=True))
            boxed.append(boxed_answer(text) == str(problem.gold))
            last.append(last_answer(text) == str(problem.gold))
            lengths.append(len(row))
    return {
        "boxed_accuracy": sum(boxed) / len(boxed),
        "last_answer_accuracy": sum(last) / len(last),
        "mean_tokens": sum(lengths) / len(lengths),
        "items": len(problems),
    }


if __name__ == "__main__":
    main()
