"""TF-IDF similarity and the leave-one-out weights made of it."""

import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from harness.cards import Kernel
from harness.errors import RunError, StatisticsError
from harness.methods import (
    cosine_loo_weights,
    effective_contributors,
    fit_tfidf,
    softmax_loo_weights,
    uniform_loo_weights,
)
from harness.methods.kernels import COMMON_WORDS

CORPUS = [
    "Ann has 3 apples and buys 4 apples.",
    "Ben sells 12 eggs at 2 dollars an egg.",
    "A train travels 60 miles in 2 hours.",
    "Ann eats 2 apples and 3 pears.",
    "The train stops for 10 minutes, then travels on.",
]


def settings(**changes) -> Kernel:
    """The registered kernel settings, with changes."""
    values = {
        "text": "question",
        "fitted_on": "train_questions",
        "ngram_range": (1, 1),
        "lowercase": True,
        "sublinear_tf": False,
        "stop_words": "none",
        "tau": 0.1,
    }
    return Kernel(**{**values, **changes})


def square_matrices(elements, least=2, most=9):
    """Square matrices of one drawn size."""
    sizes = st.integers(least, most)
    return sizes.flatmap(lambda n: arrays(np.float64, (n, n), elements=elements))


def reference_cosine(corpus, left, right):
    """Cosine of smooth-idf word counts, from dictionaries."""
    documents = [Counter(re.findall(r"\b\w\w+\b", text.lower())) for text in corpus]

    def vector(text):
        counts = Counter(re.findall(r"\b\w\w+\b", text.lower()))
        return {
            word: count * (math.log((1 + len(corpus)) / (1 + seen)) + 1)
            for word, count in counts.items()
            if (seen := sum(word in document for document in documents))
        }

    a, b = vector(left), vector(right)
    norms = math.hypot(*a.values()) * math.hypot(*b.values())
    return sum(a[word] * b.get(word, 0.0) for word in a) / norms if norms else 0.0


def test_similarity_is_the_cosine_of_smooth_idf_counts():
    """TF-IDF similarity equals a cosine computed word by word from the published formula."""
    texts = [*CORPUS[:3], "Apples travel by train.", "Nothing known here"]
    similarity = fit_tfidf(CORPUS, settings()).similarity(texts)
    expected = [[reference_cosine(CORPUS, a, b) for b in texts] for a in texts]
    np.testing.assert_allclose(similarity, expected, atol=1e-12)


def test_similarity_does_not_depend_on_the_batch():
    """Two prompts are as similar in a large batch as in a batch of their own."""
    kernel = fit_tfidf(CORPUS, settings())
    alone = kernel.similarity([CORPUS[0], CORPUS[3]])[0, 1]
    assert kernel.similarity(CORPUS)[0, 3] == pytest.approx(alone, abs=1e-15)
    assert 0.1 < alone < 1.0


def test_similarity_of_many_words_is_the_plain_product():
    """Splitting the vocabulary into common and rare words changes no cosine."""
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(3 * COMMON_WORDS)]
    texts = [" ".join(rng.choice(words, 40)) for _ in range(30)]
    kernel = fit_tfidf(texts, settings())
    vectors = kernel.vectorizer.transform(texts).toarray()
    assert vectors.shape[1] > COMMON_WORDS
    np.testing.assert_allclose(kernel.similarity(texts), vectors @ vectors.T, atol=1e-14)


@pytest.mark.parametrize(
    ("changes", "left", "right", "same_before", "same_after"),
    [
        ({"lowercase": False}, "Apples", "apples", True, False),
        ({"stop_words": "english"}, "and the apples", "apples", False, True),
        ({"ngram_range": (2, 2)}, "60 miles in", "in 60 miles", True, False),
        ({"sublinear_tf": True}, "apples apples train", "apples train", False, False),
    ],
)
def test_settings_reach_the_vectors(changes, left, right, same_before, same_after):
    """Case, stop words, n-grams and sublinear counts change how alike two texts are."""
    corpus = [*CORPUS, "Apples apples train and the 60 miles in in 60"]
    before, after = (
        fit_tfidf(corpus, chosen).similarity([left, right])[0, 1]
        for chosen in (settings(), settings(**changes))
    )
    assert abs(after - before) > 0.005
    assert bool(before > 1 - 1e-12) is same_before
    assert bool(after > 1 - 1e-12) is same_after


def test_a_corpus_without_words_is_refused():
    """A kernel that can tell nothing apart is not fitted."""
    with pytest.raises(StatisticsError, match="2 texts"):
        fit_tfidf(["", "!"], settings())


