"""A registration binds: what was registered when the first step was taken is what decides.

The document of card, registration and scale is kept beside the record under its hash. A later run
that differs in anything that a verdict rests on is refused, item by item, unless it amends what was
registered and says what had been seen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import orjson
from pydantic import JsonValue

from harness.cards import Experiment
from harness.decisions import Decision
from harness.errors import RunError
from harness.store.files import make_folder, write_atomic
from harness.store.keys import content_key
from harness.store.record import Kind, Line, Record

PROSE = frozenset(
    {
        "title", "hypothesis", "method", "command", "baseline", "success_criterion", "estimand",
        "settled", "assumptions", "reason", "measures", "statement", "resolutions", "amends",
        "feasibility_check", "experiment_features", "primary_endpoint", "next_step",
        "card_sha256", "max_wall_minutes", "gpu_hours",
    }
)  # fmt: skip
"""What readers are told and what a run may cost; no result rests on it."""

SEEN = ("none", "gates", "outcomes")
"""What an amendment says had been seen, from least to most."""

KEYS = ("name", "id", "metric")


@dataclass(frozen=True)
class Registered:
    """The binding of one experiment at one scale in one store."""

    experiment: Experiment
    root: Path

    @property
    def record(self) -> Record:
        """The store's record."""
        return Record(self.root)

    @property
    def name(self) -> str:
        """The experiment as lines name it."""
        return f"{self.experiment.id}@{self.experiment.scale.name}"

    def bind(self) -> None:
        """Register what is about to be run, or hold it to what was registered.

        Raises:
            RunError: it differs from what was registered and amends nothing, or the amendment's
                own claim does not hold.
            StoreError: the record is broken or can't be written.
        """
        document = binding_document(self.experiment)
        sha256 = content_key({"registered": document})
        lines = self._lines()
        self._refuse_missing(lines)
        bound = [line for line in lines if line.kind in ("registered", "amended")]
        if bound and bound[-1].facts["sha256"] == sha256:
            self._keep(sha256, document)
            return
        if not bound:
            # the line first: a document that no line names is a sign of lines removed
            self.record.append(
                "registered", self.name, self._hashes(sha256), unless=self._binds(sha256)
            )
            self._keep(sha256, document)
            return
        amends = self.experiment.registration.amends
        latest = str(bound[-1].facts["sha256"])
        if amends is None or amends.sha256 != latest:
            raise RunError("\n".join(self._differences(latest, document, amends is not None)))
        least = seen(lines)
        if SEEN.index(amends.results_seen) < SEEN.index(least):
            raise RunError(
                f"amends.results_seen is {amends.results_seen!r}, but the record has {least} of "
                f"this experiment; say {least!r}"
            )
        facts = {
            **self._hashes(sha256),
            "amends": latest,
            "reason": amends.reason,
            "results_seen": amends.results_seen,
        }
        self.record.append("amended", self.name, facts, unless=self._binds(sha256))
        self._keep(sha256, document)

    def refuse_beyond(self, run: str) -> None:
        """Refuse a run that would draw anew more often than is registered, before it spends any.

        Raises:
            RunError: it would.
        """
        lines = self._lines()
        drawn, most = _drawn(lines), self.experiment.registration.max_runs
        if len(drawn) >= most and not _has(lines, run):
            raise RunError(
                f"{self.name} was drawn {len(drawn)} times, max_runs is {most}; a run beyond that "
                "needs an amendment that raises max_runs"
            )

    def attempt(self, run: str, *, redrawn: bool, trained: bool) -> None:
        """Count a run that is about to train, once however many processes it has.

        One that finds all of it `trained` is none, unless it draws anew.
        """
        lines = self._lines()
        if _has(lines, run) or (trained and not redrawn):
            return
        kind: Kind = "redrawn" if redrawn else "resumed" if _drawn(lines) else "started"
        self.record.append(kind, self.name, {"run": run}, unless=lambda all_: _has(all_, run))

    def decided(self, decision: Decision) -> Decision:
        """Record an outcome, once, and say in its sentence what else was tried or amended."""
        facts: dict[str, JsonValue] = {
            "verdict": str(decision.verdict),
            "criteria": [
                {"id": o.id, "estimate": o.estimate, "lower": o.lower, "upper": o.upper}
                for o in decision.outcomes.values()
            ],
        }
        lines = self._lines()
        said = self._said(lines, facts)
        if not self._ends(lines, facts):
            self.record.append("decided", self.name, facts, partial(self._ends, facts=facts))
        return replace(
            decision,
            sentence="; ".join([decision.sentence, *said]),
            post_hoc=any(line.facts.get("results_seen") == "outcomes" for line in lines),
            record="{}:{}".format(*self.head()),
        )

    def head(self) -> tuple[int, str]:
        """How many lines the record has, and the hash of the last."""
        lines = self.record.lines()
        return len(lines), lines[-1].sha256 if lines else ""

    def _said(self, lines: Sequence[Line], facts: Mapping[str, JsonValue]) -> list[str]:
        said = []
        outcomes = [line for line in lines if line.kind == "decided"]
        others = [line for line in outcomes if line.facts["criteria"] != facts["criteria"]]
        if others:
            words = ", ".join(str(line.facts["verdict"]) for line in others)
            said.append(f"attempt {max(len(_drawn(lines)), 1)}; found before: {words}")
        for line in (line for line in lines if line.kind == "amended"):
            word = "POST HOC: amended" if line.facts["results_seen"] == "outcomes" else "amended"
            said.append(f"{word} ({line.facts['reason']}), seen: {line.facts['results_seen']}")
        return said

    def _lines(self) -> list[Line]:
        return [line for line in self.record.lines() if line.experiment == self.name]

    def _binds(self, sha256: str) -> "_Unless":
        return _Unless(self.name, sha256)

    def _ends(self, lines: Sequence[Line], facts: Mapping[str, JsonValue]) -> bool:
        own = [x for x in lines if x.experiment == self.name and x.kind == "decided"]
        return bool(own) and all(own[-1].facts[key] == value for key, value in facts.items())

    def _hashes(self, sha256: str) -> dict[str, JsonValue]:
        experiment = self.experiment
        return {
            "sha256": sha256,
            "card_sha256": experiment.card_sha256,
            "registration_sha256": experiment.registration_sha256,
            "scale_sha256": experiment.scale_sha256,
        }

    def _folder(self) -> Path:
        return self.root / "registered" / self.name

    def _keep(self, sha256: str, document: JsonValue) -> None:
        if (self._folder() / f"{sha256}.json").exists():
            return
        make_folder(self._folder())
        data = orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"
        write_atomic(self._folder() / f"{sha256}.json", data)

    def _refuse_missing(self, lines: Sequence[Line]) -> None:
        """A document that no line names was registered, and its line is gone."""
        named = {line.facts.get("sha256") for line in lines}
        kept = sorted(path.stem for path in self._folder().glob("*.json"))
        if gone := [sha256 for sha256 in kept if sha256 not in named]:
            raise RunError(
                f"record.jsonl has no line about {self._folder() / gone[0]}.json, which was "
                "registered: lines were removed; restore the record"
            )

    def _differences(self, latest: str, now: JsonValue, amends: bool) -> Iterator[str]:
        path = self._folder() / f"{latest}.json"
        try:
            was: JsonValue = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            was = None
        if was is None or content_key({"registered": was}) != latest:
            yield f"{path} is gone or was edited, and holds what was registered; restore it"
            return
        for place, old, new in differences(was, now):
            yield f"{place}: registered {old}, now {new}"
        amended = "amends names another registration" if amends else "no amendment says so"
        yield (
            f"what {self.name} registered when its first step was taken binds, and {amended}: "
            f"restore it, or write amends with sha256 {latest}, a reason and results_seen"
        )


