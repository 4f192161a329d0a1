"""What is known of clients: their sessions, the models they train, what they sample from."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from harness.engine import fields
from harness.engine.architecture import DecoderConfig, Weights
from harness.engine.errors import RequestError
from harness.engine.fields import Json
from harness.engine.lora import LoraConfig
from harness.engine.seeds import derived_seed
from harness.engine.snapshots import MergedCache, Snapshot
from harness.engine.trainer import Trainee

log = logging.getLogger(__name__)

SNAPSHOT_BYTES = 2 << 30


@dataclass(frozen=True)
class BaseModel:
    """What is served: the names a client may use, the folder, the model itself."""

    names: tuple[str, ...]
    folder: Path
    config: DecoderConfig
    weights: Weights

    @property
    def name(self) -> str:
        """The name that answers carry."""
        return self.names[0]

    def check(self, asked: str) -> None:
        """Raises RequestError unless `asked` is served."""
        if asked not in self.names:
            raise RequestError(
                f"base model {asked[:200]!r} is not served here; served: {', '.join(self.names)}"
            )


@dataclass
class Session:
    """One client. `ordinal` counts sessions from the engine's start: unseeded streams use it."""

    session_id: str
    ordinal: int
    last_seen: float
    models: list[str] = field(default_factory=list)
    samplers: list[str] = field(default_factory=list)


@dataclass
class Model:
    """A LoRA model in training; `trainee` is None until its first job has run."""

    model_id: str
    session: Session
    lora: LoraConfig
    user_metadata: dict[str, str]
    trainee: Trainee | None = None
    last_request: float = 0.0

    def trained(self) -> Trainee:
        """The weights. Raises RequestError if the request that should have made them failed."""
        if self.trainee is None:
            raise RequestError(f"model {self.model_id} was not created; see its first request")
        return self.trainee


@dataclass(frozen=True)
class SamplingSession:
    """A snapshot that clients may sample from, and the numbers its unseeded streams derive from."""

    sampler_id: str
    snapshot: Snapshot
    model_path: str | None
    identity: tuple[int, int]


class Registry:
    """All sessions, models and sampling sessions; samplers may be opened from any thread.

    Memory: each model costs its adapter three times and its merged matrices twice (with their
    gradient); the adapters of all sampling sessions together at most `SNAPSHOT_BYTES`, beyond which
    those unused longest are dropped; merged copies as `snapshots.MergedCache` says.
    """

    def __init__(self, merged: MergedCache) -> None:
        self.sessions: dict[str, Session] = {}
        self.models: dict[str, Model] = {}
        self.samplers: dict[str, SamplingSession] = {}
        self._merged = merged
        self._lock = threading.Lock()
        self._started = 0

    def create_session(self) -> str:
        """A new client."""
        self._started += 1
        name = f"s{self._started}-{derived_seed('session', time.time_ns(), self._started):016x}"
        self.sessions[name] = Session(name, self._started, time.monotonic())
        return name

    def heartbeat(self, body: Json) -> None:
        """Note that a client is alive. Raises RequestError for an unknown session."""
        self.session(body).last_seen = time.monotonic()

    def forget_silent_sessions(self, seconds: float) -> None:
        """Free the models and samplers of clients that have sent nothing for `seconds`."""
        limit = time.monotonic() - seconds
        for session in [s for s in self.sessions.values() if s.last_seen < limit]:
            log.info("session %s has been silent; freed", session.session_id)
            for model_id in session.models:
                self.models.pop(model_id, None)
            with self._lock:
                for sampler_id in session.samplers:
                    self._drop_sampler(sampler_id)
            del self.sessions[session.session_id]

    def session(self, body: Json) -> Session:
        """The session that a request names. Raises RequestError."""
        name = fields.text(body, "session_id")
        if name not in self.sessions:
            raise RequestError(f"session {name[:200]!r} is unknown here; create one first")
        return self.sessions[name]

    def open_model(
        self, session: Session, sequence: int, lora: LoraConfig, metadata: dict[str, str]
    ) -> Model:
        """A model without weights yet. Raises RequestError if its id is taken."""
        model_id = f"{session.session_id}:train:{sequence}"
        if model_id in self.models:
            raise RequestError(f"model {model_id} exists already")
        model = Model(model_id, session, lora, metadata, last_request=time.time())
        self.models[model_id] = model
        session.models.append(model_id)
        return model

    def model(self, model_id: str) -> Model:
        """A loaded model. Raises RequestError."""
        if model_id not in self.models:
            raise RequestError(
                f"model {model_id[:200]!r} is not loaded; create it or load one of its checkpoints"
            )
        model = self.models[model_id]
        model.last_request = time.time()
        model.session.last_seen = time.monotonic()
        return model

    def model_of(self, body: Json) -> Model:
        """The model that a request names. Raises RequestError."""
        return self.model(fields.text(body, "model_id"))

    def open_sampler(
        self, session: Session, sequence: int, snapshot: Snapshot, path: str | None
    ) -> str:
        """A sampling session's id; the same number again is the same session."""
        sampler_id = f"{session.session_id}:sample:{sequence}"
        with self._lock:
            self.samplers[sampler_id] = SamplingSession(
                sampler_id, snapshot, path, (session.ordinal, sequence)
            )
            session.samplers.append(sampler_id)
            self._evict()
        return sampler_id

    def sampler(self, sampler_id: str) -> SamplingSession:
        """A sampling session, which now is the one used last. Raises RequestError."""
        with self._lock:
            sampler = self.samplers.pop(sampler_id, None)
            if sampler is None:
                raise RequestError(
                    f"sampling session {sampler_id[:200]!r} is unknown here, or was evicted when "
                    f"snapshots exceeded {SNAPSHOT_BYTES >> 20} MiB; open it again"
                )
            self.samplers[sampler_id] = sampler
        return sampler

    def _evict(self) -> None:
        """Drop sessions from the one unused longest until the adapters fit; never the newest."""
        held = sum(snapshot.size for snapshot in {s.snapshot for s in self.samplers.values()})
        for sampler_id in list(self.samplers)[:-1]:
            if held <= SNAPSHOT_BYTES:
                return
            held -= self._drop_sampler(sampler_id)
            log.info("sampling session %s was evicted", sampler_id)

    def _drop_sampler(self, sampler_id: str) -> int:
        """Forget a session; the bytes that became free."""
        sampler = self.samplers.pop(sampler_id, None)
        if sampler is None or any(
            other.snapshot is sampler.snapshot for other in self.samplers.values()
        ):
            return 0
        self._merged.forget(sampler.snapshot)
        return sampler.snapshot.size
