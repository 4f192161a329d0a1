"""What `-n 2` brings where the engine is not the limit: a service that is a network away.

    python benchmarks/parallel_arms.py [--delay 0.3] [--steps 16] [--items 100] [--rounds 1]

An engine of this machine behind a proxy that holds every packet back by `--delay` seconds, in total
for both ways, as a hosted service's queue and network do. The lag experiment of four arms runs
against it from nothing, with `-n 0` and with `-n 2`, and again without the proxy on the machine's
own cores. Prints a Markdown table of seconds and their ratios, each taken within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a file, it still finds the package beside it

from benchmarks.serving import engine_arguments, serving
from harness.embedded import MODEL_DIR, MODEL_NAME
from harness.training.service import end_background_loop

CARD = "tailrl_lag4_accuracy_gsm8k_08b"
EXPERIMENT = ROOT / "experiments" / "test_tailrl_lag4_accuracy.py"


def main() -> None:
    """Run both services with one worker and with two, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=float, default=0.3)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scale = folder / "short.json"
        scale.write_text(json.dumps(short_scale(options.steps, options.items)))
        rows = {}
        for delay in (options.delay, 0.0):
            command = engine_arguments(
                MODEL_DIR, folder / f"state-{delay}", "--model-name", MODEL_NAME
            )
            with serving(command) as (address, _), proxy(address, delay / 2) as url:
                rows[delay] = [
                    {n: seconds(scale, folder / f"{delay}-{i}-{n}", url, n) for n in (0, 2)}
                    for i in range(options.rounds)
                ]
    print("| each request is answered | -n 0 | -n 2 | times faster |\n| --- | --- | --- | --- |")  # noqa: T201 - the table is what this program is for
    for delay, rounds in rows.items():
        alone, both = (statistics.median(row[n] for row in rounds) for n in (0, 2))
        ratio = statistics.median(row[0] / row[2] for row in rounds)
        print(f"| {delay:g} s later | {alone:.0f} s | {both:.0f} s | {ratio:.2f} |")  # noqa: T201


def short_scale(steps: int, items: int) -> dict[str, object]:
    """The embedded scale with fewer steps and test items."""
    scale = json.loads((EXPERIMENT.parent / "cards" / f"{CARD}.embedded.json").read_text())
    card, registration = scale["patch"]["card"], scale["patch"]["registration"]
    card |= {"steps": steps, "eval": {"n_examples": items}}
    for arm in registration["arms"]:
        arm["schedule"]["steps"] = steps
    pointers = ("/card/steps", "/card/eval/n_examples")
    scale["changes"] += [{"pointer": pointer, "reason": "A short run."} for pointer in pointers]
    return {**scale, "name": "short"}


def seconds(scale: Path, runs: Path, url: str, workers: int) -> float:
    """Wall time of one whole run of the experiment, from nothing to its verdict.

    Raises:
        SystemExit: the run reached no verdict; its output is shown.
    """
    verdict = runs.with_suffix(".json")
    command = [sys.executable, "-m", "pytest", str(EXPERIMENT), "-q", "-n", str(workers)]
    command += ["--scale", str(scale), "--runs-dir", str(runs), "--verdict-json", str(verdict)]
    began = time.perf_counter()
    run = subprocess.run(
        command, cwd=ROOT, env=environment() | {"TINKER_BASE_URL": url}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    took = time.perf_counter() - began
    if not verdict.exists() or json.loads(verdict.read_text())["verdict"] == "INVALID":
        raise SystemExit(f"{run.stdout[-3000:]}\nno verdict: {' '.join(command)}")
    return took


@contextmanager
def proxy(target: str, delay: float) -> Iterator[str]:
    """The address of a proxy to `target` that holds packets back by `delay` seconds each way."""
    loop, port = asyncio.new_event_loop(), urlsplit(target).port

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        ways = (reader, far_writer), (far_reader, writer)
        with contextlib.suppress(asyncio.CancelledError):  # asyncio would report it as an error
            await asyncio.gather(*(held_back(source, sink, delay) for source, sink in ways))

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    end_background_loop(loop)


async def held_back(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay: float) -> None:
    """Pass bytes on `delay` seconds after they came, in order; packets overlap in flight."""
    loop = asyncio.get_running_loop()
    in_flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def take() -> None:
        data = b"-"
        while data:
            try:
                data = await source.read(65536)
            except ConnectionError:
                data = b""
            in_flight.put_nowait((loop.time() + delay, data))

    async def give() -> None:
        while True:
            due, data = await in_flight.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                sink.close()
                return
            sink.write(data)

    await asyncio.gather(take(), give())


def environment() -> dict[str, str]:
    """This process's environment, for local services and a key that opens nothing."""
    local = {"TINKER_TELEMETRY": "0", "NO_PROXY": "127.0.0.1,localhost"}
    return {**os.environ, **local, "TINKER_API_KEY": "tml-local"}


if __name__ == "__main__":
    main()
