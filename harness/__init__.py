"""An experiment harness on pytest: a card goes in, a verdict comes out.

What an experiment's own component file imports stands here, and is loaded when it is asked for:
declarations (`estimator`, `kernel`, `gate_metric`, `preflight`, `decision_method`) and what the
declared functions are given and return.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.audit.finding import Finding
    from harness.audit.metrics.metric import Unmeasurable, gate_metric
    from harness.audit.pilot import Executed
    from harness.cards import Experiment
    from harness.components import (
        Estimate,
        NoSettings,
        Settings,
        StepRewards,
        each_group,
        estimator,
        kernel,
    )
    from harness.decisions.criterion import Criterion
    from harness.decisions.method import decision_method
    from harness.decisions.sample import Sample
    from harness.evidence import Evidence
    from harness.plugin.assertions import inconclusive
    from harness.protocol.preflight import Context, preflight
    from harness.statistics.intervals import Interval

_HOMES = {
    "Context": "harness.protocol.preflight",
    "Criterion": "harness.decisions.criterion",
    "Estimate": "harness.components",
    "Evidence": "harness.evidence",
    "Executed": "harness.audit.pilot",
    "Experiment": "harness.cards",
    "Finding": "harness.audit.finding",
    "Interval": "harness.statistics.intervals",
    "NoSettings": "harness.components",
    "Sample": "harness.decisions.sample",
    "Settings": "harness.components",
    "StepRewards": "harness.components",
    "Unmeasurable": "harness.audit.metrics.metric",
    "decision_method": "harness.decisions.method",
    "each_group": "harness.components",
    "estimator": "harness.components",
    "gate_metric": "harness.audit.metrics.metric",
    "inconclusive": "harness.plugin.assertions",
    "kernel": "harness.components",
    "preflight": "harness.protocol.preflight",
}

__all__ = [
    "Context",
    "Criterion",
    "Estimate",
    "Evidence",
    "Executed",
    "Experiment",
    "Finding",
    "Interval",
    "NoSettings",
    "Sample",
    "Settings",
    "StepRewards",
    "Unmeasurable",
    "decision_method",
    "each_group",
    "estimator",
    "gate_metric",
    "inconclusive",
    "kernel",
    "preflight",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
