"""Prompt similarity, and the leave-one-out weights that are made of it.

A weight matrix has one row per prompt: row i weighs the rewards of the other prompts in the
baseline of prompt i. Its diagonal is zero and its rows sum to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike

from harness.errors import StatisticsError
from harness.methods.arrays import FloatArray, finite

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]  # no stubs

# words shared by most prompts multiply faster as a dense block, the long tail as a sparse one
COMMON_WORDS = 256

# rows are sums of up to thousands of float64 terms
ROW_SUM_TOLERANCE = 1e-9


class KernelSettings(Protocol):
    """What a kernel is made of, whoever registers it.

    `softmax` weighs by exp(cos / tau), `cosine` by max(0, cos) and has no tau.
    """

    @property
    def ngram_range(self) -> tuple[int, int]:
        """The shortest and the longest run of words that counts as a term."""

    @property
    def lowercase(self) -> bool:
        """Whether case is ignored."""

    @property
    def sublinear_tf(self) -> bool:
        """Whether a term's count c weighs as 1 + ln(c)."""

    @property
    def stop_words(self) -> str:
        """`english`, or `none`."""

    @property
    def tau(self) -> float | None:
        """The temperature of a softmax, above 0."""

    @property
    def weighting(self) -> str:
        """`softmax` or `cosine`."""


@dataclass(frozen=True)
class PromptKernel:
    """A fitted TF-IDF space. A prompt's vector depends on the corpus, never on its batch."""

    vectorizer: "TfidfVectorizer"

    def similarity(self, texts: Sequence[str]) -> FloatArray:
        """Cosine of the TF-IDF vectors of every two texts.

        A text without a single known word has the cosine 0 with every text, itself included.

        Returns:
            shape (P, P), symmetric, in [0, 1] up to rounding.
        """
        vectors_P_V = self.vectorizer.transform(texts)
        holders_V = np.bincount(vectors_P_V.indices, minlength=vectors_P_V.shape[1])
        by_frequency_V = np.argsort(-holders_V, kind="stable")
        common_P_C = vectors_P_V[:, by_frequency_V[:COMMON_WORDS]].toarray()
        rare_P_R = vectors_P_V[:, by_frequency_V[COMMON_WORDS:]]
        # rows have unit length, so their products are cosines
        return np.asarray(common_P_C @ common_P_C.T + (rare_P_R @ rare_P_R.T).toarray())


def fit_tfidf(texts: Sequence[str], settings: KernelSettings) -> PromptKernel:
    """Fit TF-IDF on a corpus: smooth idf, rows of unit length, scikit-learn's word pattern.

    Args:
        texts: the corpus, such as every train question.
        settings: n-gram range, case, sublinear tf and stop words. `tau` is not used here.

    Source: scikit-learn, `TfidfVectorizer`; idf(t) = ln((1 + n) / (1 + df(t))) + 1.

    Raises:
        StatisticsError: no text holds a word.
    """
    # imported here: it takes longer than everything else in this package
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(
        ngram_range=settings.ngram_range,
        lowercase=settings.lowercase,
        sublinear_tf=settings.sublinear_tf,
        stop_words="english" if settings.stop_words == "english" else None,
        dtype=np.float64,
    )
    try:
        vectorizer.fit(texts)
    except ValueError as error:
        raise StatisticsError(
            f"TF-IDF can't be fitted on {len(texts)} texts: {error}; give texts with words"
        ) from None
    return PromptKernel(vectorizer)


def softmax_loo_weights(similarity_P_P: ArrayLike, tau: float) -> FloatArray:
    """w_ij = exp(s_ij / tau) / sum_{l != i} exp(s_il / tau) for j != i, and w_ii = 0.

    Source: the registered GS1 cards, "softmax over j != i of cos(e_i, e_j) / tau".

    Args:
        similarity_P_P: any real similarities; the diagonal is not looked at.
        tau: temperature, above 0. Large is uniform, small is the nearest neighbour.

    Returns:
        shape (P, P); rows sum to 1.

    Raises:
        StatisticsError: tau is not above 0, the matrix is not square, or P < 2.
        RunError: a similarity is NaN or infinite.
    """
    if not (np.isfinite(tau) and tau > 0):
        raise StatisticsError(f"tau is {tau}; it must be a finite number above 0; set it")
    logits_P_P = _square(similarity_P_P)
    logits_P_P /= tau
    np.fill_diagonal(logits_P_P, -np.inf)
    # the largest logit of a row becomes 0, so exp can't overflow
    logits_P_P -= logits_P_P.max(axis=1, keepdims=True)
    np.exp(logits_P_P, out=logits_P_P)
    logits_P_P /= logits_P_P.sum(axis=1, keepdims=True)
    return logits_P_P


