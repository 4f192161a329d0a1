import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3ForCausalLM

from harness.embedded import MODEL_DIR, data_sha256
from harness.embedded.pretrain import (
    IGNORED,
    Recipe,
    answer_loss,
    encode_answer,
    learning_rate,
    make_model,
    measure,
    pad_batch,
    per_100_steps,
    pretrain,
)
from harness.embedded.problems import generate
from harness.embedded.styles import write_answer
from harness.embedded.tokenizer import IM_END

TRAIN = generate().train


@pytest.fixture(scope="module")
def nano():
    """The committed model and its tokenizer."""
    model = Qwen3ForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(MODEL_DIR)


def test_the_model_is_a_nano_qwen3(nano) -> None:
    """Qwen3 architecture, under one million weights, in a folder of at most 4 MB."""
    model, tokenizer = nano
    config = json.loads((MODEL_DIR / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert model.num_parameters() < 1_000_000
    assert config["vocab_size"] == len(tokenizer)
    assert sum(file.stat().st_size for file in MODEL_DIR.iterdir()) <= 4_000_000


def test_weights_are_finite_float32() -> None:
    """Every stored tensor loads to float32 exactly and holds no NaN or infinity."""
    for tensor in load_file(MODEL_DIR / "model.safetensors").values():
        assert tensor.dtype == torch.float32
        assert torch.isfinite(tensor).all()


def test_the_base_model_leaves_room_to_learn(nano) -> None:
    """Greedy on 64 test problems: some right, some wrong, by either reading of the answer."""
    figures = measure(*nano, generate().test[:64], seed=None)
    assert 0.40 <= figures["boxed_accuracy"] <= 0.80
    assert 0.40 <= figures["last_answer_accuracy"] <= 0.80
    assert figures["mean_tokens"] <= 40


def test_samples_are_right_often_enough_to_learn_from(nano) -> None:
    """At temperature 1 between 25 and 60 per cent of the answers are boxed and right."""
    figures = measure(*nano, TRAIN[:128], seed=0)
    assert 0.25 <= figures["boxed_accuracy"] <= 0.60


def test_the_summary_names_this_data() -> None:
    """pretraining.json was written for the data that the project generates today."""
    summary = json.loads((MODEL_DIR / "pretraining.json").read_text())
    assert summary["data_sha256"] == data_sha256()
    assert summary["recipe"] == vars(Recipe())
    assert summary["mean_loss_per_100_steps"][-1] < summary["mean_loss_per_100_steps"][0]


def test_labels_cover_the_answer_alone(nano) -> None:
    """The prompt and the padding are ignored; the answer with its stop token is not."""
    _, tokenizer = nano
    ids_BT, labels_BT = pad_batch(
        [encode_answer(tokenizer, TRAIN[0], style) for style in ("worked", "told")]
    )
    assert ids_BT.shape == labels_BT.shape
    for labels_T, style in zip(labels_BT, ("worked", "told"), strict=True):
        answer = tokenizer.decode(labels_T[labels_T != IGNORED])
        assert answer == write_answer(TRAIN[0], style) + IM_END


def test_the_loss_is_the_models_own(nano) -> None:
    """Summed over answer tokens it equals the library's mean loss times their number."""
    model, tokenizer = nano
    ids_BT, labels_BT = pad_batch([encode_answer(tokenizer, p, "worked") for p in TRAIN[:8]])
    with torch.no_grad():
        loss, n_tokens = answer_loss(model, ids_BT, labels_BT)
        mean = model(input_ids=ids_BT, labels=labels_BT).loss
    assert n_tokens == int((labels_BT != IGNORED).sum())
    assert loss.item() == pytest.approx(mean.item() * n_tokens, rel=1e-4)


def test_a_few_steps_lower_the_loss_and_repeat_exactly(nano) -> None:
    """Two short runs from one seed give one loss curve and the same weights."""
    recipe = replace(Recipe(), steps=6, warmup_steps=1, batch_size=8)
    curves, weights = [], []
    _, tokenizer = nano
    for _ in range(2):
        model = make_model(len(tokenizer), seed=3)
        curves.append(pretrain(model, tokenizer, TRAIN[:64], recipe, seed=3))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert curves[0] == curves[1]
    assert curves[0][-1] < curves[0][0]
    assert torch.equal(*weights)


def test_a_summary_s_losses_are_means_of_100_steps() -> None:
    """And of what is left at the end, by as many as are left."""
    assert per_100_steps([1.0, 2.0] * 50 + [4.0, 5.00006]) == [1.5, 4.5]


@pytest.mark.parametrize(("step", "share"), [(0, 0.01), (99, 1.0), (100, 1.0)])
def test_the_learning_rate_warms_up(step: int, share: float) -> None:
    """Linear over the warm-up steps, then at its peak."""
    recipe = Recipe()
    assert learning_rate(step, recipe) == pytest.approx(share * recipe.learning_rate)


def test_the_learning_rate_ends_near_zero() -> None:
    """After the last step of the cosine nothing is left."""
    recipe = Recipe()
    assert learning_rate(recipe.steps, recipe) == pytest.approx(0, abs=1e-12)
