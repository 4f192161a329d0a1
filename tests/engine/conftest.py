"""A small random Qwen3 folder and an engine process that serves it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

VOCAB = ["<pad>", "<|im_start|>", "<|im_end|>", *map(chr, range(32, 127)), "\n"]


def write_tokenizer(folder: Path) -> None:
    """One token per character; `<|im_end|>` is one token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({t: i for i, t in enumerate(VOCAB)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<pad>",
        additional_special_tokens=["<|im_start|>"],
    ).save_pretrained(folder)


def write_qwen3(folder: Path, **changes: object) -> Path:
    """A random Qwen3 model with sharp enough distributions to tell tokens apart."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    settings = {
        "vocab_size": len(VOCAB),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.2,
    }
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**{**settings, **changes}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@dataclass
class Engine:
    """A running engine process."""

    process: subprocess.Popen[str]
    url: str
    folder: Path
    state: Path

    def end(self) -> None:
        """SIGTERM, and wait."""
        self.process.terminate()
        self.process.wait(timeout=10)


def start_engine(folder: Path, state: Path, *more: str) -> Engine:
    """Start an engine and wait for its address."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "harness.engine", "--base-model", str(folder),
            "--state", str(state), "--exit-with", str(os.getpid()), *more,
        ],
        stdout=subprocess.PIPE,
        stderr=(state.parent / f"{state.name}.log").open("a"),
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:"), (state.parent / f"{state.name}.log").read_text()
    return Engine(process, url, folder, state)


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """What the engine's workers use: bits are promised for one thread an operation."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 folder, shared by all tests."""
    folder = write_qwen3(tmp_path_factory.mktemp("base") / "tiny")
    assert json.loads((folder / "config.json").read_text())["model_type"] == "qwen3"
    return folder


@pytest.fixture(scope="module")
def engine(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine for the tests of one module."""
    running = start_engine(model_folder, tmp_path_factory.mktemp("engine") / "state")
    yield running
    running.end()
