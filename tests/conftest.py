"""Shared by all tests: pytest's own test bench, and property tests that repeat themselves."""

import os
import sys
from pathlib import Path

import hypothesis

# two workers on two cores: threads of small models would only wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")

HERE = Path(__file__).parent
# `mistakes`, the catalogue of planted mistakes, and the doubles that it plants them in
sys.path[:0] = [str(HERE), str(HERE / "training")]

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
