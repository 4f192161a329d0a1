"""Pilots of the mini scales over doubles: three experiments, with every gate that is registered."""

import asyncio
import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))

import lag_mini
import mini
import search_mini
from search_doubles import SearchService
from service_doubles import ScriptedService

from harness.audit.gates import check_gate
from harness.audit.tracing import step_tracer
from harness.cards import Experiment, load_experiment
from harness.embedded import MODELS
from harness.protocol.data import experiment_task
from harness.store import RunStore
from harness.training.adapters import task_adapter
from harness.training.context import arm_context
from harness.training.loop import train_until


@dataclass(frozen=True)
class Setting:
    """A card, its mini scale's file, the double that serves it, and how fast it learns.

    At this rate a double's one weight moves log-probs as far as a model's many do.
    """

    card: str
    write: Callable[[Path], Path]
    double: type[ScriptedService]
    rate: float


SETTINGS = {
    "gs1": Setting(
        mini.CARD, lambda path: mini.write_scale(path, mini.mini_scale()), ScriptedService, 3e-3
    ),
    "lag": Setting(lag_mini.CARD, lag_mini.write, ScriptedService, 0.3),
    "search": Setting(search_mini.CARD, search_mini.write, SearchService, 0.1),
}


class MiniPilot:
    """The pilot of one experiment at its mini scale."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        scale = setting.write(folder / "mini.json")
        experiment = load_experiment(mini.CARDS / f"{setting.card}.json", str(scale))
        rates = {arm.role: setting.rate for arm in experiment.arms}
        self.experiment: Experiment = dataclasses.replace(experiment, learning_rates=rates)
        self.task = experiment_task(experiment, folder, None)
        self.adapter = task_adapter(
            str(MODELS[experiment.card.base_model]), self.experiment, self.task
        )
        self.double = setting.double

    def red(self, folder: Path, noise: tuple[float, float] = (0.0, 0.0)) -> dict[str, str]:
        """What gates say that do not pass, after a pilot with the loop as it is now."""
        experiment, pilot = self.experiment, dict[str, Any]()
        service: Any = self.double(self.adapter, self.task)
        service.honest, service.model = True, experiment.card.base_model
        service.noise = noise
        steps = experiment.registration.training.pilot_steps
        for arm in experiment.arms:
            entry = RunStore(folder).entry(f"arm/{arm.name}", {"arm": arm.name})
            context = arm_context(
                experiment, arm, self.task, service, self.adapter, entry,
                loss_backend=arm.loss_backends[0],
                tracer=step_tracer(experiment, self.adapter),
            )  # fmt: skip
            asyncio.run(train_until(context, None, steps))
            pilot[arm.name] = [entry.read_step(step) for step in range(steps)]
        found = [check_gate(check, pilot, experiment) for check in experiment.gates]
        return {each.check.metric: each.sentence for each in found if not each.ok}
