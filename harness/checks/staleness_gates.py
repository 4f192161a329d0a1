"""What gates measure of arms that lag: were they stale, and do their figures say what happened?"""

import math
from collections.abc import Callable, Iterator

from harness.cards import Arm, Experiment
from harness.checks import recomputed
from harness.checks.lag import executed_lags, expected_lag
from harness.checks.pilot import Pilot
from harness.methods.losses import clip_bounds
from harness.records import CUSTOM_LOSS, StepRecord

Values = list[float]


class Unmeasurable(Exception):
    """The pilot does not hold what a gate measures."""


def lag_errors(experiment: Experiment, pilot: Pilot) -> Values:
    """|executed - registered lag| of every step, in updates."""
    errors = []
    for arm in experiment.arms:
        for record, lag in zip(pilot[arm.name], executed_lags(pilot[arm.name]), strict=True):
            if lag is None:
                raise Unmeasurable(
                    f"arm {arm.name}: step {record['step']} has no prints; take them"
                )
            errors.append(float(abs(lag - expected_lag(arm, record["step"]))))
            errors.append(float(abs(record["step"] - record["sampled_version"] - lag)))
    return errors


def figures(name: str, lagged: bool) -> Callable[[Experiment, Pilot], Values]:
    """A measurement: the figure in each step of the fresh arms, or of the lagged after the ramp."""

    def measure(experiment: Experiment, pilot: Pilot) -> Values:
        values = [_metric(arm, record, name) for arm, record in _steps(experiment, pilot, lagged)]
        if not values:
            kind = "lagged arm past its ramp" if lagged else "arm without lag"
            raise Unmeasurable(f"the pilot holds no step of a {kind}; lengthen it")
        return values

    return measure


def metric_errors(experiment: Experiment, pilot: Pilot) -> Values:
    """How far each logged figure is from the stored rollouts', relative above 1."""
    errors = []
    for arm in experiment.arms:
        for record in pilot[arm.name]:
            logged = record["metrics"]
            expected = recomputed.staleness_figures(record, *clip_bounds(arm.loss_config))
            names = {name for name in logged if name.startswith(recomputed.PREFIX)}
            if names != set(expected):
                odd = sorted(names ^ set(expected))
                raise Unmeasurable(
                    f"arm {arm.name}: step {record['step']} logs other figures than its rollouts "
                    f"have ({', '.join(odd[:3])}); log and recompute the same ones"
                )
            errors += [abs(logged[n] - x) / max(1.0, abs(x)) for n, x in expected.items()]
    return errors


def loss_errors(experiment: Experiment, pilot: Pilot) -> Values:
    """How far each reported loss is from the registered loss of the stored rollouts, per sum |rA|.

    With a loss of this client, its value, and the surrogate that the service was sent.
    """
    errors = []
    for arm in experiment.arms:
        for record in pilot[arm.name]:
            loss, surrogate, scale = recomputed.loss_and_surrogate(arm, record)
            custom = record.get("loss_client") == "custom"
            pairs = [(CUSTOM_LOSS if custom else "service/loss:sum", loss)]
            pairs += [("service/loss:sum", surrogate)] if custom else []
            for name, expected in pairs:
                value = _metric(arm, record, name)
                errors.append(abs(value - expected) / scale if scale else abs(value - expected))
    return errors


def advantage_errors(experiment: Experiment, pilot: Pilot) -> Values:
    """How far recorded advantages are from the estimator's own formula."""
    return [
        recomputed.advantages_difference(arm, group)
        for arm in experiment.arms
        for record in pilot[arm.name]
        for group in record["groups"]
    ]


def _steps(experiment: Experiment, pilot: Pilot, lagged: bool) -> Iterator[tuple[Arm, StepRecord]]:
    for arm in experiment.arms:
        if bool(arm.lag) is lagged:
            yield from ((arm, r) for r in pilot[arm.name] if r["step"] >= arm.lag)


def _metric(arm: Arm, record: StepRecord, name: str) -> float:
    value = record["metrics"].get(name, math.nan)
    if not math.isfinite(value):
        raise Unmeasurable(
            f"arm {arm.name}: step {record['step']} has no finite {name}; record it every step"
        )
    return value


MEASUREMENTS = {
    "executed_lag_error": lag_errors,
    "lag0_max_abs_log_ratio": figures("staleness/max_abs_log_ratio", lagged=False),
    "lag0_clip_fraction": figures("staleness/clip_raw", lagged=False),
    "lagged_kl": figures("staleness/kl_k3", lagged=True),
    "lagged_clip_fraction": figures("staleness/clip_raw", lagged=True),
    "logged_metrics_error": metric_errors,
    "reported_loss_error": loss_errors,
    "executed_advantage_error": advantage_errors,
}

REMEDY = {
    "executed_lag_error": "step t must sample from the weights after update max(0, t - lag)",
    "lag0_max_abs_log_ratio": "sampler and learner must agree on a fresh batch: look for another "
    "temperature, model or snapshot, or for log-probs of another policy",
    "lag0_clip_fraction": "a fresh batch has nothing to clip: look at lag0_max_abs_log_ratio",
    "lagged_kl": "the lagged arms are not stale: look for behaviour log-probs of the learner, a "
    "lag that was not executed, or raise the learning rate in a new registration",
    "lagged_clip_fraction": "staleness clips nothing: see lagged_kl, or the bounds are too wide",
    "logged_metrics_error": "a metric is not what its definition says of the stored rollouts: "
    "correct it before anything is read from it",
    "reported_loss_error": "the loss was not the registered one on these rollouts: look at clip "
    "bounds and at the log-probs and advantages that the datums carried",
    "executed_advantage_error": "advantages are not the registered estimator's on these rewards",
}
