"""Scores of one criterion, joined, checked and in order: what a decision method is given."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from harness.statistics.contrasts import Contrast
from harness.statistics.paired import PairedCounts
from harness.statistics.ratios import as_fraction


@dataclass(frozen=True, slots=True)
class Sample:
    """Scores that were joined, checked and put into the registered order."""

    contrast: Contrast
    scores: Mapping[str, NDArray[np.float64]]
    z_N: NDArray[np.float64]
    counts: PairedCounts | None  # two 0/1 arms only
    cluster_N: NDArray[np.int64] | None

    def mirrored(self) -> "Sample":
        """The same data with every sign exchanged."""
        weights = {arm: -weight for arm, weight in self.contrast.weights.items()}
        return replace(
            self,
            contrast=replace(self.contrast, weights=weights),
            z_N=-self.z_N,
            counts=None if self.counts is None else self.counts.swapped(),
        )

    def exact_values(self) -> Counter[Fraction]:
        """The contrast of every item as an exact fraction of the decimals given, counted."""
        weights = {arm: as_fraction(w) for arm, w in self.contrast.weights.items()}
        columns = zip(*(self.scores[arm].tolist() for arm in weights), strict=True)
        exact_z: Counter[Fraction] = Counter()
        for row, count in Counter(columns).items():
            terms = zip(weights.values(), row, strict=True)
            exact_z[sum((w * as_fraction(x) for w, x in terms), Fraction(0))] += count
        return exact_z
