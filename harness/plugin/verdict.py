"""From what an experiment's items came to, to its one verdict."""

from dataclasses import dataclass

from harness.plugin.collection import subjects
from harness.plugin.ledger import ExperimentLedger


@dataclass(frozen=True)
class Verdict:
    """VALIDATED, REFUTED, INCONCLUSIVE or INVALID with its sentence.

    `word` is None if what was selected or what ran reaches no verdict; the sentence says why.
    """

    word: str | None
    sentence: str

    @property
    def line(self) -> str:
        """The verdict as one line."""
        return f"{self.word or 'NO VERDICT'}: {self.sentence}"


def verdict_of(ledger: ExperimentLedger) -> Verdict:
    """INVALID over REFUTED over INCONCLUSIVE over VALIDATED.

    A failed preflight or gate, a broken or blocked item, makes the experiment INVALID, whatever
    else was found: a decision stands on them. Only with every criterion decided can it be
    INCONCLUSIVE or VALIDATED.
    """
    problem = first_problem(ledger)
    if problem or ledger.experiment is None:
        return Verdict("INVALID", problem)
    words = {record.name: record.verdict for record in ledger.of_stage("decision")}
    for word in ("REFUTED", "INCONCLUSIVE", "VALIDATED"):
        if word != "REFUTED" and (why := undecided(ledger, set(words))):
            return Verdict(None, why)
        sentences = [r.reason for r in ledger.of_stage("decision") if r.verdict == word]
        if sentences:
            return Verdict(word, "; ".join(sentences))
    return Verdict(None, "not decided: the card has no criterion")


def first_problem(ledger: ExperimentLedger) -> str:
    """What makes the experiment INVALID, the earliest stage first; empty if nothing does."""
    if ledger.collection_error:
        return ledger.collection_error
    for name, fact in ledger.facts.preflights.items():
        if fact["outcome"] != "passed":
            return f"preflight {name}: {one_line(fact['message'])}"
    for gate in ledger.facts.gates.values():
        if not gate["ok"]:
            return one_line(gate["sentence"])
    for word in ("INVALID", "BLOCKED"):
        for record in ledger.records.values():
            if record.verdict == word:
                return f"{record.item.rpartition('::')[2]}: {one_line(record.reason)}"
    return ""


def undecided(ledger: ExperimentLedger, decided: set[str]) -> str:
    """Why not every criterion has been decided; empty if every one has."""
    assert ledger.experiment is not None
    missing = [c for c in subjects(ledger.experiment)["criterion"] if c not in decided]
    if not missing:
        return ""
    if ledger.not_run:
        count = len(ledger.not_run)
        return f"not decided: the session ended before {count} of its selected items had run"
    return f"not decided: no selected item asks for criterion {', '.join(missing)}"


def one_line(text: str) -> str:
    """Several problems as one line."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
