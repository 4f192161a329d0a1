"""The preflights: for each, how its evidence is collected, whether it is kept, and its check."""

from __future__ import annotations
