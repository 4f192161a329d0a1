"""What may cross from worker to controller."""

import itertools
import math

import execnet
import numpy as np
import pytest

from harness.audit.finding import Finding, GateFinding
from harness.cards import GateCheck
from harness.decisions import Decision, Outcome, Verdict
from harness.plugin.facts import Facts
from harness.plugin.summary import signed
from harness.protocol.stages import ArmSummary, BaseSummary
from harness.statistics.paired import PairedCounts

HALF = np.float64(0.5)
CHECK = GateCheck(metric="size", measures="prompts", min=1.0, max=4.0)
OUTCOME = Outcome(
    id="claim", metric="accuracy", verdict=Verdict.VALIDATED, estimate=HALF, lower=np.float32(0.5),
    upper=None, margin=HALF, half_width=HALF, n=np.int64(3), n_registered=3, range=2, alpha=0.05,
    sides=2, method="paired_tango", unit=np.str_("seeds"), p_validated=HALF, p_refuted=None,
    counts=PairedCounts(1, 1, 1, 0), problems=(), notes=("a note",), sentence="VALIDATED: so",
)  # fmt: skip
EACH = {
    "preflights": {
        "pins": Finding("pins", notes=(np.str_("a note"),), metrics={"n": np.int64(3), "x": HALF}),
        "audit": Finding("audit", ("StoreError: gone",), carried_out=False),
    },
    "gates": {
        "size": GateFinding(CHECK, HALF, ()),
        "model": GateFinding(CHECK, "nano", ("other",)),
    },
    "arms": {"gs1": ArmSummary("gs1", np.int64(1), 8, 1, 8, HALF, 3, HALF, HALF)},
    "base": BaseSummary(HALF, np.int64(3)),
    "decision": Decision(Verdict.VALIDATED, "so", {"claim": OUTCOME}),
    "notes": ("B_eff 1.02",),
    "diagnostics": ("a line",),
    "attempts": 2,
}


class TestFacts:
    def test_findings_summaries_and_outcomes_cross_as_they_are(self):
        """Measured with numpy or not, what was sent is what is read, in the same types."""
        facts = Facts(**EACH)
        sent = execnet.loads(execnet.dumps(facts.to_plain()))

        assert Facts.of(sent) == facts
        assert Facts.of(sent).decision.outcomes["claim"].validated
        assert Facts.of(sent).gates["size"].sentence == "gate size: 0.5 is within [1, 4]"

    def test_a_figure_that_is_not_a_number_is_not_hidden(self):
        """NaN and infinity arrive as they left."""
        figures = {"x": math.nan, "y": math.inf}
        sent = Facts(preflights={"pins": Finding("pins", metrics=figures)}).to_plain()

        assert repr(Facts.of(sent).preflights["pins"].metrics) == repr(figures)

    @pytest.mark.parametrize(("one", "other"), list(itertools.permutations(EACH, 2)))
    def test_learning_keeps_what_only_one_process_knows(self, one, other):
        """Two workers' facts add up, whichever reports last."""
        known = Facts()
        known.learn(Facts(**{one: EACH[one]}))
        known.learn(Facts(**{other: EACH[other]}))

        assert known == Facts(**{one: EACH[one], other: EACH[other]})

    @pytest.mark.parametrize(
        ("stage", "name", "word", "problem"),
        [
            ("preflight", "pins", "PASSED", ""),
            ("preflight", "audit", "INVALID", "StoreError: gone"),
            ("preflight", "forecast", "NOT RUN", ""),
            ("gate", "size", "PASSED", ""),
            ("gate", "model", "INVALID", "other"),
            ("arm", "gs1", "PASSED", ""),
            ("arm", "grpo", "NOT RUN", ""),
            ("decision", "claim", "NOT RUN", ""),
        ],
    )
    def test_a_word_and_a_problem_of_each(self, stage, name, word, problem):
        """What passed has no problem, and a criterion's word is its item's."""
        facts = Facts(**EACH)

        assert (facts.word(stage, name), facts.problem(stage, name)) == (word, problem)

    @pytest.mark.parametrize(
        ("stage", "name", "metrics"),
        [
            ("preflight", "pins", {"n": 3.0, "x": 0.5}),
            ("gate", "model", {"model": "nano"}),
            (
                "arm",
                "gs1",
                {"steps": 1, "rollouts": 8, "accuracy": 0.5, "n_items": 3}
                | {"wall_seconds": 0.5, "final_reward": 0.5},
            ),
            ("decision", "claim", {"estimate": 0.5, "lower": 0.5, "upper": None, "margin": 0.5}),
            ("gate", "claim", {}),
        ],
    )
    def test_metrics_are_the_figures_of_one_subject(self, stage, name, metrics):
        """The JUnit properties of an item, in types that JUnit shows as they are."""
        found = Facts(**EACH).metrics(stage, name)

        assert found == metrics
        assert {type(value) for value in found.values()} <= {float, int, str, type(None)}


class TestSigned:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [(0.0123456, "+0.01235"), (-0.05, "-0.05"), (None, "-"), (float("nan"), "+nan")],
    )
    def test_figures_are_short_and_absence_is_a_dash(self, value, expected):
        """Four digits, a sign, and never an error."""
        assert expected == signed(value)
