"""Intervals, exact tests, power and pass@k: pure functions on plain sequences or numpy arrays.

``contrasts``   weights and bounds of arms -> one value per item, and its range
``intervals``   Hoeffding, Serfling, empirical Bernstein, Wilson, Clopper-Pearson
``paired``      2x2 tables: Clopper-Pearson pair, Tango, Newcombe, Bonett-Price; Student's t
``betting``     order-dependent intervals by betting
``clustered``   means over clusters
``exact``       McNemar and Holm
``passk``       pass@k, pass^k and best of k
``hoeffding_rule``  edges, exact power and n of a Hoeffding rule
``power``       the same as a block of figures and text, for a card
``ratios``      decimals as exact fractions
``exact_limits``  limits against margins in 60 digits

Functions ending in ``_p`` return the smallest alpha at which the lower limit of the same name
clears a margin. Every error is a ``StatisticsError`` with one line.
"""

from harness.statistics.betting import betting_interval, betting_p, predictable_empirical_bernstein
from harness.statistics.clustered import ClusteredMean, clustered_mean, clustered_t
from harness.statistics.contrasts import Bounds, Contrast, contrast
from harness.statistics.exact import Holm, McNemar, holm, mcnemar_exact, mcnemar_interval
from harness.statistics.hoeffding_rule import (
    PassingGap,
    power_hoeffding_rule,
    required_n_hoeffding,
    smallest_passing_gap,
)
from harness.statistics.intervals import (
    Interval,
    clopper_pearson,
    empirical_bernstein,
    hoeffding,
    hoeffding_half_width,
    hoeffding_independent_cells,
    serfling_half_width,
    wilson,
)
from harness.statistics.paired import (
    PairedCounts,
    bonett_price,
    clopper_pearson_pair,
    newcombe,
    paired_counts,
    standard_error,
    t_interval,
    tango,
)
from harness.statistics.passk import best_of, pass_at_k, pass_at_k_items, pass_pow_k
from harness.statistics.power import PowerBlock, power_block
from harness.statistics.ratios import as_fraction

__all__ = [
    "Bounds",
    "ClusteredMean",
    "Contrast",
    "Holm",
    "Interval",
    "McNemar",
    "PairedCounts",
    "PassingGap",
    "PowerBlock",
    "as_fraction",
    "best_of",
    "betting_interval",
    "betting_p",
    "bonett_price",
    "clopper_pearson",
    "clopper_pearson_pair",
    "clustered_mean",
    "clustered_t",
    "contrast",
    "empirical_bernstein",
    "hoeffding",
    "hoeffding_half_width",
    "hoeffding_independent_cells",
    "holm",
    "mcnemar_exact",
    "mcnemar_interval",
    "newcombe",
    "paired_counts",
    "pass_at_k",
    "pass_at_k_items",
    "pass_pow_k",
    "power_block",
    "power_hoeffding_rule",
    "predictable_empirical_bernstein",
    "required_n_hoeffding",
    "serfling_half_width",
    "smallest_passing_gap",
    "standard_error",
    "t_interval",
    "tango",
    "wilson",
]
