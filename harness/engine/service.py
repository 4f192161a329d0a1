"""The engine behind the routes: sessions, models, sampling sessions, and what they may do.

Every method runs on the event loop's thread and returns at once; computing happens in jobs on the
scheduler's workers, which answer the request's future. A request that can't be served ends as a
failed future, so that the SDK raises `RequestFailedError` with a category.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from harness.engine import protocol
from harness.engine.decoder import DecoderConfig, Rope, Weights
from harness.engine.errors import RequestError
from harness.engine.futures import Answer, Future, Futures, failure, json_answer
from harness.engine.lora import LoraConfig, LoraLayout
from harness.engine.losses import resolve
from harness.engine.protocol import Json
from harness.engine.sampler import SampleRequest, SamplingParams
from harness.engine.scheduler import Job, Scheduler, Unit
from harness.engine.seeds import derived_seed
from harness.engine.snapshots import MergedCache, Snapshot
from harness.engine.state import CheckpointPath, StateFolder, StoredCheckpoint
from harness.engine.trainer import ForwardBackward, Trainee

log = logging.getLogger(__name__)

SNAPSHOT_BYTES = 2 << 30
_BIG = 1 << 62


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


@dataclass
class SamplingSession:
    """A snapshot that clients may sample from, and the numbers its unseeded streams derive from."""

    sampler_id: str
    snapshot: Snapshot
    model_path: str | None
    identity: tuple[int, int]


class Service:
    """Everything that clients can ask for."""

    def __init__(
        self,
        base: BaseModel,
        state: StateFolder,
        futures: Futures,
        decode: Callable[[Sequence[int]], str] | None,
        workers: int,
        seed: int,
    ) -> None:
        self.base, self.state, self.futures = base, state, futures
        self._seed = seed
        self._can_decode = decode is not None
        self._rope = Rope(base.config)
        self._scheduler = Scheduler(base.config, self._rope, decode or (lambda _: ""), workers)
        self._merged = MergedCache(base.weights)
        self._base_snapshot = Snapshot(self._merged, None)
        self._stored: WeakValueDictionary[tuple[str, float], Snapshot] = WeakValueDictionary()
        self.sessions: dict[str, Session] = {}
        self.models: dict[str, Model] = {}
        self.samplers: dict[str, SamplingSession] = {}
        self._opening = threading.Lock()
        self._started = 0

    def close(self) -> None:
        """Stop computing and give the state folder free."""
        self._scheduler.stop()
        self.state.close()

    # ------------------------------------------------------------------------------ sessions

    def create_session(self) -> str:
        """A new client."""
        self._started += 1
        name = f"s{self._started}-{derived_seed('session', time.time_ns(), self._started):016x}"
        self.sessions[name] = Session(name, self._started, time.monotonic())
        return name

    def heartbeat(self, body: Json) -> None:
        """Note that a client is alive. Raises RequestError for an unknown session."""
        self._session(body).last_seen = time.monotonic()

    def forget_silent_sessions(self, seconds: float) -> None:
        """Free the models and samplers of clients that have sent nothing for `seconds`."""
        limit = time.monotonic() - seconds
        for session in [s for s in self.sessions.values() if s.last_seen < limit]:
            log.info("session %s has been silent; freed", session.session_id)
            for model_id in session.models:
                self.models.pop(model_id, None)
            for sampler_id in session.samplers:
                sampler = self.samplers.pop(sampler_id, None)
                if sampler is not None and sampler.snapshot is not self._base_snapshot:
                    self._merged.forget(sampler.snapshot)
            del self.sessions[session.session_id]

    # ------------------------------------------------------------------------------ training

    def create_model(self, body: Json) -> Future:
        """A fresh LoRA model, or a failed future."""
        key = ("create", body.get("session_id"), body.get("model_seq_id"))
        return self._future(key, lambda future: self._create_model(future, body))

    def _create_model(self, future: Future, body: Json) -> None:
        session = self._session(body)
        sequence = protocol.integer(body, "model_seq_id", 0, _BIG)
        self.base.check(protocol.text(body, "base_model"))
        unseeded = derived_seed("unseeded-lora", self._seed, session.ordinal, sequence)
        model = self._open_model(
            session, sequence, protocol.lora_config(body, unseeded), self._metadata(body)
        )

        def build() -> None:
            layout = LoraLayout(self.base.config, model.lora)
            model.trainee = self._trainee(layout, layout.fresh())

        def finish() -> Answer:
            self._record(model)
            log.info("created %s (rank %d)", model.model_id, model.lora.rank)
            return json_answer({"model_id": model.model_id, "type": "create_model"})

        self._submit(future, model.model_id, lambda: [build], finish)

    def forward_backward(self, raw: bytes) -> Future:
        """Log-probs and loss, and the gradient added unless `forward_only`."""
        message = protocol.parse_forward_backward(raw)
        key = ("model", message.model_id, message.seq_id)

        def start(future: Future) -> None:
            model = self._model(message.model_id)
            loss, knobs = resolve(message.loss_fn, message.loss_fn_config)
            config = self.base.config
            data = protocol.data_of(message, config.vocab, config.max_positions)
            running: list[ForwardBackward] = []

            def prepare() -> Sequence[Unit]:
                running.append(
                    self._trained(model).forward_backward(data, loss, knobs, message.forward_only)
                )
                return running[0].passes

            def finish() -> Answer:
                logprobs, total = running[0].result()
                return protocol.forward_backward_answer(logprobs, {"loss:sum": total})

            self._submit(future, model.model_id, prepare, finish)

        return self._future(key, start)

    def optim_step(self, body: Json) -> Future:
        """One AdamW step."""

        def start(future: Future) -> None:
            model, params = self._model_of(body), protocol.adam_params(body)
            self._submit(
                future,
                model.model_id,
                lambda: [],
                lambda: json_answer({"metrics": self._trained(model).optim_step(params)}),
            )

        return self._future(_model_key(body), start)

    def save_weights(self, body: Json) -> Future:
        """A training checkpoint: adapter and optimizer."""

        def start(future: Future) -> None:
            model = self._model_of(body)
            path, ttl = self._new_path(model, body, "weights")

            def finish() -> Answer:
                trainee = self._trained(model)
                tensors = {
                    **adapter_tensors(trainee.layout, trainee.flat),
                    "optimizer.exp_avg": trainee.exp_avg,
                    "optimizer.exp_avg_sq": trainee.exp_avg_sq,
                }
                self.state.write(path, tensors, self._facts(model, trainee.step), ttl)
                log.info("saved %s", path)
                return json_answer({"path": str(path), "type": "save_weights"})

            self._submit(future, model.model_id, lambda: [], finish)

        return self._future(_model_key(body), start)

    def save_weights_for_sampler(self, body: Json) -> Future:
        """A named sampler checkpoint, or a sampling session that lives in memory only."""

        def start(future: Future) -> None:
            model = self._model_of(body)
            if body.get("path") is None and body.get("sampling_session_seq_id") is not None:
                sequence = protocol.integer(body, "sampling_session_seq_id", 0, _BIG)
                self._submit(
                    future, model.model_id, lambda: [], lambda: self._ephemeral(model, sequence)
                )
                return
            path, ttl = self._new_path(model, body, "sampler_weights")

            def finish() -> Answer:
                trainee = self._trained(model)
                tensors = adapter_tensors(trainee.layout, trainee.flat)
                self.state.write(path, tensors, self._facts(model, trainee.step), ttl)
                log.info("saved %s", path)
                return json_answer({"path": str(path), "type": "save_weights_for_sampler"})

            self._submit(future, model.model_id, lambda: [], finish)

        return self._future(_model_key(body), start)

    def load_weights(self, body: Json) -> Future:
        """Restore a checkpoint into a model, or create the model from it."""
        by_session = body.get("session_id") is not None
        key = (
            ("create", body.get("session_id"), body.get("model_seq_id"))
            if by_session
            else _model_key(body)
        )
        return self._future(key, lambda future: self._load_weights(future, body, create=by_session))

    def _load_weights(self, future: Future, body: Json, create: bool) -> None:
        path = CheckpointPath.parse(protocol.text(body, "path"))
        with_optimizer = protocol.flag(body, "optimizer", False)
        if create:
            session = self._session(body)
            sequence = protocol.integer(body, "model_seq_id", 0, _BIG)
            lora = self._stored_lora(path)
            model = self._open_model(session, sequence, lora, self._metadata(body))
        else:
            model = self._model_of(body)

        def finish() -> Answer:
            tensors, facts = self.state.read(path)
            self._check_base(path, facts)
            layout = LoraLayout(self.base.config, model.lora)
            flat = flat_adapter(layout, tensors, path)
            if model.trainee is None:
                model.trainee = self._trainee(layout, layout.fresh())
                self._record(model)
            moments = None
            if with_optimizer:
                if "optimizer.exp_avg" not in tensors:
                    raise RequestError(f"{path} holds no optimizer state; load it without")
                moments = (
                    tensors["optimizer.exp_avg"],
                    tensors["optimizer.exp_avg_sq"],
                    int(facts["optim_step"]),
                )
            model.trainee.load(flat, moments)
            log.info("loaded %s into %s", path, model.model_id)
            return json_answer(
                {"path": str(path), "model_id": model.model_id, "type": "load_weights"}
            )

        self._submit(future, model.model_id, lambda: [], finish)

    def unload_model(self, body: Json) -> Future:
        """Free a model once its earlier requests are done; its checkpoints stay."""

        def start(future: Future) -> None:
            model = self._model_of(body)

            def finish() -> Answer:
                self.models.pop(model.model_id, None)
                return json_answer({"model_id": model.model_id, "type": "unload_model"})

            self._submit(future, model.model_id, lambda: [], finish)

        return self._future(None, start)

    # ------------------------------------------------------------------------------ sampling

    def create_sampling_session(self, body: Json) -> str:
        """A sampling session on stored weights or on the base. Raises RequestError."""
        session = self._session(body)
        sequence = protocol.integer(body, "sampling_session_seq_id", 0, _BIG)
        sampler_id = f"{session.session_id}:sample:{sequence}"
        if sampler_id in self.samplers:
            return sampler_id
        base = protocol.optional_text(body, "base_model")
        if base is not None:
            self.base.check(base)
        path = protocol.optional_text(body, "model_path")
        if path is None and base is None:
            raise RequestError("a sampling session needs model_path or base_model")
        snapshot = self._base_snapshot if path is None else self._stored_snapshot(path)
        self._open_sampler(session, sequence, snapshot, path)
        return sampler_id

    def sample(self, body: Json) -> Future:
        """Sequences from a sampling session."""
        key = ("sample", body.get("sampling_session_id"), body.get("seq_id"))
        unnumbered = body.get("sampling_session_id") is None or body.get("seq_id") is None
        return self._future(None if unnumbered else key, lambda future: self._sample(future, body))

    def _sample(self, future: Future, body: Json) -> None:
        sampler, sequence = self._sampler_for(body)
        config = self.base.config
        prompt = protocol.prompt_tokens(body, config.vocab)
        wanted = protocol.sampling_wanted(body)
        room = config.max_positions - len(prompt)
        length = room if wanted.max_tokens is None else wanted.max_tokens
        if length < 1 or length > room:
            raise RequestError(
                f"prompt of {len(prompt)} tokens plus max_tokens {length} exceeds the context of "
                f"{config.max_positions}; shorten one of them"
            )
        if wanted.stop_strings and not self._can_decode:
            raise RequestError(
                f"stop strings need a tokenizer.json in {self.base.folder}; use token ids"
            )
        seed = wanted.seed
        if seed is None:
            seed = derived_seed("unseeded-sample", self._seed, *sampler.identity, sequence)
        request = SampleRequest(
            prompt,
            SamplingParams(
                length,
                wanted.temperature,
                wanted.top_k,
                wanted.top_p,
                seed,
                wanted.stop_ids | config.eos_ids,
                wanted.stop_strings,
            ),
            protocol.integer(body, "num_samples", 1, protocol.MAX_SAMPLES, 1),
            protocol.prompt_wanted(body),
            lambda done: self.futures.settle(
                future,
                protocol.sample_answer(done) if done.error is None else _failed(done.error),
            ),
        )
        self._scheduler.sample(sampler.snapshot, request)

    # ------------------------------------------------------------------------------- reading

    def info(self, body: Json) -> dict[str, object]:
        """get_info of a model."""
        model = self._model_of(body)
        return {
            "type": "get_info",
            "model_id": model.model_id,
            "model_name": self.base.name,
            "model_data": {
                "arch": self.base.config.family,
                "model_name": self.base.name,
                "tokenizer_id": str(self.base.folder),
            },
            "is_lora": True,
            "lora_rank": model.lora.rank,
        }

    def weights_info(self, body: Json) -> dict[str, object]:
        """What a checkpoint was trained from."""
        lora = self._stored_lora(CheckpointPath.parse(protocol.text(body, "tinker_path")))
        return {
            "base_model": self.base.name,
            "is_lora": True,
            "lora_rank": lora.rank,
            "train_unembed": lora.train_unembed,
            "train_mlp": lora.train_mlp,
            "train_attn": lora.train_attn,
        }

    def sampler_info(self, sampler_id: str) -> dict[str, object]:
        """What a sampling session samples from."""
        sampler = self._sampler(sampler_id)
        return {
            "sampler_id": sampler_id,
            "base_model": self.base.name,
            "model_path": sampler.model_path,
        }

    def training_run(self, model_id: str) -> dict[str, object]:
        """One training run, of this or an earlier engine on the same state folder."""
        facts = self.state.read_run(model_id)
        stored = [checkpoint_json(c) for c in self.state.checkpoints(model_id)]
        live = self.models.get(model_id)
        last = live.last_request if live else float(str(facts["created"]))
        of_type = {
            kind: [c for c in stored if c["checkpoint_type"] == kind][-1:]
            for kind in ("training", "sampler")
        }
        return {
            "training_run_id": model_id,
            "base_model": facts["base_model"],
            "model_owner": "local",
            "is_lora": True,
            "corrupted": False,
            "lora_rank": facts["rank"],
            "last_request_time": datetime.fromtimestamp(last, UTC).isoformat(),
            "last_checkpoint": next(iter(of_type["training"]), None),
            "last_sampler_checkpoint": next(iter(of_type["sampler"]), None),
            "user_metadata": facts["user_metadata"],
        }

    # ------------------------------------------------------------------------------- private

    def _future(self, key: Hashable | None, start: Callable[[Future], None]) -> Future:
        """The future of a request; a repeated one is not started again."""
        try:
            future, new = self.futures.open(key)
        except TypeError:  # a key made of lists or objects can't be one
            future, new = self.futures.open(None)
        if new:
            try:
                start(future)
            except Exception as error:
                self.futures.settle(future, _failed(error))
        return future

    def _submit(
        self,
        future: Future,
        lane: str,
        prepare: Callable[[], Sequence[Unit]],
        finish: Callable[[], Answer],
    ) -> None:
        self._scheduler.submit(
            lane,
            Job(
                prepare,
                lambda: self.futures.settle(future, finish()),
                lambda error: self.futures.settle(future, _failed(error)),
            ),
        )

    def _trainee(self, layout: LoraLayout, flat: Tensor) -> Trainee:
        return Trainee(self.base.config, self.base.weights, self._rope, layout, flat)

    def _trained(self, model: Model) -> Trainee:
        if model.trainee is None:
            raise RequestError(f"model {model.model_id} was not created; see its first request")
        return model.trainee

    def _open_model(
        self, session: Session, sequence: int, lora: LoraConfig, metadata: dict[str, str]
    ) -> Model:
        model_id = f"{session.session_id}:train:{sequence}"
        if model_id in self.models:
            raise RequestError(f"model {model_id} exists already")
        model = Model(model_id, session, lora, metadata, last_request=time.time())
        self.models[model_id] = model
        session.models.append(model_id)
        return model

    def _record(self, model: Model) -> None:
        self.state.write_run(
            model.model_id,
            {
                "base_model": self.base.name,
                "created": time.time(),
                "user_metadata": model.user_metadata,
                **asdict(model.lora),
            },
        )

    def _facts(self, model: Model, step: int) -> dict[str, str]:
        """What a checkpoint says about itself, beside its tensors."""
        lora = {key: str(value) for key, value in asdict(model.lora).items()}
        return {"base_model": self.base.name, "optim_step": str(step), **lora}

    def _stored_lora(self, path: CheckpointPath) -> LoraConfig:
        facts = self.state.facts(path)
        self._check_base(path, facts)
        return LoraConfig(
            rank=int(facts["rank"]),
            seed=int(facts["seed"]),
            train_unembed=facts["train_unembed"] == "True",
            train_mlp=facts["train_mlp"] == "True",
            train_attn=facts["train_attn"] == "True",
        )

    def _check_base(self, path: CheckpointPath, facts: dict[str, str]) -> None:
        if facts.get("base_model") != self.base.name:
            raise RequestError(
                f"{path} was trained from {facts.get('base_model')!r}; served is {self.base.name!r}"
            )

    def _stored_snapshot(self, text: str) -> Snapshot:
        """The weights of a checkpoint as they are now; later changes of the file don't matter."""
        path = CheckpointPath.parse(text)
        stored = next((c for c in self.state.checkpoints(path.model_id) if c.path == path), None)
        if stored is None:
            raise RequestError(f"{path} does not exist (or has expired)")
        known = self._stored.get((text, stored.time))
        if known is not None:
            return known
        tensors, _ = self.state.read(path)
        layout = LoraLayout(self.base.config, self._stored_lora(path))
        snapshot = Snapshot(self._merged, (layout, flat_adapter(layout, tensors, path)))
        self._stored[(text, stored.time)] = snapshot
        return snapshot

    def _ephemeral(self, model: Model, sequence: int) -> Answer:
        trainee = self._trained(model)
        snapshot = Snapshot(self._merged, (trainee.layout, trainee.flat.clone()))
        sampler_id = self._open_sampler(model.session, sequence, snapshot, None)
        return json_answer({"sampling_session_id": sampler_id, "type": "save_weights_for_sampler"})

    def _open_sampler(
        self, session: Session, sequence: int, snapshot: Snapshot, path: str | None
    ) -> str:
        sampler_id = f"{session.session_id}:sample:{sequence}"
        with self._opening:  # ephemeral ones are opened by workers
            self.samplers[sampler_id] = SamplingSession(
                sampler_id, snapshot, path, (session.ordinal, sequence)
            )
            session.samplers.append(sampler_id)
            self._evict_samplers()
        return sampler_id

    def _evict_samplers(self) -> None:
        """Drop the sessions that were unused longest until the adapters fit `SNAPSHOT_BYTES`."""
        held = sum(s.size for s in {x.snapshot for x in self.samplers.values()})
        for sampler_id, sampler in list(self.samplers.items())[:-1]:
            if held <= SNAPSHOT_BYTES:
                return
            del self.samplers[sampler_id]
            if all(other.snapshot is not sampler.snapshot for other in self.samplers.values()):
                held -= sampler.snapshot.size
                self._merged.forget(sampler.snapshot)
            log.info("sampling session %s was evicted", sampler_id)

    def _session(self, body: Json) -> Session:
        name = protocol.text(body, "session_id")
        if name not in self.sessions:
            raise RequestError(f"session {name[:200]!r} is unknown here; create one first")
        return self.sessions[name]

    def _model(self, model_id: str) -> Model:
        if model_id not in self.models:
            raise RequestError(
                f"model {model_id[:200]!r} is not loaded; create it or load one of its checkpoints"
            )
        model = self.models[model_id]
        model.last_request = time.time()
        model.session.last_seen = time.monotonic()
        return model

    def _model_of(self, body: Json) -> Model:
        return self._model(protocol.text(body, "model_id"))

    def _sampler(self, sampler_id: str) -> SamplingSession:
        if sampler_id not in self.samplers:
            raise RequestError(
                f"sampling session {sampler_id[:200]!r} is unknown here, or was evicted when "
                f"snapshots exceeded {SNAPSHOT_BYTES >> 20} MiB; open it again"
            )
        with self._opening:
            sampler = self.samplers.pop(sampler_id)
            self.samplers[sampler_id] = sampler
        return sampler

    def _sampler_for(self, body: Json) -> tuple[SamplingSession, int]:
        """The sampling session of a sample request, and the request's number in it."""
        sampler_id = protocol.optional_text(body, "sampling_session_id")
        if sampler_id is not None:
            return self._sampler(sampler_id), protocol.integer(body, "seq_id", 0, _BIG, 0)
        path = protocol.optional_text(body, "model_path")
        if path is not None:
            return SamplingSession("", self._stored_snapshot(path), path, (0, 0)), 0
        self.base.check(protocol.text(body, "base_model"))
        return SamplingSession("", self._base_snapshot, None, (0, 0)), 0

    def _new_path(self, model: Model, body: Json, kind: str) -> tuple[CheckpointPath, int | None]:
        name = protocol.optional_text(body, "path")
        if name is None:
            name = f"checkpoint-{protocol.integer(body, 'seq_id', 0, _BIG, 0):06d}"
        ttl = protocol.optional_integer(body, "ttl_seconds", 1, 1 << 40)
        return CheckpointPath.of(model.model_id, kind, name), ttl

    def _metadata(self, body: Json) -> dict[str, str]:
        return {str(k): str(v) for k, v in protocol.mapping(body, "user_metadata").items()}


