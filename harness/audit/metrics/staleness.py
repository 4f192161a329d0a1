"""What gates measure of arms that lag: were they stale, and do their figures say what happened?

So do gates of advantages, dropped groups and turns, which arms without lag can have as well.
"""

import math
from collections.abc import Iterator

from harness.audit import recomputed
from harness.audit.advantages import advantage_errors
from harness.audit.lag import executed_lags, expected_lag
from harness.audit.metrics.metric import Measure, Unmeasurable, Values, at_least, gate_metric, share
from harness.audit.pilot import Executed
from harness.cards import Arm
from harness.methods.losses import clip_bounds
from harness.records import CUSTOM_LOSS, StepRecord, rewards_of


@gate_metric(
    "executed_lag_error",
    unit="updates",
    range=at_least(0, whole=True),
    remedy="step t must sample from the weights after update max(0, t - lag)",
)
def lag_errors(pilot: Executed) -> Values:
    """|executed - registered lag| of every step, in updates."""
    errors = []
    for arm, records in pilot.arms:
        for record, lag in zip(records, executed_lags(records), strict=True):
            if lag is None:
                raise Unmeasurable(
                    f"arm {arm.name}: step {record['step']} has no fingerprints; take them"
                )
            errors.append(float(abs(lag - expected_lag(arm, record["step"]))))
            errors.append(float(abs(record["step"] - record["sampled_version"] - lag)))
    return errors


def figures(name: str, *, lagged: bool) -> Measure:
    """A measurement: the figure in each step of the fresh arms, or of the lagged after the ramp."""

    def measure(pilot: Executed) -> Values:
        values = [
            _metric(arm, record, name)
            for arm, records in pilot.arms
            for record in records
            if bool(arm.lag) is lagged and record["step"] >= arm.lag
        ]
        if not values:
            kind = "lagged arm past its ramp" if lagged else "arm without lag"
            raise Unmeasurable(f"the pilot holds no step of a {kind}; lengthen it")
        return values

    return measure


@gate_metric(
    "logged_metrics_error",
    unit="relative above 1",
    range=at_least(0.0),
    remedy="a metric is not what its definition says of the stored rollouts: correct it before "
    "anything is read from it",
)
def metric_errors(pilot: Executed) -> Values:
    """How far each logged figure is from the stored rollouts', relative above 1."""
    drops = pilot.experiment.registration.training.drop_zero_variance_groups
    errors = []
    for arm, record in _steps(pilot):
        logged, bounds = record["metrics"], clip_bounds(arm.loss_config)
        expected = recomputed.staleness_figures(record, *bounds)
        prefixes: tuple[str, ...] = (recomputed.PREFIX,)
        if drops:
            expected |= recomputed.kept_figures(record, *bounds)
            prefixes += (recomputed.KEPT,)
        names = {name for name in logged if name.startswith(prefixes)}
        if names != set(expected):
            odd = sorted(names ^ set(expected))
            raise Unmeasurable(
                f"arm {arm.name}: step {record['step']} logs other figures than its rollouts "
                f"have ({', '.join(odd[:3])}); log and recompute the same ones"
            )
        errors += [abs(logged[n] - x) / max(1.0, abs(x)) for n, x in expected.items()]
    return errors


@gate_metric(
    "reported_loss_error",
    unit="of the sum of |ratio x advantage|",
    range=at_least(0.0),
    remedy="the loss was not the registered one on these rollouts: look at clip bounds and at "
    "the log-probs and advantages that the datums carried",
)
def loss_errors(pilot: Executed) -> Values:
    """How far each reported loss is from the registered loss of the stored rollouts, per sum |rA|.

    With a loss of this client, its value, and the surrogate that the service was sent. A step that
    had nothing to update has no loss.
    """
    errors = []
    for arm, record in _steps(pilot):
        if record["metrics"].get("updated") == 0.0:
            continue
        loss, surrogate, scale = recomputed.loss_and_surrogate(arm, record)
        custom = record.get("loss_backend") == "custom"
        pairs = [(CUSTOM_LOSS if custom else "service/loss:sum", loss)]
        pairs += [("service/loss:sum", surrogate)] if custom else []
        for name, expected in pairs:
            value = _metric(arm, record, name)
            errors.append(abs(value - expected) / scale if scale else abs(value - expected))
    if not errors:
        raise Unmeasurable("no step of the pilot updated anything; look at its rewards")
    return errors


