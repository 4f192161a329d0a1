"""A live line per arm while it trains, in any terminal, with and without `-n` or `-s`.

Without xdist pytest captures standard output while an item runs. The lines therefore go to a
duplicate of the descriptor, made while pytest itself can still write, and are drawn below pytest's
own line with the cursor put back, so pytest never notices. Where there is no terminal each arm gets
a plain line every 15 seconds, so that a log shows life.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.protocol.stages import Progress

_LOOK_EVERY_S = 0.5
_LOG_EVERY_S = 15.0
_QUIET_S = 0.2  # after a wipe pytest is about to write

# a line down in the same column, scrolling if need be; up; save and restore; clear what is below
_DOWN, _UP, _SAVE, _RESTORE, _CLEAR_BELOW = "\x1bD", "\x1b[{}A", "\x1b7", "\x1b8", "\x1b[J"


class LiveLines:
    """Watches the arms of the session's experiments from a thread of its own."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._experiments: list[tuple[str, str]] = []
        self._before: set[Progress] = set()
        self._logged: dict[str, tuple[float, Progress]] = {}
        self._screen = -1
        self._animated = self._drawn = False
        self._in_a_line = True  # of pytest's, which a line of ours must not go on
        self._quiet_until = 0.0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, experiment: str, scale: str) -> None:
        """Show the arms of this experiment too, once there is news of them."""
        self._before |= set(self._read([(experiment, scale)]))
        self._experiments.append((experiment, scale))
        if self._thread is None:
            self._start()

    def wipe(self) -> None:
        """Clear the lines before pytest writes; they come back below what it wrote."""
        with self._lock:
            self._quiet_until = time.monotonic() + _QUIET_S
            self._in_a_line = True
            if self._drawn:
                self._write(_CLEAR_BELOW)
                self._drawn = False

    def stop(self) -> None:
        """Clear the lines for good."""
        if self._thread is not None:
            self._stopped.set()
            self._thread.join()
            self.wipe()
            os.close(self._screen)
            self._thread = None

    def _start(self) -> None:
        try:
            self._screen = os.dup(sys.stdout.fileno())
        except (OSError, io.UnsupportedOperation):
            return  # standard output is no file: nobody is watching
        self._animated = os.isatty(self._screen) and os.environ.get("TERM", "dumb") != "dumb"
        self._thread = threading.Thread(target=self._run, name="live-lines", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            now = time.monotonic()
            news = [p for p in self._read(self._experiments) if p not in self._before]
            with self._lock:
                if not self._animated:
                    self._log(news, now)
                elif news and now >= self._quiet_until:
                    self._draw(news)

    def _read(self, experiments: Sequence[tuple[str, str]]) -> list[Progress]:
        from harness.protocol.progress import read_progress  # only sessions with experiments pay

        return [p for each in experiments for p in read_progress(self._runs_dir, *each)]

    def _log(self, news: Sequence[Progress], now: float) -> None:
        for progress in news:
            then, last = self._logged.get(progress.arm, (-_LOG_EVERY_S, None))
            if progress != last and now - then >= _LOG_EVERY_S:
                self._logged[progress.arm] = (now, progress)
                start = "\n" if self._in_a_line else ""
                self._write(f"{start}{live_line(progress)}\n")
                self._in_a_line = False

    def _draw(self, news: Sequence[Progress]) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone; the run goes on without it
            columns = os.get_terminal_size(self._screen).columns or 80
            self._write(drawn([live_line(progress) for progress in news], columns))
            self._drawn = True

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the same
            os.write(self._screen, text.encode("ascii", "replace"))


def live_line(progress: Progress) -> str:
    """Where an arm is, as one line."""
    minutes, seconds = divmod(round(max(progress.seconds_left, 0.0)), 60)
    reward = "" if progress.reward is None else f"reward {progress.reward:.3f}  "
    return (
        f"{progress.arm} {progress.stage} {progress.step}/{progress.steps}  "
        f"{reward}{progress.tokens_per_second:,.0f} tokens/s  "
        f"{minutes}:{seconds:02d} left"
    )


def drawn(lines: Sequence[str], columns: int) -> str:
    """What draws these lines below the cursor's and puts the cursor back, cut to the width."""
    room = _DOWN * len(lines) + _UP.format(len(lines))
    body = "".join(f"\r\n{line[: columns - 1]}" for line in lines)
    return f"{_CLEAR_BELOW}{room}{_SAVE}{body}{_RESTORE}"
