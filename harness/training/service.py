"""Reaching the service that trains: an address, a quick probe, a client.

The SDK retries a dead port for minutes, so a plain HTTP probe asks first and fails in seconds.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import httpx

from harness.errors import ServiceRefused, ServiceUnreachable

if TYPE_CHECKING:
    import tinker
    from tinker.lib.internal_client_holder import InternalClientHolder

PROBE_SECONDS = 10.0
END_SECONDS = 2.0
EMBEDDED_KEY = "tml-embedded-engine-needs-no-key"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServiceAddress:
    """Where the service answers. The key is never shown."""

    base_url: str
    kind: Literal["embedded", "remote"]
    api_key: str = field(repr=False)


def remote_address(environment: dict[str, str]) -> ServiceAddress | None:
    """The address in TINKER_BASE_URL with the key in TINKER_API_KEY, or None if no URL is set.

    Raises:
        ServiceRefused: the URL is none, or has no usable key. Neither the key nor a password in the
            URL is ever part of the message.
    """
    base_url = environment.get("TINKER_BASE_URL", "").strip().rstrip("/")
    if not base_url:
        return None
    if not _usable(base_url):
        raise ServiceRefused(
            "TINKER_BASE_URL is not of the form http[s]://HOST[:PORT][/PATH], without a user or "
            "query; correct it"
        )
    key = environment.get("TINKER_API_KEY", "")
    if not key.startswith(("tml-", "eyJ")):
        state = "is not set" if not key else "does not start with 'tml-' or 'eyJ'"
        raise ServiceRefused(
            f"TINKER_BASE_URL is set to {base_url} but TINKER_API_KEY {state}; "
            "set the key of that service"
        )
    return ServiceAddress(base_url, "remote", key)


def probe(address: ServiceAddress, model: str, seconds: float = PROBE_SECONDS) -> bool:
    """Ask the service whether it is up, takes the key and serves the model.

    Returns whether it says that it repeats itself bit for bit, as the embedded engine does where
    the processor lets it.

    Raises:
        ServiceUnreachable: no answer within `seconds`, or that it is overloaded.
        ServiceRefused: the key was refused, or the model is not served.
    """
    headers, deadline = {"X-API-Key": address.api_key}, time.monotonic() + seconds
    trust_env = not _local(address.base_url)
    try:
        with httpx.Client(headers=headers, trust_env=trust_env) as client:
            for what in ("healthz", "get_server_capabilities"):
                left = max(deadline - time.monotonic(), 0.001)
                answer = client.get(f"{address.base_url}/api/v1/{what}", timeout=left)
                _refuse(answer, address, what)
    except httpx.HTTPError as error:
        raise ServiceUnreachable(
            f"service {address.base_url}: no answer within {seconds:g} s "
            f"({type(error).__name__}); start it or correct TINKER_BASE_URL"
        ) from None
    served = _model_names(answer, address)
    if served and model not in served:
        raise ServiceRefused(
            f"service {address.base_url} does not serve {model!r}; it serves "
            f"{', '.join(sorted(served))}; choose a scale with one of these"
        )
    promised = answer.json().get("determinism")
    return isinstance(promised, dict) and promised.get("bit_exact") is True


def connect(address: ServiceAddress) -> tinker.ServiceClient:
    """A client of the official SDK for this address."""
    if _local(address.base_url):
        _keep_loopback_from_proxies()
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    import tinker

    client = tinker.ServiceClient(base_url=address.base_url, api_key=address.api_key)
    # its daemon thread may be inside native code when the interpreter goes, which then aborts
    atexit.register(leave, client)
    return client


def end_heartbeats(client: tinker.ServiceClient) -> None:
    """Send no more heartbeats: to the end of the process they would complain of a service gone."""
    client.holder.close()  # type: ignore[no-untyped-call]  # the SDK annotates nothing there


def end_background_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what a loop in another thread does, and stop it; wait END_SECONDS at most for it."""
    if loop.is_running():
        asyncio.run_coroutine_threadsafe(_stop(loop), loop)
    deadline = time.monotonic() + END_SECONDS
    while loop.is_running() and time.monotonic() < deadline:
        time.sleep(0.01)


def leave(client: tinker.ServiceClient) -> None:
    """Leave the client's session quietly, and what asks without a session, if anything did."""
    for holder in (client.holder, vars(client).get("_rest_holder")):
        if holder is not None:
            leave_quietly(holder)


def leave_quietly(holder: InternalClientHolder) -> None:
    """End the SDK's loop, and leave its finalisers nothing to do or to warn of."""
    end_background_loop(holder.get_loop())
    # its finaliser would send work to a loop that may have been finalised before it
    vars(holder)["close"] = lambda: None
    # the SDK uses its loop to the last, so it can't be closed, and would be warned of as unclosed
    warnings.simplefilter("ignore")
    # finalisers go by the filters that the last warning met, which may have been pytest's
    warnings.warn("the interpreter ends", stacklevel=1)


def says_no(error: Exception) -> bool:
    """Whether the SDK tells by this error that the service can't do what it was asked for.

    A service that breaks, is overloaded or takes no more requests from this client says nothing of
    what it could do.
    """
    import tinker

    if isinstance(error, tinker.RequestFailedError):
        return error.category != tinker.types.RequestErrorCategory.Server
    status = error_status(error)
    # without an answer the SDK itself refuses to send the request
    return isinstance(error, ValueError) if status is None else status in (400, 404, 410, 422)


def error_status(error: Exception) -> int | None:
    """The HTTP status behind an error of the SDK, which raises ValueError from that of a result."""
    statuses = [getattr(each, "status_code", None) for each in (error, error.__cause__)]
    return next((status for status in statuses if status is not None), None)


async def _stop(loop: asyncio.AbstractEventLoop) -> None:
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=END_SECONDS / 2)
    loop.stop()


def _keep_loopback_from_proxies() -> None:
    """A proxy in the environment would capture loopback calls and hang them."""
    # the SDK's transports differ in which spelling they prefer, so both get all hosts
    names = ("NO_PROXY", "no_proxy")
    hosts = [host for name in names for host in os.environ.get(name, "").split(",")]
    merged = ",".join(dict.fromkeys(filter(None, [*map(str.strip, hosts), *LOOPBACK])))
    os.environ.update(dict.fromkeys(names, merged))


def _refuse(response: httpx.Response, address: ServiceAddress, what: str) -> None:
    if response.status_code in (401, 403):
        raise ServiceRefused(
            f"service {address.base_url} answered {response.status_code} to {what}: "
            "the key is not accepted; check TINKER_API_KEY"
        )
    if response.status_code in (429, 502, 503, 504):
        raise ServiceUnreachable(
            f"service {address.base_url} answered {response.status_code} to {what}: it takes no "
            "requests now; run again later"
        )
    if response.status_code >= 300:
        raise ServiceRefused(
            f"service {address.base_url} answered {response.status_code} to {what}; "
            "is it a Tinker-compatible service?"
        )


def _model_names(response: httpx.Response, address: ServiceAddress) -> set[str]:
    """The models that the service says it serves; none if it does not say."""
    try:
        return {str(model["model_name"]) for model in response.json()["supported_models"]}
    except (ValueError, KeyError, TypeError):
        raise ServiceRefused(
            f"service {address.base_url}: get_server_capabilities lists no supported_models; "
            "is it a Tinker-compatible service?"
        ) from None


def _local(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK


def _usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # reading the port checks it
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and ("@" not in parts.netloc and not parts.query and not parts.fragment)
        )
    except ValueError:
        return False
