"""From items to the one verdict, for experiments with several criteria."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.plugin.facts import Facts
from harness.plugin.ledger import ExperimentLedger, ItemRecord
from harness.plugin.summary import table
from harness.plugin.verdict import verdict_of

FAILED = {"outcome": "failed", "message": "first\nsecond", "notes": [], "metrics": {}}


def ledger_of(*words):
    """A ledger with one criterion a word; NOT RUN is one that no item asked for."""
    ledger = ExperimentLedger(Path("cards/x.json"), "embedded")
    names = [f"c{index}" for index in range(len(words))]
    ledger.declared = {"preflight": ["pins", "audit"], "gate": [], "arm": [], "decision": names}
    for name, word in zip(names, words, strict=True):
        if word != "NOT RUN":
            item = f"test_x.py::test_decision[{name}]"
            ledger.plan([item])
            ledger.record(ItemRecord(item, "decision", name, word, f"{word}: {name}"))
    return ledger


class TestVerdictOf:
    @pytest.mark.parametrize(
        ("words", "verdict", "sentence"),
        [
            (["VALIDATED", "VALIDATED"], "VALIDATED", "c0; c1"),
            (["VALIDATED", "INCONCLUSIVE"], "INCONCLUSIVE", "c1"),
            (["REFUTED", "INCONCLUSIVE"], "REFUTED", "c0"),
            (["REFUTED", "INVALID"], "INVALID", "test_decision[c1]: INVALID: c1"),
            (["REFUTED", "BLOCKED"], "INVALID", "BLOCKED: c1"),
            (["REFUTED", "NOT RUN"], "REFUTED", "c0"),
            (["VALIDATED", "NOT RUN"], None, "not decided: no selected item asks for criterion c1"),
            (
                ["INCONCLUSIVE", "NOT RUN"],
                None,
                "not decided: no selected item asks for criterion c1",
            ),
        ],
    )
    def test_the_worst_criterion_decides(self, words, verdict, sentence):
        """INVALID over REFUTED over undecided over INCONCLUSIVE over VALIDATED."""
        found = verdict_of(ledger_of(*words))

        assert (verdict, sentence) == (found.word, found.sentence)

    @pytest.mark.parametrize(
        ("words", "verdict"),
        [
            (["VALIDATED", "INCONCLUSIVE"], "VALIDATED"),
            (["INCONCLUSIVE", "INCONCLUSIVE"], "INCONCLUSIVE"),
            (["REFUTED", "REFUTED"], "REFUTED"),
            (["VALIDATED", "NOT RUN"], None),
        ],
    )
    def test_where_any_may_pass_one_is_enough(self, words, verdict):
        """What Holm has left validated stands over the undecided ones, once all were asked."""
        ledger = ledger_of(*words)
        ledger.experiment = SimpleNamespace(rule=SimpleNamespace(combine="any_may_pass"))

        assert verdict_of(ledger).word == verdict

    def test_the_first_failed_preflight_of_the_card_gives_the_sentence(self):
        """Whichever worker reported first, the sentence is the same."""
        ledger = ledger_of("VALIDATED")
        ledger.facts = Facts(preflights={"audit": FAILED, "pins": FAILED})

        assert verdict_of(ledger).line == "INVALID: preflight pins: first; second"

    def test_a_session_that_ends_early_reaches_no_verdict(self):
        """An interrupted session has refuted nothing, and broken nothing."""
        ledger = ledger_of("NOT RUN")
        ledger.plan(["test_x.py::test_decision[c0]"])

        assert verdict_of(ledger).line == (
            "NO VERDICT: not decided: the session ended before 1 of its selected items had run"
        )

    def test_a_teardown_that_fails_after_a_pass_counts(self):
        """The worst that an item came to is kept."""
        ledger = ledger_of("VALIDATED")
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
