"""A pytest plugin that makes a run execute something else than its card says.

`-p planted` with HARNESS_TEST_PLANT=<name> of `PLANTS`. Everything is planted in the arms' own
execution, just before the first item is set up: card, configuration and stored preflights stay
as they are, so only what was executed can give it away.
"""

import asyncio
import os
import resource
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PLANT = "HARNESS_TEST_PLANT"
AT = "HARNESS_TEST_AT"
"""For plants that wait for a moment: `<arm>:<step>`, or of several arms `<arm>,<arm>:<step>`."""
MARKER = "HARNESS_TEST_MARKER"
"""For plants that wait for a moment: the file that says that it has come, or of arms a folder."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Plant once in each process that runs items."""
    name = os.environ.pop(PLANT, "")
    try:
        if name:
            PLANTS[name]()
    except Exception as error:
        pytest.exit(f"{name} can't be planted: {error!r}", returncode=4)


@dataclass(frozen=True)
class Sabotage:
    """A mistake in the execution, the gate that must turn red, and the value that it must name."""

    plant: Callable[[], None]
    gate: str
    executed: str


def kernel_uniform() -> None:
    """Every other prompt weighs the same, whatever its text."""
    from harness.methods import kernels

    replace(
        kernels,
        "softmax_loo_weights",
        lambda similarity_P_P, _: kernels.uniform_loo_weights(len(similarity_P_P)),
    )


def kernel_tau_huge() -> None:
    """The softmax gets another temperature than the card's."""
    from harness.methods import kernels

    original = kernels.softmax_loo_weights
    replace(kernels, "softmax_loo_weights", lambda similarity_P_P, _: original(similarity_P_P, 1e6))