@dataclass(frozen=True)
class _Unless:
    """Another process has just bound the same."""

    name: str
    sha256: str

    def __call__(self, lines: Sequence[Line]) -> bool:
        own = [x for x in lines if x.experiment == self.name and "sha256" in x.facts]
        return bool(own) and own[-1].facts["sha256"] == self.sha256


def seen(lines: Sequence[Line]) -> str:
    """What the record shows to have been seen of an experiment: none, gates or outcomes."""
    kinds = {line.kind for line in lines}
    if "decided" in kinds:
        return "outcomes"
    return "gates" if kinds & {"started", "resumed", "redrawn"} else "none"


def binding_document(experiment: Experiment) -> JsonValue:
    """Whatever a verdict rests on, as plain JSON: defaults and prose left out.

    Of an experiment's own components it has the hashes of their sources.
    """
    dumped = {
        "card": experiment.card.model_dump(mode="json", exclude_defaults=True),
        "registration": experiment.registration.model_dump(mode="json", exclude_defaults=True),
        "scale": {"service": experiment.scale.service, "data": experiment.scale.data},
        "components": {
            f"{kind.kind} {name}": source.sha256
            for (kind, name), source in experiment.components.sources.items()
        },
    }
    return _without_prose(orjson.loads(orjson.dumps(dumped)))


def differences(was: JsonValue, now: JsonValue, at: str = "") -> Iterator[tuple[str, str, str]]:
    """(place, was, now) of every value in which two documents differ; lists by name."""
    if isinstance(was, list) and isinstance(now, list):
        was, now = _by_name(was), _by_name(now)
    if isinstance(was, dict) and isinstance(now, dict):
        for key in [*was, *(key for key in now if key not in was)]:
            yield from differences(was.get(key), now.get(key), f"{at}.{key}" if at else key)
    elif was != now:
        yield at, _shown(was), _shown(now)


def _by_name(items: list[JsonValue]) -> dict[str, JsonValue]:
    """A list's items by what tells them apart, else by their places."""
    dicts = [item for item in items if isinstance(item, dict)]
    for key in KEYS:
        names = {str(item[key]) for item in dicts if key in item}
        if dicts and len(names) == len(dicts) == len(items):
            return {str(item[key]): item for item in dicts}
    return {str(place): item for place, item in enumerate(items)}


def _without_prose(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {k: _without_prose(v) for k, v in value.items() if k not in PROSE}
    return [_without_prose(item) for item in value] if isinstance(value, list) else value


def _shown(value: JsonValue) -> str:
    if value is None:
        return "nothing"
    text = orjson.dumps(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def _drawn(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.kind in ("started", "redrawn")]


def _has(lines: Sequence[Line], run: str) -> bool:
    return any(line.facts.get("run") == run for line in lines)
