"""Many requests at once, without leaving any behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, overload

from harness.errors import HarnessError

T = TypeVar("T")
U = TypeVar("U")

GRACE_SECONDS = 0.5
"""After a failure of the service other requests have this time to fail by themselves."""


@overload
async def gather(
    first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, U], /
) -> tuple[T, U]: ...


@overload
async def gather(*work: Coroutine[Any, Any, T]) -> tuple[T, ...]: ...


async def gather(*work: Coroutine[Any, Any, object]) -> tuple[object, ...]:
    """All results, in the order of `work`; the first failure cancels what is still under way."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return tuple(await asyncio.gather(*tasks))
    except HarnessError:
        raise
    except Exception:
        # what fails at the same moment would, cancelled, be reported by the SDK's loop in full
        await asyncio.wait(tasks, timeout=GRACE_SECONDS)
        raise
    finally:
        for task in tasks:
            task.cancel()