def checkpoint_json(stored: StoredCheckpoint) -> dict[str, Any]:
    """A checkpoint as the SDK lists it."""
    kind = "training" if stored.path.kind == "weights" else "sampler"
    expires = stored.expires
    return {
        "checkpoint_id": f"{stored.path.kind}/{stored.path.name}",
        "checkpoint_type": kind,
        "time": datetime.fromtimestamp(stored.time, UTC).isoformat(),
        "tinker_path": str(stored.path),
        "size_bytes": stored.size,
        "public": False,
        "expires_at": None if expires is None else datetime.fromtimestamp(expires, UTC).isoformat(),
    }


def adapter_tensors(layout: LoraLayout, flat: Tensor) -> dict[str, Tensor]:
    """An adapter as PEFT names its tensors; copies, so that training may go on."""
    found = {}
    for target, a, b in layout.views(flat):
        found[f"base_model.model.{target.name}.lora_A.weight"] = a.clone()
        found[f"base_model.model.{target.name}.lora_B.weight"] = b.clone()
    return found


def flat_adapter(layout: LoraLayout, tensors: dict[str, Tensor], path: CheckpointPath) -> Tensor:
    """The inverse of `adapter_tensors`. Raises RequestError if the checkpoint does not fit."""
    flat = torch.empty(layout.size)
    for target, a, b in layout.views(flat):
        for name, view in (("lora_A", a), ("lora_B", b)):
            stored = tensors.get(f"base_model.model.{target.name}.{name}.weight")
            if stored is None or stored.shape != view.shape:
                raise RequestError(
                    f"{path} does not fit: {target.name} {name} is "
                    f"{'missing' if stored is None else tuple(stored.shape)}, "
                    f"the model needs {tuple(view.shape)}"
                )
            view.copy_(stored)
    return flat


def _model_key(body: Json) -> Hashable | None:
    """A request's place in its model's sequence: repeated, it is the same request."""
    if body.get("seq_id") is None:
        return None
    return ("model", body.get("model_id"), body.get("seq_id"))


def _failed(error: Exception) -> Answer:
    """A failed future: the client's mistake, or the engine's with its traceback in the log."""
    if isinstance(error, RequestError):
        return failure(str(error), "user")
    log.error("request failed", exc_info=error)
    return failure(f"{type(error).__name__}: {error}", "server")
