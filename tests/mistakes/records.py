"""Mistakes in the stored records of a pilot: what was executed is not what the card says."""

import copy
from typing import Any

from rollouts import set_advantages, set_rewards

from harness.methods import uniform_loo
from mistakes.mistake import Edit, Mistake, Where

GRPO, GS1 = "grpo_gs8_seed0", "gs1_seed0"
CONTRIBUTORS = "gs1_effective_contributors_median"
GAP = "gs1_mean_abs_baseline_minus_uniform_loo"


def batch_mean(pilot: Any) -> None:
    """The plain mean of the batch under the name of a kernel."""
    for record in pilot[GS1]:
        rewards = [group["rollouts"][0]["reward"] for group in record["groups"]]
        for group, advantage in zip(record["groups"], uniform_loo(rewards), strict=True):
            set_advantages(group, [advantage])


def contributors(count: float) -> Edit:
    """So many other prompts weigh in each baseline."""

    def edit(pilot: Any) -> None:
        for record in pilot[GS1]:
            record["kernel"]["contributors_P"] = [count] * 64

    return edit


def huge_tau(pilot: Any) -> None:
    """A kernel that tells no prompts apart."""
    batch_mean(pilot)
    contributors(63.0)(pilot)


def prompt_drawn_twice(pilot: Any) -> None:
    """Two groups of one prompt are one larger group."""
    groups = pilot[GS1][2]["groups"]
    groups[1]["prompt"] = groups[0]["prompt"]


def half_the_rollouts(pilot: Any) -> None:
    """One step of one arm lost half of its groups."""
    pilot[GRPO][1]["groups"] = pilot[GRPO][1]["groups"][:4]


def twice_the_rollouts(pilot: Any) -> None:
    """Each group again; 16 rollouts a prompt are no concern of the GS1 gate."""
    pilot[GRPO][1]["groups"] += copy.deepcopy(pilot[GRPO][1]["groups"])


def everything_right(pilot: Any) -> None:
    """One arm has nothing to learn."""
    for record in pilot[GRPO]:
        for group in record["groups"]:
            set_rewards(group, [1.0] * 8)


def other_model(pilot: Any) -> None:
    """One step trained another model."""
    pilot[GS1][2]["model"] = "Qwen/Qwen3.5-4B"


_ROWS: list[tuple[str, Where, set[str], str, Edit]] = [
    ("huge_tau_executed", "kernel", {CONTRIBUTORS, GAP}, "63 was executed", huge_tau),
    ("one_neighbour", "kernel", {CONTRIBUTORS}, "1.2 was executed", contributors(1.2)),
    ("batch_mean_under_a_kernels_name", "kernel", {GAP}, "0 was executed", batch_mean),
    ("prompt_drawn_twice", "loop", {"gs1_executed_group_size"}, "2 was executed",
        prompt_drawn_twice),
    ("half_the_rollouts", "loop", {"rollouts_per_step_both_arms"}, "32 was executed",
        half_the_rollouts),
    ("twice_the_rollouts", "loop", {"rollouts_per_step_both_arms"}, "128 was executed",
        twice_the_rollouts),
    ("everything_right_in_one_arm", "reward", {"batch_mean_reward_pilot"}, "1 was executed",
        everything_right),
    ("other_model_trained", "service", {"executed_base_model"}, "Qwen/Qwen3.5-4B", other_model),
]  # fmt: skip

MISTAKES = tuple(
    Mistake(name, where, "pilot", frozenset(items), words, edit, "records")
    for name, where, items, words, edit in _ROWS
)
