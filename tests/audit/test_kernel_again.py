"""Baselines over similar prompts, by two computations."""

import numpy as np
import pytest

from harness.kernels.tfidf import Corpus, Kernel
from harness.methods import fit_tfidf, kernel_loo_weights
from harness.methods.kernels import uniform_loo_weights

WORDS = ["a", "pen", "pens", "apple", "Apples", "red", "the", "of", "12", "nails", "Ada", "has"]


def texts(count: int, seed: int) -> list[str]:
    """Texts of 1 to 12 of these words; one of them holds no word of two letters."""
    generator = np.random.Generator(np.random.PCG64(seed))
    drawn = (generator.choice(WORDS, size=generator.integers(1, 13)) for _ in range(count))
    return ["?", *(" ".join(row) for row in drawn)]


@pytest.mark.parametrize(
    "settings",
    [
        {"tau": 0.1},
        {"tau": 1e-3, "ngram_range": (1, 2), "sublinear_tf": True},
        {"tau": 1e6, "lowercase": False},
        {"weighting": "cosine", "stop_words": "english"},
    ],
    ids=str,
)
def test_baselines_are_those_of_the_loop(settings):
    """Two computations agree for every setting of a kernel, and uniform weights are told apart."""
    plain = {"ngram_range": (1, 1), "lowercase": True, "sublinear_tf": False, "stop_words": "none"}
    registered = {"text": "question", "fitted_on": "train_questions", **plain, **settings}
    kernel = Kernel.model_validate(registered)
    corpus, batch = texts(200, 1), texts(30, 2)
    rewards_P = np.random.Generator(np.random.PCG64(3)).random(len(batch))

    found = Corpus.of(corpus, kernel).weights(batch) @ rewards_P

    weights_P_P = kernel_loo_weights(fit_tfidf(corpus, kernel).similarity(batch), kernel)
    assert np.abs(weights_P_P @ rewards_P - found).max() < 1e-9
    uniform_P = uniform_loo_weights(len(batch)) @ rewards_P
    assert (np.abs(uniform_P - found).max() > 1e-3) == (settings.get("tau") != 1e6)
