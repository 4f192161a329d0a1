"""Reading prompts: how often, how much is remembered, and that neither changes a bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from harness.engine import prompts
from harness.engine.base_model import read_config, read_weights
from harness.engine.prompts import PromptReader, ReadPrompt
from harness.engine.rope import Rope
from harness.engine.sequences import PromptWanted, Sampled, SampleRequest, SamplingParams

NOTHING = PromptWanted(False, 0)


@pytest.fixture(params=["model_folder", "hybrid_folder"])
def reader(request: pytest.FixtureRequest) -> PromptReader:
    """A reader that knows nothing yet, for a model of attention alone and one with delta layers."""
    folder: Path = request.getfixturevalue(request.param)
    config = read_config(folder)
    return PromptReader(config, read_weights(folder, config), Rope(config))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each pass of the test had."""
    rows: list[int] = []
    real = prompts.full_pass

    def counted(config, weights, rope, tokens, lengths):  # type: ignore[no-untyped-def] # a stand-in
        rows.append(len(tokens))
        return real(config, weights, rope, tokens, lengths)

    monkeypatch.setattr(prompts, "full_pass", counted)
    return rows


def _sequence(seed: int, length: int, wanted: PromptWanted = NOTHING) -> Sampled:
    prompt = np.random.default_rng(seed).integers(3, 98, length)
    params = SamplingParams(5, 1.0, -1, 1.0, 0, frozenset(), ())
    return SampleRequest(prompt, params, 1, wanted, lambda _: None).sequences[0]


def _same(one: ReadPrompt, other: ReadPrompt) -> bool:
    kept = zip(one.kept, other.kept, strict=True)
    return torch.equal(one.logits_V, other.logits_V) and all(
        torch.equal(a, b) for pair in kept for a, b in zip(*pair, strict=True)
    )


def test_a_prompt_is_read_once(reader: PromptReader, passes: list[int]) -> None:
    """Eight requests with one prompt, then four more: one pass over one row in all."""
    reader.read([_sequence(1, 20) for _ in range(8)])
    reader.read([_sequence(1, 20) for _ in range(4)])
    assert passes == [1]


def test_prompts_of_one_padded_length_share_passes(reader: PromptReader, passes: list[int]) -> None:
    """Forty prompts padded to 32 go sixteen at a time (512 tokens); one padded to 64 by itself."""
    reader.read([*(_sequence(i, 5 + i % 20) for i in range(40)), _sequence(99, 50)])
    assert sorted(passes) == [1, 8, 16, 16]


def test_company_and_memory_change_no_bit(reader: PromptReader) -> None:
    """A prompt read alone, among others, and remembered is the same, bit for bit."""
    alone = reader.read([_sequence(7, 30)])[0]
    reader._known.clear()
    among = reader.read([_sequence(i, 25 + i % 7) for i in range(12)])[7]
    again = reader.read([_sequence(7, 25)])[0]
    assert again is among
    reader._known.clear()
    assert _same(reader.read([_sequence(7, 25)])[0], among)
    assert _same(reader.read([_sequence(3, 9), _sequence(7, 30)])[1], alone)


def test_scores_are_computed_for_a_remembered_prompt_as_well(reader: PromptReader) -> None:
    """A request that asks for prompt log-probs gets them whoever brought the prompt before."""
    first, second = (_sequence(2, 40, PromptWanted(True, 2)) for _ in range(2))
    reader.read([first])
    reader.read([_sequence(2, 40)])
    reader.read([second])
    one, other = first.request.prompt_scores, second.request.prompt_scores
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.logprobs_N, other.logprobs_N)


def test_what_is_remembered_is_bounded(
    reader: PromptReader, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound the prompts used longest ago are forgotten; a larger one is not kept."""
    size = reader.read([_sequence(0, 20)])[0].size
    monkeypatch.setattr(prompts, "PROMPT_BYTES", 3 * size)
    for seed in (1, 2, 0, 3):
        reader.read([_sequence(seed, 20)])
    del passes[:]
    for seed in (2, 0, 3):
        reader.read([_sequence(seed, 20)])
    assert passes == []
    reader.read([_sequence(1, 20)])
    assert passes == [1]
    assert reader._bytes == sum(prompt.size for prompt in reader._known.values())
    reader.read([_sequence(5, 400)])
    assert reader._bytes <= 3 * size
