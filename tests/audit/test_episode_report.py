"""What a reader is told of episodes: figures of the steps, summed up and never recounted."""

import dataclasses
from pathlib import Path

import pytest

from harness.audit.episode_report import episode_lines
from harness.cards import load_experiment

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
ENDED = {"episode/stop=tool_stopped": 0.75, "episode/stop=max_turns": 0.25}


@pytest.fixture(name="arm")
def _arm():
    arm = load_experiment(CARDS / "tailrl_lag8_sec_search_4b.json").arm("tailrl_lag8_seed0")
    return dataclasses.replace(arm, lag=1, group_size=4)


def step(number, **metrics):
    """A step's figures; `_` stands for what a name can't hold."""
    made = {
        "reward": 0.2, "dropped_groups": 1.0, "updated": 1.0, "kept/rollouts": 4.0,
        "kept/reward": 0.5, "staleness/mass_clipped": 1.0,
        "staleness/mass/rank=1+/total": 8.0, "staleness/mass/rank=1+/clipped": 0.75,
        "staleness/mass/rank=4-/total": 4.0, "staleness/mass/rank=4-/clipped": 0.25,
        "staleness/turn=0/tokens": 300.0, "staleness/turn=0/trajectories": 8.0,
        "staleness/turn=0/kl_k3": 0.01, "staleness/turn=0/ratio_p95": 1.1,
        "staleness/turn=0/ratio_p99": 1.5,
        **{f"episode/{k}": 0.5 for k in ("f4", "precision", "recall", "curated", "empty")},
        "episode/at_cap": 0.0, "episode/off_format": 0.25, "episode/turns": 2.5, **ENDED,
    }  # fmt: skip
    return {"step": number, "metrics": made | metrics}


def test_an_arm_of_one_reply_episodes_has_no_lines(arm):
    """Word problems are told as before."""
    assert episode_lines(arm, [{"step": 0, "metrics": {"reward": 1.0}}]) == []


def test_turns_are_told_past_the_ramp_with_what_they_are_of(arm):
    """KL weighs tokens, quantiles are means of steps, and few tokens have no last percentile."""
    late = {
        "staleness/turn=0/tokens": 100.0, "staleness/turn=0/kl_k3": 0.05,
        "staleness/turn=1/tokens": 20.0, "staleness/turn=1/trajectories": 2.0,
        "staleness/turn=1/kl_k3": 0.2, "staleness/turn=1/ratio_p95": 1.3,
    }  # fmt: skip
    last = step(2, **late)
    del last["metrics"]["staleness/turn=0/ratio_p99"]
    ramp = step(0, **{"staleness/turn=0/kl_k3": 9.0})
    by_turn = episode_lines(arm, [ramp, step(1), last])[0]

    assert by_turn.endswith(
        "turn 0 KL 0.02, ratio p95 1.100 p99 1.500, 400 tokens of 16 episodes; "
        "turn 1 KL 0.2, ratio p95 1.300 p99 -, 20 tokens of 2 episodes"
    )


def test_mass_is_told_by_rank_and_sign(arm):
    """Rates within a bucket and shares of all that was taken; empty buckets are left out."""
    by_rank = episode_lines(arm, [step(1), step(2)])[1]

    assert by_rank.endswith("best A+ rate 9.4%, share 75.0%; worst A- rate 6.2%, share 25.0%")


def test_drops_are_counted_with_the_reward_before_and_after(arm):
    """A step without an update has no reward after the drop."""
    idle = step(2, updated=0.0, dropped_groups=4.0)
    del idle["metrics"]["kept/reward"]
    dropped = episode_lines(arm, [step(1), idle])[2]

    assert dropped.endswith(
        "5 zero-variance groups dropped in 2 steps, 1 steps without an update; mean reward "
        "0.2000 before the drop, 0.5000 after"
    )


def test_first_and_last_episodes_are_told_with_their_endings(arm):
    """Curated sets, empty and full ones, off-format turns and why episodes ended."""
    ends = episode_lines(arm, [step(1), step(2, **{"episode/f4": 0.75})])[3]

    assert (
        "F4 0.500, precision 0.500, recall 0.500, 0.50 curated (50% empty, 0% at the cap)" in ends
    )
    assert "off format 25.0%, 2.5 turns, ended tool_stopped 75%, max_turns 25%" in ends
    assert "; F4 0.750" in ends
