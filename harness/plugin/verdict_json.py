"""verdict.json: the verdict and what it stands on, for scripts and CI.

`<runs-dir>/<experiment>.<scale>.verdict.json` holds one object. `--verdict-json FILE` gets the same
object, or a list of such objects, in the order of the test files, if several experiments ran.

A verdict is never replaced by less. What decides nothing, as a session of preflights alone, is put
beside a decided verdict as `<experiment>.<scale>.verdict.partial.json`. A decision that comes out
otherwise moves the one before it to `...verdict.<n>.json`. `--verdict-json FILE` speaks of this
session alone: it is removed before anything runs, so a killed session leaves none.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from harness.cards import GateCheck
from harness.errors import StoreError
from harness.plugin.facts import Assertion
from harness.plugin.ledger import ExperimentLedger
from harness.plugin.verdict import Verdict
from harness.store.files import make_folder, storage_errors, write_atomic

Json = dict[str, object]

DECIDED = ("VALIDATED", "REFUTED", "INCONCLUSIVE")

OUTCOME = ("verdict", "sentence", "criteria", "card_sha256", "registration_sha256")
"""What two sessions' verdicts have alike, if the second says nothing new."""


def stored_at(runs_dir: Path, ledger: ExperimentLedger) -> Path:
    """Where an experiment's verdict is kept."""
    return runs_dir / f"{ledger.id}.{ledger.scale}.verdict.json"


def write(path: Path, documents: Sequence[Json]) -> None:
    """Write one object, or a list if there are several, whole or not at all, and read it back.

    Raises:
        StoreError: the file can't be written, or holds something else than this session's verdict.
    """
    make_folder(path.parent)
    content = documents[0] if len(documents) == 1 else list(documents)
    data = orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n"
    write_atomic(path, data)
    with storage_errors("read", path):
        if path.read_bytes() != data:
            raise StoreError(
                f"{path} is not what this session has just written; look for what else writes there"
            )


def keep(path: Path, document: Json) -> Path:
    """Write a verdict where an experiment's is kept, or beside a decided one; returns the place.

    Raises:
        StoreError: a file can't be read or written.
    """
    beside, before = path.with_suffix(".partial.json"), decided(path)
    if before is not None and document["verdict"] not in DECIDED:
        write(beside, [document])
        return beside
    if before is not None and any(before.get(key) != document.get(key) for key in OUTCOME):
        history = [place.suffixes[-2][1:] for place in path.parent.glob(f"{path.stem}.*.json")]
        number = 1 + max((int(n) for n in history if n.isdecimal()), default=0)
        write(path.with_suffix(f".{number}.json"), [before])
    write(path, [document])
    remove(beside)
    return path


