"""From items and a decision to the one verdict, for experiments with several criteria."""

import itertools
from pathlib import Path

import pytest

from harness.audit.finding import Finding
from harness.decisions import Decision, Verdict
from harness.plugin.facts import Facts
from harness.plugin.ledger import ExperimentLedger, ItemRecord
from harness.plugin.summary import table
from harness.plugin.verdict import verdict_of

FAILED = {name: Finding(name, ("first", "second")) for name in ("audit", "pins")}
SAID = ("VALIDATED", "REFUTED", "INCONCLUSIVE")
WORDS = (*SAID, "INVALID", "BLOCKED", "NOT RUN")
MISSING = "not decided: no selected item asks for criterion "


def ledger_of(words, verdict=None):
    """A ledger with one criterion a word; NOT RUN is one that no item asked for.

    `verdict` is the decision's, which some item has brought if any criterion was decided.
    """
    ledger = ExperimentLedger(Path("cards/x.json"), "embedded")
    names = [f"c{index}" for index in range(len(words))]
    ledger.registered = {"preflight": ["pins", "audit"], "gate": [], "arm": [], "decision": names}
    for name, word in zip(names, words, strict=True):
        if word != "NOT RUN":
            item = f"test_x.py::test_decision[{name}]"
            ledger.plan([item])
            ledger.record(ItemRecord(item, "decision", name, word, f"{word}: {name}"))
    if verdict is not None:
        ledger.facts.decision = Decision(Verdict(verdict), "so says the rule", {})
    return ledger


class TestVerdictOf:
    @pytest.mark.parametrize("verdict", Verdict)
    @pytest.mark.parametrize("words", list(itertools.product(WORDS, repeat=2)))
    def test_the_decision_stands_if_its_items_do(self, words, verdict):
        """INVALID where an item broke; the decision where enough was asked; else no verdict.

        REFUTED needs one item that says so, and every other verdict an item of each criterion.
        """
        known = verdict if set(words) & set(SAID) else None
        found = verdict_of(ledger_of(words, known))

        missing = [f"c{index}" for index, word in enumerate(words) if word == "NOT RUN"]
        if "INVALID" in words:
            broken = words.index("INVALID")
            expected = ("INVALID", f"test_decision[c{broken}]: INVALID: c{broken}")
        elif "BLOCKED" in words:
            expected = ("INVALID", f"BLOCKED: c{words.index('BLOCKED')}")
        elif missing and not (known is Verdict.REFUTED and "REFUTED" in words):
            expected = (None, MISSING + ", ".join(missing))
        else:
            expected = (str(verdict), "so says the rule")
        assert (found.word, found.sentence) == expected

    def test_the_first_failed_preflight_of_the_card_gives_the_sentence(self):
        """Whichever worker reported first, the sentence is the same."""
        ledger = ledger_of(["VALIDATED"], "VALIDATED")
        ledger.facts = Facts(preflights=FAILED)

        assert verdict_of(ledger).line == "INVALID: preflight pins: first; second"

    def test_a_session_that_ends_early_reaches_no_verdict(self):
        """An interrupted session has refuted nothing, and broken nothing."""
        ledger = ledger_of(["NOT RUN"])
        ledger.plan(["test_x.py::test_decision[c0]"])

        assert verdict_of(ledger).line == (
            "NO VERDICT: not decided: the session ended before 1 of its selected items had run"
        )

    def test_a_teardown_that_fails_after_a_pass_counts(self):
        """The worst that an item came to is kept."""
        ledger = ledger_of(["VALIDATED"], "VALIDATED")
        item = "test_x.py::test_decision[c0]"
        ledger.record(ItemRecord(item, "decision", "c0", "INVALID", "ServiceDied: gone"))

        assert verdict_of(ledger).word == "INVALID"


class TestTable:
    ROWS = (["arm", "steps"], ["base model", "-"], ["gs1", "40/40"])

    def test_columns_line_up_where_there_is_room(self):
        """Names to the left, figures to the right."""
        expected = ["arm         steps", "base model      -", "gs1         40/40"]

        assert expected == table(list(self.ROWS), 80)

    def test_a_narrow_terminal_gets_one_figure_a_line(self):
        """Nothing is cut off."""
        expected = ["base model", "  steps -", "gs1", "  steps 40/40"]

        assert expected == table(list(self.ROWS), 12)
