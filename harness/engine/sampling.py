"""Sampling requests: sessions on snapshots, and sequences from them."""

from __future__ import annotations

from weakref import WeakValueDictionary

from harness.engine import checkpoints, fields, protocol
from harness.engine.answers import sample_answer
from harness.engine.errors import RequestError
from harness.engine.fields import Json
from harness.engine.futures import Future
from harness.engine.lora import LoraLayout
from harness.engine.registry import BaseModel, Registry, SamplingSession
from harness.engine.requests import Requests, failed
from harness.engine.seeds import derived_seed
from harness.engine.sequences import SampleRequest, SamplingParams
from harness.engine.snapshots import MergedCache, Snapshot
from harness.engine.state import CheckpointPath, StateFolder
from harness.engine.training import BIG


class Sampling:
    """Everything that reads a snapshot."""

    def __init__(
        self,
        base: BaseModel,
        state: StateFolder,
        registry: Registry,
        requests: Requests,
        merged: MergedCache,
        can_decode: bool,
        seed: int,
    ) -> None:
        self._base, self._state, self._registry = base, state, registry
        self._requests, self._merged = requests, merged
        self._can_decode, self._seed = can_decode, seed
        self._base_snapshot = Snapshot(merged, None)
        self._stored: WeakValueDictionary[tuple[str, float], Snapshot] = WeakValueDictionary()

    def create_session(self, body: Json) -> str:
        """A sampling session on stored weights or on the base. Raises RequestError."""
        session = self._registry.session(body)
        sequence = fields.integer(body, "sampling_session_seq_id", 0, BIG)
        sampler_id = f"{session.session_id}:sample:{sequence}"
        if sampler_id in self._registry.samplers:
            return sampler_id
        path = fields.optional_text(body, "model_path")
        return self._registry.open_sampler(session, sequence, self._snapshot(body, path), path)

    def sample(self, body: Json) -> Future:
        """Sequences from a sampling session."""
        numbered = body.get("sampling_session_id") is not None and body.get("seq_id") is not None
        key = ("sample", body.get("sampling_session_id"), body.get("seq_id")) if numbered else None
        return self._requests.open(key, lambda future: self._start(future, body))

    def _start(self, future: Future, body: Json) -> None:
        sampler, sequence = self._sampler(body)
        prompt_N = protocol.prompt_tokens(body, self._base.config.vocab)
        params = self._params(body, len(prompt_N), sampler, sequence)

        def finished(done: SampleRequest) -> None:
            answer = sample_answer(done) if done.error is None else failed(done.error)
            self._requests.futures.settle(future, answer)

        request = SampleRequest(
            prompt_N,
            params,
            fields.integer(body, "num_samples", 1, protocol.MAX_SAMPLES, 1),
            protocol.prompt_wanted(body),
            finished,
        )
        self._requests.scheduler.sample(sampler.snapshot, request)

    def _params(
        self, body: Json, prompt: int, sampler: SamplingSession, sequence: int
    ) -> SamplingParams:
        """Sampling parameters with what the client left open filled in."""
        wanted, config = protocol.sampling_wanted(body), self._base.config
        room = config.max_positions - prompt
        length = room if wanted.max_tokens is None else wanted.max_tokens
        if length < 1 or length > room:
            raise RequestError(
                f"prompt of {prompt} tokens plus max_tokens {length} exceeds the context of "
                f"{config.max_positions}; shorten one of them"
            )
        if wanted.stop_strings and not self._can_decode:
            raise RequestError(
                f"stop strings need a tokenizer.json in {self._base.folder}; use token ids"
            )
        seed = wanted.seed
        if seed is None:
            seed = derived_seed("unseeded-sample", self._seed, *sampler.identity, sequence)
        return SamplingParams(
            length,
            wanted.temperature,
            wanted.top_k,
            wanted.top_p,
            seed,
            wanted.stop_ids | config.eos_ids,
            wanted.stop_strings,
        )

    def _sampler(self, body: Json) -> tuple[SamplingSession, int]:
        """The sampling session of a request, and the request's number in it."""
        sampler_id = fields.optional_text(body, "sampling_session_id")
        if sampler_id is not None:
            return self._registry.sampler(sampler_id), fields.integer(body, "seq_id", 0, BIG, 0)
        path = fields.optional_text(body, "model_path")
        return SamplingSession("", self._snapshot(body, path), path, (0, 0)), 0

    def _snapshot(self, body: Json, path: str | None) -> Snapshot:
        """The weights that `model_path` or else `base_model` names. Raises RequestError."""
        base = fields.optional_text(body, "base_model")
        if base is not None:
            self._base.check(base)
        if path is not None:
            return self._stored_snapshot(path)
        if base is None:
            raise RequestError("sampling needs a sampling_session_id, a model_path or a base_model")
        return self._base_snapshot

    def _stored_snapshot(self, text: str) -> Snapshot:
        """The weights of a checkpoint as they are now; later changes of the file don't matter."""
        path = CheckpointPath.parse(text)
        stored = next((c for c in self._state.checkpoints(path.model_id) if c.path == path), None)
        if stored is None:
            raise RequestError(f"{path} does not exist (or has expired)")
        known = self._stored.get((text, stored.time))
        if known is not None:
            return known
        tensors, _ = self._state.read(path)
        lora = checkpoints.stored_lora(self._state, path, self._base.name)
        layout = LoraLayout(self._base.config, lora)
        flat = checkpoints.flat_adapter(layout, tensors, path)
        snapshot = Snapshot(self._merged, (layout, flat))
        self._stored[(text, stored.time)] = snapshot
        return snapshot
