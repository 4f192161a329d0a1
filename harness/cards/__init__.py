"""Cards, registrations and scales: what an experiment says, before anything is run.

Knows nothing of pytest, torch or tinker.
"""

from harness.cards.card import Card, CardArm, CriterionSpec, DecisionRule, GateCheck, Threshold
from harness.cards.experiment import Arm, Experiment, Scale
from harness.cards.loading import experiment_id, load_experiment, read_clusters
from harness.cards.registration import Registration
from harness.kernels.tfidf import Kernel

__all__ = [
    "Arm",
    "Card",
    "CardArm",
    "CriterionSpec",
    "DecisionRule",
    "Experiment",
    "GateCheck",
    "Kernel",
    "Registration",
    "Scale",
    "Threshold",
    "experiment_id",
    "load_experiment",
    "read_clusters",
]
