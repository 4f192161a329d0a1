"""Sampling: what a sequence depends on, and how tokens are chosen."""

import threading
from collections.abc import Sequence

import numpy as np
import planted_kernels
import pytest
import torch
import torch.nn.functional as F

from harness.engine.architecture import DecoderConfig, Weights
from harness.engine.arrangement import FREE, Arrangement
from harness.engine.base_model import read_config, read_weights
from harness.engine.choosing import choose_tokens
from harness.engine.decoder import full_pass
from harness.engine.kernel_probe import arrangement_of
from harness.engine.rope import Rope
from harness.engine.sampler import Batch
from harness.engine.sequences import (
    Pool,
    PromptWanted,
    Sampled,
    SampleRequest,
    SamplingParams,
)

NOTHING = PromptWanted(False, 0)
Model = tuple[DecoderConfig, Weights, Rope]


@pytest.fixture(scope="module", params=["model_folder", "hybrid_folder"])
def model(request: pytest.FixtureRequest) -> Model:
    """The small models, one of attention alone and one with delta layers, each loaded once."""
    folder = request.getfixturevalue(request.param)
    config = read_config(folder)
    return config, read_weights(folder, config), Rope(config)


def _prompt(index: int, length: int | None = None) -> np.ndarray:
    rng = np.random.default_rng(index)
    return rng.integers(3, 98, length or int(rng.integers(3, 120)))


def _request(
    prompt: np.ndarray,
    seed: int,
    max_tokens: int = 40,
    num_samples: int = 1,
    wanted: PromptWanted = NOTHING,
    **params: object,
) -> SampleRequest:
    settings = {
        "temperature": 1.0,
        "top_k": -1,
        "top_p": 1.0,
        "stop_ids": frozenset({2}),
        "stop_strings": (),
        **params,
    }
    return SampleRequest(
        prompt,
        SamplingParams(max_tokens=max_tokens, seed=seed, **settings),
        num_samples,
        wanted,
        lambda _: None,
    )


def _decode(tokens: Sequence[int]) -> str:
    return "".join(chr(29 + t) for t in tokens)


def _serve(
    model: Model,
    requests: Sequence[SampleRequest],
    workers: int = 1,
    arrangement: Arrangement = FREE,
) -> None:
    """Run all requests, on several threads where asked."""
    pool = Pool()
    for request in requests:
        pool.add(request)
    lock = threading.Lock()

    def work() -> None:
        batch = Batch(*model, _decode, pool, lock, workers, arrangement=arrangement)
        while batch.busy or pool.waiting:
            batch.advance()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _outcome(request: SampleRequest) -> list[tuple[list[int], list[float], bool]]:
    return [(s.tokens, s.logprobs, s.stopped) for s in request.sequences]


