"""What other methods would have said, kept apart from the verdict."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harness.decisions
from harness.decisions import Criterion, Verdict, decide
from harness.decisions.beside import score_line
from harness.decisions.diagnostics import LABEL, diagnostics, disagreements, lines

Registered = Callable[..., Criterion]
Table = Callable[[int, int, int, int], tuple[Any, list[str]]]
ROOM = Path(harness.decisions.__file__).parent


def test_nothing_that_decides_imports_diagnostics() -> None:
    """No file of this room or of the statistics names the diagnostics in an import."""
    files = [*ROOM.glob("*.py"), *(ROOM.parent / "statistics").glob("*.py")]
    readers = [path for path in files if path.name != "diagnostics.py"]
    assert len(readers) >= 15
    for path in readers:
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(alias.name for alias in node.names)]
            assert not any("diagnostics" in name for name in names), path.name


def test_every_line_is_labelled(registered: Registered, table: Table) -> None:
    """Each line says that it was not used for the verdict."""
    scores, ids = table(800, 149, 117, 253)
    text = lines(registered(), scores, ids)
    assert len(text) == 6
    assert all(LABEL in line for line in text)


def test_table_and_mcnemar_are_shown(registered: Registered, table: Table) -> None:
    """b, c and d are there to recompute by hand, and McNemar says that it tests margin 0."""
    scores, ids = table(800, 150, 117, 252)
    text = "\n".join(lines(registered(), scores, ids))
    for part in ("b=150", "c=117", "net +33", "d=20.2%", "p=0.04998", "margin 0 only"):
        assert part in text
    assert "paired_tango [+0.07, +4.94] points: would have been VALIDATED" in text
    assert "paired_cp_bonferroni [-1.29, +6.28] points" in text


def test_disagreement_does_not_change_the_verdict(registered: Registered, table: Table) -> None:
    """Where Tango would have passed, the verdict stays INCONCLUSIVE and the reader is told why."""
    scores, ids = table(800, 149, 117, 253)
    criterion = registered()
    outcome = decide(criterion, scores, ids)
    said = disagreements(criterion, outcome, diagnostics(criterion, scores, ids))
    assert outcome.inconclusive
    (tango,) = [line for line in said if "paired_tango" in line]
    assert tango == (
        "INCONCLUSIVE (registered). paired_tango [+0.00, +4.86] points lies above the margin: the"
        " design was underpowered, not the effect absent. A tighter rule needs a NEW registration"
        " and fresh items/checkpoints."
    )


def test_agreement_is_silent(registered: Registered, table: Table) -> None:
    """Diagnostics that agree add no sentence about a new registration."""
    scores, ids = table(800, 150, 117, 252)
    assert not any("NEW registration" in line for line in lines(registered(), scores, ids))


def test_weaker_diagnostic_of_a_decided_rule(registered: Registered, table: Table) -> None:
    """A registered Tango verdict stands where the exact pair would have said nothing."""
    scores, ids = table(70, 14, 9, 7)
    criterion = registered(method="paired_tango", margin=-0.06)
    assert decide(criterion, scores, ids).validated
    text = "\n".join(lines(criterion, scores, ids))
    assert "would have been INCONCLUSIVE: the registered rule stands" in text


def test_other_scores_get_bernstein_and_clusters(registered: Registered) -> None:
    """Scores that are not 0/1 pairs get empirical Bernstein, and the clustered t with clusters."""
    ids = [str(i) for i in range(60)]
    scores = {
        "treatment": {i: (int(i) % 7) / 10 for i in ids},
        "baseline": {i: (int(i) % 5) / 10 for i in ids},
    }
    clusters = {i: int(i) // 6 for i in ids}
    found = diagnostics(registered(), scores, ids, clusters=clusters)
    assert [d.name for d in found] == ["paired_empirical_bernstein", "clustered_t"]
    assert all(d.would_have_been in Verdict for d in found)
    alone = diagnostics(registered(), scores, ids, clusters=dict.fromkeys(ids, 0))
    assert [d.name for d in alone] == ["paired_empirical_bernstein"]


@pytest.mark.parametrize("name", ["paired_tango", "paired_cp_bonferroni"])
def test_registered_method_is_not_its_own_diagnostic(
    registered: Registered, table: Table, name: str
) -> None:
    """The method that decides is not listed among the ones that do not."""
    scores, ids = table(80, 15, 12, 13)
    names = [d.name for d in diagnostics(registered(method=name), scores, ids)]
    assert len(names) == 1
    assert name not in names


def test_invalid_data_have_no_diagnostics(registered: Registered, table: Table) -> None:
    """Data that do not fit the registration say nothing, in any method."""
    scores, ids = table(80, 15, 12, 13)
    assert lines(registered(), scores, [*ids, "lost"]) == []


def test_graded_scores_are_clustered_by_item(registered) -> None:
    """Beside a rule on estimates stands a t interval over items: 1.96 becomes t with n - 1."""
    ids = [f"q{i}" for i in range(4)]
    rows = {
        "treatment": dict(zip(ids, (0.2, 0.4, 0.6, 0.8), strict=True)),
        "baseline": dict.fromkeys(ids, 0.25),
    }
    criterion = registered(method="point_thresholds", margin=0.0)
    found = {each.name: each.interval for each in diagnostics(criterion, rows, ids)}

    half = 3.182446 * np.std((0.2, 0.4, 0.6, 0.8), ddof=1) / 2.0
    assert found["clustered_t"].estimate == pytest.approx(0.25)
    assert found["clustered_t"].half_width == pytest.approx(half, rel=1e-6)


def test_a_score_line_gives_every_metric_its_interval() -> None:
    """Means in the order given; a metric without spread has no interval."""
    scores = {"f4": {"a": 0.0, "b": 0.5}, "recall": {"a": 1.0, "b": 1.0}}
    line = score_line("base", scores, 0.05)

    assert line.startswith("evaluation of base: f4 0.2500 [-2.9266, 3.4266], recall 1.0000 (n=2")
