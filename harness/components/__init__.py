"""The one door: how whatever a card names is declared, found, checked and hashed.

A component is a decorated function in a module of the harness, of an experiment, or of an installed
package. All three come through the same decorators.
"""

from harness.components.component import Component
from harness.components.estimator import (
    Estimate,
    Estimator,
    StepRewards,
    each_group,
    estimator,
)
from harness.components.kernel import DeclaredKernel, kernel
from harness.components.registry import Components, Source
from harness.components.settings import NoSettings, Settings, nearest, parsed, settings_problems

__all__ = [
    "Component",
    "Components",
    "DeclaredKernel",
    "Estimate",
    "Estimator",
    "NoSettings",
    "Settings",
    "Source",
    "StepRewards",
    "each_group",
    "estimator",
    "kernel",
    "nearest",
    "parsed",
    "settings_problems",
]
