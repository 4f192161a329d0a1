"""One mistake at a time, planted in sound evidence: exactly the items that are named notice."""

import copy
from typing import Any

import pytest
from mistakes import evidence, records
from mistakes.mistake import named

from harness.audit import PREFLIGHTS
from harness.audit.gates import check_gate
from harness.protocol import preflights

Plain = dict[str, Any]


@pytest.fixture(name="plain")
def _plain(sound) -> Plain:
    """Sound evidence by preflight, as it is stored."""
    return {id: copy.deepcopy(evidence.plain()) for id, evidence in sound.items()}


def failing(experiment, plain: Plain, pilot) -> dict[str, str]:
    """What every preflight and gate says that does not pass, from evidence as it is stored."""
    flights = preflights.PREFLIGHTS
    found = {id: flights[id].finding(plain[id], experiment) for id in PREFLIGHTS}
    found |= {check.metric: check_gate(check, pilot, experiment) for check in experiment.gates}
    return {id: "\n".join(finding.problems) for id, finding in found.items() if not finding.ok}


def test_sound_evidence_passes_every_check(experiment, plain, pilot):
    """Without a mistake no preflight and no gate complains."""
    assert failing(experiment, plain, pilot) == {}


@pytest.mark.parametrize("mistake", [*evidence.MISTAKES, *records.MISTAKES], ids=named)
def test_a_planted_mistake_fails_exactly_its_check(experiment, plain, pilot, mistake):
    """Each mistake is noticed by the items that are named for it and by no other, with a cause."""
    mistake.edit(pilot if mistake.way == "records" else plain)

    found = failing(experiment, plain, pilot)

    assert set(found) == mistake.items
    assert any(mistake.words in said for said in found.values())


def test_every_check_has_a_planted_mistake(experiment):
    """No preflight and no gate goes through without one mistake that it alone must notice."""
    alone = [m.items for m in (*evidence.MISTAKES, *records.MISTAKES) if len(m.items) == 1]

    assert {*PREFLIGHTS, *(check.metric for check in experiment.gates)} == frozenset().union(*alone)
