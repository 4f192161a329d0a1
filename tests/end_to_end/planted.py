"""A pytest plugin that harms a run: a mistake of the catalogue, or something at a moment.

`-p planted` with HARNESS_TEST_PLANT=<name>. Everything is planted in the execution, just before the
first item is set up: card, configuration and stored preflights stay as they are.
"""

import asyncio
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PLANT = "HARNESS_TEST_PLANT"
AT = "HARNESS_TEST_AT"
"""For plants that wait for a moment: `<arm>:<step>`, or of several arms `<arm>,<arm>:<step>`."""
MARKER = "HARNESS_TEST_MARKER"
"""For plants that wait for a moment: the file that says that it has come, or of arms a folder."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Plant once in each process that runs items."""
    name = os.environ.pop(PLANT, "")
    try:
        if name in MOMENTS:
            MOMENTS[name]()
        elif name:
            from mistakes.live import BY_NAME

            BY_NAME[name].edit(pytest.MonkeyPatch())
    except Exception as error:
        pytest.exit(f"{name} can't be planted: {error!r}", returncode=4)


def full_disk() -> None:
    """From a moment on no record may grow beyond 1,000 bytes."""
    from harness.store import files

    original = files.write_atomic

    def limited(path: Path, data: bytes, **options: bool) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # the kernel's own refusal, in a file that this process writes
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            original(path, data, **options)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    at_the_moment(before=lambda: setattr(files, "write_atomic", limited))


def mark() -> None:
    """Say that the moment has come, and go on when the mark is gone."""
    marker = Path(os.environ[MARKER])

    def marked() -> None:
        marker.touch()
        while marker.exists():
            time.sleep(0.01)

    at_the_moment(before=marked)


def pause() -> None:
    """Stop for good at the moment: the update is applied, its record is not yet written."""
    at_the_moment(after=Path(os.environ[MARKER]).touch)


def meet() -> None:
    """Of several arms each waits at the moment for the others, so they train at the same time."""
    arms, step = os.environ[AT].split(":")
    folder = Path(os.environ[MARKER])

    async def taken(original: Callable[..., Any], context: Any, state: Any) -> Any:
        if state.version == int(step):
            (folder / context.arm.name).touch()
            while {path.name for path in folder.iterdir()} < set(arms.split(",")):
                await asyncio.sleep(0.02)
        return await original(context, state)

    wrap_in_loop("run_step", taken)


def at_the_moment(
    before: Callable[[], object] | None = None, after: Callable[[], object] | None = None
) -> None:
    """Act before a step of an arm, or after it and then wait for the end."""
    arm, step = os.environ[AT].split(":")

    async def taken(original: Callable[..., Any], context: Any, state: Any) -> Any:
        here = context.arm.name == arm and state.version == int(step)
        if here and before is not None:
            before()
        record = await original(context, state)
        if here and after is not None:
            after()
            await asyncio.sleep(3600)
        return record

    wrap_in_loop("run_step", taken)


def wrap_in_loop(name: str, wrapper: Callable[..., Any]) -> None:
    """Put `wrapper(original, ...)` in the place of a function of the training loop."""
    from harness.training import loop

    original = getattr(loop, name)
    setattr(loop, name, lambda *arguments: wrapper(original, *arguments))


MOMENTS: dict[str, Callable[[], None]] = {
    "full_disk": full_disk,
    "mark": mark,
    "meet": meet,
    "pause": pause,
}