@pytest.mark.parametrize(
    ("plant", "company"),
    [
        (None, 138),
        (planted_kernels.lengths_matter, 138),
        (planted_kernels.rows_matter, 100),
        (planted_kernels.places_matter, 30),
    ],
)
def test_a_sequence_does_not_depend_on_its_neighbours(
    model: Model, plant: planted_kernels.Plant | None, company: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, among many on one thread, and on two: tokens and log-probs are bit-equal.

    So they are where a product's bits go by the length of its sums, by its rows or by their place.
    """
    if plant is not None:
        plant(monkeypatch)
    arrangement = arrangement_of(*model[:2])
    alone = [_request(_prompt(i), seed=i) for i in range(12)]
    for request in alone:
        _serve(model, [request], arrangement=arrangement)
    for workers in (1, 2):
        probes = [_request(_prompt(i), seed=i) for i in range(12)]
        noise = [
            _request(_prompt(100 + i), 100 + i, max_tokens=5 + i, temperature=0.7)
            for i in range(company)
        ]
        crowd = [*noise[:60], *probes[:6], *noise[60:], *probes[6:]]
        _serve(model, crowd, workers, arrangement)
        assert [_outcome(r) for r in probes] == [_outcome(r) for r in alone]


def test_the_cache_is_bounded_and_the_bound_changes_no_bit(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for 32 rows of 64 positions, or 8 of any length, and no more; long rows wait for it."""
    lengths = [20] * 30 + [190] * 10 + [20] * 30

    def requests() -> list[SampleRequest]:
        return [_request(_prompt(i, n), i, max_tokens=30) for i, n in enumerate(lengths)]

    free, bounded = requests(), requests()
    _serve(model, free)
    config, pool, rows, largest = model[0], Pool(), 0, 0
    monkeypatch.setattr("harness.engine.sampler.CACHE_BYTES", 32 * config.cache_bytes(64))
    for request in bounded:
        pool.add(request)
    batch = Batch(*model, _decode, pool, threading.Lock(), 1)
    while batch.busy or pool.waiting:
        batch.advance()
        held, each = batch.cache.rows, config.cache_bytes(batch.cache.capacity)
        assert held == 8 or held * each <= 32 * config.cache_bytes(64)
        rows, largest = max(rows, held), max(largest, batch.cache.capacity)
    assert (rows, largest) == (32, 256)
    assert [_outcome(r) for r in bounded] == [_outcome(r) for r in free]


def test_waiting_for_company_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lone request waits 2 ms, a trickle 10 ms in all, and a full batch not at all."""
    now = [100.0]
    monkeypatch.setattr("harness.engine.sequences.time.monotonic", lambda: now[0])
    pool = Pool()
    pool.add(_request(_prompt(0), 0))
    assert pool.patience == pytest.approx(0.002)
    now[0] += 0.0021
    assert pool.patience < 0
    for _ in range(9):
        pool.add(_request(_prompt(0), 0))
        now[0] += 0.0015
    assert pool.patience < 0
    full = Pool()
    full.add(_request(_prompt(0), 0, num_samples=64))
    assert full.patience == 0


def test_samples_of_a_request_are_streams_of_its_seed(model: Model) -> None:
    """num_samples=6 gives six different sequences, and the first equals the request for one."""
    six = _request(_prompt(1), seed=3, num_samples=6)
    one = _request(_prompt(1), seed=3)
    _serve(model, [six])
    _serve(model, [one])
    assert _outcome(six)[0] == _outcome(one)[0]
    assert len({tuple(s.tokens) for s in six.sequences}) == 6


def test_log_probs_equal_those_of_the_full_pass(model: Model) -> None:
    """Sampled log-probs are the raw log-softmax of one pass over the row, within 1e-5."""
    request = _request(_prompt(5), seed=1, temperature=0.6, top_k=20)
    _serve(model, [request])
    config, weights, rope = model
    sequence = request.sequences[0]
    row = torch.tensor([*request.prompt_N.tolist(), *sequence.tokens])
    with torch.no_grad():
        hidden, _ = full_pass(config, weights, rope, row[None, :-1])
        lp = F.linear(hidden, weights.unembed_V_D).log_softmax(-1)[0]
    expected = lp.gather(-1, row[1:, None])[len(request.prompt_N) - 1 :, 0]
    assert (expected - torch.tensor(sequence.logprobs)).abs().max().item() < 1e-5


def test_prompt_scores_have_one_entry_per_token(model: Model) -> None:
    """Prompt log-probs: NaN first, then the full pass's; the top list contains the best token."""
    request = _request(_prompt(9, 50), seed=1, max_tokens=1, wanted=PromptWanted(True, 3))
    _serve(model, [request])
    config, weights, rope = model
    with torch.no_grad():
        hidden, _ = full_pass(config, weights, rope, torch.from_numpy(request.prompt_N)[None])
        lp = F.linear(hidden, weights.unembed_V_D).log_softmax(-1)[0]
    scores = request.prompt_scores
    assert scores is not None
    assert scores.top_ids_N_K is not None
    assert np.isnan(scores.logprobs_N[0])
    expected = lp[:-1].gather(-1, torch.from_numpy(request.prompt_N[1:, None]))[:, 0].numpy()
    assert np.abs(scores.logprobs_N[1:] - expected).max() < 1e-5
    assert scores.top_ids_N_K.shape == (50, 3)
    assert (scores.top_ids_N_K[1:, 0] == lp[:-1].argmax(-1).numpy()).all()


def test_a_stop_token_is_kept_and_ends_the_sequence(model: Model) -> None:
    """The last token of a stopped sequence is the stop token; the others hold none."""
    requests = [
        _request(_prompt(i), i, max_tokens=80, stop_ids=frozenset({2, 50})) for i in range(20)
    ]
    _serve(model, requests)
    stopped = [s for r in requests for s in r.sequences if s.stopped]
    assert stopped
    assert all(s.tokens[-1] in (2, 50) and not {2, 50} & set(s.tokens[:-1]) for s in stopped)
    cut = [s for r in requests for s in r.sequences if not s.stopped]
    assert all(len(s.tokens) == 80 for s in cut)


def test_a_stop_string_ends_at_the_token_that_completes_it(model: Model) -> None:
    """The text of a stopped sequence ends with the stop string and holds it only once."""
    free = _request(_prompt(3), seed=8, max_tokens=60, stop_ids=frozenset())
    _serve(model, [free])
    text = _decode(free.sequences[0].tokens)
    stop = text[20:23]
    held = _request(_prompt(3), seed=8, max_tokens=60, stop_ids=frozenset(), stop_strings=(stop,))
    _serve(model, [held])
    assert held.sequences[0].stopped
    assert _decode(held.sequences[0].tokens) == text[: text.index(stop) + 3]


def _choose(lp: torch.Tensor, count: int, **params: object) -> np.ndarray:
    """`count` independent draws from one distribution."""
    sequences = [Sampled(_request(_prompt(0), seed=seed, **params), 0) for seed in range(count)]
    return choose_tokens(lp.expand(count, -1), sequences).numpy()


def test_temperature_zero_is_greedy() -> None:
    """At temperature 0 every draw is the likeliest token, the first of equal ones."""
    lp = torch.tensor([0.1, 0.4, 0.4, 0.1]).log()
    assert set(_choose(lp, 50, temperature=0.0)) == {1}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_distribution(temperature: float) -> None:
    """Frequencies of 8,000 draws lie within five standard errors of softmax(logits / T)."""
    lp = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    n = 8_000
    expected = (lp / temperature).softmax(-1).numpy()
    found = np.bincount(_choose(lp, n, temperature=temperature), minlength=4) / n
    assert (np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / n)).all()


def test_top_k_and_top_p_exclude_the_tail() -> None:
    """top_k keeps k tokens; top_p the smallest set that reaches p; the first is never excluded."""
    lp = torch.tensor([0.1, 0.5, 0.25, 0.15]).log()
    assert set(_choose(lp, 300, top_k=2)) == {1, 2}
    assert set(_choose(lp, 300, top_p=0.7)) == {1, 2}
    assert set(_choose(lp, 300, top_p=0.8)) == {1, 2, 3}
    assert set(_choose(lp, 300, top_p=1e-9)) == {1}
    assert set(_choose(lp, 300, top_k=1, temperature=5.0)) == {1}


@pytest.mark.parametrize("columns", [99, 1000])
def test_matrix_products_do_not_depend_on_other_rows(columns: int) -> None:
    """From 8 rows on, a row of x Wᵀ is the same bits for every number of rows (one thread)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, 128, generator=generator)
    w = torch.randn(columns, 128, generator=generator)
    whole = F.linear(x, w)
    assert all(torch.equal(F.linear(x[:n], w), whole[:n]) for n in range(8, 97, 8))
