"""What the kernel costs at the size of GSM8K, in processor time: texts of its length and spread."""

import time

import numpy as np
import pytest

from harness.cards import Kernel
from harness.methods import fit_tfidf, gs1, kernel_loo_weights

SETTINGS = Kernel(
    text="question", fitted_on="train_questions", ngram_range=(1, 1), lowercase=True,
    sublinear_tf=False, stop_words="none", tau=0.1,
)  # fmt: skip
TRIES = 3


@pytest.fixture(scope="module")
def texts():
    """7,473 texts of 46 words each, from 8,000 words of Zipf's frequencies."""
    rng = np.random.default_rng(0)
    shares = 1.0 / np.arange(1, 8001)
    words = rng.choice(8000, p=shares / shares.sum(), size=(7473, 46))
    return [" ".join(f"word{word}" for word in row) for row in words.tolist()]


def cheapest(work):
    """Processor seconds of the cheapest of a few tries, and what it gave."""
    costs = []
    for _ in range(TRIES):
        started = time.process_time()
        result = work()
        costs.append(time.process_time() - started)
    return min(costs), result


def test_tfidf_of_a_train_split_takes_less_than_half_a_second(texts):
    """Fitted on 7,473 prompts."""
    seconds, _ = cheapest(lambda: fit_tfidf(texts, SETTINGS))

    assert seconds < 0.5


def test_weights_of_4096_prompts_take_less_than_a_second(texts):
    """Similarities, softmax weights and advantages of one batch."""
    fitted = fit_tfidf(texts, SETTINGS)
    rewards = np.random.default_rng(1).random(4096)

    def weigh():
        return gs1(rewards, kernel_loo_weights(fitted.similarity(texts[:4096]), SETTINGS))

    seconds, advantages = cheapest(weigh)
    assert seconds < 1.0
    assert np.isfinite(advantages).all()
