"""The methods that a criterion may register, by name.

A method gives limits, and the p value of "above the margin"; "below" is asked by exchanging the
signs of the data and of the margin, so that both directions go through the same code.
"""

from collections.abc import Mapping
from fractions import Fraction

from harness.components import nearest
from harness.decisions.criterion import Criterion, Unit
from harness.decisions.method import Method
from harness.decisions.sample import Sample
from harness.errors import CardError
from harness.names import POINT_ESTIMATE, POINT_THRESHOLDS, SEED_RANGE
from harness.statistics import betting, clustered, exact, exact_limits, intervals, paired
from harness.statistics.intervals import Interval
from harness.statistics.paired import PairedCounts
from harness.statistics.ratios import as_fraction


def method_named(name: str) -> Method:
    """Return the method of that name; CardError listing the known ones if there is none."""
    if name not in METHODS:
        raise CardError(
            f"unknown decision method {name!r}{nearest(name, METHODS)}; known: "
            f"{', '.join(METHODS)}, or name the file that declares it in components"
        )
    return METHODS[name]


def registered_method(criterion: Criterion) -> Method:
    """Return the criterion's method; CardError when the two do not fit together."""
    where = f"criterion {criterion.id}: "
    method = _declared(criterion, where) or method_named(criterion.method)
    name = method.name
    if method.unit is not None and criterion.unit != method.unit:
        raise CardError(f"{where}{name} counts {method.unit}, the unit is {criterion.unit}")
    if method.binary and (criterion.pair is None or len(criterion.seeds) > 1):
        raise CardError(
            f"{where}{name} needs weights +1 and -1 and scores of 0 or 1, which a mean over "
            "several seeds is not"
        )
    if name == "mcnemar_exact" and criterion.margin != 0.0:
        raise CardError(f"{where}{name} tests margin 0 only, the margin is {criterion.margin:+g}")
    if name == "paired_betting_cs" and not criterion.order_key:
        raise CardError(f"{where}{name} depends on the item order; register an order_key")
    allowed = (None, 2) if criterion.sides == 1 else (None, 3, 4)
    if name == "paired_empirical_bernstein" and criterion.log_events not in allowed:
        raise CardError(f"{where}log_events is {criterion.log_events}; it may be {allowed[1:]}")
    if (criterion.seed_range is not None) != (name == SEED_RANGE):
        raise CardError(f"{where}seed_range and the method {name} do not go together")
    if criterion.refuted is not None and name != POINT_THRESHOLDS:
        raise CardError(f"{where}{name} refutes by its own limits; drop the refuting contrast")
    if method.unit == Unit.SEEDS and len(criterion.seeds) < method.min_n:
        raise CardError(
            f"{where}{name} needs at least {method.min_n} seeds, {len(criterion.seeds)} registered"
        )
    return method


def _declared(criterion: Criterion, where: str) -> Method | None:
    """The experiment's own method, if it declares one of that name."""
    own = criterion.own
    if isinstance(own, Method) and own.name in METHODS:
        raise CardError(f"{where}the harness has a method {own.name!r}; rename the experiment's")
    return own if isinstance(own, Method) else None


def _counts(sample: Sample) -> PairedCounts:
    if sample.counts is None:
        raise CardError("a method for 0/1 scores was given other scores")
    return sample.counts


def _hoeffding(sample: Sample, c: Criterion) -> Interval:
    return intervals.hoeffding(sample.z_N, sample.contrast.range, c.alpha, c.sides)


def _hoeffding_p(sample: Sample, c: Criterion, margin: float) -> float:
    excess = float(sample.z_N.mean()) - margin
    return intervals.hoeffding_p(excess, sample.z_N.size, sample.contrast.range, c.sides)


def _hoeffding_exactly(sample: Sample, c: Criterion, margin: float) -> bool:
    mean, _ = _exact_moments(sample)
    span, alpha = _exact_range(sample), as_fraction(c.alpha)
    n = sample.z_N.size
    return exact_limits.hoeffding_clears(mean - as_fraction(margin), n, span, alpha, c.sides)


def _bernstein(sample: Sample, c: Criterion) -> Interval:
    span = sample.contrast.range
    return intervals.empirical_bernstein(sample.z_N, span, c.alpha, c.sides, c.log_events)


def _bernstein_p(sample: Sample, c: Criterion, margin: float) -> float:
    span = sample.contrast.range
    return intervals.empirical_bernstein_p(sample.z_N, margin, span, c.sides, c.log_events)


def _bernstein_exactly(sample: Sample, c: Criterion, margin: float) -> bool:
    mean, variance = _exact_moments(sample)
    events = c.log_events or (2 if c.sides == 1 else 4)
    return exact_limits.empirical_bernstein_clears(
        mean - as_fraction(margin),
        variance,
        sample.z_N.size,
        _exact_range(sample),
        events / as_fraction(c.alpha),
    )


def _betting(sample: Sample, c: Criterion) -> Interval:
    low, high = sample.contrast.range_lo, sample.contrast.range_hi
    return betting.betting_interval(sample.z_N, low, high, c.alpha, c.sides, "anytime")


def _betting_p(sample: Sample, c: Criterion, margin: float) -> float:
    low, high = sample.contrast.range_lo, sample.contrast.range_hi
    return betting.betting_p(sample.z_N, margin, low, high, c.alpha, c.sides, "anytime")


