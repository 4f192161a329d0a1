"""The experiment's decision, as far as its items let it stand."""

from dataclasses import dataclass

from harness.plugin.ledger import ExperimentLedger, ItemRecord


@dataclass(frozen=True)
class Verdict:
    """VALIDATED, REFUTED, INCONCLUSIVE or INVALID, with its sentence.

    `word` is None if what was selected, or what ran, reaches no verdict; the sentence says why.
    """

    word: str | None
    sentence: str

    @property
    def line(self) -> str:
        """The verdict as one line."""
        return f"{self.word or 'NO VERDICT'}: {self.sentence}"


def verdict_of(ledger: ExperimentLedger) -> Verdict:
    """The decision's verdict, if the items let it stand.

    A failed preflight or gate, or an item that broke or was blocked, makes the experiment INVALID,
    whatever else was found: a decision stands on them. For REFUTED one item must have said so; any
    other verdict needs an item of every criterion.
    """
    if problem := first_problem(ledger):
        return Verdict("INVALID", problem)
    decision, why = ledger.facts.decision, undecided(ledger)
    asserted = {record.name: (record.verdict, record.reason) for record in assertions(ledger)}
    if decision is not None and asserted:
        from harness.decisions import with_assertions  # loads scipy, which only a decision needs

        decision = with_assertions(decision, asserted)
    if decision is not None and decision.verdict == "REFUTED" and ledger.records_of("REFUTED"):
        why = ""
    if decision is None or why:
        return Verdict(None, f"not decided: {why}")
    return Verdict(str(decision.verdict), decision.sentence)


def assertions(ledger: ExperimentLedger) -> list[ItemRecord]:
    """The items of the author's own decisions that came to an outcome."""
    known = ledger.facts.assertions
    return [
        record
        for record in ledger.records_of("VALIDATED", "REFUTED", "INCONCLUSIVE")
        if record.name in known
    ]


def first_problem(ledger: ExperimentLedger) -> str:
    """What makes the experiment INVALID, the earliest stage first; empty if nothing does."""
    if ledger.collection_error:
        return one_line(ledger.collection_error)
    for name, preflight in ledger.in_order("preflight", ledger.facts.preflights):
        if not preflight.ok:
            return f"preflight {name}: {one_line(ledger.facts.problem('preflight', name))}"
    for _, gate in ledger.in_order("gate", ledger.facts.gates):
        if not gate.ok:
            return one_line(gate.sentence)
    for record in ledger.records_of("INVALID"):
        return f"{record.item.rpartition('::')[2]}: {one_line(record.reason)}"
    for record in ledger.records_of("BLOCKED"):
        return record.reason.removeprefix("BLOCKED by ")
    return ""


def undecided(ledger: ExperimentLedger) -> str:
    """Why some criterion has no verdict; empty if each has one."""
    names = ledger.declared.get("decision", [])
    missing = [name for name in names if ledger.word("decision", name) == "NOT RUN"]
    if missing and ledger.not_run:
        return f"the session ended before {len(ledger.not_run)} of its selected items had run"
    return f"no selected item asks for criterion {', '.join(missing)}" if missing else ""


def one_line(text: str) -> str:
    """Several problems as one line."""
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())
