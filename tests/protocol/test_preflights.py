import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.audit import PREFLIGHTS as IDS
from harness.protocol.preflights import PREFLIGHTS, Context


def _no_loss(arm):
    """No collector here asks who computes a loss."""
    pytest.fail(f"the loss backend of {arm.name} was asked for")


def context(small, identity):
    """What a preflight is given, with the service's identity."""
    service = SimpleNamespace(identity=identity)
    return Context(
        small, Path("cards"), lambda: pytest.fail("the data were read"), service, _no_loss
    )


def test_the_table_has_every_preflight_in_order():
    """What the checks declare is what can be collected."""
    assert tuple(PREFLIGHTS) == IDS


def test_capability_and_feasibility_share_one_collection():
    """One set of throw-away steps answers both; what each finds in it is its own."""
    capability, feasibility = PREFLIGHTS["capability"], PREFLIGHTS["feasibility"]

    assert capability.collection == feasibility.collection
    assert capability.collect is feasibility.collect
    assert capability.evidence is feasibility.evidence
    assert capability.served == feasibility.served
    assert capability.check is not feasibility.check


def test_preflights_of_one_name_are_one_collection():
    """Another collector under a name that is taken would be read as the first one's evidence."""
    by_name = {}
    for flight in PREFLIGHTS.values():
        seen = by_name.setdefault(flight.collection, flight)
        assert (seen.collect, seen.evidence, seen.served, seen.kept) == (
            flight.collect,
            flight.evidence,
            flight.served,
            flight.kept,
        )


def test_pins_are_looked_at_every_time():
    """Installed files can change between two runs without a change of any key."""
    assert [id for id, flight in PREFLIGHTS.items() if not flight.kept] == ["pins"]


@pytest.mark.parametrize("id", sorted(IDS))
def test_evidence_depends_on_the_service_if_it_is_asked(small, id):
    """Forecast, audit and correctness are the same on every service, and ask for none."""
    served = {"server_loss", "restoration", "capability", "feasibility"}
    here = context(small, lambda: {"kind": "here"})
    there = context(small, lambda: {"kind": "there"})

    flight = PREFLIGHTS[id]

    assert flight.served is (id in served)
    assert (flight.parts(here) != flight.parts(there)) is (id in served)


def test_an_edit_of_the_source_renews_the_evidence(small, monkeypatch):
    """Preflights vouch for the code as it is now."""
    flight, asked = PREFLIGHTS["forecast"], context(small, lambda: {})
    before = flight.parts(asked)

    monkeypatch.setattr("harness.training.identity.source_sha256", lambda _package: "edited")

    assert flight.parts(asked) != before


def test_the_table_loads_no_engine_and_no_sdk():
    """Collectors import what they need when they are called."""
    code = (
        "import sys, harness.protocol.preflights, harness.protocol.run\n"
        "print(sorted({'torch', 'tinker', 'tinker_cookbook', 'transformers'} & set(sys.modules)))"
    )
    reported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert reported.stdout.strip() == "[]"
