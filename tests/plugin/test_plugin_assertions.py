"""Tests of the author's own in an experiment file block and decide, whatever is selected."""

import xml.etree.ElementTree as ElementTree

import orjson
import pytest

STORED = "runs/gs1_vs_grpo_gsm8k_2b.embedded.verdict.json"

HOLDS = {
    "preflight": "def test_own_preflight(card, service):\n"
    "    assert card.steps == 40 and service.embedded",
    "gate": "def test_own_gate(pilot):\n"
    "    assert all(step['metrics']['reward'] > 0.4 for arm in pilot.values() for step in arm)",
    "decision": "def test_own_decision(arms, rows):\n"
    "    assert all(sum(rows[name].values()) > sum(rows['base'].values()) for name in arms)",
}
FAILS = {
    "preflight": "def test_own_preflight(card):\n    assert card.steps == 41",
    "gate": "def test_own_gate(pilot):\n"
    "    assert pilot['gs1_seed0'][0]['metrics']['reward'] > 0.6",
    "decision": "def test_own_decision(rows):\n    assert rows['base']['0'] == 1.0",
}
SAYS = {
    "preflight": "assert 40 == 41",
    "gate": "assert 0.5 > 0.6",
    "decision": "assert 0.0 == 1.0",
}
RULED = "test_gs1_is_not_inferior_to_grpo[primary_noninferiority]"


@pytest.fixture
def experiment(project):
    """The GS1 experiment with tests of one's own appended, each with its mark."""

    def lay_out(*tests, script=""):
        pytester = project(script)
        file = pytester.path / "experiments" / "test_gs1.py"
        own = "\n\n\n".join(f"@pytest.mark.{stage}\n{body}" for stage, body in tests)
        file.write_text(f"{file.read_text()}\n\n{own}\n")
        return pytester

    return lay_out


def verdict_of(pytester):
    """The verdict that a session wrote."""
    return orjson.loads((pytester.path / STORED).read_bytes())


def word_of(verdict, name):
    """An item's word."""
    return {item["item"].partition("::")[2]: item["verdict"] for item in verdict["items"]}[name]


def test_what_holds_leaves_the_rule_s_verdict(experiment):
    """Three assertions that hold pass; the decision is listed as an assertion."""
    pytester = experiment(*HOLDS.items())
    result = pytester.runpytest()

    result.assert_outcomes(passed=21)
    verdict = verdict_of(pytester)
    assert verdict["verdict"] == "VALIDATED"
    (own,) = (each for each in verdict["criteria"] if each["id"] == "test_own_decision")
    assert (own["outcome"], own["assertion"], own["estimate"]) == ("VALIDATED", True, None)
    assert [gate["ok"] for gate in verdict["gates"] if gate.get("assertion")] == [True]
    (own,) = (each for each in verdict["preflights"] if each["id"] == "test_own_preflight")
    assert own["outcome"] == "passed"


# what blocks, what is asked for, how: each selection leaves the assertion out
SELECTIONS = {
    "whole": [],
    "keyword": ["-k", "not_inferior"],
    "deselected": ["--deselect", "experiments/test_gs1.py::test_own_{stage}"],
    "node": [f"experiments/test_gs1.py::{RULED}"],
    "stops": ["-x"],
    "workers": ["-n2", "-k", "not_inferior"],
}


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("stage", ["preflight", "gate"])
def test_what_fails_blocks_all_that_comes_after(experiment, stage, selection):
    """No arm is trained, and the line is pytest's own, whatever was selected."""
    pytester = experiment((stage, FAILS[stage]))
    arguments = [each.format(stage=stage) for each in SELECTIONS[selection]]
    run = pytester.runpytest_subprocess if selection == "workers" else pytester.runpytest
    result = run(*arguments)

    assert result.ret != 0
    assert "train" not in (pytester.path / "calls").read_text().splitlines()
    verdict = verdict_of(pytester)
    assert verdict["verdict"] == "INVALID"
    assert SAYS[stage] in verdict["sentence"]
    if selection not in ("stops",):
        assert word_of(verdict, RULED) == "BLOCKED"
        assert f"BLOCKED by {stage} test_own_{stage}: {SAYS[stage]}" in result.stdout.str()