def gs1_group_size_2() -> None:
    """The GS1 arm draws half as many prompts, each twice."""

    def drawn(original: Callable[..., list[Any]], context: Any, step: int) -> list[Any]:
        prompts = original(context, step)
        half = prompts[: len(prompts) // 2]
        return [*half, *half] if context.arm.estimator == "gs1" else prompts

    wrap_in_loop("step_prompts", drawn)


def half_the_rollouts() -> None:
    """Both arms draw half of their prompts."""

    def drawn(original: Callable[..., list[Any]], context: Any, step: int) -> list[Any]:
        prompts = original(context, step)
        return prompts[: len(prompts) // 2]

    wrap_in_loop("step_prompts", drawn)


def another_base_model() -> None:
    """The engine serves another model, and takes the card's name for it."""
    from harness.training import embedded_service

    def popen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        at = command.index("--model-name")
        return subprocess.Popen(
            [*command[:at], "--model-name", "other/model", *command[at:]], **options
        )

    namespace = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)
    replace(embedded_service, "subprocess", namespace)


def nan_reward() -> None:
    """The environment's grader breaks."""
    from tinker_cookbook.recipes.math_rl.math_env import MathEnv

    replace(MathEnv, "check_answer", lambda *_: float("nan"))


def lag_off_by_one() -> None:
    """Each step samples from weights one update newer than it says."""
    from harness.training.snapshots import Snapshots

    original = Snapshots.sampler

    def newer(self: Any, step: int) -> tuple[int, Any]:
        version, _ = original(self, step)
        # the newest one may still be on its way
        return version, self.client(min(version + 1, max(self._clients)))

    replace(Snapshots, "sampler", newer)


def behaviour_from_learner() -> None:
    """Rollouts are stored as sampled, but the loss divides by the learner's own log-probs."""
    import dataclasses

    import numpy as np
    import tinker

    from harness.training.fixed_text import forward

    async def updated(
        original: Callable[..., Any], client: Any, batches: list[Any], *more: Any
    ) -> Any:
        changed = []
        for data_D in batches:
            rows = [
                [*d.model_input.to_ints(), d.loss_fn_inputs["target_tokens"].tolist()[-1]]
                for d in data_D
            ]
            learned = zip(data_D, await forward(client, rows), strict=True)
            changed.append(
                [
                    dataclasses.replace(
                        d,
                        loss_fn_inputs={
                            **d.loss_fn_inputs,
                            "logprobs": tinker.TensorData.from_numpy(row.astype(np.float32)),
                        },
                    )
                    for d, row in learned
                ]
            )
        return await original(client, changed, *more)

    wrap_in_loop("update", updated)


def clip_swapped() -> None:
    """The client's loss takes the upper bound for the lower one."""
    from harness.training import updates

    original = updates.token_loss

    def token_loss(arm: Any, *tensors: Any) -> Any:
        low, high = arm.loss_config["clip_low_threshold"], arm.loss_config["clip_high_threshold"]
        config = {"clip_low_threshold": high, "clip_high_threshold": low}
        return original(SimpleNamespace(loss=arm.loss, loss_config=config), *tensors)

    replace(updates, "token_loss", token_loss)


def clip_metric_without_sign() -> None:
    """Every ratio outside the bounds counts as clipped."""
    from harness.methods import staleness

    def outside(ratio_T: Any, _advantages_T: Any, low: float, high: float) -> Any:
        return (ratio_T < low) | (ratio_T > high)

    replace(staleness, "clip_active", outside)


def constant_groups_kept() -> None:
    """Arms with TailRL train on zero-variance groups too, and say so nowhere."""
    import dataclasses

    def kept(original: Callable[..., Any], context: Any, *more: Any) -> Any:
        estimate, batch = original(context, *more)
        if context.arm.estimator == "tailrl":
            batch = dataclasses.replace(batch, dropped_D=[False] * len(batch.dropped_D))
        return estimate, batch

    wrap_in_loop("estimated", kept)


def turn_shifted() -> None:
    """Each action token counts for the turn of its neighbour."""
    import numpy as np

    from harness.methods import staleness

    original = staleness.by_turn

    def shifted(batch: Any, turns_T: Any, *bounds: float) -> Any:
        return original(batch, np.roll(turns_T, 1), *bounds)

    replace(staleness, "by_turn", shifted)


def stop_token_masked() -> None:
    """The last token of every rollout carries no advantage when it is sent."""
    import dataclasses

    import numpy as np
    import tinker

    def masked(datum: Any) -> Any:
        row = np.asarray(datum.loss_fn_inputs["advantages"].tolist(), dtype=np.float32)
        row[-1] = 0.0
        inputs = {**datum.loss_fn_inputs, "advantages": tinker.TensorData.from_numpy(row)}
        return dataclasses.replace(datum, loss_fn_inputs=inputs)

    async def updated(
        original: Callable[..., Any], client: Any, batches: list[Any], *more: Any
    ) -> Any:
        return await original(client, [[masked(d) for d in data_D] for data_D in batches], *more)

    wrap_in_loop("update", updated)


def other_prompts_in_one_arm() -> None:
    """The GS1 arm begins elsewhere in the order than GRPO."""

    def drawn(_: Callable[..., list[Any]], context: Any, step: int) -> list[Any]:
        n = context.arm.groups_per_batch
        start = (step + (context.arm.estimator == "gs1")) * n
        return [(index, context.train[index]) for index in context.order[start : start + n]]

    wrap_in_loop("step_prompts", drawn)


def full_disk() -> None:
    """From a moment on no record may grow beyond 1,000 bytes."""
    from harness.store import files

    original = files.write_atomic

    def limited(path: Path, data: bytes, **options: bool) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # the kernel's own refusal, in a file that this process writes
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            original(path, data, **options)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    at_the_moment(before=lambda: replace(files, "write_atomic", limited))


def mark() -> None:
    """Say that the moment has come, and go on when the mark is gone."""
    marker = Path(os.environ[MARKER])

    def marked() -> None:
        marker.touch()
        while marker.exists():
            time.sleep(0.01)

    at_the_moment(before=marked)


def pause() -> None:
    """Stop for good at the moment: the update is applied, its record is not yet written."""
    at_the_moment(after=Path(os.environ[MARKER]).touch)


def meet() -> None:
    """Of several arms each waits at the moment for the others, so they train at the same time."""
    arms, step = os.environ[AT].split(":")
    folder = Path(os.environ[MARKER])

    async def taken(original: Callable[..., Any], context: Any, state: Any) -> Any:
        if state.version == int(step):
            (folder / context.arm.name).touch()
            while {path.name for path in folder.iterdir()} < set(arms.split(",")):
                await asyncio.sleep(0.02)
        return await original(context, state)

    wrap_in_loop("run_step", taken)


def at_the_moment(
    before: Callable[[], object] | None = None, after: Callable[[], object] | None = None
) -> None:
    """Act before a step of an arm, or after it and then wait for the end."""
    arm, step = os.environ[AT].split(":")

    async def taken(original: Callable[..., Any], context: Any, state: Any) -> Any:
        here = context.arm.name == arm and state.version == int(step)
        if here and before is not None:
            before()
        record = await original(context, state)
        if here and after is not None:
            after()
            await asyncio.sleep(3600)
        return record

    wrap_in_loop("run_step", taken)


def wrap_in_loop(name: str, wrapper: Callable[..., Any]) -> None:
    """Put `wrapper(original, ...)` in the place of a function of the training loop."""
    from harness.training import loop

    original = getattr(loop, name)
    replace(loop, name, lambda *arguments: wrapper(original, *arguments))


def replace(owner: Any, name: str, value: object) -> None:
    """Replace what exists; a plant that changes nothing would prove nothing."""
    assert hasattr(owner, name), f"{owner} has no {name} any more"
    setattr(owner, name, value)


SABOTAGES = {
    "kernel_uniform": Sabotage(kernel_uniform, "gs1_effective_contributors_median", "15"),
    "kernel_tau_huge": Sabotage(kernel_tau_huge, "gs1_mean_abs_baseline_minus_uniform_loo", ""),
    "gs1_group_size_2": Sabotage(gs1_group_size_2, "gs1_executed_group_size", "2"),
    "half_the_rollouts": Sabotage(half_the_rollouts, "rollouts_per_step_both_arms", "8"),
    "another_base_model": Sabotage(another_base_model, "executed_base_model", "'other/model'"),
}

LAG_SABOTAGES = {
    "lag_off_by_one": Sabotage(lag_off_by_one, "executed_lag_error", "1 was executed"),
    "behaviour_from_learner": Sabotage(behaviour_from_learner, "reported_loss_error", ""),
    "clip_swapped": Sabotage(clip_swapped, "reported_loss_error", ""),
    "clip_metric_without_sign": Sabotage(clip_metric_without_sign, "logged_metrics_error", ""),
}

SEARCH_SABOTAGES = {
    "lag_off_by_one": LAG_SABOTAGES["lag_off_by_one"],
    "behaviour_from_learner": LAG_SABOTAGES["behaviour_from_learner"],
    "constant_groups_kept": Sabotage(constant_groups_kept, "executed_drop_error", ""),
    "turn_shifted": Sabotage(turn_shifted, "logged_metrics_error", ""),
}

PLANTS: dict[str, Callable[[], None]] = {
    **{
        name: sabotage.plant
        for name, sabotage in (SABOTAGES | LAG_SABOTAGES | SEARCH_SABOTAGES).items()
    },
    "stop_token_masked": stop_token_masked,
    "other_prompts_in_one_arm": other_prompts_in_one_arm,
    "nan_reward": nan_reward,
    "full_disk": full_disk,
    "mark": mark,
    "meet": meet,
    "pause": pause,
}
