"""What seeds and ablation arms say beside the verdict; nothing here decides.

An interval over items speaks of the checkpoints that were evaluated. Only an interval over seeds
speaks of the method, and it takes three of them.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from harness.decisions import sentences
from harness.decisions.criterion import Criterion, Unit
from harness.decisions.outcome import Outcome
from harness.decisions.rule import decide
from harness.errors import StatisticsError
from harness.names import BASE
from harness.statistics.clustered import clustered_t
from harness.statistics.paired import t_interval

Rows = Mapping[str, float]
ByRole = Mapping[str, Mapping[int, Rows]]
"""Score by item id, by seed, by role."""

MIN_SEEDS = 3  # below, a spread is a guess


def averaged(rows: Sequence[Rows]) -> dict[str, float]:
    """The mean score of each item over several seeds; an item that one of them lacks is left out.

    A rule that is given too few items is INVALID, so nothing is lost quietly.
    """
    items = dict.fromkeys(item for row in rows for item in row)
    whole = [item for item in items if all(item in row for row in rows)]
    return {item: math.fsum(row[item] for row in rows) / len(rows) for item in whole}


def scores_by_seed(by_role: ByRole, base: Rows) -> dict[str, dict[str, float]]:
    """The accuracy of each role by seed; the base model is the same in each."""
    seeds = dict.fromkeys(seed for of_role in by_role.values() for seed in of_role)
    scores = {
        role: {str(seed): _mean(rows) for seed, rows in of_role.items()}
        for role, of_role in by_role.items()
    }
    return scores | {BASE: {str(seed): _mean(base) for seed in seeds}}


def seed_lines(criterion: Criterion, by_role: ByRole, base: Rows) -> list[str]:
    """Each seed's contrast, their spread and t interval, and what each interval speaks of."""
    scores = scores_by_seed(by_role, base)
    weights = criterion.contrast().weights
    seeds = [seed for seed in scores[BASE] if all(seed in scores[role] for role in weights)]
    gaps = [sum(w * scores[role][seed] for role, w in weights.items()) for seed in seeds]
    of_items = criterion.unit != Unit.SEEDS
    speaks = "these checkpoints" if of_items else "the method"
    where = f"{criterion.id} (seeds, not used for the verdict)" if of_items else criterion.id
    if len(gaps) < 2:
        return [
            f"{where}: one seed an arm, so the spread between seeds is unknown; the verdict speaks "
            f"of {speaks} and not of the method"
        ]
    each = ", ".join(f"seed {s} {100 * g:+.2f}" for s, g in zip(seeds, gaps, strict=True))
    interval = t_interval(np.array(gaps), criterion.alpha, criterion.sides)
    level = f"{100 * (1 - criterion.alpha):g}%"
    few = f"; fewer than {MIN_SEEDS} seeds, no claim about the method" * (len(gaps) < MIN_SEEDS)
    return [
        f"{where}: {each}; spread (sd) {100 * float(np.std(gaps, ddof=1)):.2f}, mean "
        f"{100 * interval.estimate:+.2f}, {level} t over {len(gaps)} seeds "
        f"{sentences.limits_text(criterion, interval)}, which speaks of the method{few}; the "
        f"verdict speaks of {speaks}"
    ]


def ablation_lines(role: str, weighed: Sequence[str], by_role: ByRole, alpha: float) -> list[str]:
    """Each weighed role against an ablation, item by item, at margin 0, on the seeds of both."""
    lines = []
    for other in weighed:
        seeds = [seed for seed in by_role[role] if seed in by_role[other]]
        if not seeds:
            lines.append(f"ablation: {other} and {role} share no seed, so they are not compared")
            continue
        rows = {name: averaged([by_role[name][s] for s in seeds]) for name in (other, role)}
        # the mean of several seeds is no longer 0 or 1
        method = "paired_tango" if len(seeds) == 1 else "paired_empirical_bernstein"
        criterion = Criterion(
            id=f"{other}_minus_{role}",
            metric="accuracy",
            weights={other: 1.0, role: -1.0},
            bounds=(0.0, 1.0),
            margin=0.0,
            alpha=alpha,
            sides=2,
            method=method,
        )
        outcome = decide(criterion, rows, list(rows[role]))
        lines.append(f"ablation (not used for the verdict): {_shown(criterion, outcome)}")
    return lines


def score_line(name: str, scores: Mapping[str, Rows], alpha: float) -> str:
    """An evaluation's mean scores by metric, each with its t interval over items.

    An item's draws are in its score, so items are the clusters.
    """
    parts = []
    for metric, rows in scores.items():
        values = list(rows.values())
        shown = f"{metric} {math.fsum(values) / len(values):.4f}"
        # one item, or no spread: a mean and nothing more
        with suppress(StatisticsError):
            interval = clustered_t(values, range(len(values)), alpha)
            shown += f" [{interval.lower:.4f}, {interval.upper:.4f}]"
        parts.append(shown)
    n = len(next(iter(scores.values())))
    level = f"{100 * (1 - alpha):g}%"
    return f"evaluation of {name}: {', '.join(parts)} (n={n}, {level} t clustered by item)"


def _shown(criterion: Criterion, outcome: Outcome) -> str:
    text = sentences.contrast_text(criterion.contrast().weights)
    if outcome.estimate is None or outcome.lower is None or outcome.upper is None:
        return f"{text}: {'; '.join(outcome.problems)}"
    return (
        f"{text} {100 * outcome.estimate:+.2f} points, {100 * (1 - criterion.alpha):g}% "
        f"{criterion.method} [{100 * outcome.lower:+.2f}, {100 * outcome.upper:+.2f}]"
    )


def _mean(rows: Rows) -> float:
    return math.fsum(rows.values()) / len(rows)