@given(square_matrices(st.floats(-1, 1)), st.sampled_from([0.01, 0.1, 1.0, 100.0]))
def test_softmax_weights_match_a_loop(similarity, tau):
    """Each row is exp(s/tau) over the others, divided by its sum."""
    weights = softmax_loo_weights(similarity, tau)
    for i, row in enumerate(similarity):
        others = [j for j in range(len(row)) if j != i]
        top = max(row[j] for j in others)
        raw = {j: math.exp((row[j] - top) / tau) for j in others}
        expected = [raw[j] / sum(raw.values()) if j != i else 0.0 for j in range(len(row))]
        np.testing.assert_allclose(weights[i], expected, atol=1e-14)


@given(square_matrices(st.floats(-1e6, 1e6)), st.sampled_from([1e-3, 0.1, 1.0]))
def test_weights_are_leave_one_out_weights(similarity, tau):
    """However large the similarities are: zero diagonal, no negative weight, rows sum to 1."""
    for weights in (softmax_loo_weights(similarity, tau), cosine_loo_weights(similarity)):
        assert not np.diagonal(weights).any()
        assert (weights >= 0).all()
        np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-12)


@given(square_matrices(st.floats(0, 1)))
def test_own_similarity_changes_no_weight(similarity):
    """The diagonal is not looked at, whatever the kernel says about a prompt and itself."""
    other = similarity.copy()
    np.fill_diagonal(other, 1e3)
    np.testing.assert_array_equal(
        softmax_loo_weights(similarity, 0.1), softmax_loo_weights(other, 0.1)
    )
    np.testing.assert_array_equal(cosine_loo_weights(similarity), cosine_loo_weights(other))


def test_tau_runs_from_the_nearest_neighbour_to_uniform():
    """A tiny tau takes the most similar prompt alone, a huge one takes all alike."""
    similarity = np.array([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]])
    nearest = [[0, 1, 0], [1, 0, 0], [0, 1, 0]]
    np.testing.assert_allclose(softmax_loo_weights(similarity, 1e-3), nearest, atol=1e-12)
    uniform = uniform_loo_weights(3)
    np.testing.assert_allclose(softmax_loo_weights(similarity, 1e9), uniform, atol=1e-8)


def test_cosine_weights_by_hand():
    """Positive cosines are divided by their sum; a row without any falls back to uniform."""
    similarity = [[1.0, 0.3, 0.1, -0.5], [0.3, 1, 0, 0], [0.1, 0, 1, 0], [-0.5, 0, 0, 1]]
    third = 1 / 3
    expected = [[0, 0.75, 0.25, 0], [1, 0, 0, 0], [1, 0, 0, 0], [third, third, third, 0]]
    np.testing.assert_allclose(cosine_loo_weights(similarity), expected, atol=1e-15)


@given(square_matrices(st.floats(0, 1)))
def test_contributors_lie_between_one_and_all_others(similarity):
    """Kish's size is at least one neighbour and at most every other prompt."""
    contributors = effective_contributors(softmax_loo_weights(similarity, 0.05))
    assert (contributors >= 1 - 1e-9).all()
    assert (contributors <= len(similarity) - 1 + 1e-9).all()


def test_contributors_by_hand():
    """Uniform weights over 63 others count 63, and weights 0.75 and 0.25 count 1.6."""
    np.testing.assert_allclose(effective_contributors(uniform_loo_weights(64)), 63.0)
    weights = [[0, 0.75, 0.25], [1, 0, 0], [0.5, 0.5, 0]]
    np.testing.assert_allclose(effective_contributors(weights), [1.6, 1.0, 2.0])


@pytest.mark.parametrize("tau", [0.0, -0.1, float("nan"), float("inf")])
def test_tau_must_be_a_positive_number(tau):
    """A temperature that is not above 0 and finite is refused by value."""
    with pytest.raises(StatisticsError, match="tau is"):
        softmax_loo_weights(np.eye(3), tau)


@pytest.mark.parametrize("build", [lambda s: softmax_loo_weights(s, 0.1), cosine_loo_weights])
def test_similarities_must_be_a_finite_square_of_two_prompts(build):
    """NaN, an oblong matrix and a batch of one prompt are errors."""
    with pytest.raises(RunError, match=r"similarity at position \(0, 1\) is nan"):
        build([[1.0, float("nan")], [0.0, 1.0]])
    with pytest.raises(StatisticsError, match=r"shape \(1, 2\)"):
        build([[1.0, 0.5]])
    with pytest.raises(StatisticsError, match="needs at least 2"):
        build([[1.0]])


def test_weights_leave_the_similarities_as_they_were():
    """Building weights does not write into the matrix that was given."""
    similarity = np.array([[1.0, 0.5], [0.5, 1.0]])
    before = similarity.copy()
    softmax_loo_weights(similarity, 0.1)
    cosine_loo_weights(similarity)
    np.testing.assert_array_equal(similarity, before)