OUTCOMES = {
    "holds": ("assert rows", "VALIDATED"),
    "fails": ("assert rows['base']['0'] == 1.0", "REFUTED"),
    "does_not_tell": ("inconclusive('two items')", "INCONCLUSIVE"),
    "is_skipped": ("pytest.skip('not now')", "INVALID"),
    "breaks": ("rows['nobody']", "INVALID"),
}
WORST = ["INVALID", "REFUTED", "INCONCLUSIVE", "VALIDATED"]


@pytest.mark.parametrize("ruled", ["VALIDATED", "REFUTED", "INCONCLUSIVE"])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_decision_stands_beside_the_rule(experiment, outcome, ruled):
    """The worse of the two is the verdict, and an assertion is said to have no error rate."""
    statement, word = OUTCOMES[outcome]
    body = (
        "def test_own_decision(rows):\n"
        "    from harness.plugin.assertions import inconclusive\n"
        f"    {statement}"
    )
    pytester = experiment(("decision", body), script=f"verdict={ruled!r}")
    pytester.runpytest("--junitxml=junit.xml")

    verdict = verdict_of(pytester)
    assert word_of(verdict, "test_own_decision") == word
    assert verdict["verdict"] == min(word, ruled, key=WORST.index)
    if WORST.index(word) < WORST.index(ruled) and word != "INVALID":
        assert "test_own_decision, an assertion without an error rate" in verdict["sentence"]
    cases = ElementTree.parse(pytester.path / "junit.xml").iter("testcase")
    (case,) = (case for case in cases if case.get("name") == "test_own_decision")
    said = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert (said["stage"], said["verdict"]) == ("decision", word)


def test_a_decision_that_was_not_asked_leaves_no_verdict(experiment):
    """A criterion is a criterion, whoever wrote it."""
    pytester = experiment(("decision", HOLDS["decision"]))
    pytester.runpytest("-k", "not own")

    verdict = verdict_of(pytester)
    assert verdict["verdict"] is None
    assert "test_own_decision" in verdict["sentence"]


def test_a_mark_of_the_module_is_a_mark(experiment):
    """`pytestmark` makes its functions gates too, and one that is not selected blocks."""
    pytester = experiment()
    file = pytester.path / "experiments" / "test_gs1.py"
    own = f"pytestmark = pytest.mark.gate\n\n\n{FAILS['gate']}\n"
    source = (
        file.read_text()
        .replace("@pytest.mark.decision\n", "")
        .replace("@pytest.mark.preflight\n", "")
    )
    file.write_text(f"{source}\n\n{own}")
    pytester.runpytest("-k", "not_inferior")

    assert word_of(verdict_of(pytester), RULED) == "BLOCKED"


def test_it_runs_once_a_process(experiment):
    """What it said for those that it lets pass, it says for itself."""
    body = (
        "def test_own_gate(pilot):\n"
        "    with open('ran', 'a') as file:\n"
        "        file.write('once')\n"
        "    pilot['gs1_seed0'][0]['metrics'].clear()"
    )
    pytester = experiment(("gate", body), ("gate", HOLDS["gate"].replace("own", "other")))
    result = pytester.runpytest()

    assert (pytester.path / "ran").read_text() == "once"
    assert result.ret == 1  # the first gate's harm is the second's: one copy a process, no record's
    assert "KeyError" in verdict_of(pytester)["sentence"]


REFUSED = {
    "late": ("gate", "def test_own(rows):\n    assert rows", "a gate asks for rows"),
    "early": ("preflight", "def test_own(pilot):\n    assert pilot", "a preflight asks for pilot"),
    "narrow": ("gate", "def test_own(tmp_path):\n    assert tmp_path", "of one test's scope"),
    "coroutine": ("gate", "async def test_own(pilot):\n    assert pilot", "is a coroutine"),
    "two": ("gate", "@pytest.mark.decision\ndef test_own():\n    assert 1", "speaks of one stage"),
    "class": (
        "gate", "class TestOwn:\n    @pytest.mark.gate\n    def test_own(self): pass", "in a class",
    ),
    "marked_class": ("gate", "class TestOwn:\n    def test_own(self): pass", "in a class"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_could_not_block_is_refused(experiment, what):
    """A line says so when the file is read, and the experiment is INVALID."""
    stage, body, line = REFUSED[what]
    pytester = experiment((stage, body))
    pytester.runpytest()

    verdict = verdict_of(pytester)
    assert verdict["verdict"] == "INVALID"
    assert line in verdict["sentence"]