def decided(path: Path) -> Json | None:
    """The verdict that a file holds, None without one that decides something.

    Raises:
        StoreError: it is there and can't be read.
    """
    with storage_errors("read", path):
        try:
            document: Json = orjson.loads(path.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return None
    return document if isinstance(document, dict) and document.get("verdict") in DECIDED else None


def remove(path: Path | None) -> None:
    """Remove the verdict of an earlier session, if there is one.

    Raises:
        StoreError: it can't be removed.
    """
    if path is not None:
        with storage_errors("remove", path):
            path.unlink(missing_ok=True)


def document(ledger: ExperimentLedger, verdict: Verdict) -> Json:
    """The verdict and everything under it; what was not measured is null."""
    facts, experiment, names = ledger.facts, ledger.experiment, ledger.declared
    return {
        "experiment": ledger.id,
        "scale": ledger.scale,
        "claims": experiment.scale.claims if experiment else None,
        "data": experiment.data_source if experiment else None,
        "card_sha256": experiment.card_sha256 if experiment else None,
        "registration_sha256": experiment.registration_sha256 if experiment else None,
        "scale_sha256": experiment.scale_sha256 if experiment else None,
        "verdict": verdict.word,
        "sentence": verdict.sentence,
        "criteria": [criterion(ledger, name) for name in names.get("decision", ())],
        "gates": gates(ledger),
        "preflights": [preflight(ledger, name) for name in names.get("preflight", ())],
        "arms": [arm(ledger, name) for name in names.get("arm", ())],
        "base": asdict(facts.base) if facts.base else {"accuracy": None, "n_items": None},
        "attempts": facts.attempts,
        "post_hoc": facts.decision.post_hoc if facts.decision else False,
        "record": facts.decision.record if facts.decision else "",
        "unverified": list(experiment.unverified) if experiment else [],
        "contrast": experiment.contrast if experiment else {},
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
    """One criterion; `outcome` is its item's word, or NOT RUN."""
    shown: Json = dict.fromkeys(("estimate", "lower", "upper", "margin", "sentence"))
    if outcome := ledger.outcomes().get(name):
        keys = [*shown, "n", "alpha", "method"]
        shown = {key: getattr(outcome, key) for key in keys}
    if asserted := ledger.facts.assertions.get(name):
        return {"id": name} | shown | asserted_by(ledger, name, asserted)
    return {"id": name} | shown | {"outcome": ledger.word("decision", name)}


def asserted_by(ledger: ExperimentLedger, name: str, asserted: Assertion) -> Json:
    """What a test of the author's own came to, and that it is one: no error rate stands behind."""
    records = [record for record in ledger.records.values() if record.name == name]
    return {
        "outcome": ledger.word(asserted.stage, name),
        "sentence": records[0].reason if records else None,
        "assertion": True,
        "source_sha256": asserted.source_sha256,
    }


def gates(ledger: ExperimentLedger) -> list[Json]:
    """The registered gates and then the author's own, which have no value and no bounds."""
    registered = ledger.experiment.gates if ledger.experiment else ()
    bare = dict.fromkeys(("value", "min", "max", "one_of"))
    own = [
        {"metric": name, **bare, "ok": ok_of(ledger.word("gate", name))}
        | asserted_by(ledger, name, asserted)
        for name, asserted in ledger.facts.assertions.items()
        if asserted.stage == "gate"
    ]
    return [*(gate(ledger, check) for check in registered), *own]


def ok_of(word: str) -> bool | None:
    """Whether an item passed; None if it has not run."""
    return None if word in ("NOT RUN", "BLOCKED") else word == "PASSED"


def gate(ledger: ExperimentLedger, check: GateCheck) -> Json:
    """One gate; `ok` is null if it was not measured."""
    known = ledger.facts.gates.get(check.metric)
    return {
        "metric": check.metric,
        "value": known.value if known else None,
        "min": check.min,
        "max": check.max,
        "one_of": check.one_of,
        "ok": known.ok if known else None,
    }


def preflight(ledger: ExperimentLedger, name: str) -> Json:
    """One preflight; `outcome` is passed, failed, error or not_run."""
    known = ledger.facts.preflights.get(name)
    if asserted := ledger.facts.assertions.get(name):
        own = asserted_by(ledger, name, asserted)
        outcome = {"PASSED": "passed", "NOT RUN": "not_run", "BLOCKED": "error"}
        return own | {
            "id": name,
            "outcome": outcome.get(str(own["outcome"]), "failed"),
            "message": own["sentence"] or "",
            "notes": [],
            "metrics": {},
        }
    if known is None:
        return {"id": name, "outcome": "not_run", "message": "", "notes": [], "metrics": {}}
    return {
        "id": name,
        "outcome": "passed" if known.ok else "failed" if known.carried_out else "error",
        "message": ledger.facts.problem("preflight", name),
        "notes": known.notes,
        "metrics": known.metrics,
    }


def arm(ledger: ExperimentLedger, name: str) -> Json:
    """One arm."""
    known = ledger.facts.arms.get(name)
    unknown: Json = dict.fromkeys(("steps", "rollouts", "accuracy", "n_items"))
    return {"name": name} | unknown | (asdict(known) if known else {})
