"""Means whose items come in clusters: several items of one template, several samples of one item.

The cluster is the independent unit, so it is the clusters that are counted for the t quantile.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.errors import StatisticsError
from harness.statistics.checked import finite_vector
from harness.statistics.intervals import Interval
from harness.statistics.paired import t_limits


@dataclass(frozen=True, slots=True)
class ClusteredMean:
    """Mean over items with the standard error that its clusters give."""

    mean: float
    se: float
    clusters: int
    n: int


def clustered_mean(z_N: ArrayLike, cluster_N: ArrayLike) -> ClusteredMean:
    """Mean and sqrt(C/(C-1) sum_k (sum_{i in k} (z_i - mean))^2) / N.

    ``cluster_N`` labels each item's cluster with a number or a text. The formula is the cluster
    robust error of an intercept (Liang & Zeger 1986) with the small-sample factor C/(C-1).
    Raises StatisticsError for unequal lengths or fewer than 2 clusters.
    """
    z = finite_vector(z_N, "z", at_least=2)
    labels = np.asarray(cluster_N)
    if labels.shape != z.shape:
        raise StatisticsError(f"{z.size} values but cluster labels of shape {labels.shape}")
    codes, clusters = _codes(labels)
    if clusters < 2:
        raise StatisticsError("all items are in one cluster: at least 2 clusters are needed")
    mean = float(z.mean())
    if z.min() == z.max():
        return ClusteredMean(mean, 0.0, clusters, z.size)
    sums_C = np.bincount(codes, weights=z - mean)
    se = math.sqrt(clusters / (clusters - 1) * float(sums_C @ sums_C)) / z.size
    return ClusteredMean(mean, se, clusters, z.size)


def clustered_t(z_N: ArrayLike, cluster_N: ArrayLike, alpha: float, sides: int = 2) -> Interval:
    """Mean +- t_{C-1} times the clustered standard error; its ``n`` counts the clusters.

    Raises StatisticsError as ``clustered_mean`` does, and when the standard error is zero.
    """
    m = clustered_mean(z_N, cluster_N)
    return t_limits(m.mean, m.se, m.clusters - 1, m.clusters, alpha, sides)


def _codes(labels_N: NDArray[np.generic]) -> tuple[NDArray[np.int64], int]:
    """Number the clusters; small whole numbers are counted as they are, without a sort."""
    if np.issubdtype(labels_N.dtype, np.integer):
        low, high = int(labels_N.min()), int(labels_N.max())
        if low >= 0 and high < 4 * labels_N.size:
            codes = labels_N.astype(np.int64)
            return codes, int(np.count_nonzero(np.bincount(codes)))
    values, codes = np.unique(labels_N, return_inverse=True)
    return codes.astype(np.int64), values.size
