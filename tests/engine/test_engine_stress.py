"""Many clients behind a network that drops, repeats and cuts requests."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import orjson
import pytest
from engine_process import Engine
from faulty_proxy import FaultyProxy

from harness.engine.protobuf import pb

CLIENTS = 8
ROUNDS = int(os.environ.get("ENGINE_STRESS_ROUNDS", "4"))  # 125 rounds make 10,000 requests
JSON, PROTO = "application/json", "application/x-protobuf"


class Client:
    """A client behind a faulty network: it sends again whatever was not answered."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=f"{url}/api/v1/", trust_env=False, timeout=60)
        self.submitted = 0

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def now(self, path: str, body: object) -> Any:
        """A synchronous call."""
        return self._post(path, orjson.dumps(body), JSON).json()

    def submit(self, path: str, content: bytes, media_type: str = JSON) -> str:
        """The id of a request's future."""
        self.submitted += 1
        return str(self._post(path, content, media_type).json()["request_id"])

    def wait(self, request_id: str) -> bytes:
        """Poll until the answer is there, then ask once more: it must be the same."""
        first, second = self._answer(request_id), self._answer(request_id)
        assert first == second
        return first

    def _answer(self, request_id: str) -> bytes:
        poll = orjson.dumps({"request_id": request_id})
        while (answer := self._post("retrieve_future", poll, JSON)).status_code == 408:
            pass
        return answer.content

    def _post(self, path: str, content: bytes, media_type: str) -> httpx.Response:
        while True:
            try:
                answer = self._http.post(
                    path, content=content, headers={"content-type": media_type}
                )
            except httpx.TransportError:
                continue
            assert answer.status_code in (200, 408), answer.text
            return answer


def _datum_message(model: str, seq_id: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    message = pb.ForwardBackwardRequest(model_id=model, seq_id=seq_id, loss_fn="cross_entropy")
    datum = message.data.add()
    n = int(rng.integers(5, 60))
    datum.model_input.add().encoded_text.tokens = rng.integers(3, 98, n).astype("<i4").tobytes()
    datum.loss_fn_inputs["target_tokens"].dense = rng.integers(3, 98, n).tobytes()
    datum.loss_fn_inputs["target_tokens"].dtype = pb.DTYPE_INT64
    return bytes(message.SerializeToString())


def _rounds(client: Client, rounds: int) -> list[bytes]:
    """One client's work: each round trains once and samples seven times; all its answers."""
    session = client.now("create_session", {"tags": []})["session_id"]
    client.now(
        "create_sampling_session",
        {"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"},
    )
    create = {"session_id": session, "model_seq_id": 0, "base_model": "tiny"}
    create["lora_config"] = {"rank": 4, "seed": 1}
    model = orjson.loads(client.wait(client.submit("create_model", orjson.dumps(create))))
    found: list[bytes] = []
    for index in range(rounds):
        ids = [
            client.submit(
                "forward_backward",
                _datum_message(model["model_id"], 3 * index + 1, index),
                PROTO,
            ),
            client.submit(
                "forward_backward",
                _datum_message(model["model_id"], 3 * index + 2, 1000 + index),
                PROTO,
            ),
            client.submit(
                "optim_step",
                orjson.dumps(
                    {
                        "model_id": model["model_id"],
                        "seq_id": 3 * index + 3,
                        "adam_params": {"learning_rate": 1e-2},
                    }
                ),
            ),
        ]
        for sample in range(7):
            body = {
                "sampling_session_id": f"{session}:sample:0",
                "seq_id": 7 * index + sample,
                "num_samples": 1 + sample % 3,
                "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5 + sample] * 9}]},
                "sampling_params": {"max_tokens": 4 + 3 * sample, "seed": index},
            }
            ids.append(client.submit("asample", orjson.dumps(body)))
        found.extend(client.wait(request_id) for request_id in ids)
    return found


def _memory(process: int) -> int:
    """Resident bytes of a process."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def proxy(engine: Engine) -> Iterator[FaultyProxy]:
    """A faulty network in front of this module's engine."""
    address = urlsplit(engine.url)
    assert address.hostname is not None
    assert address.port is not None
    between = FaultyProxy((address.hostname, address.port), seed=0)
    yield between
    between.close()


@pytest.fixture
def clients(proxy: FaultyProxy) -> Iterator[list[Client]]:
    """Eight clients behind it."""
    made = [Client(proxy.url) for _ in range(CLIENTS)]
    yield made
    for client in made:
        client.close()


def test_every_request_is_answered_once_and_counted_once(
    engine: Engine,
    proxy: FaultyProxy,
    clients: list[Client],
    record_property: Callable[[str, object], None],
) -> None:
    """Eight clients doing the same work over a faulty network get the same answers, bit for bit.

    A gradient counted twice, or a request lost, would set a client's later answers apart from those
    of an undisturbed client. The engine's memory grows by what it keeps of answers and no more.
    """
    direct = Client(engine.url)
    undisturbed = _rounds(direct, ROUNDS)
    direct.close()
    outcomes: dict[int, list[bytes]] = {}

    def work(number: int) -> None:
        outcomes[number] = _rounds(clients[number], ROUNDS)

    before = _memory(engine.process.pid)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(undisturbed) == 10 * ROUNDS
    assert not any(b'"error"' in answer for answer in undisturbed)
    assert len(outcomes) == CLIENTS
    assert all(outcomes[number] == undisturbed for number in range(CLIENTS))
    assert min(proxy.faults[fault] for fault in ("repeated", "unanswered", "cut")) > 10
    grown = _memory(engine.process.pid) - before
    record_property("grown_mib", grown >> 20)
    requests = sum(client.submitted for client in clients)
    assert grown < (64 << 20) + 8192 * requests, f"{grown >> 20} MiB after {requests} requests"
