"""What gates measure of arms that lag: were they stale, and do their figures say what happened?"""

import math
from collections.abc import Callable, Iterator

from harness.audit import recomputed
from harness.audit.lag import executed_lags, expected_lag
from harness.audit.pilot import Pilot
from harness.cards import Arm, Experiment
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
                    f"arm {arm.name}: step {record['step']} has no fingerprints; take them"
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
            prefixes: tuple[str, ...] = (recomputed.PREFIX,)
            if experiment.registration.training.drop_zero_variance_groups:
                expected |= recomputed.kept_figures(record, *clip_bounds(arm.loss_config))
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


def loss_errors(experiment: Experiment, pilot: Pilot) -> Values:
    """How far each reported loss is from the registered loss of the stored rollouts, per sum |rA|.

    With a loss of this client, its value, and the surrogate that the service was sent. A step that
    had nothing to update has no loss.
    """
    errors = []
    for arm in experiment.arms:
        for record in pilot[arm.name]:
            if record["metrics"].get("updated") == 0.0:
                continue
            loss, surrogate, scale = recomputed.loss_and_surrogate(arm, record)
            custom = record.get("loss_backend") == "custom"
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


def drop_errors(experiment: Experiment, pilot: Pilot) -> Values:
    """Groups that were dropped though their rewards differ, or the other way, in each step.

    Counted from rewards, from the records and from the number of datums that were sent.
    """
    if not experiment.registration.training.drop_zero_variance_groups:
        raise Unmeasurable(
            "no group is dropped; register drop_zero_variance_groups, or drop the gate"
        )
    errors = []
    for arm in experiment.arms:
        for record in pilot[arm.name]:
            constant = [len(set(group["rewards_G"])) == 1 for group in record["groups"]]
            recorded = [group.get("dropped") for group in record["groups"]]
            wrong = sum(a != b for a, b in zip(constant, recorded, strict=True))
            sent = _metric(arm, record, "kept/rollouts")
            kept = sum(
                len(group["rewards_G"])
                for group, out in zip(record["groups"], constant, strict=True)
                if not out
            )
            updated = _metric(arm, record, "updated")
            errors.append(wrong + abs(sent - kept) + float(updated != (kept > 0)))
    return errors


def turn_errors(experiment: Experiment, pilot: Pilot) -> Values:
    """Rollouts of each step whose turns do not add up to their tokens, or to their episode."""
    errors = []
    for arm in experiment.arms:
        for record in pilot[arm.name]:
            wrong = 0
            for group in record["groups"]:
                lengths, episodes = group.get("turn_lengths_G_K"), group.get("episodes_G")
                if lengths is None or episodes is None:
                    raise Unmeasurable(
                        f"arm {arm.name}: step {record['step']} recorded no turns; record them, or "
                        "drop the gate where one reply is the episode"
                    )
                wrong += sum(
                    sum(turns_K) != len(tokens_T)
                    or len(turns_K) != episode["turns"]
                    or min(turns_K, default=0) < 1
                    for turns_K, tokens_T, episode in zip(
                        lengths, group["tokens_G_T"], episodes, strict=True
                    )
                )
            errors.append(float(wrong))
    return errors


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
    "lag0_kl": figures("staleness/kl_k3", lagged=False),
    "lagged_kl": figures("staleness/kl_k3", lagged=True),
    "lagged_clip_fraction": figures("staleness/clip_raw", lagged=True),
    "logged_metrics_error": metric_errors,
    "reported_loss_error": loss_errors,
    "executed_advantage_error": advantage_errors,
    "executed_drop_error": drop_errors,
    "executed_turn_error": turn_errors,
}

REMEDY = {
    "executed_lag_error": "step t must sample from the weights after update max(0, t - lag)",
    "lag0_max_abs_log_ratio": "sampler and learner must agree on a fresh batch: look for another "
    "temperature, model or snapshot, or for log-probs of another policy",
    "lag0_clip_fraction": "a fresh batch has nothing to clip: look at lag0_max_abs_log_ratio",
    "lag0_kl": "sampler and learner differ by more than the service's floor on a fresh batch: look "
    "at lag0_max_abs_log_ratio",
    "lagged_kl": "the lagged arms are not stale: look for behaviour log-probs of the learner, a "
    "lag that was not executed, or raise the learning rate in a new registration",
    "lagged_clip_fraction": "staleness clips nothing: see lagged_kl, or the bounds are too wide",
    "logged_metrics_error": "a metric is not what its definition says of the stored rollouts: "
    "correct it before anything is read from it",
    "reported_loss_error": "the loss was not the registered one on these rollouts: look at clip "
    "bounds and at the log-probs and advantages that the datums carried",
    "executed_advantage_error": "advantages are not the registered estimator's on these rewards",
    "executed_drop_error": "zero-variance groups must be left out of the update in every arm, "
    "and no others: look at what the update was sent",
    "executed_turn_error": "turns are not those of the episodes: look at how rollouts are recorded",
}
