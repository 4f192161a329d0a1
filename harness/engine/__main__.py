"""`python -m harness.engine --base-model DIR`: serve one base model on this machine.

Prints its address, and nothing else, on stdout once it serves. SIGTERM and SIGINT end it.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: workers compute side by side, one thread each
os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import asyncio
import contextlib
import ctypes
import logging
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.processes import alive, lease_holders

if TYPE_CHECKING:
    from harness.engine.service import Service

log = logging.getLogger("harness.engine")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 64 << 20

SILENT_SECONDS = 900.0

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def main(argv: list[str] | None = None) -> int:
    """Run until told to end; 0 after a clean end, 2 for a start that is refused in one line."""
    options = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )
    if options.exit_with is not None:
        _end_with(options.exit_with)
    try:
        key = _api_key(options)
        if options.state is not None:
            asyncio.run(_serve(options, options.state, key))
        else:
            with tempfile.TemporaryDirectory(prefix="engine-") as folder:
                asyncio.run(_serve(options, Path(folder), key))
    except HarnessError as error:
        sys.stderr.write(f"harness.engine: {error}\n")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m harness.engine", description=__doc__)
    parser.add_argument(
        "--base-model", type=Path, required=True, metavar="DIR", help="a local Hugging Face folder"
    )
    parser.add_argument("--model-name", action="append", default=[], help="one more name for it")
    parser.add_argument("--host", default="127.0.0.1", help="beyond loopback only with a key")
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    parser.add_argument("--state", type=Path, metavar="DIR", help="checkpoints outlive the engine")
    parser.add_argument("--seed", type=int, default=0, help="for requests that bring no seed")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="computing threads"
    )
    parser.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable holding the key to ask for"
    )
    parser.add_argument(
        "--exit-with",
        metavar="PID|DIR",
        help="end when this process, or every process with a file of its pid in DIR, has ended",
    )
    return parser


def _api_key(options: argparse.Namespace) -> str | None:
    key = os.environ.get(options.api_key_env) if options.api_key_env else None
    if options.api_key_env and not key:
        raise HarnessError(f"--api-key-env {options.api_key_env}: the variable is not set")
    if options.host not in LOOPBACK and not key:
        raise HarnessError(
            f"--host {options.host} is reachable from elsewhere; give a key with --api-key-env"
        )
    return key


async def _serve(options: argparse.Namespace, state_folder: Path, key: str | None) -> None:
    import torch
    import uvicorn

    from harness.engine.app import make_app
    from harness.engine.arrangement import FREE
    from harness.engine.base_model import read_config, read_tokenizer, read_weights
    from harness.engine.futures import Futures
    from harness.engine.kernel_probe import arrangement_of
    from harness.engine.registry import BaseModel
    from harness.engine.service import Service
    from harness.engine.state import StateFolder

    torch.set_num_threads(1)
    _keep_freed_memory()
    folder = options.base_model.resolve()
    config = read_config(folder)
    names = dict.fromkeys((*options.model_name, folder.name, str(folder)))
    base = BaseModel(tuple(names), folder, config, read_weights(folder, config))
    arrangement = arrangement_of(config, base.weights)
    if arrangement != FREE:
        log.warning("%s", arrangement)
    listener = _listen(options.host, options.port)
    state = StateFolder(state_folder.resolve())
    loop = asyncio.get_running_loop()
    service = Service(
        base,
        state,
        Futures(loop),
        read_tokenizer(folder),
        max(1, options.workers),
        options.seed,
        arrangement,
    )

    class Server(uvicorn.Server):
        """uvicorn without its signal handlers: they would end the process by the signal again."""

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            yield

    server = Server(
        uvicorn.Config(
            make_app(service, key),
            http="httptools",  # a quarter of the time that a parser in Python takes
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_keep_alive=120,  # longer than the SDK's own pool: the client closes first
            timeout_graceful_shutdown=1,
            backlog=4096,
        )
    )
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, lambda: setattr(server, "should_exit", True))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    housekeeping = asyncio.create_task(_housekeeping(service))
    host, port = listener.getsockname()[:2]
    log.info("serving %s, %d workers, state in %s", base.name, options.workers, state.root)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    sys.stdout.write(address + "\n")
    sys.stdout.flush()
    try:
        await serving
    finally:
        housekeeping.cancel()
        service.close()
        log.info("ended")


async def _housekeeping(service: Service) -> None:
    while True:
        await asyncio.sleep(30)
        service.registry.forget_silent_sessions(SILENT_SECONDS)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=4096)
        # inherited by connections: else each answer waits 40 ms for a delayed acknowledgement
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise HarnessError(
            f"port {port} on {host} can't be used: {error.strerror}; choose another"
        ) from None


def _keep_freed_memory() -> None:
    """Let glibc reuse the memory of large tensors instead of asking the kernel for each anew.

    Fresh pages cost a quarter of a pass over a few thousand tokens. Where the C library knows no
    `mallopt`, nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def _end_with(needed_by: str) -> None:
    """End this process within a second or so after those who need it have ended."""
    holders = Path(needed_by)

    def needed() -> bool:
        return alive(int(needed_by)) if needed_by.isdigit() else bool(lease_holders(holders))

    def watch() -> None:
        while needed():
            time.sleep(0.5)
        log.info("nobody of %s runs any more; so the engine ends", needed_by)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(3)
        os._exit(0)

    threading.Thread(target=watch, name="exit-with", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
