"""The registered rule, applied to what is stored, and what is said beside its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness.audit import sense
from harness.audit.decided import (
    decision_problems,
    limit_problems,
    outcome_problems,
    rows_mean,
    steps_mean,
)
from harness.audit.episode_report import episode_lines
from harness.audit.staleness_report import staleness_lines
from harness.cards import Arm, CriterionSpec, Experiment, read_clusters
from harness.decisions import (
    Criterion,
    Decision,
    Outcome,
    Unit,
    beside,
    calls_for_second_look,
    decide,
    decision,
    diagnostics,
)
from harness.decisions.beside import averaged, scores_by_seed
from harness.errors import RunError
from harness.names import BASE
from harness.protocol.arms import ArmKeeper
from harness.protocol.scores import item_scores, of_steps, step_mean
from harness.tasks.sec_search.metrics import EVALUATED


@dataclass
class Decider:
    """The criteria of one experiment, on the rows and steps that its arms have left.

    `cards_dir` is where the card lies, and the files that it names.
    """

    experiment: Experiment
    arms: ArmKeeper
    cards_dir: Path

    def decision(self) -> Decision:
        """The experiment's verdict, with every criterion as it stands in it.

        Raises:
            RunError: it does not follow from the stored results.
        """
        rule = self.experiment.rule
        first = self._alone(1)
        second = self._alone(2) if self.second_look() else None
        if problems := self._sense[0]:
            raise RunError("\n".join(problems))
        made = decision(rule, first, second)
        if problems := decision_problems(rule, first, second, made):
            raise RunError("\n".join(problems))
        return made

    @cached_property
    def _sense(self) -> tuple[list[str], list[str]]:
        """(problems, notes) of the evaluations that the rule weighs."""
        taken = [1, 2] if self.second_look() else [1]
        weighed = self.experiment.weighed_roles
        arms = [arm for look in taken for arm in self.experiment.look(look) if arm.role in weighed]
        policies = [self._policy(arm) for arm in (None, *arms)]
        pilot = self.arms.pilot_evidence()
        return sense.settled(
            self.experiment, sense.doubts(self.experiment, policies[0], policies[1:], pilot)
        )

    def _policy(self, arm: Arm | None) -> sense.Policy:
        name = BASE if arm is None else arm.name
        return sense.Policy(name, self.arms.item_rows(arm), self.arms.rows(arm))

    def second_look(self) -> bool:
        """Whether the rule has a second look and the first one calls for it."""
        rule = self.experiment.rule
        return rule.second_look is not None and calls_for_second_look(rule, self._alone(1))

    def lines(self) -> tuple[str, ...]:
        """Lines that were not used for the verdict."""
        taken = [1, 2] if self.second_look() else [1]
        trained = [arm for look in taken for arm in self.experiment.look(look)]
        lines: list[str] = []
        for look in taken:
            for criterion in self._criteria:
                found = diagnostics.lines(
                    criterion,
                    self._scores(criterion, look),
                    self._unit_ids(criterion),
                    clusters=self._clusters,
                )
                lines.extend(f"look {look}: {line}" if len(taken) > 1 else line for line in found)
            lines.extend(
                f"{each.id} (supporting, decides nothing): {self._decide(each, look).sentence}"
                for each in self._supporting
            )
        if self.experiment.lagged:
            for arm in trained:
                lines.extend(staleness_lines(arm, self.arms.figures(arm)))
                lines.extend(episode_lines(arm, self.arms.figures(arm)))
        lines.extend(self._sense[1])
        lines.extend(self._beside(trained))
        lines.extend(self._score_lines(trained))
        lines.extend(self.arms.training_notes(trained))
        return tuple(lines)

    def _alone(self, look: int) -> dict[str, Outcome]:
        """Each criterion of the rule on one look, by itself."""
        return {criterion.id: self._decide(criterion, look) for criterion in self._criteria}

    def _decide(self, criterion: Criterion, look: int) -> Outcome:
        """One criterion by itself.

        Raises:
            RunError: what was decided does not follow from the stored results.
        """
        scores, units = self._scores(criterion, look), self._unit_ids(criterion)
        outcome = decide(criterion, scores, units, clusters=self._clusters)
        means = {role: self._arm_means(criterion, role, look) for role in criterion.weights}
        # held to the file's own words, not to what was made of them here
        stated = self._stated[criterion.id]
        problems = outcome_problems(self.experiment.rule, stated, outcome, means)
        problems += limit_problems(criterion, outcome, scores, units, self._clusters)
        if problems:
            raise RunError("\n".join(problems))
        return outcome

    @cached_property
    def _stated(self) -> Mapping[str, CriterionSpec]:
        """Criteria as rule and registration state them, by id."""
        rule, supporting = self.experiment.rule, self.experiment.registration.supporting
        return {stated.id: stated for stated in (*supporting, *rule.criteria)}

    @cached_property
    def _criteria(self) -> tuple[Criterion, ...]:
        return self._resolved(self.experiment.rule.criteria)

    @cached_property
    def _supporting(self) -> tuple[Criterion, ...]:
        return self._resolved(self.experiment.registration.supporting)

    def _resolved(self, stated: Sequence[CriterionSpec]) -> tuple[Criterion, ...]:
        rule, components = self.experiment.rule, self.experiment.components
        return tuple(Criterion.resolved(each, rule, components) for each in stated)

    def _unit_ids(self, criterion: Criterion) -> Sequence[str]:
        """What is counted: the registered items, or the registered seeds."""
        if criterion.unit == Unit.SEEDS:
            return [str(seed) for seed in criterion.seeds]
        return [problem.id for problem in self.arms.task().test]

    @cached_property
    def _clusters(self) -> Mapping[str, str | int] | None:
        pinned = self.experiment.rule.clusters
        return None if pinned is None else read_clusters(self.cards_dir, pinned)

    def _scores(self, criterion: Criterion, look: int) -> Mapping[str, Mapping[str, float]]:
        """Scores by role: of items, averaged over a role's seeds, or of seeds.

        Raises:
            RunError: rows or steps are missing.
            StatisticsError: an item has fewer samples than its metric needs.
        """
        arms = {
            role: self.experiment.role(role, look) for role in criterion.weights if role != BASE
        }
        if of_steps(criterion.metric):
            return {
                role: {str(arm.seed): self._step_mean(arm, criterion) for arm in of_role}
                for role, of_role in arms.items()
            }
        base = self._item_scores(None, criterion)
        by_role = {
            role: {arm.seed: self._item_scores(arm, criterion) for arm in of_role}
            for role, of_role in arms.items()
        }
        if criterion.unit == Unit.SEEDS:
            return scores_by_seed(by_role, base)
        return {role: averaged(list(of.values())) for role, of in by_role.items()} | {BASE: base}

    def _step_mean(self, arm: Arm, criterion: Criterion) -> float:
        first, last = self._steps(criterion)
        return step_mean(f"arm {arm.name}", self.arms.figures(arm), criterion.metric, first, last)

    def _item_scores(self, arm: Arm | None, criterion: Criterion) -> dict[str, float]:
        return item_scores(self.arms.item_rows(arm), criterion.metric)

    def _steps(self, criterion: Criterion) -> tuple[int, int]:
        """The first and the last step that the criterion averages."""
        return criterion.steps or (0, self.experiment.card.steps - 1)

    def _arm_means(self, criterion: Criterion, role: str, look: int) -> list[float]:
        """The mean score of each arm of a role, straight from rows or steps."""
        arms = self.experiment.role(role, look)
        if of_steps(criterion.metric):
            first, last = self._steps(criterion)
            return [steps_mean(self.arms.figures(a), criterion.metric, first, last) for a in arms]
        policies = [None] if role == BASE else arms
        return [rows_mean(self.arms.item_rows(policy), criterion.metric) for policy in policies]

    def _beside(self, trained: Sequence[Arm]) -> list[str]:
        """What seeds and ablations say beside the verdict."""
        by_role: dict[str, dict[int, Mapping[str, float]]] = {}
        for arm in trained:
            by_role.setdefault(arm.role, {})[arm.seed] = self.arms.rows(arm)
        criteria = [c for c in self._criteria if not of_steps(c.metric)]
        weighed, base = self.experiment.weighed_roles, self.arms.rows(None)
        lines = [line for c in criteria for line in beside.seed_lines(c, by_role, base)]
        for role in (role for role in by_role if role not in weighed):
            lines += beside.ablation_lines(role, weighed, by_role, self.experiment.rule.alpha)
        return lines

    def _score_lines(self, trained: Sequence[Arm]) -> list[str]:
        """The scores of every evaluation, where an item has more than one."""
        spec, lines = self.experiment.registration.evaluation, list[str]()
        if spec.answer != "curated_set":
            return lines
        best = [f"{name}_best_of_{spec.samples}" for name in EVALUATED if spec.samples > 1]
        for arm in (None, *trained):
            rows = self.arms.item_rows(arm)
            scores = {metric: item_scores(rows, metric) for metric in (*EVALUATED, *best)}
            name = BASE if arm is None else arm.name
            lines.append(beside.score_line(name, scores, self.experiment.rule.alpha))
        return lines
