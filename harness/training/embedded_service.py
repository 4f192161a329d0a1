"""The embedded engine as a process of its own, shared by all workers of a run.

The first worker that needs it starts it, under a lock; the others find its address. Every pytest
run that uses it holds a lease; it ends itself when none of them runs any more, however they ended.
Checkpoints live in its state folder and outlive it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from pathlib import Path
from typing import TypeVar, TypeVarTuple
from urllib.parse import urlsplit

import filelock
import httpx
import orjson

from harness.errors import ServiceDied, ServiceUnreachable
from harness.processes import lease_holders, take_lease
from harness.store.files import write_atomic
from harness.training.service import EMBEDDED_KEY, ServiceAddress

START_SECONDS = 180.0  # libraries may have to be read from a cold disk
WATCH_SECONDS = 1.0
ENDING_SECONDS = 2.0
SILENT_SECONDS = 2 * 3600.0  # as long as the SDK waits for samples
LEASES = "leases"

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def start_or_join(
    folder: Path, model_dir: Path, model_name: str, controller: int
) -> ServiceAddress:
    """The address of the running engine of this folder, started if there is none.

    Args:
        folder: holds `address.json`, `engine.log`, the lock, the leases and the engine's state.
        model_dir: the base model's folder.
        model_name: the name under which it is served.
        controller: the pytest process that needs the engine until it ends.

    Raises:
        ServiceUnreachable: it did not serve within START_SECONDS; its log's last line is quoted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder / "start.lock", fallback_to_soft=False):
        others = lease_holders(folder / LEASES)
        take_lease(folder / LEASES, controller)
        # without a lease an engine may be about to end: it is given the time to see this one
        url = _running(folder) if others else _outlasting(folder)
        if url is None:
            url = _start(folder, model_dir, model_name)
    return ServiceAddress(url, "embedded", EMBEDDED_KEY)


def answers(base_url: str) -> bool:
    """Whether something listens at that address."""
    parts = urlsplit(base_url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=5):
            return True
    except OSError:
        return False


class HearingLoop(asyncio.SelectorEventLoop):
    """Remembers when it last heard of another thread: the SDK's, with an answer."""

    heard = 0.0

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As any loop does."""
        self.heard = time.monotonic()
        return super().call_soon_threadsafe(callback, *args, context=context)


async def watched(work: Awaitable[T], address: ServiceAddress, folder: Path) -> T:
    """Do `work`, and stop as soon as the embedded engine is gone, or a remote one is for too long.

    The SDK would go on retrying a dead port for minutes. A remote service is left to the SDK, whose
    retries are meant for it; but it asks for ever for the answer to a training request.

    Raises:
        ServiceDied: the engine stopped listening while `work` was under way. ServiceUnreachable:
        for SILENT_SECONDS a remote service has answered nothing. That is reported
            on a `HearingLoop` only.
    """
    task, loop, began = asyncio.ensure_future(work), asyncio.get_running_loop(), time.monotonic()
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=WATCH_SECONDS)
            if done:
                return task.result()
            if address.kind == "embedded" and not await asyncio.to_thread(
                answers, address.base_url
            ):
                raise ServiceDied(
                    f"the embedded engine at {address.base_url} stopped; run again, the run "
                    f"resumes at the last checkpoint (its log: {folder / 'engine.log'})"
                )
            if address.kind == "remote" and isinstance(loop, HearingLoop):
                silent = time.monotonic() - max(loop.heard, began)
                if silent > SILENT_SECONDS:
                    raise ServiceUnreachable(
                        f"service {address.base_url}: no request was answered for {silent:.0f} s; "
                        "see whether it is up, then run again: the run resumes at the last "
                        "checkpoint"
                    )
    finally:
        task.cancel()


def _running(folder: Path) -> str | None:
    try:
        url = str(orjson.loads((folder / "address.json").read_bytes())["url"])
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None
    try:
        # another program may listen on a port that an earlier engine had; a busy engine takes time
        health = httpx.get(f"{url}/api/v1/healthz", timeout=30, trust_env=False)
        return url if health.status_code == 200 else None
    except httpx.HTTPError:
        return None


def _outlasting(folder: Path) -> str | None:
    if _running(folder) is None:
        return None
    time.sleep(ENDING_SECONDS)
    return _running(folder)


def _start(folder: Path, model_dir: Path, model_name: str) -> str:
    command = [sys.executable, "-m", "harness.engine"]
    command += ["--base-model", str(model_dir), "--model-name", model_name]
    command += ["--state", str(folder / "state"), "--exit-with", str(folder / LEASES)]
    log = folder / "engine.log"
    output = folder / f"stdout-{os.getpid()}"
    with log.open("ab") as errors, output.open("wb") as stdout:
        # a session of its own: Ctrl-C reaches pytest, which ends the engine when it is done
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=errors, start_new_session=True
        )
    # reaps the engine when it ends; until then it outlives whoever started it
    threading.Thread(target=process.wait, name="engine-reaper", daemon=True).start()
    try:
        url = _first_line(process, output, log)
    finally:
        output.unlink(missing_ok=True)
    write_atomic(folder / "address.json", orjson.dumps({"url": url, "pid": process.pid}))
    return url


def _first_line(process: subprocess.Popen[bytes], output: Path, log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        text = output.read_text()
        if text.endswith("\n"):
            return text.strip()
        if process.poll() is not None:
            raise ServiceUnreachable(
                f"the embedded engine ended with exit code {process.returncode} before it served: "
                f"{_last_line(log)} (its log: {log})"
            )
        time.sleep(0.05)
    process.kill()
    raise ServiceUnreachable(
        f"the embedded engine did not serve within {START_SECONDS:g} s; see its log {log}"
    )


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no log"
