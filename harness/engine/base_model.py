"""Reads a local Hugging Face folder of the Qwen3, Qwen3.5 or Llama family into `decoder` weights.

Neither transformers nor any code of the folder is run: config.json and safetensors only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict, cast

import torch
from safetensors import safe_open
from torch import Tensor

from harness.engine.architecture import (
    DecoderConfig,
    DeltaConfig,
    DeltaWeights,
    LayerWeights,
    RopeScaling,
    Weights,
)
from harness.engine.errors import UnsupportedModel

FAMILIES = ("qwen3", "qwen3_5", "qwen3_5_text", "llama")


class _Rope(TypedDict, total=False):
    rope_theta: float
    rope_type: str
    type: str
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    partial_rotary_factor: float


class _Mixer(TypedDict):
    """The fields of LayerWeights that depend on how a layer mixes positions."""

    qkv: Tensor
    qk_scale_HK: Tensor | None
    attn_out: Tensor
    delta: DeltaWeights | None


class _ConfigJson(TypedDict, total=False):
    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None
    head_dim: int | None
    intermediate_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_parameters: _Rope | None
    rope_scaling: _Rope | None
    attention_bias: bool
    mlp_bias: bool
    use_sliding_window: bool
    hidden_act: str
    tie_word_embeddings: bool
    eos_token_id: int | list[int] | None
    layer_types: list[str] | None
    full_attention_interval: int
    partial_rotary_factor: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    text_config: _ConfigJson


def read_config(folder: Path) -> DecoderConfig:
    """The folder's config.json.

    Raises UnsupportedModel for another family or for a feature that changes the forward pass.
    """
    path = folder / "config.json"
    try:
        raw = cast("_ConfigJson", json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"{path}: not a readable config.json ({error})") from None
    family = raw.get("model_type", "")
    if family not in FAMILIES:
        raise UnsupportedModel(
            f"{path}: model_type {family!r} is not served; supported: {', '.join(FAMILIES)}"
        )
    outer, raw = raw, raw.get("text_config", raw)
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if raw.get(key):
            raise UnsupportedModel(f"{path}: {key} = true is not supported; use a model without it")
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{path}: hidden_act {raw.get('hidden_act')!r}; only silu is served")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or _Rope()
    heads = raw["num_attention_heads"]
    head_width = raw.get("head_dim") or raw["hidden_size"] // heads
    hybrid = family.startswith("qwen3_5")
    turned = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 0.25))
    return DecoderConfig(
        family=family,
        vocab=raw["vocab_size"],
        width=raw["hidden_size"],
        layers=raw["num_hidden_layers"],
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_width=head_width,
        mlp_width=raw["intermediate_size"],
        max_positions=raw["max_position_embeddings"],
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope_theta=rope.get("rope_theta", raw.get("rope_theta", 10_000.0)),
        rope_scaling=_rope_scaling(path, rope),
        qk_norm=family != "llama",
        tied=outer.get("tie_word_embeddings", raw.get("tie_word_embeddings", False)),
        eos_ids=_eos_ids(folder, raw),
        rotary_width=int(head_width * turned) if hybrid else head_width,
        output_gate=hybrid,
        delta=_delta_config(path, raw) if hybrid else None,
    )


def read_weights(folder: Path, config: DecoderConfig) -> Weights:
    """The folder's safetensors as float32.

    Raises UnsupportedModel if a tensor is missing or has another shape than config.json says.
    """
    tensors = _read_tensors(folder)

    def take(name: str, *shape: int) -> Tensor:
        if name not in tensors:
            raise UnsupportedModel(f"{folder}: tensor {name} is missing")
        if tuple(tensors[name].shape) != shape:
            raise UnsupportedModel(
                f"{folder}: tensor {name} has shape {tuple(tensors[name].shape)}, "
                f"config.json says {shape}"
            )
        return tensors.pop(name)

    def norm(name: str, *shape: int) -> Tensor:
        """A norm's scale; Qwen3.5 stores what it exceeds one by."""
        return take(name, *shape) + (1.0 if config.delta is not None else 0.0)

    def attention(at: str) -> _Mixer:
        scale = None
        if config.qk_norm:
            q_norm = norm(at + "q_norm.weight", config.head_width)
            k_norm = norm(at + "k_norm.weight", config.head_width)
            scale = torch.stack([q_norm] * config.heads + [k_norm] * config.kv_heads)
        queries = config.q_width * (2 if config.output_gate else 1)
        widths = {"q_proj": queries, "k_proj": config.kv_width, "v_proj": config.kv_width}
        return {
            "qkv": torch.cat([take(f"{at}{n}.weight", w, config.width) for n, w in widths.items()]),
            "qk_scale_HK": scale,
            "attn_out": take(at + "o_proj.weight", config.width, config.q_width),
            "delta": None,
        }

    def delta_rule(at: str, d: DeltaConfig) -> _Mixer:
        values = d.value_heads * d.value_width
        widths = {"qkv": d.channels, "z": values, "b": d.value_heads, "a": d.value_heads}
        return {
            "qkv": torch.cat(
                [take(f"{at}in_proj_{n}.weight", w, config.width) for n, w in widths.items()]
            ),
            "qk_scale_HK": None,
            "attn_out": take(at + "out_proj.weight", config.width, values),
            "delta": DeltaWeights(
                taps_C_W=take(at + "conv1d.weight", d.channels, 1, d.taps)[:, 0],
                step_bias_N=take(at + "dt_bias", d.value_heads),
                decay_N=-take(at + "A_log", d.value_heads).exp(),
                norm_V=take(at + "norm.weight", d.value_width),
            ),
        }

    wide = (config.mlp_width, config.width)
    embed = take("model.embed_tokens.weight", config.vocab, config.width)
    layers = []
    for index in range(config.layers):
        at = f"model.layers.{index}."
        if config.delta is not None and config.is_delta(index):
            mixer = delta_rule(at + "linear_attn.", config.delta)
        else:
            mixer = attention(at + "self_attn.")
        layers.append(
            LayerWeights(
                input_norm_D=norm(at + "input_layernorm.weight", config.width),
                mlp_norm_D=norm(at + "post_attention_layernorm.weight", config.width),
                gate_up=torch.cat(
                    [take(f"{at}mlp.{n}_proj.weight", *wide) for n in ("gate", "up")]
                ),
                down=take(at + "mlp.down_proj.weight", config.width, config.mlp_width),
                **mixer,
            )
        )
    return Weights(
        embed_V_D=embed,
        layers=tuple(layers),
        final_norm_D=norm("model.norm.weight", config.width),
        unembed_V_D=embed if config.tied else take("lm_head.weight", config.vocab, config.width),
    )


