"""Names that cards and decisions share, in a module that imports nothing."""

BASE = "base"
"""The role of the untrained base model in a criterion; no arm may play it."""

ACCURACY = ("accuracy", "greedy_exact_match_accuracy")
"""What a criterion calls the exact match of an evaluated item; `pass@k` is of its samples."""

POINT_THRESHOLDS = "point_thresholds"
"""The decision method that validates and refutes by thresholds on the estimate."""

POINT_ESTIMATE = "point_estimate"
"""The same method where the margin is the only threshold: what does not validate is refuted."""

SEED_RANGE = "seed_range"
"""The decision method that compares the estimate with the spread of seeds."""

BY_ESTIMATE = (POINT_ESTIMATE, POINT_THRESHOLDS, SEED_RANGE)
"""Decision methods that compare the estimate itself: without an error rate, so without a p."""
