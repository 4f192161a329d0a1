"""verdict.json: the verdict and what it stands on, for scripts and CI.

`<runs-dir>/<experiment>.<scale>.verdict.json` holds one object. `--verdict-json FILE` gets the same
object, or a list of such objects, in the order of the test files, if several experiments ran.

A file of an earlier session is removed before anything runs: a killed session leaves none.
"""

from collections.abc import Sequence
from pathlib import Path

import orjson

from harness.cards.card import GateCheck
from harness.cards.consistency import gates_of
from harness.plugin.collection import subjects
from harness.plugin.ledger import ExperimentLedger
from harness.plugin.verdict import Verdict
from harness.store.files import make_folder, write_atomic

Json = dict[str, object]


def stored_at(runs_dir: Path, ledger: ExperimentLedger) -> Path:
    """Where an experiment's verdict is kept."""
    return runs_dir / f"{ledger.id}.{ledger.scale or 'unknown'}.verdict.json"


def write(path: Path, documents: Sequence[Json]) -> None:
    """Write one object, or a list if there are several, whole or not at all.

    Raises:
        StoreError: the file can't be written.
    """
    make_folder(path.parent)
    content = documents[0] if len(documents) == 1 else list(documents)
    write_atomic(path, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")


def document(ledger: ExperimentLedger, verdict: Verdict) -> Json:
    """The verdict and everything under it. What was not measured is null."""
    facts, experiment = ledger.facts, ledger.experiment
    declared = subjects(experiment) if experiment else {}
    arms: Json = {"steps": None, "rollouts": None, "accuracy": None, "n_items": None}
    return {
        "experiment": ledger.id,
        "scale": ledger.scale,
        "claims": experiment.scale.claims if experiment else None,
        "card_sha256": experiment.card_sha256 if experiment else None,
        "registration_sha256": experiment.registration_sha256 if experiment else None,
        "scale_sha256": experiment.scale_sha256 if experiment else None,
        "verdict": verdict.word,
        "sentence": verdict.sentence,
        "criteria": [criterion(ledger, name) for name in declared.get("criterion", [])],
        "gates": [gate(ledger, check) for check in gate_checks(ledger)],
        "preflights": [preflight(ledger, name) for name in declared.get("preflight", [])],
        "arms": [
            {"name": name} | arms | dict(facts.arms.get(name, {}))
            for name in declared.get("arm", [])
        ],
        "base": facts.base or {"accuracy": None, "n_items": None},
        "attempts": facts.attempts,
        "notes": facts.notes,
        "diagnostics": facts.diagnostics,
        "items": [
            {
                "item": record.item,
                "stage": record.stage,
                "verdict": record.verdict,
                "message": record.reason,
            }
            for record in ledger.records.values()
        ],
        "not_run": ledger.not_run,
    }


def criterion(ledger: ExperimentLedger, name: str) -> Json:
    """One criterion; the outcome is `not_run`, or that of its item."""
    measured: Json = {"estimate": None, "lower": None, "upper": None, "margin": None}
    measured |= dict(ledger.facts.criteria.get(name, {"sentence": ""}))
    words = {record.name: record.verdict for record in ledger.of_stage("decision")}
    return {"id": name} | measured | {"outcome": words.get(name, "not_run")}


def gate(ledger: ExperimentLedger, check: GateCheck) -> Json:
    """One gate; `ok` is null if it was not measured."""
    found = ledger.facts.gates.get(check.metric)
    return {
        "metric": check.metric,
        "value": found["value"] if found else None,
        "min": check.min,
        "max": check.max,
        "one_of": check.one_of,
        "ok": found["ok"] if found else None,
    }


def gate_checks(ledger: ExperimentLedger) -> list[GateCheck]:
    """The gates of the card, then those that the registration adds."""
    if ledger.experiment is None:
        return []
    return [*gates_of(ledger.experiment.card), *ledger.experiment.registration.extra_gates]


def preflight(ledger: ExperimentLedger, name: str) -> Json:
    """One preflight; the outcome is passed, failed, error or not_run."""
    found = ledger.facts.preflights.get(name)
    if found is None:
        return {"id": name, "outcome": "not_run", "message": "", "notes": [], "metrics": {}}
    return {"id": name} | dict(found)