def _clustered_mean(sample: Sample) -> clustered.ClusteredMean:
    if sample.cluster_N is None:
        raise CardError("clustered_t needs a cluster label for every item; pass clusters")
    return clustered.clustered_mean(sample.z_N, sample.cluster_N)


def _clustered_t(sample: Sample, c: Criterion) -> Interval:
    m = _clustered_mean(sample)
    return paired.t_limits(m.mean, m.se, m.clusters - 1, m.clusters, c.alpha, c.sides)


def _clustered_p(sample: Sample, c: Criterion, margin: float) -> float:
    m = _clustered_mean(sample)
    return paired.t_p(m.mean, m.se, m.clusters - 1, margin, c.sides)


def _seed_p(sample: Sample, c: Criterion, margin: float) -> float:
    z = sample.z_N
    return paired.t_p(float(z.mean()), paired.standard_error(z), z.size - 1, margin, c.sides)


def _shown_limits(sample: Sample, c: Criterion) -> Interval:
    """Hoeffding's limits for items; for seeds the estimate alone, since few seeds have none."""
    if c.unit == Unit.FIXED_CHECKPOINT_ITEMS:
        return _hoeffding(sample, c)
    mean = float(sample.z_N.mean())
    return Interval(mean, mean, mean, sample.z_N.size)


def _no_p(_sample: Sample, _criterion: Criterion, _margin: float) -> float:
    """A threshold on an estimate has no error rate: no alpha would have said so."""
    return 1.0


def _mcnemar_p(sample: Sample, c: Criterion, _zero: float) -> float:
    counts = _counts(sample)
    test = exact.mcnemar_exact(counts.treatment_only, counts.baseline_only)
    return min(1.0, c.sides * test.p_one_sided_treatment_better)


def _mcnemar_exactly(sample: Sample, c: Criterion, _zero: float) -> bool:
    counts = _counts(sample)
    tail = exact.mcnemar_tail(counts.treatment_only, counts.baseline_only)
    return c.sides * tail < as_fraction(c.alpha)


def _undecidable(_sample: Sample, _criterion: Criterion, _margin: float) -> None:
    """The limit is the root of a transcendental equation: no exact form to compare."""


def _exact_moments(sample: Sample) -> tuple[Fraction, Fraction]:
    """Mean and unbiased variance (0 for one item)."""
    values = sample.exact_values()
    n = sample.z_N.size
    mean = sum((z * count for z, count in values.items()), Fraction(0)) / n
    squares = sum(((z - mean) ** 2 * count for z, count in values.items()), Fraction(0))
    return mean, squares / max(n - 1, 1)


def _exact_range(sample: Sample) -> Fraction:
    bounds = sample.contrast.bounds
    return sum(
        (
            abs(as_fraction(w)) * (as_fraction(bounds[a][1]) - as_fraction(bounds[a][0]))
            for a, w in sample.contrast.weights.items()
        ),
        Fraction(0),
    )


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("paired_hoeffding", _hoeffding, _hoeffding_p, _hoeffding_exactly, True),
        Method(
            "paired_cp_bonferroni",
            lambda s, c: paired.clopper_pearson_pair(_counts(s), c.alpha, c.sides),
            lambda s, c, margin: paired.clopper_pearson_pair_p(_counts(s), margin, c.sides),
            _undecidable,
            finite_sample_valid=True,
            binary=True,
        ),
        Method(
            "paired_tango",
            lambda s, c: paired.tango(_counts(s), c.alpha, c.sides),
            lambda s, c, margin: paired.tango_p(_counts(s), margin, c.sides),
            _undecidable,
            finite_sample_valid=False,
            binary=True,
        ),
        Method(
            "paired_empirical_bernstein",
            _bernstein,
            _bernstein_p,
            _bernstein_exactly,
            finite_sample_valid=True,
            min_n=2,
        ),
        Method("paired_betting_cs", _betting, _betting_p, _undecidable, finite_sample_valid=True),
        Method(
            "clustered_t",
            _clustered_t,
            _clustered_p,
            _undecidable,
            finite_sample_valid=False,
            min_n=2,
            any_spread=True,
        ),
        Method(
            "seed_t",
            lambda s, c: paired.t_interval(s.z_N, c.alpha, c.sides),
            _seed_p,
            _undecidable,
            finite_sample_valid=False,
            unit=Unit.SEEDS,
            min_n=3,  # a claim about the method needs a spread that two runs can't show
            any_spread=True,
        ),
        *(
            Method(name, _shown_limits, _no_p, _undecidable, finite_sample_valid=False, unit=None)
            for name in (POINT_THRESHOLDS, POINT_ESTIMATE)
        ),
        Method(
            SEED_RANGE,
            _shown_limits,
            _no_p,
            _undecidable,
            finite_sample_valid=False,
            unit=Unit.SEEDS,
            min_n=2,  # the range of one seed is 0: any gap would pass
        ),
        Method(
            "mcnemar_exact",
            lambda s, c: exact.mcnemar_interval(_counts(s), c.alpha, c.sides),
            _mcnemar_p,
            _mcnemar_exactly,
            finite_sample_valid=True,
            binary=True,
        ),
    )
}
