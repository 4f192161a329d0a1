"""What a turn and an episode leave for the record, as flat numbers."""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.tasks.sec_search.records import Query
from harness.tasks.sec_search.reward import EMPTY_REWARD, score
from harness.tasks.sec_search.session import SearchSession

CALLS = ("search", "grep", "read", "curate", "drop", "finish")
EVALUATED = ("f4", "precision", "recall")
FIGURES = (
    *EVALUATED,
    "curated",
    "empty",
    "at_cap",
    "encountered",
    "encountered_recall",
    "errors",
    "invalid_curations",
    "turns",
    *(f"calls/{name}" for name in CALLS),
)
"""Names of `episode_metrics`."""


@dataclass(frozen=True)
class Progress:
    """How far a session has come; two of them bound a turn."""

    counts: Mapping[str, int]
    encountered: int
    curated: int

    @classmethod
    def of(cls, session: SearchSession) -> "Progress":
        """Now."""
        return cls(dict(session.counts), len(session.encountered), len(session.curated))


def turn_metrics(before: Progress, after: Progress, off_format: bool) -> dict[str, float]:
    """Calls by name, errors, chunks newly met, the curated count's change, and off-format.

    `off_format` is a turn of which no call could be read, or not every one.
    """
    names = (*CALLS, "errors", "invalid_curations")
    counted = {
        f"turn/{name}": float(after.counts.get(name, 0) - before.counts.get(name, 0))
        for name in names
    }
    return {
        **counted,
        "turn/encountered": float(after.encountered - before.encountered),
        "turn/curated": float(after.curated - before.curated),
        "turn/off_format": float(off_format),
    }


def episode_reward(session: SearchSession, query: Query, floored: bool) -> float:
    """The F4 of the curated set, -0.2 if it is empty or the episode is `floored`."""
    return EMPTY_REWARD if floored else score(session.curated, query.facts).reward


def episode_metrics(session: SearchSession, query: Query, turns: int) -> dict[str, float]:
    """Scores apart from the reward, set sizes, and calls of the whole episode.

    `encountered_recall` is the share of facts of which a chunk was met: what curating could reach.
    """
    result = score(session.curated, query.facts)
    met = score(session.encountered, query.facts)
    counted = {f"calls/{name}": float(session.counts[name]) for name in CALLS}
    return {
        "f4": result.f_beta,
        "precision": result.precision,
        "recall": result.recall,
        "curated": float(result.curated),
        "empty": float(result.curated == 0),
        "at_cap": float(result.curated >= session.limits.max_curated),
        "encountered": float(len(session.encountered)),
        "encountered_recall": met.recall,
        "errors": float(session.counts["errors"]),
        "invalid_curations": float(session.counts["invalid_curations"]),
        "turns": float(turns),
        **counted,
    }
