"""A small random Qwen3 folder and an engine process that serves it."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tinker

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves test folders off the path

from engine_process import Engine, start_engine

from harness.training.service import EMBEDDED_KEY, ServiceAddress
from harness.training.service import connect as connect_to

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


def write_qwen3_5(folder: Path) -> Path:
    """A random Qwen3.5 text model: two delta layers, one of attention, another delta layer."""
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(0)
    model = Qwen3_5ForCausalLM(
        Qwen3_5TextConfig(
            vocab_size=len(VOCAB),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=4,
            layer_types=["linear_attention"] * 2 + ["full_attention", "linear_attention"],
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=24,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            eos_token_id=2,
            pad_token_id=0,
            initializer_range=0.05,
        )
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                around = 1.0 if "linear_attn" in name else 0.0  # the others store what exceeds one
                weight.uniform_(around - 0.5, around + 0.5)
            if "A_log" in name:
                weight.uniform_(-3, 0)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def hybrid_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3.5 folder, shared by all tests."""
    return write_qwen3_5(tmp_path_factory.mktemp("base") / "hybrid")


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


@pytest.fixture
def start(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Starts engines, each on a new state folder unless told otherwise; ends them all."""
    running: list[Engine] = []

    def begin(*more: str, state: Path | None = None) -> Engine:
        folder = state or tmp_path / f"state-{len(running)}"
        running.append(start_engine(model_folder, folder, *more))
        return running[-1]

    yield begin
    for one in running:
        one.end()


@pytest.fixture(scope="module")
def connect() -> Iterator[Callable[[Engine], tinker.ServiceClient]]:
    """Makes SDK clients that talk to loopback only and send no telemetry."""
    made: list[tinker.ServiceClient] = []

    def to(engine: Engine) -> tinker.ServiceClient:
        made.append(connect_to(ServiceAddress(engine.url, "embedded", EMBEDDED_KEY)))
        return made[-1]

    yield to
    for client in made:
        client.holder.close()  # its heartbeats would go on, and complain, until pytest ends
