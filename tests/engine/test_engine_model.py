"""The hand-written forward pass and the LoRA gradients, against independent implementations."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import planted_kernels
import pytest
import torch
import torch.nn.functional as F

from harness.engine.arrangement import FREE, Arrangement
from harness.engine.base_model import read_config, read_weights
from harness.engine.cache import Cache
from harness.engine.decoder import decode_step, full_pass
from harness.engine.errors import RequestError, UnsupportedModel
from harness.engine.kernel_probe import arrangement_of
from harness.engine.lora import LoraConfig, LoraLayout
from harness.engine.losses import LOSSES, resolve
from harness.engine.rope import Rope
from harness.engine.trainer import AdamParams, Datum, Trainee, micro_batches

T = 40


def _llama(folder: Path, **changes: object) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {
        "vocab_size": 99,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
    }
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).save_pretrained(folder)
    return folder


@pytest.fixture(params=["qwen3", "qwen3.5", "llama", "llama3-rope"])
def folder(
    request: pytest.FixtureRequest, model_folder: Path, hybrid_folder: Path, tmp_path: Path
) -> Path:
    """One folder of each kind that is served."""
    if request.param == "qwen3":
        return model_folder
    if request.param == "qwen3.5":
        return hybrid_folder
    if request.param == "llama":
        return _llama(tmp_path)
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    return _llama(tmp_path, rope_parameters=rope)


def _reference(folder: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")


def test_log_probs_equal_those_of_transformers(folder: Path) -> None:
    """The same folder gives the same log-probs as transformers' own model, within 1e-5."""
    config = read_config(folder)
    weights = read_weights(folder, config)
    tokens = torch.randint(0, config.vocab, (3, T), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        hidden, _ = full_pass(config, weights, Rope(config), tokens)
        ours = F.linear(hidden, weights.unembed_V_D).log_softmax(-1)
        theirs = _reference(folder)(tokens).logits.log_softmax(-1)
    assert (ours - theirs).abs().max().item() < 1e-5


def test_the_text_part_of_a_model_that_also_sees_is_read(
    hybrid_folder: Path, tmp_path: Path
) -> None:
    """A Qwen3.5 config that nests its text_config gives the same model as the plain one."""
    import json
    import shutil

    shutil.copytree(hybrid_folder, tmp_path, dirs_exist_ok=True)
    plain = json.loads((tmp_path / "config.json").read_text())
    nested = {"model_type": "qwen3_5", "text_config": plain, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    config, expected = read_config(tmp_path), read_config(hybrid_folder)
    assert replace(config, family=expected.family) == expected
    assert torch.equal(
        read_weights(tmp_path, config).matrix("0.qkv"),
        read_weights(hybrid_folder, expected).matrix("0.qkv"),
    )


def test_decoding_with_a_cache_equals_the_full_pass(folder: Path) -> None:
    """Token by token through the cache, log-probs equal those of the whole row within 1e-5."""
    config = read_config(folder)
    weights, rope = read_weights(folder, config), Rope(config)
    tokens = torch.randint(0, config.vocab, (8, T), generator=torch.Generator().manual_seed(0))
    cache = Cache(config, 8, T)
    with torch.no_grad():
        hidden, _ = full_pass(config, weights, rope, tokens)
        whole = F.linear(hidden, weights.unembed_V_D).log_softmax(-1)
        steps = [
            decode_step(config, weights, rope, cache, tokens[:, t], torch.full((8,), t))
            for t in range(T)
        ]
    assert (torch.stack(steps, 1).log_softmax(-1) - whole).abs().max().item() < 1e-5


def test_positions_that_were_first_seen_while_sampling_can_be_trained_on(folder: Path) -> None:
    """Tables that grow for a long row are the same and differentiable, whoever lets them grow."""
    config = read_config(folder)
    rope, other = Rope(config), Rope(config)
    longer = 2 * len(rope.cos_T_K)
    with torch.inference_mode():
        rope.reserve(longer)
    other.reserve(longer)

    x = torch.ones(longer, config.rotary_width, requires_grad=True)
    (x * rope.cos_T_K * rope.sin_T_K).sum().backward()  # type: ignore[no-untyped-call] # torch's own
    assert torch.equal(x.grad, other.cos_T_K * other.sin_T_K)


def _data(config_vocab: int, loss: str) -> list[Datum]:
    rng = np.random.default_rng(7)
    found = []
    for length in (5, 40, 33, 12):
        values = {
            "weights": rng.normal(size=(length, 1)),
            "logprobs": rng.normal(-4.6, 0.3, size=(length, 1)),
            "advantages": rng.normal(size=(length, 1)),
        }
        found.append(
            Datum(
                rng.integers(0, config_vocab, length),
                rng.integers(0, config_vocab, (length, 1)),
                {name: values[name].astype(np.float32) for name in LOSSES[loss].inputs},
                flat=True,
            )
        )
    return found


def _adapted(
    folder: Path, lora: LoraConfig, arrangement: Arrangement = FREE
) -> tuple[Trainee, torch.Tensor]:
    """A trainee whose B is not zero, so that A has a gradient."""
    config = read_config(folder)
    layout = LoraLayout(config, lora)
    flat = layout.fresh()
    flat += 0.02 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(2))
    start = flat.clone()
    weights = read_weights(folder, config)
    return Trainee(config, weights, Rope(config), layout, flat, arrangement), start


def _run(trainee: Trainee, data: list[Datum], loss: str, **knobs: float) -> tuple[list, float]:
    request = trainee.forward_backward(data, *resolve(loss, knobs), False)
    for run in request.passes:
        run()
    return request.result()


def _float64_loss(lp: torch.Tensor, datum: Datum, loss: str) -> torch.Tensor:
    """The loss of one datum, written from its definition."""
    values = {n: torch.from_numpy(v[:, 0]).double() for n, v in datum.inputs.items()}
    if loss == "cross_entropy":
        return -(values["weights"] * lp).sum()
    q, a = values["logprobs"], values["advantages"]
    r = (lp - q).exp()
    if loss == "importance_sampling":
        return -(r * a).sum()
    if loss == "ppo":
        return -torch.min(r * a, r.clamp(0.8, 1.2) * a).sum()
    if loss == "cispo":
        return -(r.clamp(0.0, 4.0).detach() * lp * a).sum()
    return -(lp * a - 0.5 * 0.05 * (lp - q) ** 2).sum()


@pytest.mark.parametrize("loss", LOSSES)
def test_every_lora_gradient_equals_float64_autograd(model_folder: Path, loss: str) -> None:
    """For each loss: loss, log-probs and the gradient of every A and B equal a float64 model's."""
    _compare_with_float64(model_folder, loss, within=1e-4)


def test_gradients_of_delta_layers_equal_autograd(hybrid_folder: Path) -> None:
    """The same for Qwen3.5, adapters on its linear layers included.

    transformers computes the delta rule in float32 whatever the model's type, hence the tolerance.
    """
    names = _compare_with_float64(hybrid_folder, "importance_sampling", within=1e-3)
    assert {name.split(".")[-1] for name in names if "linear_attn" in name} == {
        "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj",
    }  # fmt: skip


def _compare_with_float64(folder: Path, loss: str, within: float) -> list[str]:
    """Compare loss, log-probs and gradients with transformers; the names of all adapters."""
    lora = LoraConfig(rank=4, seed=5)
    trainee, start = _adapted(folder, lora)
    data = _data(trainee.config.vocab, loss)
    logprobs, total = _run(trainee, data, loss)
    ours = trainee.layout.gradient(start, trainee._accumulated)

    model = _reference(folder, torch.float64)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    flat = start.double().requires_grad_(True)
    merged = {}
    for target, a, b in trainee.layout.views(flat):
        name = f"{target.name}.weight"
        merged[name] = model.get_parameter(name).detach() + (32 / lora.rank) * b @ a
    expected = torch.zeros((), dtype=torch.float64)
    for datum, ours_lp in zip(data, logprobs, strict=True):
        tokens = torch.from_numpy(datum.tokens_T)[None]
        logits = torch.func.functional_call(model, merged, (tokens,)).logits[0]
        lp = logits.log_softmax(-1).gather(-1, torch.from_numpy(datum.targets_T_K))[:, 0]
        assert (lp.detach() - torch.from_numpy(ours_lp)).abs().max().item() < 2e-5
        expected = expected + _float64_loss(lp, datum, loss)
    expected.backward()
    assert total == pytest.approx(expected.item(), rel=within / 10)
    for (target, a, b), (_, grad_a, grad_b) in zip(
        trainee.layout.views(flat.grad), trainee.layout.views(ours), strict=True
    ):
        for name, want, got in (("A", a, grad_a), ("B", b, grad_b)):
            error = (want - got).abs().max() / want.abs().max()
            assert error.item() < within, f"{target.name} {name}"
    return [target.name for target in trainee.layout.targets]


@pytest.mark.parametrize(
    ("switch", "part"),
    [("train_attn", "_attn."), ("train_mlp", "mlp"), ("train_unembed", "lm_head")],
)
@pytest.mark.parametrize("kind", ["model_folder", "hybrid_folder"])
def test_switches_leave_modules_out(
    request: pytest.FixtureRequest, kind: str, switch: str, part: str
) -> None:
    """A module whose switch is off has no adapter; the others keep theirs."""
    config = read_config(request.getfixturevalue(kind))
    every = {t.name for t in LoraLayout(config, LoraConfig(rank=2)).targets}
    fewer = {t.name for t in LoraLayout(config, LoraConfig(rank=2, **{switch: False})).targets}
    assert every - fewer == {name for name in every if part in name}
    assert fewer


def test_a_fresh_adapter_changes_nothing_and_depends_on_its_seed(model_folder: Path) -> None:
    """B is zero, so the merged model is the base bit for bit; A differs between seeds."""
    config = read_config(model_folder)
    base = read_weights(model_folder, config)
    first, same, other = (
        LoraLayout(config, LoraConfig(rank=2, seed=seed)).fresh() for seed in (1, 1, 2)
    )
    merged = LoraLayout(config, LoraConfig(rank=2)).merge(base, first)
    assert all(torch.equal(merged.matrix(f"0.{n}"), base.matrix(f"0.{n}")) for n in ("qkv", "down"))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_steps_equal_torch_adamw(model_folder: Path) -> None:
    """Three steps with weight decay and clipping equal torch.optim.AdamW bit for bit."""
    trainee, start = _adapted(model_folder, LoraConfig(rank=2))
    data = _data(trainee.config.vocab, "cross_entropy")
    parameter = torch.nn.Parameter(start.clone())
    reference = torch.optim.AdamW(
        [parameter], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False
    )
    for _ in range(3):
        _run(trainee, data, "cross_entropy")
        parameter.grad = trainee.layout.gradient(trainee.flat, trainee._accumulated)
        norm = parameter.grad.double().norm()
        parameter.grad *= 1.0 / (norm.item() + 1e-6)
        reference.step()
        metrics = trainee.optim_step(AdamParams(0.01, 0.9, 0.95, 1e-8, 0.1, 1.0))
        assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
        assert torch.equal(trainee.flat, parameter.detach())


def test_gradients_accumulate_until_the_step(model_folder: Path) -> None:
    """Two requests in a row give the sum of their gradients; after the step it is zero again."""
    trainee, start = _adapted(model_folder, LoraConfig(rank=2))
    data = _data(trainee.config.vocab, "cross_entropy")
    _run(trainee, data, "cross_entropy")
    once = trainee.layout.gradient(start, trainee._accumulated)
    _run(trainee, data, "cross_entropy")
    twice = trainee.layout.gradient(start, trainee._accumulated)
    assert torch.equal(twice, 2 * once)
    trainee.optim_step(AdamParams(0.0, 0.9, 0.95, 1e-8, 0.0, 0.0))
    assert trainee._accumulated == {}


def test_a_request_that_is_not_finite_counts_for_nothing(model_folder: Path) -> None:
    """A ratio that overflows is refused by datum, and no part of its request is accumulated."""
    trainee, _ = _adapted(model_folder, LoraConfig(rank=2))
    data = _data(trainee.config.vocab, "importance_sampling")
    bad = Datum(
        data[1].tokens_T,
        data[1].targets_T_K,
        {**data[1].inputs, "logprobs": np.full_like(data[1].inputs["logprobs"], -200.0)},
        flat=True,
    )
    with pytest.raises(RequestError, match="datum 1"):
        _run(trainee, [data[0], bad], "importance_sampling")
    assert trainee._accumulated == {}


@pytest.mark.parametrize(
    "plant", [None, planted_kernels.rows_matter, planted_kernels.places_matter]
)
def test_a_datum_does_not_depend_on_its_request(
    model_folder: Path, plant: planted_kernels.Plant | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probs of a datum are bit-equal alone, in a crowd, and with micro-batches in any order.

    So they are where a product's bits go by its rows.
    """
    if plant is not None:
        plant(monkeypatch)
    config = read_config(model_folder)
    arrangement = arrangement_of(config, read_weights(model_folder, config))
    trainee, _ = _adapted(model_folder, LoraConfig(rank=2), arrangement)
    data = _data(trainee.config.vocab, "cross_entropy") * 12
    crowd = trainee.forward_backward(data, *resolve("cross_entropy", {}), False)
    for run in reversed(crowd.passes):
        run()
    together, _ = crowd.result()
    backwards = {n: g.clone() for n, g in trainee._accumulated.items()}
    for index in range(4):
        alone = trainee.forward_backward([data[index]], *resolve("cross_entropy", {}), True)
        for run in alone.passes:
            run()
        assert np.array_equal(alone.result()[0][0], together[index + 4])
    trainee._accumulated = {}
    _run(trainee, data, "cross_entropy")
    assert all(torch.equal(backwards[n], g) for n, g in trainee._accumulated.items())


def test_micro_batches_cover_each_datum_once() -> None:
    """Every index is in exactly one micro-batch, and a micro-batch has one padded length."""
    data = _data(99, "cross_entropy") * 50
    batches = list(micro_batches(data, 99))
    assert sorted(i for batch in batches for i in batch) == list(range(len(data)))
    assert all(len({-(-len(data[i].tokens_T) // 32) for i in b}) == 1 for b in batches)


@pytest.mark.parametrize(
    ("name", "knobs", "message"),
    [
        ("reinforce", {}, "unknown; served"),
        ("cross_entropy", {"beta": 1.0}, "'beta' is unknown"),
        ("ppo", {"clip_low_threshold": float("nan")}, "must be finite"),
        ("ppo", {"clip_low_threshold": 2.0}, "exceeds"),
    ],
)
def test_losses_refuse_what_they_do_not_know(
    name: str, knobs: dict[str, float], message: str
) -> None:
    """An unknown loss or knob, and a knob that makes no sense, are refused by name."""
    with pytest.raises(RequestError, match=message):
        resolve(name, knobs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not served"),
        ({"attention_bias": True}, "attention_bias"),
        ({"model_type": "qwen3_5_moe"}, "is not served"),
        ({"vocab_size": 12}, "has shape"),
        ({"num_hidden_layers": 3}, "is missing"),
    ],
)
def test_other_folders_are_refused_in_one_line(
    model_folder: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """A folder that can't be served is refused with the file and the reason."""
    import json
    import shutil

    shutil.copytree(model_folder, tmp_path, dirs_exist_ok=True)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, **change}))
    with pytest.raises(UnsupportedModel, match=message):
        read_weights(tmp_path, read_config(tmp_path))
