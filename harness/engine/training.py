"""Training requests: each is a job on its model's lane, in the order of arrival."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from torch import Tensor

from harness.engine import checkpoints, datums, fields, protocol
from harness.engine.answers import forward_backward_answer
from harness.engine.arrangement import Arrangement
from harness.engine.fields import Json
from harness.engine.futures import Answer, Future, json_answer
from harness.engine.lora import LoraLayout
from harness.engine.losses import resolve
from harness.engine.registry import BaseModel, Model, Registry
from harness.engine.requests import Requests, numbered
from harness.engine.rope import Rope
from harness.engine.scheduler import Unit
from harness.engine.seeds import derived_seed
from harness.engine.snapshots import MergedCache, Snapshot
from harness.engine.state import CheckpointPath, StateFolder
from harness.engine.trainer import ForwardBackward, Trainee

log = logging.getLogger(__name__)

BIG = 1 << 62


class Training:
    """Everything that changes or stores a model."""

    def __init__(
        self,
        base: BaseModel,
        state: StateFolder,
        registry: Registry,
        requests: Requests,
        merged: MergedCache,
        rope: Rope,
        seed: int,
        arrangement: Arrangement,
    ) -> None:
        self._arrangement = arrangement
        self._base, self._state, self._registry = base, state, registry
        self._requests, self._merged, self._rope, self._seed = requests, merged, rope, seed

    def create_model(self, body: Json) -> Future:
        """A fresh LoRA model."""

        def start(future: Future) -> None:
            session = self._registry.session(body)
            sequence = fields.integer(body, "model_seq_id", 0, BIG)
            self._base.check(fields.text(body, "base_model"))
            unseeded = derived_seed("unseeded-lora", self._seed, session.ordinal, sequence)
            lora = protocol.lora_config(body, unseeded)
            model = self._registry.open_model(session, sequence, lora, _metadata(body))

            def finish() -> Answer:
                self._give_weights(model)
                log.info("created %s (rank %d)", model.model_id, lora.rank)
                return json_answer({"model_id": model.model_id, "type": "create_model"})

            self._requests.submit(future, model.model_id, finish)

        return self._requests.open(_creation(body), start)

    def forward_backward(self, raw: bytes) -> Future:
        """Log-probs and loss, and the gradient added unless `forward_only`."""
        message = datums.parse_forward_backward(raw)

        def start(future: Future) -> None:
            model = self._registry.model(message.model_id)
            loss, knobs = resolve(message.loss_fn, message.loss_fn_config)
            config = self._base.config
            data = datums.data_of(message, config.vocab, config.max_positions)
            running: list[ForwardBackward] = []

            def prepare() -> Sequence[Unit]:
                trainee = model.trained()
                running.append(trainee.forward_backward(data, loss, knobs, message.forward_only))
                return running[0].passes

            def finish() -> Answer:
                logprobs, total = running[0].result()
                return forward_backward_answer(logprobs, {"loss:sum": total})

            self._requests.submit(future, model.model_id, finish, prepare)

        return self._requests.open(("model", message.model_id, message.seq_id), start)

    def optim_step(self, body: Json) -> Future:
        """One AdamW step."""

        def start(future: Future) -> None:
            model, params = self._registry.model_of(body), protocol.adam_params(body)
            self._requests.submit(
                future,
                model.model_id,
                lambda: json_answer({"metrics": model.trained().optim_step(params)}),
            )

        return self._requests.open(numbered(body), start)

    def save_weights(self, body: Json) -> Future:
        """A training checkpoint: adapter and optimizer."""
        return self._save(body, "weights", "save_weights", checkpoints.training_tensors)

    def save_weights_for_sampler(self, body: Json) -> Future:
        """A named sampler checkpoint, or a sampling session that lives in memory only."""
        if body.get("path") is not None or body.get("sampling_session_seq_id") is None:
            return self._save(
                body, "sampler_weights", "save_weights_for_sampler", checkpoints.sampler_tensors
            )

        def start(future: Future) -> None:
            model = self._registry.model_of(body)
            sequence = fields.integer(body, "sampling_session_seq_id", 0, BIG)

            def finish() -> Answer:
                trainee = model.trained()
                snapshot = Snapshot(self._merged, (trainee.layout, trainee.flat.clone()))
                sampler_id = self._registry.open_sampler(model.session, sequence, snapshot, None)
                return json_answer(
                    {"sampling_session_id": sampler_id, "type": "save_weights_for_sampler"}
                )

            self._requests.submit(future, model.model_id, finish)

        return self._requests.open(numbered(body), start)

    def load_weights(self, body: Json) -> Future:
        """Restore a checkpoint into a model; addressed by session, create the model from it."""
        create = body.get("session_id") is not None

        def start(future: Future) -> None:
            path = CheckpointPath.parse(fields.text(body, "path"))
            with_optimizer = fields.flag(body, "optimizer", False)
            model = self._model_from(body, path) if create else self._registry.model_of(body)

            def finish() -> Answer:
                tensors, facts = self._state.read(path)
                checkpoints.check_base(path, facts, self._base.name)
                layout = LoraLayout(self._base.config, model.lora)
                flat = checkpoints.flat_adapter(layout, tensors, path)
                moments = checkpoints.moments(tensors, facts, path) if with_optimizer else None
                if create:
                    self._give_weights(model)
                model.trained().load(flat, moments)
                log.info("loaded %s into %s", path, model.model_id)
                answer = {"path": str(path), "model_id": model.model_id, "type": "load_weights"}
                return json_answer(answer)

            self._requests.submit(future, model.model_id, finish)

        return self._requests.open(_creation(body) if create else numbered(body), start)

    def unload_model(self, body: Json) -> Future:
        """Free a model once its earlier requests are done; its checkpoints stay."""

        def start(future: Future) -> None:
            model = self._registry.model_of(body)

            def finish() -> Answer:
                self._registry.models.pop(model.model_id, None)
                return json_answer({"model_id": model.model_id, "type": "unload_model"})

            self._requests.submit(future, model.model_id, finish)

        return self._requests.open(None, start)

    def _save(
        self,
        body: Json,
        kind: str,
        answer_type: str,
        tensors: Callable[[Trainee], dict[str, Tensor]],
    ) -> Future:
        def start(future: Future) -> None:
            model = self._registry.model_of(body)
            name = fields.optional_text(body, "path")
            if name is None:
                name = f"checkpoint-{fields.integer(body, 'seq_id', 0, BIG, 0):06d}"
            path = CheckpointPath.of(model.model_id, kind, name)
            ttl = fields.optional_integer(body, "ttl_seconds", 1, 1 << 40)

            def finish() -> Answer:
                trainee = model.trained()
                facts = checkpoints.facts(self._base.name, model.lora, trainee.step)
                self._state.write(path, tensors(trainee), facts, ttl)
                log.info("saved %s", path)
                return json_answer({"path": str(path), "type": answer_type})

            self._requests.submit(future, model.model_id, finish)

        return self._requests.open(numbered(body), start)

    def _model_from(self, body: Json, path: CheckpointPath) -> Model:
        """A model with the LoRA config of a checkpoint."""
        session = self._registry.session(body)
        sequence = fields.integer(body, "model_seq_id", 0, BIG)
        lora = checkpoints.stored_lora(self._state, path, self._base.name)
        return self._registry.open_model(session, sequence, lora, _metadata(body))

    def _give_weights(self, model: Model) -> None:
        """Fresh weights, and a record of the run on disk."""
        layout = LoraLayout(self._base.config, model.lora)
        model.trainee = Trainee(
            self._base.config,
            self._base.weights,
            self._rope,
            layout,
            layout.fresh(),
            self._arrangement,
        )
        self._state.write_run(
            model.model_id,
            {
                "base_model": self._base.name,
                "created": time.time(),
                "user_metadata": model.user_metadata,
                **asdict(model.lora),
            },
        )


def _creation(body: Json) -> tuple[str, object, object]:
    """A model's place among those of its session: asked for again, it is the same model."""
    return ("create", body.get("session_id"), body.get("model_seq_id"))


def _metadata(body: Json) -> dict[str, str]:
    return {str(k): str(v) for k, v in fields.mapping(body, "user_metadata").items()}
