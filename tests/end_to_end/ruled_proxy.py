"""A proxy between a client and an engine that answers some requests itself, as a service may."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np
from google.protobuf.message import DecodeError
from tinker.proto import tinker_public_pb2 as pb


@dataclass(frozen=True)
class Asked:
    """One request: the path below /api/v1, its body, and how many to this path came before it."""

    path: str
    body: bytes
    before: int


@dataclass(frozen=True)
class Answer:
    """What the proxy answers instead of the service; without a status it hangs up."""

    status: int | None
    body: object = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


Rule = Callable[[Asked], Answer | bytes | None]
"""The answer to a request, or the body that is passed on in its place, or None: undisturbed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        server: Any = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.removeprefix("/api/v1/").partition("?")[0]
        with server.lock:
            asked = Asked(path, body, server.asked[path])
            server.asked[path] += 1
        reported = server.rule(asked)
        if isinstance(reported, Answer):
            self._answer(reported)
            return
        kept = ("content-type", "accept", "x-api-key")
        answer = server.client.request(
            self.command,
            self.path,
            content=body if reported is None else reported,
            headers={k: v for k, v in self.headers.items() if k.lower() in kept},
        )
        media = answer.headers.get("content-type", "")
        self._send(answer.status_code, server.change(path, media, answer.content), media)

    do_GET = do_POST = do_DELETE = do_PUT = _pass_on

    def _answer(self, reported: Answer) -> None:
        if reported.status is None:
            self.close_connection = True
            return
        body = (
            reported.body
            if isinstance(reported.body, bytes)
            else json.dumps(reported.body).encode()
        )
        self._send(reported.status, body, "application/json", reported.headers)

    def _send(
        self, status: int, body: bytes, media: str, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": media, **(headers or {})}.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Nothing is written to the terminal."""


@contextmanager
def ruled(
    target: str,
    rule: Rule,
    change: Callable[[str, str, bytes], bytes] = lambda _path, _media, body: body,
) -> Iterator[str]:
    """The address of a proxy to `target` for as long as it is needed.

    `change` may alter an answer of the service, given its path, media type and body.
    """
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.block_on_close = False  # long polls end with their client
    server.handle_error = lambda *_arguments: None  # a client that has gone away is expected
    server.rule, server.change = rule, change
    server.asked, server.lock = Counter(), threading.Lock()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    server.client = httpx.Client(base_url=target, timeout=60, trust_env=False, limits=limits)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        server.client.close()


def from_then_on(path: str, first: int, answer: Answer) -> Rule:
    """Every request to a path gets this answer, once it has been asked `first` times."""
    return lambda asked: answer if asked.path == path and asked.before >= first else None


def for_a_while(path: str, first: int, times: int, answer: Answer) -> Rule:
    """As many requests to a path get this answer, after the first ones."""

    def rule(asked: Asked) -> Answer | None:
        return answer if asked.path == path and 0 <= asked.before - first < times else None

    return rule


def never_done(path: str, first: int, seconds: float = 0.05) -> Rule:
    """As `from_then_on`, with the word for "not yet" after a moment."""

    def rule(asked: Asked) -> Answer | None:
        if asked.path != path or asked.before < first:
            return None
        time.sleep(seconds)
        return Answer(408, {"queue_state": "active"})

    return rule


def noisy(sampler: float, learner: float) -> Callable[[str, str, bytes], bytes]:
    """Log-probs that are off by up to so many nats, otherwise each time: as of bfloat16.

    Those of samplers, of samples and prompts, and those of learners have a bound each.
    """
    generator, lock = np.random.Generator(np.random.PCG64(0)), threading.Lock()

    def spoilt(values: bytes, scale: float) -> bytes:
        exact = np.frombuffer(values, np.float32)
        with lock:
            spread = generator.uniform(-scale, scale, size=exact.size)
        return np.minimum(exact + spread, 0.0).astype(np.float32).tobytes()

    def change(path: str, media: str, body: bytes) -> bytes:
        if path != "retrieve_future" or "protobuf" not in media:
            return body
        learned, sampled = pb.ForwardBackwardOutput(), pb.SampleResponse()
        try:
            learned.ParseFromString(body)
        except DecodeError:
            sampled.ParseFromString(body)
            for each in sampled.sequences:
                each.logprobs = spoilt(each.logprobs, sampler)
            if sampled.prompt_logprobs:
                sampled.prompt_logprobs = spoilt(sampled.prompt_logprobs, sampler)
            return sampled.SerializeToString()
        for record in learned.loss_fn_outputs:
            if "logprobs" in record.fields:
                field = record.fields["logprobs"]
                field.data = spoilt(field.data, learner)
        return learned.SerializeToString()

    return change
