"""Reaching the service that trains: an address, a quick probe, a client.

The SDK retries a dead port for minutes, so a plain HTTP probe asks first and fails in seconds.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import httpx

from harness.errors import ServiceRefused, ServiceUnreachable

if TYPE_CHECKING:
    import tinker

PROBE_SECONDS = 15.0
END_SECONDS = 2.0
EMBEDDED_KEY = "tml-embedded-engine-needs-no-key"


@dataclass(frozen=True)
class ServiceAddress:
    """Where the service answers. The key is never shown."""

    base_url: str
    kind: Literal["embedded", "remote"]
    api_key: str = field(repr=False)


def remote_address(environment: dict[str, str]) -> ServiceAddress | None:
    """The address in TINKER_BASE_URL with the key in TINKER_API_KEY, or None if no URL is set.

    Raises:
        ServiceRefused: a URL without a usable key. The key itself is never part of the message.
    """
    base_url = environment.get("TINKER_BASE_URL", "").rstrip("/")
    if not base_url:
        return None
    key = environment.get("TINKER_API_KEY", "")
    if not key.startswith(("tml-", "eyJ")):
        state = "is not set" if not key else "does not start with 'tml-' or 'eyJ'"
        raise ServiceRefused(
            f"TINKER_BASE_URL is set to {base_url} but TINKER_API_KEY {state}; "
            "set the key of that service"
        )
    return ServiceAddress(base_url, "remote", key)


def probe(address: ServiceAddress, model: str, seconds: float = PROBE_SECONDS) -> None:
    """Ask the service whether it is up, takes the key and serves the model.

    Raises:
        ServiceUnreachable: no answer within `seconds`.
        ServiceRefused: the key was refused, or the model is not served.
    """
    headers = {"X-API-Key": address.api_key}
    url = f"{address.base_url}/api/v1"
    try:
        with httpx.Client(timeout=seconds, headers=headers, trust_env=not _local(url)) as client:
            health = client.get(f"{url}/healthz")
            _refuse(health, address, "healthz")
            capabilities = client.get(f"{url}/get_server_capabilities")
            _refuse(capabilities, address, "get_server_capabilities")
    except httpx.HTTPError as error:
        raise ServiceUnreachable(
            f"service {address.base_url}: no answer within {seconds:g} s "
            f"({type(error).__name__}); start it or correct TINKER_BASE_URL"
        ) from None
    served = _model_names(capabilities.json())
    if served and model not in served:
        raise ServiceRefused(
            f"service {address.base_url} does not serve {model!r}; it serves "
            f"{', '.join(sorted(served))}; choose a scale with one of these"
        )


def connect(address: ServiceAddress) -> tinker.ServiceClient:
    """A client of the official SDK for this address."""
    if _local(address.base_url):
        # a proxy in the environment would capture loopback calls and hang them
        hosts = [os.environ.get("NO_PROXY", ""), "127.0.0.1", "localhost"]
        os.environ["NO_PROXY"] = ",".join(host for host in hosts if host)
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    import tinker

    client = tinker.ServiceClient(base_url=address.base_url, api_key=address.api_key)
    # its daemon thread may be inside native code when the interpreter goes, which then aborts
    atexit.register(_end_background_loop, client.holder.get_loop())
    return client


def _end_background_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(loop.stop)
    deadline = time.monotonic() + END_SECONDS
    while loop.is_running() and time.monotonic() < deadline:
        time.sleep(0.01)


def _refuse(response: httpx.Response, address: ServiceAddress, what: str) -> None:
    if response.status_code in (401, 403):
        raise ServiceRefused(
            f"service {address.base_url} answered {response.status_code} to {what}: "
            "the key is not accepted; check TINKER_API_KEY"
        )
    if response.status_code >= 400:
        raise ServiceRefused(
            f"service {address.base_url} answered {response.status_code} to {what}; "
            "is it a Tinker-compatible service?"
        )


def _model_names(document: object) -> set[str]:
    models = document.get("supported_models", []) if isinstance(document, dict) else []
    return {str(model["model_name"]) for model in models if isinstance(model, dict)}


def _local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1", "http://localhost", "http://[::1]"))
