"""Property tests here draw the same examples on every machine, and keep no files."""

from hypothesis import settings

settings.register_profile(
    "methods", deadline=None, derandomize=True, max_examples=60, database=None
)
settings.load_profile("methods")