def read_tokenizer(folder: Path) -> Callable[[Sequence[int]], str] | None:
    """Token ids to text by the folder's tokenizer.json; None where there is none."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return None
    from tokenizers import Tokenizer  # type: ignore[import-untyped] # it ships no types

    tokenizer = Tokenizer.from_file(str(path))

    def decode(tokens: Sequence[int]) -> str:
        text: str = tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    return decode


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UnsupportedModel(f"{folder}: no *.safetensors file; other formats are not read")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as reader:
                for name in reader.keys():  # noqa: SIM118 - safe_open is not a mapping
                    # the text part of a model that also sees lies one level deeper
                    short = name.replace("model.language_model.", "model.", 1)
                    tensors[short] = reader.get_tensor(name).to(torch.float32).contiguous()
        except Exception as error:
            raise UnsupportedModel(f"{file}: not a readable safetensors file ({error})") from None
    return tensors


def _delta_config(path: Path, raw: _ConfigJson) -> DeltaConfig:
    """The delta layers of a Qwen3.5 config; without a list, all but every fourth are."""
    count, interval = raw["num_hidden_layers"], raw.get("full_attention_interval", 4)
    kinds = raw.get("layer_types") or [
        "full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(count)
    ]
    if len(kinds) != count or set(kinds) - {"full_attention", "linear_attention"}:
        raise UnsupportedModel(f"{path}: layer_types {kinds} can't be served")
    return DeltaConfig(
        layers=frozenset(i for i, kind in enumerate(kinds) if kind == "linear_attention"),
        key_heads=raw["linear_num_key_heads"],
        value_heads=raw["linear_num_value_heads"],
        key_width=raw["linear_key_head_dim"],
        value_width=raw["linear_value_head_dim"],
        taps=raw["linear_conv_kernel_dim"],
    )


def _rope_scaling(path: Path, rope: _Rope) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedModel(f"{path}: rope_type {kind!r}; served are 'default' and 'llama3'")
    return RopeScaling(
        factor=rope["factor"],
        low_freq_factor=rope["low_freq_factor"],
        high_freq_factor=rope["high_freq_factor"],
        original_positions=rope["original_max_position_embeddings"],
    )


def _eos_ids(folder: Path, raw: _ConfigJson) -> frozenset[int]:
    """End-of-text ids: generation_config.json where it says so, else config.json."""
    eos = raw.get("eos_token_id")
    path = folder / "generation_config.json"
    if path.exists():
        eos = json.loads(path.read_text()).get("eos_token_id", eos)
    if eos is None:
        return frozenset()
    return frozenset([eos] if isinstance(eos, int) else eos)
