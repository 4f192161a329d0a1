"""The engine behind the routes: its parts put together, and what can be read from them.

Every method runs on the event loop's thread and returns at once; computing happens in jobs on the
scheduler's workers, which answer the request's future. A request that can't be served ends as a
failed future, so that the SDK raises `RequestFailedError` with a category.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from harness.engine import checkpoints, fields
from harness.engine.arrangement import Arrangement
from harness.engine.fields import Json
from harness.engine.futures import Futures
from harness.engine.registry import BaseModel, Registry
from harness.engine.requests import Requests
from harness.engine.rope import Rope
from harness.engine.sampling import Sampling
from harness.engine.scheduler import Scheduler
from harness.engine.snapshots import MergedCache
from harness.engine.state import CheckpointPath, StateFolder
from harness.engine.training import Training


class Service:
    """Everything that clients can ask for. `decode` turns tokens to text, for stop strings."""

    def __init__(
        self,
        base: BaseModel,
        state: StateFolder,
        futures: Futures,
        decode: Callable[[Sequence[int]], str] | None,
        workers: int,
        seed: int,
        arrangement: Arrangement,
    ) -> None:
        self.base, self.state, self.futures = base, state, futures
        self.arrangement = arrangement
        rope, merged = Rope(base.config), MergedCache(base.weights)
        self._scheduler = Scheduler(
            base.config, rope, decode or (lambda _: ""), workers, arrangement
        )
        requests = Requests(futures, self._scheduler)
        self.registry = Registry(merged)
        self.training = Training(
            base, state, self.registry, requests, merged, rope, seed, arrangement
        )
        self.sampling = Sampling(
            base, state, self.registry, requests, merged, decode is not None, seed
        )

    def close(self) -> None:
        """Stop computing and give the state folder free."""
        self._scheduler.stop()
        self.state.close()

    def info(self, body: Json) -> dict[str, object]:
        """get_info of a model."""
        model = self.registry.model_of(body)
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
        path = CheckpointPath.parse(fields.text(body, "tinker_path"))
        lora = checkpoints.stored_lora(self.state, path, self.base.name)
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
        return {
            "sampler_id": sampler_id,
            "base_model": self.base.name,
            "model_path": self.registry.sampler(sampler_id).model_path,
        }

    def training_run(self, model_id: str) -> dict[str, object]:
        """One training run, of this or an earlier engine on the same state folder."""
        facts = self.state.read_run(model_id)
        stored = [checkpoints.listed(c) for c in self.state.checkpoints(model_id)]
        live = self.registry.models.get(model_id)
        last = live.last_request if live else float(str(facts["created"]))

        def newest(kind: str) -> dict[str, object] | None:
            return next((c for c in reversed(stored) if c["checkpoint_type"] == kind), None)

        return {
            "training_run_id": model_id,
            "base_model": facts["base_model"],
            "model_owner": "local",
            "is_lora": True,
            "corrupted": False,
            "lora_rank": facts["rank"],
            "last_request_time": datetime.fromtimestamp(last, UTC).isoformat(),
            "last_checkpoint": newest("training"),
            "last_sampler_checkpoint": newest("sampler"),
            "user_metadata": facts["user_metadata"],
        }
