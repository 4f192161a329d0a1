"""Shared by all tests: pytest's own test bench, and property tests that repeat themselves."""

import hypothesis

pytest_plugins = ["pytester"]

# the same examples on every machine, whatever its load, and no files kept
hypothesis.settings.register_profile(
    "project", deadline=None, derandomize=True, max_examples=60, database=None
)
hypothesis.settings.load_profile("project")
