"""A synthetic SEC-like corpus with multi-clue questions, in the published raw schema."""

from harness.tasks.sec_search.synthetic.raw import TINY, write_raw
from harness.tasks.sec_search.synthetic.world import World

__all__ = ["TINY", "World", "write_raw"]
