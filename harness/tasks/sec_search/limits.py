"""What an episode may use, as a registration pins it."""

from dataclasses import dataclass, field
from typing import Literal

from harness.tasks.sec_search.session import SessionLimits

Broken = Literal["graded", "floor"]


@dataclass(frozen=True)
class EpisodeLimits:
    """Bounds of one episode, and what a broken reply is worth.

    `max_tokens` bounds the whole episode: prompt, replies and tool results. A turn is sampled
    only if `max_generation_tokens` still fit, so an episode never passes it. A reply is broken
    if it was cut off, or holds no call that can be read although it tries to; it ends the episode,
    and the curated set is graded ("graded"), or -0.2 is given whatever was curated ("floor").
    """

    max_turns: int = 12
    max_tokens: int = 8_192
    max_generation_tokens: int = 512
    broken_reply: Broken = "graded"
    session: SessionLimits = field(default_factory=SessionLimits)
