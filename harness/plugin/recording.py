"""A run that notes down whatever it answers, so that reports can carry it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from harness.audit.finding import Finding
from harness.errors import HarnessError
from harness.plugin.facts import Facts, named

if TYPE_CHECKING:
    from harness.audit.finding import GateFinding
    from harness.cards import Card
    from harness.decisions import Decision
    from harness.protocol.services import Service
    from harness.protocol.stages import ArmSummary, ExperimentRun
    from harness.records import StepRecord

_FACTS = pytest.StashKey[dict[str, Facts]]()


def facts_of(config: pytest.Config, file_id: str) -> Facts:
    """What this process knows about the experiment of a test file, given by its node id."""
    return config.stash.setdefault(_FACTS, {}).setdefault(file_id, Facts())


class RecordedRun:
    """An `ExperimentRun` and the facts that it has yielded in this process.

    Every method may raise a HarnessError, as the run's own do.
    """

    def __init__(self, run: ExperimentRun, facts: Facts) -> None:
        self._run = run
        self.facts = facts

    def preflight(self, name: str) -> Finding:
        """One preflight, noted down even if it could not be carried out."""
        try:
            finding = self._run.preflight(name)
        except HarnessError as error:
            self.facts.preflights[name] = Finding(name, (named(error),), carried_out=False)
            raise
        self.facts.preflights[name] = finding
        return finding

    def failed_preflights(self) -> dict[str, str]:
        """Carry out every preflight; what is wrong, by the name of those that did not pass."""
        for name in self._run.preflights:
            try:
                self.preflight(name)
            except HarnessError:
                continue  # noted down as a fact, which is read below
        return {
            name: "\n".join(finding.problems)
            for name, finding in self.facts.preflights.items()
            if not finding.ok
        }

    @property
    def card(self) -> Card:
        """The card at the scale of the run."""
        return self._run.experiment.card

    @property
    def service(self) -> Service:
        """The service of the run."""
        return self._run.service

    def pilot(self) -> Mapping[str, Sequence[StepRecord]]:
        """The first steps of every arm, and what a reader may learn from them."""
        with self._counting_attempts():
            steps = self._run.pilot()
        self.facts.notes = self._run.pilot_notes()
        return steps

    def rows(self) -> Mapping[str, Mapping[str, float]]:
        """The scores of every evaluated arm and of the base model, by item."""
        return self._run.rows()

    def gate(self, metric: str) -> GateFinding:
        """One activation gate."""
        finding = self._run.gate(metric)
        self.facts.gates[metric] = finding
        return finding

    def failed_gates(self) -> dict[str, str]:
        """Measure every gate; the sentence of each that failed, by its metric."""
        findings = {metric: self.gate(metric) for metric in self._run.gates}
        return {metric: found.sentence for metric, found in findings.items() if not found.ok}

    def train(self) -> None:
        """Every arm to its last step, every evaluation, and what came of them."""
        with self._counting_attempts():
            self._run.train()
        for arm in self._run.experiment.arms:
            self.arm(arm.name)
        self.facts.base = self._run.base()
        self.facts.diagnostics = self._run.diagnostics()

    def arm(self, name: str) -> ArmSummary:
        """What a trained arm did."""
        summary = self._run.arm(name)
        self.facts.arms[name] = summary
        return summary

    def decision(self) -> Decision:
        """The experiment's verdict, with every criterion as it stands in it."""
        self.facts.decision = decision = self._run.decision()
        return decision

    def close(self) -> None:
        """Release what this process holds."""
        self._run.close()

    @contextlib.contextmanager
    def _counting_attempts(self) -> Iterator[None]:
        """Note how often training was started, this time included, even if it broke."""
        try:
            yield
        finally:
            self.facts.attempts = self._run.attempts()
