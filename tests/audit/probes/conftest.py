"""A tiny random Qwen3 behind a real engine, and word problems for it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import forked
import pytest

from harness.cards import Experiment, load_experiment
from harness.tasks.gsm8k import Problem, Task

ROOT = Path(__file__).parents[3]
CARD = ROOT / "experiments" / "cards" / "gs1_vs_grpo_gsm8k_2b.json"


@pytest.fixture(scope="session")
def experiment() -> Experiment:
    """The GS1 experiment at its embedded scale."""
    return load_experiment(CARD, "embedded")


@pytest.fixture(scope="session")
def cards_dir() -> Path:
    """The folder of the card."""
    return CARD.parent


@pytest.fixture(scope="session")
def task() -> Task:
    """A few hundred word problems in the GSM8K format, twice what a pilot draws."""
    names = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn"]
    things = ["red pens", "apples", "old books", "boxes of nails", "tickets", "blue marbles"]

    def problem(split: str, index: int) -> Problem:
        name, thing = names[index % 6], things[index // 6 % 6]
        a, b = index + 2, index // 7 + 1
        question = f"{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have?"
        solution = f"{name} has {a} + {b} = <<{a}+{b}={a + b}>>{a + b} {thing}.\n#### {a + b}"
        return Problem(f"{split}/{index:05d}", question, solution, str(a + b))

    train = tuple(problem("train", index) for index in range(400))
    test = tuple(problem("test", index) for index in range(1000, 1160))
    return Task(train, test, {"train": "0" * 64, "test": "1" * 64})


@pytest.fixture(scope="session")
def model_dir(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 with the nano tokenizer, fitted on these problems."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    from harness.embedded.tokenizer import IM_END, build_tokenizer

    logging.disable_progress_bar()
    tokenizer = build_tokenizer([p.question + p.solution for p in task.train[:200]])
    folder = tmp_path_factory.mktemp("base") / "tiny"
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.convert_tokens_to_ids(IM_END),
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.1,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def live(
    model_dir: Path, experiment: Experiment, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SimpleNamespace]:
    """`collect(probe)` runs a probe against one engine that all tests share."""
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    command = [sys.executable, "-m", "harness.engine", "--base-model", str(model_dir)]
    command += ["--model-name", experiment.card.base_model, "--exit-with", str(os.getpid())]
    with log.open("wb") as errors:
        process = forked.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:"), log.read_text()

    from harness.training.adapters import task_adapter
    from harness.training.service import EMBEDDED_KEY, ServiceAddress, connect

    service = connect(ServiceAddress(url, "embedded", EMBEDDED_KEY))
    prompts = task_adapter(str(model_dir), experiment, task)
    with asyncio.Runner() as runner:
        yield SimpleNamespace(
            adapter=prompts,
            service=service,
            run=runner.run,
            collect=lambda probe, to=service: runner.run(
                probe.collect(to, prompts, experiment, task)
            ),
        )
    service.holder.close()  # its heartbeats would go on, and complain, until pytest ends
    process.terminate()
    process.wait(timeout=60)
    process.stdout.close()
