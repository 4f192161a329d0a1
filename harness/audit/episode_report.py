"""Episodes of several turns in words, for readers: by turn, by reward rank, how they ended."""

import math
from collections.abc import Sequence

from harness.audit.recomputed import KEPT, PREFIX
from harness.cards import Arm
from harness.records import StepFigures

EPISODE = "episode/"


def episode_lines(arm: Arm, records: Sequence[StepFigures]) -> list[str]:
    """An arm's lines over its steps; none if its episodes have one turn.

    Staleness is of the steps past the ramp. A bucket's rate is what the clip takes of its own
    |A| mass, its share what it contributes to all that is taken.
    """
    if not any(name.startswith(EPISODE) for record in records for name in record["metrics"]):
        return []
    steady = [record["metrics"] for record in records if record["step"] >= arm.lag]
    every = [record["metrics"] for record in records]
    return [
        f"{arm.name}, by turn past the ramp: {'; '.join(turn_parts(steady))}",
        f"{arm.name}, clipped |A| mass by reward rank and sign: "
        f"{'; '.join(rank_parts(steady, arm.group_size)) or 'none'}",
        *([] if f"{KEPT}rollouts" not in every[0] else [f"{arm.name}: {dropped_part(every)}"]),
        f"{arm.name}, episodes of the first step and the last: {ending_part(every[0])}; "
        f"{ending_part(every[-1])}",
    ]


def turn_parts(metrics: Sequence[dict[str, float]]) -> list[str]:
    """KL and ratio quantiles of each turn: KL over all its tokens, quantiles as means of steps."""
    turns = {
        int(name.removeprefix(f"{PREFIX}turn=").partition("/")[0])
        for step in metrics
        for name in step
        if name.startswith(f"{PREFIX}turn=")
    }
    parts = []
    for turn in sorted(turns):
        own = [
            {
                name.rpartition("/")[2]: value
                for name, value in step.items()
                if name.startswith(f"{PREFIX}turn={turn}/")
            }
            for step in metrics
        ]
        had = [step for step in own if step]
        tokens = math.fsum(step["tokens"] for step in had)
        kl = math.fsum(step["kl_k3"] * step["tokens"] for step in had) / tokens
        tails = [step["ratio_p99"] for step in had if "ratio_p99" in step]
        p99 = f"{math.fsum(tails) / len(tails):.3f}" if tails else "-"
        p95 = math.fsum(step["ratio_p95"] for step in had) / len(had)
        episodes = math.fsum(step["trajectories"] for step in had)
        parts.append(
            f"turn {turn} KL {kl:.3g}, ratio p95 {p95:.3f} p99 {p99}, {tokens:.0f} tokens of "
            f"{episodes:.0f} episodes"
        )
    return parts


def rank_parts(metrics: Sequence[dict[str, float]], size: int) -> list[str]:
    """Rate and share of the best, the better half, the worse half and the worst of a group."""
    half = size // 2
    places = {
        "best": range(1, 2),
        f"2-{half}": range(2, half + 1),
        f"{half + 1}-{size - 1}": range(half + 1, size),
        "worst": range(size, size + 1),
    }
    lost = math.fsum(step[f"{PREFIX}mass_clipped"] for step in metrics)
    parts = []
    for name, ranks in places.items():
        for sign in "+-":
            total, clipped = (
                math.fsum(
                    step.get(f"{PREFIX}mass/rank={rank}{sign}/{what}", 0.0)
                    for step in metrics
                    for rank in ranks
                )
                for what in ("total", "clipped")
            )
            if total > 0.0:
                share = f"{clipped / lost:.1%}" if lost > 0.0 else "-"
                parts.append(f"{name} A{sign} rate {clipped / total:.1%}, share {share}")
    return parts


def dropped_part(metrics: Sequence[dict[str, float]]) -> str:
    """How many zero-variance groups were dropped, and the reward before and after."""
    dropped = math.fsum(step["dropped_groups"] for step in metrics)
    before = math.fsum(step["reward"] for step in metrics) / len(metrics)
    kept = [step[f"{KEPT}reward"] for step in metrics if f"{KEPT}reward" in step]
    after = f"{math.fsum(kept) / len(kept):.4f}" if kept else "-"
    idle = sum(step["updated"] == 0.0 for step in metrics)
    return (
        f"{dropped:.0f} zero-variance groups dropped in {len(metrics)} steps, {idle} steps "
        f"without an update; mean reward {before:.4f} before the drop, {after} after"
    )


def ending_part(step: dict[str, float]) -> str:
    """What one step's episodes curated, and how they ended."""
    own = {k.removeprefix(EPISODE): v for k, v in step.items() if k.startswith(EPISODE)}
    ends = [
        f"{name.removeprefix('stop=')} {share:.0%}"
        for name, share in own.items()
        if name.startswith("stop=") and share > 0.0
    ]
    return (
        f"F4 {own['f4']:.3f}, precision {own['precision']:.3f}, recall {own['recall']:.3f}, "
        f"{own['curated']:.2f} curated ({own['empty']:.0%} empty, {own['at_cap']:.0%} at the cap), "
        f"off format {own['off_format']:.1%}, {own['turns']:.1f} turns, ended {', '.join(ends)}"
    )