@gate_metric(
    "executed_drop_error",
    unit="mistakes a step",
    range=at_least(0, whole=True),
    remedy="zero-variance groups must be left out of the update in every arm, and no "
    "others: look at what the update was sent",
)
def drop_errors(pilot: Executed) -> Values:
    """Groups that were dropped though their rewards differ, or the other way, in each step.

    Counted from rewards, from the records and from the number of datums that were sent.
    """
    if not pilot.experiment.registration.training.drop_zero_variance_groups:
        raise Unmeasurable(
            "no group is dropped; register drop_zero_variance_groups, or drop the gate"
        )
    errors = []
    for arm, record in _steps(pilot):
        constant = [len(set(rewards_of(group))) == 1 for group in record["groups"]]
        recorded = [group["dropped"] for group in record["groups"]]
        wrong = sum(a != b for a, b in zip(constant, recorded, strict=True))
        sent = _metric(arm, record, "kept/rollouts")
        kept = sum(
            len(group["rollouts"])
            for group, out in zip(record["groups"], constant, strict=True)
            if not out
        )
        updated = _metric(arm, record, "updated")
        errors.append(wrong + abs(sent - kept) + float(updated != (kept > 0)))
    return errors


@gate_metric(
    "executed_turn_error",
    unit="rollouts a step",
    range=at_least(0, whole=True),
    remedy="turns are not those of the episodes: look at how rollouts are recorded",
)
def turn_errors(pilot: Executed) -> Values:
    """Rollouts of each step that have another number of turns than their task counted."""
    errors = []
    for arm, record in _steps(pilot):
        rollouts = [rollout for group in record["groups"] for rollout in group["rollouts"]]
        if not all("turns" in rollout["scores"] for rollout in rollouts):
            raise Unmeasurable(
                f"arm {arm.name}: step {record['step']} has rollouts whose task counts no turns; "
                "let it count them, or drop the gate where one reply is the episode"
            )
        wrong = sum(len(rollout["turns"]) != rollout["scores"]["turns"] for rollout in rollouts)
        errors.append(float(wrong))
    return errors


def _steps(pilot: Executed) -> Iterator[tuple[Arm, StepRecord]]:
    return ((arm, record) for arm, records in pilot.arms for record in records)


def _metric(arm: Arm, record: StepRecord, name: str) -> float:
    value = record["metrics"].get(name, math.nan)
    if not math.isfinite(value):
        raise Unmeasurable(
            f"arm {arm.name}: step {record['step']} has no finite {name}; record it every step"
        )
    return value


METRICS = (
    lag_errors,
    metric_errors,
    loss_errors,
    drop_errors,
    turn_errors,
    gate_metric(
        "lag0_max_abs_log_ratio",
        unit="nats",
        range=at_least(0.0),
        remedy="sampler and learner must agree on a fresh batch: look for another temperature, "
        "model or snapshot, or for log-probs of another policy",
    )(figures("staleness/max_abs_log_ratio", lagged=False)),
    gate_metric(
        "lag0_clip_fraction",
        unit="of tokens",
        range=share,
        remedy="a fresh batch has nothing to clip: look at lag0_max_abs_log_ratio",
    )(figures("staleness/clip_raw", lagged=False)),
    gate_metric(
        "lag0_kl",
        unit="nats a token",
        range=at_least(0.0),
        remedy="sampler and learner differ by more than the service's floor on a fresh batch: look "
        "at lag0_max_abs_log_ratio",
    )(figures("staleness/kl_k3", lagged=False)),
    gate_metric(
        "lagged_kl",
        unit="nats a token",
        range=at_least(0.0),
        remedy="the lagged arms are not stale: look for behaviour log-probs of the learner, a lag "
        "that was not executed, or raise the learning rate in a new registration",
    )(figures("staleness/kl_k3", lagged=True)),
    gate_metric(
        "lagged_clip_fraction",
        unit="of tokens",
        range=share,
        remedy="staleness clips nothing: see lagged_kl, or the bounds are too wide",
    )(figures("staleness/clip_raw", lagged=True)),
    gate_metric(
        "executed_advantage_error",
        unit="of advantage",
        range=at_least(0.0),
        remedy="advantages are not the registered estimator's on these rewards",
    )(advantage_errors),
)
