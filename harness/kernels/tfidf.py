"""TF-IDF cosines turned into leave-one-out weights: settings, declaration, and the reference.

The reference works TF-IDF, cosines and weights out from the texts alone, as their sources write
them, by code that shares nothing with `harness.methods.kernels`.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict, Field

from harness.components import Settings, kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from harness.components.kernel import WeightsOf

WORD = re.compile(r"\b\w\w+\b")


class Kernel(Settings):
    """Prompt similarity: TF-IDF cosine turned into leave-one-out weights.

    `softmax` weighs by exp(cos / tau), `cosine` by max(0, cos) and has no tau.
    """

    model_config = ConfigDict(strict=True)

    text: Literal["question"]
    fitted_on: Literal["train_questions"]
    ngram_range: tuple[int, int]
    lowercase: bool
    sublinear_tf: bool
    stop_words: Literal["english", "none"]
    tau: float | None = Field(default=None, gt=0)
    weighting: Literal["softmax", "cosine"] = "softmax"


@dataclass(frozen=True)
class Corpus:
    """In how many of its `size` texts each term stands, as a kernel reads them."""

    kernel: Kernel
    size: int
    holders: Mapping[str, int]

    @classmethod
    def of(cls, texts: Sequence[str], kernel: Kernel) -> "Corpus":
        """Read every text once."""
        holders = Counter(term for text in texts for term in set(terms(text, kernel)))
        return cls(kernel, len(texts), holders)

    def weights(self, texts: Sequence[str]) -> "NDArray[np.float64]":
        """Leave-one-out weights (P, P) from the cosines s of texts i and j.

        w_ij is in proportion to exp(s_ij / tau), or to max(0, s_ij); where that is 0 for all j,
        all weigh the same.
        """
        import numpy as np

        cosines_P_P = self._cosines(texts)
        if self.kernel.weighting == "cosine":
            weights_P_P = cosines_P_P.clip(min=0.0)
        else:
            assert self.kernel.tau is not None
            np.fill_diagonal(cosines_P_P, -np.inf)
            nearest_P_1 = cosines_P_P.max(axis=1, keepdims=True)
            weights_P_P = np.exp((cosines_P_P - nearest_P_1) / self.kernel.tau)
        np.fill_diagonal(weights_P_P, 0.0)
        weights_P_P[weights_P_P.sum(axis=1) == 0.0] = 1.0
        np.fill_diagonal(weights_P_P, 0.0)
        return np.asarray(weights_P_P / weights_P_P.sum(axis=1, keepdims=True))

    def _cosines(self, texts: Sequence[str]) -> "NDArray[np.float64]":
        """Of vectors tf x (ln((1 + n) / (1 + df)) + 1); tf is 1 + ln(count) if sublinear."""
        import numpy as np

        counts_P = [
            Counter(term for term in terms(text, self.kernel) if term in self.holders)
            for text in texts
        ]
        places = {term: place for place, term in enumerate(sorted(set().union(*counts_P)))}
        vectors_P_V = np.zeros((len(texts), max(1, len(places))))
        for row, counts in enumerate(counts_P):
            for term, count in counts.items():
                tf = 1.0 + math.log(count) if self.kernel.sublinear_tf else float(count)
                rarity = math.log((1 + self.size) / (1 + self.holders[term])) + 1.0
                vectors_P_V[row, places[term]] = tf * rarity
        norms_P = np.sqrt((vectors_P_V**2).sum(axis=1))
        vectors_P_V /= np.where(norms_P == 0.0, 1.0, norms_P)[:, None]
        return np.asarray(vectors_P_V @ vectors_P_V.T)


def terms(text: str, kernel: Kernel) -> list[str]:
    """The runs of words of a text that a kernel counts: words of two letters at least."""
    words = WORD.findall(text.lower() if kernel.lowercase else text)
    if kernel.stop_words == "english":
        # its list is part of the registered kernel; imported here, since it is slow
        from sklearn.feature_extraction.text import (  # type: ignore[import-untyped]  # no stubs
            ENGLISH_STOP_WORDS,
        )

        words = [word for word in words if word not in ENGLISH_STOP_WORDS]
    low, high = kernel.ngram_range
    return [
        " ".join(words[at : at + n])
        for n in range(low, high + 1)
        for at in range(len(words) - n + 1)
    ]


def _read_again(train_questions: Sequence[str], settings: Kernel) -> "WeightsOf":
    return Corpus.of(train_questions, settings).weights


@kernel("tfidf", settings=Kernel, reference=_read_again)
def tfidf(train_questions: Sequence[str], settings: Kernel) -> "WeightsOf":
    """Weights of a batch by scikit-learn's TF-IDF, fitted once on the train questions."""
    from harness.methods import kernels

    fitted = kernels.fit_tfidf(train_questions, settings)
    return lambda questions: kernels.kernel_loo_weights(fitted.similarity(questions), settings)
