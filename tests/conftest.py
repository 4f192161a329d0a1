"""Shared by all tests: pytest's own test bench, and property tests that repeat themselves."""

import hypothesis

pytest_plugins = ["pytester"]

# the same examples on every machine, no verdict on its speed, and no files kept
hypothesis.settings.register_profile(
    "project",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=True,
    max_examples=60,
    database=None,
)
hypothesis.settings.load_profile("project")
