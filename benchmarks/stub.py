"""A Tinker server that computes nothing: every request has been answered before it was sent.

What a client spends against it is the client's own cost. `python benchmarks/stub.py TOKENS` prints
its address; each sample it answers with has that many tokens.
"""

from __future__ import annotations

import asyncio
import json
import sys

import numpy as np
from tinker.proto import tinker_public_pb2 as pb

JSON, PROTOBUF = b"application/json", b"application/x-protobuf"
END_OF_HEAD = b"\r\n\r\n"


def answers(tokens: int) -> dict[bytes, bytes]:
    """The whole HTTP answer of each endpoint."""
    message = pb.SampleResponse()
    message.sequences.add(
        stop_reason=pb.STOP_REASON_LENGTH,
        tokens=np.full(tokens, 7, dtype=np.int32).tobytes(),
        logprobs=np.full(tokens, -1, dtype=np.float32).tobytes(),
    )
    bodies: dict[bytes, object] = {
        b"client/config": {"parallel_fwdbwd_chunks": False},
        b"client/dynamic_config": {"refresh_interval_sec": 300},
        b"create_session": {"session_id": "stub"},
        b"create_sampling_session": {"sampling_session_id": "stub:sample:0"},
        b"session_heartbeat": {},
        b"asample": {"request_id": "stub"},
    }
    found = {path: _whole(JSON, json.dumps(body).encode()) for path, body in bodies.items()}
    return {**found, b"retrieve_future": _whole(PROTOBUF, message.SerializeToString())}


def _whole(media_type: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d" % (media_type, len(body))
    return head + END_OF_HEAD + body


class Stub(asyncio.Protocol):
    """One connection: reads requests with a Content-Length, answers by their path."""

    def __init__(self, answers: dict[bytes, bytes]) -> None:
        self._answers, self._unread = answers, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is there as a whole."""
        self._unread += data
        while END_OF_HEAD in self._unread:
            head, _, rest = self._unread.partition(END_OF_HEAD)
            length = next(
                (int(line.split(b":")[1]) for line in head.split(b"\r\n")
                 if line.lower().startswith(b"content-length:")),
                0,
            )  # fmt: skip
            if len(rest) < length:
                return
            self._unread = rest[length:]
            self._transport.write(self._answers[head.split(b" ")[1].removeprefix(b"/api/v1/")])


async def main(tokens: int) -> None:
    """Serve until the process is ended."""
    known = answers(tokens)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stub(known), "127.0.0.1", 0, backlog=4096)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)  # noqa: T201 - whoever starts it reads it
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
