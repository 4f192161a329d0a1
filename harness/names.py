"""Names that cards and decisions share, in a module that imports nothing."""

BASE = "base"
"""The role of the untrained base model in a criterion; no arm may play it."""

ACCURACY = ("accuracy", "greedy_exact_match_accuracy")
"""What a criterion calls the exact match of an evaluated item; `pass@k` is of its samples."""

POINT_ESTIMATE = "point_estimate"
"""The one decision method without an interval."""

POINT_THRESHOLDS = "point_thresholds"
"""The decision method that validates and refutes by thresholds on the estimate."""
