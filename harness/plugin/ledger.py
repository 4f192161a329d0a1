"""What the session planned and what came of it, kept by the process that the user started."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.cards import Experiment, experiment_id
from harness.plugin.collection import declared
from harness.plugin.facts import Facts

if TYPE_CHECKING:
    from harness.decisions import Outcome

Fact = TypeVar("Fact")


@dataclass(frozen=True)
class ItemRecord:
    """What one item came to: its word and the reason for it, which is empty if all is well.

    `verdict` is PASSED, INVALID, BLOCKED, VALIDATED, REFUTED or INCONCLUSIVE.
    """

    item: str
    stage: str
    name: str
    verdict: str
    reason: str


@dataclass
class ExperimentLedger:
    """One test file's experiment: planned items, what they came to, and the facts they brought.

    `experiment` is None if the card could not be loaded; `collection_error` then says why. `scale`
    is the name of the scale, or of its file.
    """

    card: Path
    scale: str
    experiment: Experiment | None = None
    collection_error: str = ""
    planned: dict[str, None] = field(default_factory=dict)
    records: dict[str, ItemRecord] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)

    @property
    def id(self) -> str:
        """The experiment's id, whether or not its card can be loaded."""
        return experiment_id(self.card)

    @cached_property
    def registered(self) -> dict[str, list[str]]:
        """What the experiment declares, by stage; nothing if the card could not be loaded."""
        return declared(self.experiment) if self.experiment else {}

    @property
    def declared(self) -> dict[str, list[str]]:
        """What is registered and what the test file asserts of its own, by stage."""
        names = {stage: list(each) for stage, each in self.registered.items()}
        for name, asserted in self.facts.assertions.items():
            names.setdefault(asserted.stage, []).append(name)
        return names

    @property
    def not_run(self) -> list[str]:
        """Items that were selected and never came to anything."""
        return [item for item in self.planned if item not in self.records]

    def plan(self, items: Iterable[str]) -> None:
        """Expect a record of each of these items."""
        self.planned |= dict.fromkeys(items)

    def record(self, record: ItemRecord, facts: Facts | None = None) -> None:
        """Keep the worst that an item came to: a teardown can fail after its test passed."""
        before = self.records.get(record.item)
        if before is None or record.verdict in ("INVALID", "BLOCKED"):
            self.records[record.item] = record
        if facts is not None:
            self.facts.learn(facts)

    def subject(self, item: str) -> tuple[str, str]:
        """Stage and name of what an item speaks of, both empty if it speaks of neither."""
        for stage, names in self.declared.items():
            for name in names:
                if item.endswith((f"[{name}]", f"::{name}")):
                    return stage, name
        return "", ""

    def records_of(self, *words: str) -> list[ItemRecord]:
        """The items that came to one of these words, in planned order."""
        found = [self.records[item] for item in self.planned if item in self.records]
        return [record for record in found if record.verdict in words]

    def word(self, stage: str, name: str) -> str:
        """What is known of a preflight, gate, arm or criterion: its item's word, if it has one."""
        for record in self.records.values():
            if (record.stage, record.name) == (stage, name):
                return record.verdict
        return self.facts.word(stage, name)

    def outcomes(self) -> dict[str, "Outcome"]:
        """The criteria that an item has asked for and that were decided, in the card's order."""
        decision = self.facts.decision
        asked = {record.name for record in self.records.values() if record.stage == "decision"}
        return {id: o for id, o in decision.outcomes.items() if id in asked} if decision else {}

    def in_order(self, stage: str, facts: Mapping[str, Fact]) -> list[tuple[str, Fact]]:
        """A stage's facts in the card's order; workers learn them in any."""
        return [(name, facts[name]) for name in self.declared.get(stage, ()) if name in facts]
