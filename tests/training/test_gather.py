import asyncio
import time

import pytest

from harness.training.gather import gather


def test_results_come_in_the_order_of_the_work():
    """Whichever ends first."""

    async def after(seconds, value):
        await asyncio.sleep(seconds)
        return value

    assert asyncio.run(gather(after(0.02, "a"), after(0.0, "b"))) == ("a", "b")
    assert asyncio.run(gather(after(0.02, 1), after(0.0, "b"))) == (1, "b")


def test_a_failure_ends_what_is_still_under_way(monkeypatch):
    """The rest is cancelled after a moment, and nothing is waited for longer."""
    monkeypatch.setattr("harness.training.gather.GRACE_SECONDS", 0.05)
    ended = []

    async def fail():
        raise ValueError("no")

    async def linger():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("lingered")

    async def work():
        began = time.monotonic()
        with pytest.raises(ValueError, match="no"):
            await gather(fail(), linger())
        await asyncio.sleep(0)
        return time.monotonic() - began

    assert asyncio.run(work()) < 30
    assert ended == ["lingered"]


def test_what_fails_with_the_first_is_not_reported_by_its_own_loop():
    """A future of another thread that is cancelled as it fails would be shown with a traceback."""
    reported = []

    async def work():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: reported.append(what))
        answers = [asyncio.get_running_loop().create_future() for _ in range(3)]

        async def waited(answer):
            return await answer

        for number, answer in enumerate(answers):
            asyncio.get_running_loop().call_later(
                0.02 * number, answer.set_exception, ValueError(f"{number}")
            )
        with pytest.raises(ValueError, match="0"):
            await gather(*(waited(answer) for answer in answers))
        return [answer.done() and not answer.cancelled() for answer in answers]

    assert asyncio.run(work()) == [True] * 3
    assert reported == []
