"""Comparisons of baselines as one picture: a panel a pool, an interval a candidate."""

from collections.abc import Sequence
from pathlib import Path

from harness.lab.baselines import GROUPS, UNIFORM, Comparison


def plot(comparisons: Sequence[Comparison], path: Path, title: str) -> Path:
    """Write a PNG: headline score with its bootstrap interval, uniform and RLOO as lines.

    Without a display; the file appears whole or not at all.
    """
    from matplotlib.figure import Figure  # takes half a second: not before a picture is wanted

    figure = Figure(figsize=(4.6 * len(comparisons), 4.2), layout="constrained")
    axes = figure.subplots(1, len(comparisons), squeeze=False, sharex=True, sharey=True)[0]
    for axis, comparison in zip(axes, comparisons, strict=True):
        names = list(comparison.candidates)
        for place, name in enumerate(names):
            score = comparison.candidates[name].headline
            around = [[score.estimate - score.lower], [score.upper - score.estimate]]
            colour = "tab:red" if name == comparison.chosen else "tab:blue"
            axis.errorbar(score.estimate, place, xerr=around, fmt="o", capsize=3, color=colour)
        axis.axvline(comparison.candidates[UNIFORM].headline.estimate, color="grey", lw=1)
        for group in GROUPS:
            axis.axvline((group - 1) / group, color="grey", lw=0.8, ls=":")
            axis.annotate(
                f"G={group}", ((group - 1) / group, 1), xycoords=("data", "axes fraction"),
                fontsize=7, ha="center", va="bottom",
            )  # fmt: skip
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        known = comparison.pool.tokens_N_K is not None
        axis.set_xlabel("rho_s (token-count proxy)" if known else "rho")
        axis.set_title(f"{comparison.pool.name}, B={comparison.batch_size}", fontsize=9, pad=14)
    figure.suptitle(f"{title}: share of oracle noise (1 is the oracle), 95% bootstrap over prompts")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.part.png")
    figure.savefig(temporary, dpi=110)
    temporary.replace(path)
    return path
