"""A scripted `ExperimentRun`: stages come out as a test says, and every call is noted down."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

from harness.audit import PREFLIGHTS
from harness.audit.finding import Finding, GateFinding
from harness.cards import Experiment, GateCheck, load_experiment
from harness.decisions import Decision, Outcome, Verdict, decision
from harness.protocol.progress import progress_folder, write_progress
from harness.protocol.stages import ArmSummary, BaseSummary, Progress

FIGURES = {
    Verdict.VALIDATED: (0.04, -0.035, 0.115),
    Verdict.INCONCLUSIVE: (0.012, -0.063, 0.087),
    Verdict.REFUTED: (-0.14, -0.215, -0.065),
}


@dataclass(frozen=True)
class Script:
    """How a run comes out. The default is a run in which everything holds.

    `verdict` is of every criterion by itself, or by criterion; `preflights` and `gates` give the
    problems of those that fail; `raises` gives the error of a stage, by the name of the method, or
    `preflight:<id>`; `dies` names a method in which the process ends at once.
    """

    verdict: str | Mapping[str, str] = "VALIDATED"
    preflights: Mapping[str, str] = field(default_factory=dict)
    gates: Mapping[str, str] = field(default_factory=dict)
    raises: Mapping[str, Exception] = field(default_factory=dict)
    dies: str = ""
    metrics: Mapping[str, object] = field(default_factory=lambda: {"seconds": 0.25})
    missing_steps: int = 0
    train_seconds: float = 0.0
    post_hoc: bool = False
    record: str = ""


def opener(script: Script, calls: Path) -> Callable[[Path], "ScriptedRun"]:
    """What a test's conftest returns from its `open_card` fixture."""

    def open_card(card: Path) -> ScriptedRun:
        run = ScriptedRun(load_experiment(card), script, calls)
        run.called("open")
        return run

    return open_card


class ScriptedRun:
    """An `ExperimentRun` that does what its script says; `calls` gets one line a call."""

    def __init__(self, experiment: Experiment, script: Script, calls: Path) -> None:
        self.experiment = experiment
        self.preflights = PREFLIGHTS
        self.gates = tuple(check.metric for check in self._checks())
        self.criteria = tuple(criterion.id for criterion in experiment.rule.criteria)
        self._script = script
        self._calls = calls

    def called(self, method: str, name: str = "") -> None:
        """Note the call down, then raise or die if the script says so."""
        line = f"{method}:{name}" if name else method
        with self._calls.open("a") as file:
            file.write(f"{line}\n")
        if self._script.dies == method:
            os._exit(3)
        for key in (line, method):
            if key in self._script.raises:
                raise self._script.raises[key]

    @property
    def service(self) -> SimpleNamespace:
        """One that says what it is."""
        return SimpleNamespace(embedded=True)

    def preflight(self, id: str) -> Finding:
        """A finding with the script's problem, if it has one for it."""
        self.called("preflight", id)
        problems = tuple(filter(None, [self._script.preflights.get(id)]))
        return Finding(id, problems, (f"{id} took 0.25 s",), self._script.metrics)  # type: ignore[arg-type]

    def pilot(self) -> dict[str, list[dict]]:
        """One step of each arm with one figure."""
        self.called("pilot")
        step = {"step": 0, "metrics": {"reward": 0.5}}
        return {arm.name: [step] for arm in self.experiment.arms}

    def gate(self, metric: str) -> GateFinding:
        """A value within bounds, or the script's problem."""
        self.called("gate", metric)
        check = next(check for check in self._checks() if check.metric == metric)
        problem = self._script.gates.get(metric)
        value = check.one_of[0] if check.one_of else float(check.min or 0.0)
        return GateFinding(check, value, (problem,) if problem else ())

    def pilot_notes(self) -> tuple[str, ...]:
        """One line."""
        return ("B_eff uniform over kernel: 1.02",)

    def train(self) -> None:
        """Take the script's time over it, with news of an arm every 50 ms."""
        self.called("train")
        folder = progress_folder(Path("runs"), self.experiment.id, self.experiment.scale.name)
        for step in range(round(self._script.train_seconds / 0.05)):
            write_progress(folder, Progress("gs1_seed0", "train", step, 40, 0.5, 15200.0, 61.0))
            time.sleep(0.05)

    def arm(self, name: str) -> ArmSummary:
        """Every planned step less those that the script leaves out."""
        self.called("arm", name)
        arm = self.experiment.arm(name)
        steps = arm.steps - self._script.missing_steps
        rollouts = steps * arm.rollouts_per_step
        planned = arm.steps * arm.rollouts_per_step
        return ArmSummary(name, steps, rollouts, arm.steps, planned, 0.9022, 1319, 61.7, 0.88)

    def rows(self) -> dict[str, dict[str, float]]:
        """Two items, which every policy solved but the base model."""
        self.called("rows")
        names = ["base", *(arm.name for arm in self.experiment.arms)]
        return {name: dict.fromkeys(("0", "1"), float(name != "base")) for name in names}

    def base(self) -> BaseSummary:
        """An accuracy below both arms'."""
        return BaseSummary(0.7301, 1319)

    def decision(self) -> Decision:
        """What the rule makes of the script's verdicts."""
        self.called("decision")
        alone = {id: self._outcome(id) for id in self.criteria}
        made = decision(self.experiment.rule, alone)
        return replace(made, post_hoc=self._script.post_hoc, record=self._script.record)

    def _outcome(self, criterion: str) -> Outcome:
        """The script's verdict; an INVALID one has no figures."""
        said = self._script.verdict
        verdict = Verdict(said if isinstance(said, str) else said[criterion])
        estimate, lower, upper = (None,) * 3 if verdict is Verdict.INVALID else FIGURES[verdict]
        return Outcome(
            id=criterion,
            metric="accuracy",
            verdict=verdict,
            estimate=estimate,
            lower=lower,
            upper=upper,
            margin=-0.05,
            half_width=None if estimate is None else estimate - lower,
            n=1319,
            n_registered=1319,
            range=2.0,
            alpha=0.05,
            sides=2,
            method="paired_hoeffding",
            unit="fixed_checkpoint_items",
            p_validated=0.001 if verdict is Verdict.VALIDATED else None,
            p_refuted=0.001 if verdict is Verdict.REFUTED else None,
            counts=None,
            problems=("item 7 was not scored",) if verdict is Verdict.INVALID else (),
            notes=(),
            sentence=f"{verdict}: accuracy of treatment - baseline, margin -5 points",
        )

    def diagnostics(self) -> tuple[str, ...]:
        """One line."""
        return ("Newcombe interval [-0.020, 0.044]",)

    def progress(self) -> tuple[Progress, ...]:
        """Nothing moves."""
        return ()

    def attempts(self) -> int:
        """The second attempt."""
        return 2

    def close(self) -> None:
        """Nothing but the call."""
        self.called("close")

    def _checks(self) -> list[GateCheck]:
        return list(self.experiment.gates)
