"""The nano base model and its word problems: what the embedded scale learns, offline."""

from pathlib import Path

from harness.embedded.problems import data_sha256, load_splits, write_splits

MODEL_DIR = Path(__file__).parent / "model"
"""Hugging Face folder of the base model: config, tokenizer, weights."""

MODEL_NAME = "harness/nano-qwen3"
"""Name under which the embedded engine serves it."""

RENDERER_NAME = "qwen3_instruct"
"""The cookbook renderer whose prompt layout the model was pretrained on."""

__all__ = ["MODEL_DIR", "MODEL_NAME", "RENDERER_NAME", "data_sha256", "load_splits", "write_splits"]
