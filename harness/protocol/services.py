"""Which service trains, and the one connection that a process holds to it."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.cards import Experiment
from harness.errors import HarnessError, ServiceError, ServiceUnreachable
from harness.tasks.task import Task
from harness.training.embedded_service import HearingLoop, start_or_join, watched
from harness.training.identity import service_identity
from harness.training.service import (
    ServiceAddress,
    connect,
    end_heartbeats,
    error_status,
    probe,
    remote_address,
)

if TYPE_CHECKING:
    import tinker

    from harness.training.task_adapter import AnyAdapter

T = TypeVar("T")


class Service:
    """The service of one run: found when it is first needed, connected once.

    With TINKER_BASE_URL set that service trains, at every scale. Else the embedded scale starts its
    own engine.
    """

    def __init__(self, experiment: Experiment, runs_dir: Path, controller: int) -> None:
        self._experiment = experiment
        self._runs_dir = self._folder = runs_dir
        self._controller = controller
        self._remote = remote_address(dict(os.environ))
        self._address: ServiceAddress | None = None
        self._client: tinker.ServiceClient | None = None
        self.exact = False
        """Whether the service repeats itself bit for bit, as far as it said when it was found."""
        self._adapter: AnyAdapter | None = None
        self._runner = asyncio.Runner(loop_factory=HearingLoop)

    @property
    def embedded(self) -> bool:
        """Whether the embedded engine serves this run."""
        return self._remote is None and self._experiment.scale.service == "embedded"

    def identity(self) -> dict[str, object]:
        """What stored results depend on; starts nothing."""
        return service_identity(self._experiment, self._remote)

    def client(self) -> tinker.ServiceClient:
        """The SDK's client.

        Raises:
            ServiceUnreachable: the service does not answer, or none is given.
            ServiceRefused: it answers, but refuses the key or lacks the model.
            CardError: the embedded engine has to serve it, and there is no model of that name.
        """
        if self._client is None:
            self._address = self._find()
            self.exact = probe(self._address, self._experiment.card.base_model)
            with _in_one_line(self._address):
                self._client = connect(self._address)
        return self._client

    def adapter(self, task: Task) -> AnyAdapter:
        """The task's adapter, on the tokenizer of the model that is trained."""
        if self._adapter is None:
            from harness.embedded import MODELS
            from harness.training.adapters import task_adapter

            model = self._experiment.card.base_model
            source = str(MODELS.get(model, model))
            self._adapter = task_adapter(source, self._experiment, task)
        return self._adapter

    def run(self, work: Awaitable[T]) -> T:
        """Do asynchronous work on this process's loop, and stop if the embedded engine dies.

        Raises:
            ServiceDied: the embedded engine is gone.
            ServiceUnreachable: a remote service has answered nothing for hours.
            ServiceError: the SDK gave up on a request.
        """
        assert self._address is not None, "ask for the client first"
        with _in_one_line(self._address):
            return self._runner.run(watched(work, self._address, self._folder))

    def close(self) -> None:
        """Let loop and client go; the engine ends with the controlling process."""
        if self._client is not None:
            end_heartbeats(self._client)
        self._runner.close()

    def _find(self) -> ServiceAddress:
        if self._remote is not None:
            return self._remote
        scale = self._experiment.scale
        if scale.service != "embedded":
            raise ServiceUnreachable(
                f"scale {scale.name} needs a Tinker-compatible service: set TINKER_BASE_URL and "
                "TINKER_API_KEY, or run with --scale embedded"
            )
        from harness.embedded import model_dir

        model = self._experiment.card.base_model
        self._folder = self._runs_dir / engine_folder(model)
        return start_or_join(self._folder, model_dir(model), model, self._controller)


def engine_folder(model: str) -> str:
    """Where the engine of a model keeps its state: each of several models has an engine.

    Raises:
        CardError: no model of that name is embedded.
    """
    from harness.embedded import MODEL_DIR, model_dir

    folder = model_dir(model)
    return "engine" if folder == MODEL_DIR else f"engine-{folder.name}"


@contextmanager
def _in_one_line(address: ServiceAddress) -> Iterator[None]:
    """Turn what goes wrong in the SDK into the harness's own error."""
    try:
        yield
    except Exception as error:
        if isinstance(error, HarnessError) or not _of_the_sdk(error):
            raise
        # a service may quote the key that it refuses
        reason = " ".join(str(error).split()).replace(address.api_key, "the key")
        raise ServiceError(
            f"service {address.base_url}: {type(error).__name__}: {reason}; {_advice(error)}, then "
            "run again: the run resumes at the last checkpoint"
        ) from error


def _of_the_sdk(error: Exception) -> bool:
    """Whether the SDK raised it: it has errors of its own, and raises ValueError and others too."""
    import tinker

    frames = traceback.walk_tb(error.__traceback__)
    rooms = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame, _ in frames]
    ours = [room for room in rooms if room in ("harness", "tinker")]
    return isinstance(error, tinker.TinkerError) or ours[-1:] == ["tinker"]


def _advice(error: Exception) -> str:
    """What helps, by the status that the service answered with."""
    return ADVICE.get(error_status(error), "look at the service's log")


ADVICE: dict[int | None, str] = {
    401: "check TINKER_API_KEY",
    402: "the account has no credit left: top it up",
    403: "check what TINKER_API_KEY may do",
    429: "it has more requests than it takes: wait",
}
"""What helps beside running again, by HTTP status."""
