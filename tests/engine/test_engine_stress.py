"""Many clients, retries, duplicates and dropped connections at once."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import orjson
import pytest
from engine_process import Engine

from harness.engine.protocol import pb

CLIENTS = 8
ROUNDS = int(os.environ.get("ENGINE_STRESS_ROUNDS", "6"))  # 125 rounds make 10,000 requests
PROTO = "application/x-protobuf"


class Flaky:
    """A client whose every submission is sent once with the answer thrown away, then for good."""

    def __init__(self, url: str, number: int) -> None:
        self._address = (urlsplit(url).hostname, urlsplit(url).port)
        self._http = httpx.Client(base_url=f"{url}/api/v1/", trust_env=False, timeout=60)
        self._rng = np.random.default_rng(number)
        self.answers: dict[str, bytes] = {}
        self.submitted = 0

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def now(self, path: str, body: object) -> Any:
        """A synchronous call."""
        return self._http.post(path, content=orjson.dumps(body)).raise_for_status().json()

    def submit(self, path: str, content: bytes, media_type: str = "application/json") -> str:
        """Send with faults: a dropped connection, a duplicate, or neither."""
        self.submitted += 1
        fault = self._rng.random()
        if fault < 0.3:
            self._drop(path, content, media_type, cut=fault < 0.1)
        sent = [
            self._http.post(path, content=content, headers={"content-type": media_type})
            for _ in range(2 if fault > 0.7 else 1)
        ]
        assert {s.status_code for s in sent} == {200}
        ids = {s.json()["request_id"] for s in sent}
        assert len(ids) == 1
        return str(ids.pop())

    def wait(self, request_id: str) -> bytes:
        """Poll, sometimes hanging up first, until the answer is there."""
        poll = orjson.dumps({"request_id": request_id})
        if self._rng.random() < 0.2:
            self._drop("retrieve_future", poll, "application/json", cut=False)
        while True:
            answer = self._http.post("retrieve_future", content=poll)
            if answer.status_code == 200:
                self.answers[request_id] = answer.content
                return answer.content
            assert answer.status_code == 408

    def _drop(self, path: str, content: bytes, media_type: str, cut: bool) -> None:
        """Send a request, or half of it, and hang up without reading."""
        head = (
            f"POST /api/v1/{path} HTTP/1.1\r\nhost: engine\r\ncontent-type: {media_type}\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        ).encode()
        with socket.create_connection(self._address) as connection:
            connection.sendall(head + (content[: len(content) // 2] if cut else content))


def _datum_message(model: str, seq_id: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    message = pb.ForwardBackwardRequest(model_id=model, seq_id=seq_id, loss_fn="cross_entropy")
    datum = message.data.add()
    n = int(rng.integers(5, 60))
    datum.model_input.add().encoded_text.tokens = rng.integers(3, 98, n).astype("<i4").tobytes()
    datum.loss_fn_inputs["target_tokens"].dense = rng.integers(3, 98, n).tobytes()
    datum.loss_fn_inputs["target_tokens"].dtype = pb.DTYPE_INT64
    return bytes(message.SerializeToString())


def _rounds(client: Flaky, rounds: int) -> list[bytes]:
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
def clients(engine: Engine) -> Iterator[list[Flaky]]:
    """Eight faulty clients."""
    made = [Flaky(engine.url, number) for number in range(CLIENTS)]
    yield made
    for client in made:
        client.close()


def test_every_request_is_answered_once_and_counted_once(
    engine: Engine, clients: list[Flaky]
) -> None:
    """Eight faulty clients doing the same work get the same answers, bit for bit.

    A gradient counted twice, or a request lost, would set a client's later answers apart.
    """
    outcomes: dict[int, list[bytes]] = {}

    def work(number: int) -> None:
        outcomes[number] = _rounds(clients[number], ROUNDS)

    before = _memory(engine.process.pid)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == CLIENTS
    assert all(outcomes[number] == outcomes[0] for number in range(CLIENTS))
    assert len(outcomes[0]) == 10 * ROUNDS
    assert not any(b'"error"' in answer for answer in outcomes[0])
    grown = _memory(engine.process.pid) - before
    requests = sum(client.submitted for client in clients)
    assert grown < (64 << 20) + 8192 * requests, f"{grown >> 20} MiB after {requests} requests"
