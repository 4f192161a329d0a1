"""What the session planned and what came of it, kept by the process that the user started."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harness.cards import Experiment
from harness.plugin.facts import Facts


@dataclass(frozen=True)
class ItemRecord:
    """What one item came to: its stage, the name of what it speaks of, its word, and why.

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

    `experiment` is None if the card could not be loaded; `collection_error` then says why.
    """

    file: str
    card: Path
    experiment: Experiment | None = None
    collection_error: str = ""
    planned: dict[str, None] = field(default_factory=dict)
    records: dict[str, ItemRecord] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)

    @property
    def id(self) -> str:
        """The experiment's id, which is its card's file name."""
        return self.card.stem

    @property
    def scale(self) -> str:
        """The name of the scale."""
        return self.experiment.scale.name if self.experiment else ""

    @property
    def not_run(self) -> list[str]:
        """Items that were selected and never came to anything."""
        return [item for item in self.planned if item not in self.records]

    def plan(self, items: Iterable[str]) -> None:
        """Expect a record of each of these items."""
        self.planned |= dict.fromkeys(items)

    def record(self, record: ItemRecord, facts: Facts | None) -> None:
        """Keep the worst that an item came to: a teardown can fail after a test passed."""
        before = self.records.get(record.item)
        if before is None or record.verdict in ("INVALID", "BLOCKED"):
            self.records[record.item] = record
        if facts is not None:
            self.facts.learn(facts)

    def of_stage(self, stage: str) -> list[ItemRecord]:
        """The records of one stage, in planned order."""
        found = [self.records[item] for item in self.planned if item in self.records]
        return [record for record in found if record.stage == stage]
