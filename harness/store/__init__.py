"""The run store: what has been trained and measured, keyed by content.

Shared by the workers of one run and by concurrent runs on one machine; safe against a kill at any
instant, because a record appears whole or not at all and an entry's commit point comes last.
"""

from harness.store.entry import Attempt, Entry
from harness.store.keys import content_key, merge_parts
from harness.store.run_store import FORMAT, RunStore
from harness.store.sharing import produce_all

__all__ = ["FORMAT", "Attempt", "Entry", "RunStore", "content_key", "merge_parts", "produce_all"]
