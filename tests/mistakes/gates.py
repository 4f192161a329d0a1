"""Mistakes in the pilot's own execution that its gates find: card and preflights are right.

Each is an edit of the harness's own code that takes pytest's monkeypatch. The settings are the
experiments at their mini scale.
"""

import dataclasses
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import tinker
from tinker_cookbook.recipes.math_rl.math_env import MathEnv

from harness.methods import kernels, staleness
from harness.training import embedded_service, loop, updates
from harness.training.fixed_text import forward
from harness.training.snapshots import Snapshots
from mistakes.edits import drawn_with, method
from mistakes.mistake import Edit, Mistake, Setting, Where

CONTRIBUTORS = "gs1_effective_contributors_median"
GAP = "gs1_mean_abs_baseline_minus_uniform_loo"


def uniform_kernel(monkeypatch: Any) -> None:
    """Every other prompt weighs the same, whatever its text."""
    weights = lambda similarity_P_P, _tau: kernels.uniform_loo_weights(len(similarity_P_P))  # noqa: E731
    monkeypatch.setattr(kernels, "softmax_loo_weights", weights)


def flat_kernel(monkeypatch: Any) -> None:
    """The softmax gets another temperature than the card's."""
    original = kernels.softmax_loo_weights
    monkeypatch.setattr(kernels, "softmax_loo_weights", lambda s_P_P, _tau: original(s_P_P, 1e6))


def two_of_half(context: Any, prompts: list[Any]) -> list[Any]:
    """The GS1 arm draws half as many prompts, each twice."""
    half = prompts[: len(prompts) // 2]
    return [*half, *half] if context.arm.estimator == "gs1" else prompts


def half(_context: Any, prompts: list[Any]) -> list[Any]:
    """Both arms draw half of their prompts."""
    return prompts[: len(prompts) // 2]


def another_base_model(monkeypatch: Any) -> None:
    """The engine serves another model, and takes the card's name for it."""

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        at = command.index("--model-name")
        other = [*command[:at], "--model-name", "other/model", *command[at:]]
        return subprocess.Popen(other, **options)

    namespace = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(embedded_service, "subprocess", namespace)


def nan_reward(monkeypatch: Any) -> None:
    """The environment's grader breaks."""
    monkeypatch.setattr(MathEnv, "check_answer", lambda *_: float("nan"))


def newer_sampler(original: Any, self: Any, step: int) -> Any:
    """Each step samples from weights one update newer than it says."""
    version, _ = original(self, step)
    # the newest one may still be on its way
    return version, self.client(min(version + 1, max(self._clients)))


async def from_learner(original: Any, client: Any, batches: Any, *more: Any) -> Any:
    """Rollouts are stored as sampled, but the loss divides by the learner's own log-probs."""
    changed = []
    for data_D in batches:
        rows = [
            [*d.model_input.to_ints(), d.loss_fn_inputs["target_tokens"].tolist()[-1]]
            for d in data_D
        ]
        learned = zip(data_D, await forward(client, rows), strict=True)
        changed.append([with_logprobs(datum, row) for datum, row in learned])
    return await original(client, changed, *more)


def with_logprobs(datum: Any, row: Any) -> Any:
    """A datum with other behaviour log-probs."""
    logprobs = tinker.TensorData.from_numpy(row.astype(np.float32))
    return dataclasses.replace(datum, loss_fn_inputs={**datum.loss_fn_inputs, "logprobs": logprobs})


def swapped(original: Any, arm: Any, *tensors: Any) -> Any:
    """The client's loss takes the upper bound for the lower one."""
    low, high = arm.loss_config["clip_low_threshold"], arm.loss_config["clip_high_threshold"]
    config = {"clip_low_threshold": high, "clip_high_threshold": low}
    return original(SimpleNamespace(loss=arm.loss, loss_config=config), *tensors)


def without_sign(_original: Any, ratio_T: Any, _advantages_T: Any, low: float, high: float) -> Any:
    """Every ratio outside the bounds counts as clipped."""
    return (ratio_T < low) | (ratio_T > high)


def kept(original: Callable[..., Any], context: Any, *more: Any) -> Any:
    """Arms with TailRL train on zero-variance groups too, and say so nowhere."""
    estimate, batch = original(context, *more)
    if context.arm.estimator == "tailrl":
        batch = dataclasses.replace(batch, dropped_D=[False] * len(batch.dropped_D))
    return estimate, batch


def shifted(original: Any, batch: Any, turns_T: Any, *bounds: float) -> Any:
    """Each action token counts for the turn of its neighbour."""
    return original(batch, np.roll(turns_T, 1), *bounds)


STALE = ("lagged_kl", "lagged_clip_fraction")
GS1: tuple[Setting, ...] = ("gs1",)
LAG: tuple[Setting, ...] = ("lag",)
SEARCH: tuple[Setting, ...] = ("search",)
BOTH: tuple[Setting, ...] = ("lag", "search")

_ROWS: list[tuple[str, tuple[Setting, ...], Where, set[str], str, Edit]] = [
    ("kernel_uniform", GS1, "kernel", {CONTRIBUTORS, GAP}, "15 was executed", uniform_kernel),
    ("kernel_tau_huge", GS1, "kernel", {CONTRIBUTORS, GAP}, "15 was executed", flat_kernel),
    ("gs1_group_size_2", GS1, "loop", {"gs1_executed_group_size"}, "2 was executed",
        drawn_with(two_of_half)),
    # of 8 prompts fewer weigh in each baseline than of 16
    ("half_the_rollouts", GS1, "loop", {"rollouts_per_step_both_arms", CONTRIBUTORS},
        "gate rollouts_per_step_both_arms: 8 was executed", drawn_with(half)),
    ("lag_off_by_one", BOTH, "loop", {"executed_lag_error"}, "1 was executed",
        method(Snapshots, "sampler", newer_sampler)),
    ("behaviour_from_learner", BOTH, "loop", {"reported_loss_error"}, "was executed",
        method(loop, "update", from_learner)),
    # an arm of positive advantages does not move then, so it is not stale either
    ("clip_swapped", LAG, "loop", {"reported_loss_error", *STALE}, "was executed",
        method(updates, "token_loss", swapped)),
    ("clip_metric_without_sign", LAG, "loop", {"logged_metrics_error"}, "was executed",
        method(staleness, "clip_active", without_sign)),
    # figures after the drop are of other groups than those whose rewards differ
    ("zero_variance_groups_kept", SEARCH, "estimator",
        {"executed_drop_error", "logged_metrics_error"},
        "gate executed_drop_error: ",
        method(loop, "estimated", kept)),
    ("turn_shifted", SEARCH, "loop", {"logged_metrics_error"}, "was executed",
        method(staleness, "by_turn", shifted)),
]  # fmt: skip

LIVE = ("kernel_uniform", "lag_off_by_one", "zero_variance_groups_kept")

MISTAKES = (
    *(
        Mistake(name, where, "pilot", frozenset(items), words, edit, "gates", settings,
            live=name in LIVE)
        for name, settings, where, items, words, edit in _ROWS
    ),
)  # fmt: skip

ENGINE = Mistake(
    "another_base_model", "service", "pilot", frozenset({"executed_base_model"}), "'other/model'",
    another_base_model, "session", ("gs1",), live=True,
)  # fmt: skip
"""It is planted where the harness starts its engine, which doubles do not have."""

NAN = Mistake(
    "nan_reward", "reward", "pilot", frozenset({"pilot"}), "the reward is nan",
    nan_reward, "session", ("gs1",), live=True,
)  # fmt: skip
"""The run stops in the pilot, so no gate is reached."""
