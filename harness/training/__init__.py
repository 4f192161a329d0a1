"""One arm, trained through the Tinker API: the only rooms that import tinker."""
