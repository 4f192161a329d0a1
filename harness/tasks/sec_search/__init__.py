"""The SEC search agent's task: find and curate the filing chunks that answer a multi-clue question.

Corpus, index, session, reward and compact syntax need neither torch nor tinker. The environments
are in `env` and `compact_env`, which are imported by name where rollouts are sampled.
"""

from harness.tasks.sec_search.prepare import Selection, prepare
from harness.tasks.sec_search.records import Chunk, Fact, Query
from harness.tasks.sec_search.reward import Score, f_beta, score
from harness.tasks.sec_search.session import SearchSession, SessionLimits
from harness.tasks.sec_search.synthetic import World
from harness.tasks.sec_search.task import (
    SearchTask,
    Source,
    load_search_task,
    published_task,
    synthetic_task,
)

__all__ = [
    "Chunk",
    "Fact",
    "Query",
    "Score",
    "SearchSession",
    "SearchTask",
    "Selection",
    "SessionLimits",
    "Source",
    "World",
    "f_beta",
    "load_search_task",
    "prepare",
    "published_task",
    "score",
    "synthetic_task",
]
