"""From what an experiment's items came to, to its one verdict."""

from dataclasses import dataclass

from harness.plugin.ledger import ExperimentLedger


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
    """INVALID over REFUTED over INCONCLUSIVE over VALIDATED.

    A failed preflight or gate, or an item that broke or was blocked, makes the experiment INVALID,
    whatever else was found: a decision stands on them. REFUTED needs one criterion; INCONCLUSIVE
    and VALIDATED need every criterion to have been decided. Where the rule lets any criterion
    pass, one VALIDATED stands over INCONCLUSIVE.
    """
    if problem := first_problem(ledger):
        return Verdict("INVALID", problem)
    any_may = ledger.experiment is not None and ledger.experiment.rule.combine == "any_may_pass"
    weaker = ("VALIDATED", "INCONCLUSIVE") if any_may else ("INCONCLUSIVE", "VALIDATED")
    for word in ("REFUTED", *weaker):
        if word != "REFUTED" and (why := undecided(ledger)):
            return Verdict(None, f"not decided: {why}")
        if sentences := [record.reason for record in ledger.records_of(word)]:
            # the word already stands in front of the whole
            return Verdict(word, "; ".join(s.removeprefix(f"{word}: ") for s in sentences))
    return Verdict(None, "not decided: the card declares no criterion")


def first_problem(ledger: ExperimentLedger) -> str:
    """What makes the experiment INVALID, the earliest stage first; empty if nothing does."""
    if ledger.collection_error:
        return one_line(ledger.collection_error)
    for name, preflight in ledger.in_order("preflight", ledger.facts.preflights):
        if preflight["outcome"] != "passed":
            return f"preflight {name}: {one_line(preflight['message'])}"
    for _, gate in ledger.in_order("gate", ledger.facts.gates):
        if not gate["ok"]:
            return one_line(gate["sentence"])
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
