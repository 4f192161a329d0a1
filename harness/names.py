"""Names that cards and decisions share, in a module that imports nothing."""

BASE = "base"
"""The role of the untrained base model in a criterion; no arm may play it."""

POINT_ESTIMATE = "point_estimate"
"""The one decision method without an interval."""

POINT_THRESHOLDS = "point_thresholds"
"""The decision method that validates and refutes by thresholds on the estimate."""
