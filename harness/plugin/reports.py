"""What a report carries besides its outcome: properties for JUnit, facts for the verdict."""

from collections.abc import Generator

import pytest

from harness.plugin.assertions import said
from harness.plugin.collection import SUBJECT, Subject
from harness.plugin.facts import Facts
from harness.plugin.recording import facts_of

CARRIED = "harness"
"""The report's attribute; xdist sends it along, and the reports of a crash lack it."""

# under --runxfail the xfail that a test raises is reported as a failure: never as a pass
_SAID_BY: dict[str, tuple[set[str], type[object]]] = {
    "VALIDATED": ({"passed"}, type(None)),
    "REFUTED": ({"failed"}, AssertionError),
    "INCONCLUSIVE": ({"skipped", "failed"}, pytest.xfail.Exception),
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the item's verdict, its figures and everything that this process has learned."""
    report = yield
    subject = item.stash.get(SUBJECT, None)
    if subject is None or (report.passed and report.when != "call"):
        return report
    facts = facts_of(item.config, item.nodeid.partition("::")[0])
    error = call.excinfo.value if call.excinfo else None
    word, reason = item_verdict(subject, report, error, facts)
    figures = facts.metrics(subject.stage, subject.name)
    measured = {f"metric.{name}": v for name, v in figures.items() if v is not None}
    added = {"verdict": word} | measured
    if subject.stage == "decision" and facts.decision and facts.decision.record:
        added["record"] = facts.decision.record
    kept = [(name, value) for name, value in item.user_properties if name not in added]
    item.user_properties[:] = [*kept, *added.items()]
    report.user_properties = list(item.user_properties)
    found = word == "REFUTED" or facts.problem(subject.stage, subject.name)
    own = subject.asserted  # pytest shows an assert of the author's best
    if report.when == "call" and found and not own and isinstance(error, AssertionError):
        report.longrepr = reason  # a finding, not a bug: the line says it all, a traceback nothing
    setattr(
        report,
        CARRIED,
        {
            "stage": subject.stage,
            "name": subject.name,
            "verdict": word,
            "reason": reason,
            "facts": facts.to_plain(),
        },
    )
    return report


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport,
) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Say the verdict's word; categories stay pytest's own, so that counts and `-r` work."""
    word = getattr(report, CARRIED, {}).get("verdict")
    if word == "BLOCKED":
        return "error", "E", (word, {"red": True})
    if word == "REFUTED":
        return "failed", "F", (word, {"red": True})
    if word == "INCONCLUSIVE" and report.outcome == "skipped":
        return "xfailed", "x", (word, {"yellow": True})
    if word == "VALIDATED":
        return "passed", ".", (word, {"green": True})
    return None


def item_verdict(
    subject: Subject, report: pytest.TestReport, error: BaseException | None, facts: Facts
) -> tuple[str, str]:
    """An item's word and the reason for it.

    PASSED or INVALID for preflights, gates and arms; VALIDATED, REFUTED, INCONCLUSIVE or INVALID
    for a criterion; BLOCKED for whatever could not be asked. The rule decides and the test says so:
    a test that comes out otherwise than the rule is INVALID, and so is one that was skipped.
    """
    message = message_of(error)
    if report.when != "call":
        word = "BLOCKED" if report.failed and message.startswith("BLOCKED by ") else "INVALID"
        return word, message
    if subject.asserted:
        return asserted_verdict(subject.stage, report, error)
    if subject.stage == "decision":
        assert facts.decision is not None, "the criterion's fixture has asked for it"
        ruled = facts.decision.outcomes[subject.name]
        outcomes, kind = _SAID_BY[ruled.verdict]
        if report.outcome in outcomes and isinstance(error, kind):
            return str(ruled.verdict), ruled.sentence
        return "INVALID", (
            f"the rule says {ruled.verdict} but the test {report.outcome}"
            f"{': ' + message if message else ''}; let the test say what the rule says"
        )
    problem = facts.problem(subject.stage, subject.name)
    if report.passed and problem:
        return "INVALID", f"the test passed although its check did not: {problem}"
    return ("PASSED", "") if report.passed else ("INVALID", problem or message)


def asserted_verdict(
    stage: str, report: pytest.TestReport, error: BaseException | None
) -> tuple[str, str]:
    """The word of a test of the author's own and what it said: pytest's outcome, and its message.

    Only a decision can be REFUTED or INCONCLUSIVE; what is skipped, or breaks, is INVALID.
    """
    if report.passed and error is None:
        return ("VALIDATED", "the assertion held") if stage == "decision" else ("PASSED", "")
    message = said(error) if error else f"the test {report.outcome} without an assertion"
    if stage == "decision" and isinstance(error, pytest.xfail.Exception):  # a kind of failure
        return "INCONCLUSIVE", message
    if stage == "decision" and isinstance(error, AssertionError | pytest.fail.Exception):
        return "REFUTED", message
    return "INVALID", message


def message_of(error: BaseException | None) -> str:
    """What an exception says, without what pytest adds to a failed assert."""
    if error is None:
        return ""
    text = str(error).partition("\nassert ")[0]
    if isinstance(error, AssertionError | pytest.fail.Exception):
        return text
    return f"{type(error).__name__}: {text}"
