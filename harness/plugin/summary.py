"""The verdict at the end of the terminal: plain ASCII of our own, one fact a line."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from harness.plugin.ledger import ExperimentLedger
from harness.plugin.verdict import Verdict, one_line

_COLOURS = {"VALIDATED": "green", "INCONCLUSIVE": "yellow", None: "yellow"}
_STAGES = {"preflight": "preflights", "gate": "gates", "arm": "arms", "decision": "criteria"}


def show(
    reporter: pytest.TerminalReporter,
    ledger: ExperimentLedger,
    verdict: Verdict,
    kept: Path,
) -> None:
    """Print an experiment's verdict, which was `kept` there."""
    reporter.write_sep("=", f"{ledger.id} at scale {ledger.scale}")
    for line in lines(ledger, reporter.config.get_terminal_writer().fullwidth):
        reporter.write_line(line)
    reporter.write_line(f"verdict file: {kept}")
    reporter.write_line("")
    colour = _COLOURS.get(verdict.word, "red")
    reporter.write_line(verdict.line, **{colour: True}, bold=True)


def lines(ledger: ExperimentLedger, width: int) -> list[str]:
    """Everything between the heading and the verdict, for a terminal of that width."""
    facts, experiment = ledger.facts, ledger.experiment
    if experiment is None:
        return []
    return [
        f"title: {experiment.card.title}",
        f"speaks of: {experiment.scale.claims}",
        *stage_lines(ledger),
        "",
        *arm_lines(ledger, width),
        *criterion_lines(ledger),
        *block("preflight figures", preflight_notes(ledger)),
        *block("gates", gate_sentences(ledger)),
        *block("pilot (decides nothing)", facts.notes),
        *block("diagnostics (not used for the verdict)", facts.diagnostics),
        *block("INVALID", invalid(ledger)),
        *block("BLOCKED", blocked(ledger)),
        *block("NOT RUN", ledger.not_run),
        *([f"attempts: {facts.attempts}"] if facts.attempts else []),
        *([f"record: {facts.decision.record}"] if facts.decision and facts.decision.record else []),
    ]


def stage_lines(ledger: ExperimentLedger) -> list[str]:
    """For each stage, what came of all that the card declares."""
    return [
        f"{_STAGES[stage] + ':':12}"
        + ", ".join(f"{n} {w}" for w, n in Counter(ledger.word(stage, x) for x in names).items())
        for stage, names in ledger.declared.items()
    ]


def arm_lines(ledger: ExperimentLedger, width: int) -> list[str]:
    """What each arm did, as a table, or one figure a line where a table does not fit."""
    base, arms = ledger.facts.base, ledger.in_order("arm", ledger.facts.arms)
    if not arms:
        return []
    rows = [["arm", "steps", "rollouts", "reward", "accuracy", "items", "seconds"]]
    if base:
        rows.append(["base model", "-", "-", "-", f"{base.accuracy:.4f}", str(base.n_items), "-"])
    for name, arm in arms:
        rows.append(
            [
                name,
                f"{arm.steps}/{arm.planned_steps}",
                f"{arm.rollouts}/{arm.planned_rollouts}",
                f"{arm.final_reward:.3f}" if arm.steps else "-",
                "-" if arm.accuracy is None else f"{arm.accuracy:.4f}",
                str(arm.n_items),
                f"{arm.wall_seconds:.1f}",
            ]
        )
    return [*table(rows, width), ""]


def criterion_lines(ledger: ExperimentLedger) -> list[str]:
    """Estimate, interval and margin of each criterion, and its sentence."""
    found = []
    outcomes = ledger.outcomes()
    for name, outcome in outcomes.items():
        figures = (outcome.estimate, outcome.lower, outcome.upper, outcome.margin)
        estimate, lower, upper, margin = map(signed, figures)
        found += [
            f"criterion {name}: {outcome.verdict}",
            f"  estimate {estimate}, interval [{lower}, {upper}], margin {margin}, n {outcome.n}",
            f"  {outcome.method}, alpha {outcome.alpha:g}",
            # the sentence of an only criterion is the verdict's, which ends the page
            *([f"  {one_line(outcome.sentence)}"] if len(outcomes) > 1 else []),
            "",
        ]
    return found


def preflight_notes(ledger: ExperimentLedger) -> list[str]:
    """The figures that preflights report even when they pass."""
    return [
        f"{name}: {note}"
        for name, fact in ledger.in_order("preflight", ledger.facts.preflights)
        for note in fact.notes
    ]


def gate_sentences(ledger: ExperimentLedger) -> list[str]:
    """Each gate's value and bounds."""
    return [one_line(gate.sentence) for _, gate in ledger.in_order("gate", ledger.facts.gates)]


def invalid(ledger: ExperimentLedger) -> list[str]:
    """Items that failed or broke, and why."""
    return [
        f"{record.item.rpartition('::')[2]}: {one_line(record.reason)}"
        for record in ledger.records_of("INVALID")
    ]


def blocked(ledger: ExperimentLedger) -> list[str]:
    """What blocked, each once, and how many items."""
    reasons = Counter(record.reason for record in ledger.records_of("BLOCKED"))
    return [
        f"{reason.removeprefix('BLOCKED ')} ({count} item{'s' * (count > 1)})"
        for reason, count in reasons.items()
    ]


def block(title: str, body: Iterable[str]) -> list[str]:
    """A titled, indented list; nothing if there is nothing to list."""
    indented = [f"  {line}" for line in body]
    return [f"{title}:", *indented] if indented else []


def signed(value: float | None) -> str:
    """A figure with its sign as a reader writes it, a dash if there is none."""
    return "-" if value is None else f"{value:+.4g}"


def table(rows: list[list[str]], width: int) -> list[str]:
    """Rows under a heading, first column left, the others right; stacked if too wide."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if sum(widths) + 2 * (len(widths) - 1) > width:
        heading, *body = rows
        return [
            line
            for row in body
            for line in (row[0], *(f"  {h} {v}" for h, v in zip(heading[1:], row[1:], strict=True)))
        ]
    return [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
        )
        for row in rows
    ]
