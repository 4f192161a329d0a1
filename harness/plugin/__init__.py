"""The pytest side: hooks, fixtures, options, progress and reports."""
