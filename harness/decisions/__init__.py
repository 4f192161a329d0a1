"""From a registered criterion and per-item scores to a verdict with its sentence.

``criterion``  what was registered: contrast, bounds, margin, alpha, sides, method, unit
``pairing``    scores joined on item ids; whatever can't be joined is a problem, never a smaller n
``methods``    the registered methods by name
``thresholds`` the methods that compare the estimate itself
``rule``       ``decide``: the registered method alone sets the verdict
``outcome``    the verdict and everything needed to recompute it by hand
``sentences``  the verdict in words
``reachable``  can a criterion come out both ways at this n?
``family``     ``decision``: the criteria, their premises and looks to the experiment's one verdict
``looks``      a second set of seeds, trained only if the first calls for it
``tables``     a rule on 2x2 tables before any data: power, and the error rate of two looks
``beside``     what seeds and ablation arms say; decides nothing
``diagnostics``  what other methods would have said; imported by nothing here
"""

from harness.decisions.criterion import Criterion, Unit
from harness.decisions.family import (
    CombineRule,
    Decision,
    calls_for_second_look,
    decision,
    with_assertions,
)
from harness.decisions.methods import METHODS, method_named
from harness.decisions.outcome import Outcome, Verdict
from harness.decisions.pairing import PairedScores, Rows, paired_scores
from harness.decisions.reachable import can_come_out_both_ways
from harness.decisions.rule import decide

__all__ = [
    "METHODS",
    "CombineRule",
    "Criterion",
    "Decision",
    "Outcome",
    "PairedScores",
    "Rows",
    "Unit",
    "Verdict",
    "calls_for_second_look",
    "can_come_out_both_ways",
    "decide",
    "decision",
    "method_named",
    "paired_scores",
    "with_assertions",
]
