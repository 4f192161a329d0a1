"""The nano models, word problems and search plans: what the embedded scales learn, offline."""

from pathlib import Path

from harness.embedded.problems import data_sha256, load_splits, write_splits
from harness.errors import CardError

MODEL_DIR = Path(__file__).parent / "model"
"""Hugging Face folder of the base model: config, tokenizer, weights."""

MODEL_NAME = "harness/nano-qwen3"
"""Name under which the embedded engine serves it."""

RENDERER_NAME = "qwen3_instruct"
"""The cookbook renderer whose prompt layout the model was pretrained on."""

SEARCH_MODEL_DIR = Path(__file__).parent / "search_model"
"""The same for the model that searches in the compact syntax."""

SEARCH_MODEL_NAME = "harness/nano-qwen3-search"
"""Name under which the embedded engine serves it."""

SEARCH_WARM_UP_SEEDS = tuple(range(9_001, 9_005))
"""Seeds of the synthetic worlds that it was warmed up on; no experiment may use them."""

MODELS = {MODEL_NAME: MODEL_DIR, SEARCH_MODEL_NAME: SEARCH_MODEL_DIR}
"""Folders of the committed models, by name."""


def model_dir(name: str) -> Path:
    """The folder of the committed model of that name.

    Raises:
        CardError: no model of that name is committed.
    """
    if name not in MODELS:
        raise CardError(
            f"base_model {name!r} is not embedded, {' and '.join(MODELS)} are; name one of them, "
            "or set TINKER_BASE_URL to a service that has it"
        )
    return MODELS[name]


__all__ = [
    "MODELS",
    "MODEL_DIR",
    "MODEL_NAME",
    "RENDERER_NAME",
    "SEARCH_MODEL_DIR",
    "SEARCH_MODEL_NAME",
    "SEARCH_WARM_UP_SEEDS",
    "data_sha256",
    "load_splits",
    "model_dir",
    "write_splits",
]
