"""A TCP proxy between a client and an engine that loses, repeats and cuts HTTP requests."""

import random
import socket
import threading
from collections import Counter

END_OF_HEAD = b"\r\n\r\n"


class FaultyProxy:
    """Forwards HTTP/1.1 requests one by one, and does harm to some of them.

    Of all requests, a tenth each: reaches the engine twice ("repeated"), reaches it while the
    client's connection is closed before the answer ("unanswered"), reaches it only in half
    ("cut"). The connection to the client is then closed, as if a network had failed.
    """

    def __init__(self, target: tuple[str, int], seed: int) -> None:
        self._target = target
        self._seeds = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.faults: Counter[str] = Counter()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept nothing more."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """The requests of one connection, until either side or a fault ends it."""
        with self._lock:
            rng = random.Random(self._seeds.random())
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client:
            try:
                while (request := _message(client)) and self._forward(client, request, rng):
                    pass
            except OSError:
                return

    def _forward(self, client: socket.socket, request: bytes, rng: random.Random) -> bool:
        """Pass one request on; whether the connection lives on."""
        fault = rng.choices(("none", "repeated", "unanswered", "cut"), (7, 1, 1, 1))[0]
        with self._lock:
            self.faults[fault] += 1
        if fault == "cut":
            self._ask(request[: len(request) // 2], whole=False)
            return False
        if fault == "repeated":
            self._ask(request)
        answer = self._ask(request, whole=fault != "unanswered")
        if fault == "unanswered":
            return False
        client.sendall(answer)
        return True

    def _ask(self, request: bytes, whole: bool = True) -> bytes:
        """Send to the engine on a connection of its own; its answer, if `whole`."""
        with socket.create_connection(self._target) as engine:
            engine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            engine.sendall(request)
            return _message(engine) if whole else b""


def _message(source: socket.socket) -> bytes:
    """One HTTP message with a Content-Length body; empty when the connection has ended."""
    raw = b""
    while END_OF_HEAD not in raw:
        part = source.recv(65536)
        if not part:
            return b""
        raw += part
    head, _, body = raw.partition(END_OF_HEAD)
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n")
         if line.lower().startswith(b"content-length:")),
        0,
    )  # fmt: skip
    while len(body) < length:
        part = source.recv(65536)
        if not part:
            return b""
        body += part
    return head + END_OF_HEAD + body
