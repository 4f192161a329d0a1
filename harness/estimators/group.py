"""Estimators that look at one group alone."""

import itertools
import math
from collections.abc import Callable, Sequence

from pydantic import Field

from harness.components import (
    Estimate,
    NoSettings,
    Settings,
    StepRewards,
    each_group,
    estimator,
)


class StdSettings(Settings):
    """Of group_std: implementations differ in both."""

    ddof: int = Field(ge=0, le=1)
    eps: float = Field(ge=0)


class QuantileSettings(Settings):
    """Of tail_quantile."""

    quantile: float = Field(gt=0, lt=1)


def _formula(name: str) -> Callable[[StepRewards, Settings], Estimate]:
    """A formula of `harness.methods.advantages` on each group, loaded when it is used."""

    def estimate(step: StepRewards, settings: Settings) -> Estimate:
        from functools import partial

        from harness.methods import advantages

        formula = partial(getattr(advantages, name), **settings.model_dump())
        return Estimate(advantages.per_group(formula, step.rewards_P_G))

    return estimate


def _mean_centred(r: list[float], _: NoSettings) -> list[float]:
    return [x - _mean(r) for x in r]


def _std(r: list[float], settings: StdSettings) -> list[float]:
    if len(set(r)) == 1:
        return [0.0] * len(r)
    squares = math.fsum((x - _mean(r)) ** 2 for x in r)
    spread = math.sqrt(squares / (len(r) - settings.ddof)) + settings.eps
    return [(x - _mean(r)) / spread for x in r]


def _others(r: list[float], _: NoSettings) -> list[float]:
    return [x - (math.fsum(r) - x) / (len(r) - 1) for x in r]


def _successes(r: list[float], _: NoSettings) -> list[float]:
    k = sum(r)
    return [0.0 if k == 0 else len(r) / k - 1 if x == 1 else -1.0 for x in r]


def _tail(r: list[float], _: NoSettings) -> list[float]:
    # E[best of j] rises with each step of the sorted rewards; a step counts N / (those at or above)
    rises = [
        (high, len(r) * (high - low) / sum(x >= high for x in r))
        for low, high in itertools.pairwise(sorted(set(r)))
    ]
    weights = [math.fsum(rise for at, rise in rises if at <= x) for x in r]
    return [w - _mean(weights) for w in weights]


def _quantile_tail(r: list[float], settings: QuantileSettings) -> list[float]:
    ascending = sorted(r)
    place = settings.quantile * (len(r) - 1)
    below = math.floor(place)
    above = min(below + 1, len(r) - 1)
    threshold = ascending[below] + (ascending[above] - ascending[below]) * (place - below)
    return [max(x - _mean(r), 0.0) if x > threshold else 0.0 for x in r]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


DECLARED = (
    estimator("group_mean", reference=each_group(_mean_centred))(_formula("group_mean")),
    estimator("group_std", settings=StdSettings, reference=each_group(_std))(_formula("group_std")),
    estimator("rloo", reference=each_group(_others), group_size=(2, None), leave_one_out=True)(
        _formula("rloo")
    ),
    estimator("maxrl", reference=each_group(_successes), binary_rewards=True)(_formula("maxrl")),
    estimator("tailrl", reference=each_group(_tail))(_formula("tailrl")),
    estimator("tail_quantile", settings=QuantileSettings, reference=each_group(_quantile_tail))(
        _formula("tail_quantile")
    ),
)
