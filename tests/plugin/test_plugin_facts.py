"""What may cross from worker to controller."""

from decimal import Decimal
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest

from harness.plugin.facts import Facts, plain, shown


class Word(StrEnum):
    YES = "yes"


class TestPlain:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (None, None),
            ("text", "text"),
            (True, True),
            (3, 3),
            (0.5, 0.5),
            (np.float64(0.5), 0.5),
            (np.float32(0.5), 0.5),
            (np.int64(3), 3),
            (np.True_, True),
            (np.str_("text"), "text"),
            (np.array([0.5]), 0.5),
            (np.array([1, 2]), "[1 2]"),
            (Path("a/b"), "a/b"),
            (Word.YES, "yes"),
            (Decimal("0.5"), "0.5"),
        ],
        ids=repr,
    )
    def test_is_a_type_that_xdist_can_send(self, value, expected):
        """Exactly a str, float, int, bool or None: a subclass would end the run as well."""
        result = plain(value)

        assert expected == result
        assert type(result) in (str, float, int, bool, type(None))

    def test_nan_stays_nan(self):
        """A figure that is not a number is not hidden."""
        assert plain(np.nan) != plain(np.nan)


class TestShown:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [(0.0123456, "+0.01235"), (-0.05, "-0.05"), (None, "-"), (float("nan"), "nan")],
    )
    def test_figures_are_short_and_absence_is_a_dash(self, value, expected):
        """Four digits, a sign, and never an error."""
        assert expected == shown(value, "+")


class TestFacts:
    def test_learning_keeps_what_only_one_process_knows(self):
        """Two workers' facts add up, whichever reports last."""
        first = Facts(base={"accuracy": 0.7, "n_items": 10}, notes=["B_eff 1.02"], attempts=2)
        second = Facts(gates={"size": {"value": 1.0, "ok": True, "sentence": "fine"}})
        for one, other in ((first, second), (second, first)):
            known = Facts()
            known.learn(one)
            known.learn(other)

            assert known.base == {"accuracy": 0.7, "n_items": 10}
            assert known.gates["size"]["ok"]
            assert known.notes == ["B_eff 1.02"]
            assert known.attempts == 2

    def test_round_trip(self):
        """What a report carries is what the controller reads."""
        facts = Facts(diagnostics=["a line"], attempts=1)

        assert Facts(**facts.to_plain()) == facts