def kernel_loo_weights(similarity_P_P: ArrayLike, kernel: KernelSettings) -> FloatArray:
    """The weights that a registered kernel makes of similarities: softmax or cosine.

    Raises:
        StatisticsError, RunError: see `softmax_loo_weights` and `cosine_loo_weights`; a softmax
            kernel without a tau is refused too.
    """
    if kernel.weighting == "cosine":
        return cosine_loo_weights(similarity_P_P)
    if kernel.tau is None:
        raise StatisticsError("a softmax kernel has no tau; register one")
    return softmax_loo_weights(similarity_P_P, kernel.tau)


def cosine_loo_weights(similarity_P_P: ArrayLike) -> FloatArray:
    """w_ij = max(0, s_ij) / sum_{l != i} max(0, s_il) for j != i, and w_ii = 0.

    A row without any positive similarity takes the uniform weights 1/(P - 1).

    Source: the registered card gs1_vs_grpo_gsm8k_08b_cosine.

    Returns:
        shape (P, P); rows sum to 1.

    Raises:
        StatisticsError: the matrix is not square, or P < 2.
        RunError: a similarity is NaN or infinite.
    """
    weights_P_P = _square(similarity_P_P)
    np.maximum(weights_P_P, 0.0, out=weights_P_P)
    np.fill_diagonal(weights_P_P, 0.0)
    weights_P_P[weights_P_P.max(axis=1) == 0.0] = 1.0
    np.fill_diagonal(weights_P_P, 0.0)
    weights_P_P /= weights_P_P.sum(axis=1, keepdims=True)
    return weights_P_P


def uniform_loo_weights(prompts: int) -> FloatArray:
    """w_ij = 1/(P - 1) for j != i, and w_ii = 0.

    Returns:
        shape (P, P); rows sum to 1.

    Raises:
        StatisticsError: P < 2, so there is no other prompt.
    """
    _refuse_lonely(prompts)
    weights_P_P = np.full((prompts, prompts), 1.0 / (prompts - 1))
    np.fill_diagonal(weights_P_P, 0.0)
    return weights_P_P


def effective_contributors(weights_P_P: ArrayLike) -> FloatArray:
    """How many prompts a baseline effectively averages: n_i = 1 / sum_j w_ij^2.

    Source: Kish's effective sample size, with weights that sum to 1.

    Returns:
        shape (P,), from 1 (one neighbour) to P - 1 (uniform weights).

    Raises:
        StatisticsError, RunError: see `loo_weights`.
    """
    weights = loo_weights(weights_P_P)
    return np.asarray(1.0 / np.einsum("ij,ij->i", weights, weights))


def loo_weights(weights_P_P: ArrayLike) -> FloatArray:
    """`weights_P_P` as a float64 array, after a check that it is a leave-one-out weighting.

    Raises:
        StatisticsError: not square, P < 2, a diagonal entry is not zero, or a row does not sum
            to 1 within `ROW_SUM_TOLERANCE`.
        RunError: a weight is NaN or infinite.
    """
    weights = finite(weights_P_P, "weight", ndim=2)
    _refuse_oblong(weights.shape)
    _refuse_lonely(len(weights))
    diagonal_P = np.diagonal(weights)
    if diagonal_P.any():
        row = int(np.flatnonzero(diagonal_P)[0])
        raise StatisticsError(
            f"weight ({row}, {row}) is {diagonal_P[row]}; a leave-one-out row gives its own "
            "reward the weight 0"
        )
    excess_P = np.abs(weights.sum(axis=1) - 1.0)
    row = int(excess_P.argmax())
    if excess_P[row] > ROW_SUM_TOLERANCE:
        raise StatisticsError(
            f"weights of row {row} sum to 1 with an error of {excess_P[row]:.3g}, above "
            f"{ROW_SUM_TOLERANCE:g}; divide each row by its sum"
        )
    return weights


def _square(similarity_P_P: ArrayLike) -> FloatArray:
    """A copy of the similarities, free to be written into."""
    similarity = finite(similarity_P_P, "similarity", ndim=2)
    _refuse_oblong(similarity.shape)
    _refuse_lonely(len(similarity))
    return similarity.copy()


def _refuse_oblong(shape: tuple[int, ...]) -> None:
    if shape[0] != shape[1]:
        raise StatisticsError(f"the matrix has shape {shape}; give one row and column per prompt")


def _refuse_lonely(prompts: int) -> None:
    if prompts < 2:
        raise StatisticsError(
            f"{prompts} prompt in the batch; a leave-one-out baseline needs at least 2"
        )
