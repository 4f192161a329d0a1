"""Speed of the embedded engine as ratios to bare torch loops, all measured in one run.

    python benchmarks/engine.py [--model DIR] [--rounds N]

Prints a Markdown table. Every round runs each contestant once, one after the other, and a
ratio is taken within its round, so that other programs on the machine disturb both sides of it; the
table shows the median of the rounds and their quartiles. The engine serves a copy of the model
without an end-of-text token, so that every sequence has all of its tokens, as in the bare loops.
The client is the tinker SDK, in this process: what it costs is part of the engine's figures, on the
same cores, and is measured by itself against a server that has every answer ready. The same
requests are sent by a bare HTTP client as well, which costs little enough to show what the engine
makes of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

os.environ["TINKER_TELEMETRY"] = "0"
os.environ["NO_PROXY"] = "127.0.0.1,localhost"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # spinning threads would slow down whatever else runs
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a file, it still finds the package beside it

import aiohttp
import numpy as np
import tinker
import torch
from tinker import types

from benchmarks import bare
from benchmarks.serving import engine_arguments, serving
from harness.engine.base_model import read_config, read_weights

ROWS, WIDTH, NEW, LONG, RANK = 64, 80, 128, 256, 32
KEY = "tml-local"
Answered = tinker.APIFuture[types.SampleResponse]
ADAM = types.AdamParams(learning_rate=1e-5)


def main() -> None:
    """Start an engine, run the rounds, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "harness/embedded/model")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    stub = [ROOT / "benchmarks/stub.py", str(NEW)]
    with endless(options.model.resolve()) as folder, serving(stub) as (instant, _):
        began = time.perf_counter()
        with serving(engine_arguments(folder, folder.with_name("state"))) as (url, pid):
            service = tinker.ServiceClient(base_url=url, api_key=KEY)
            sampler = service.create_sampling_client(base_model=folder.name)
            _ask(sampler, np.array([5, 6, 7]), 1, 0, new=1).result()
            first_token = time.perf_counter() - began
            contest = Contest(folder, url, pid, instant)
            contest.run(1)  # warms up
            rounds = contest.run(options.rounds)
            contest.http.close()
    print(table(rounds, first_token))  # noqa: T201 - the table is what this program is for
    print(  # noqa: T201
        f"\n{options.rounds} rounds, {bare.CORES} cores, torch {torch.__version__}; "
        f"load average {load:.1f} before and {os.getloadavg()[0]:.1f} after."
    )


@contextmanager
def endless(model: Path) -> Iterator[Path]:
    """A copy of a model that knows no token at which a sequence ends, and has room for LONG."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "served" / model.name
        shutil.copytree(model, folder, ignore=shutil.ignore_patterns("generation_config.json"))
        config = json.loads((folder / "config.json").read_text())
        room = max(config["max_position_embeddings"], WIDTH + LONG)
        changes = {"eos_token_id": None, "max_position_embeddings": room}
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        yield folder


class HttpClient:
    """A client that knows one request and how to wait for its answer, on connections it keeps."""

    def __init__(self, url: str, model: str, prompt: list[int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._session = self._loop.run_until_complete(_http_session(f"{url}/api/v1/"))
        self._body = {
            "base_model": model,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
        }

    def seconds(self, requests: int, samples: int) -> float:
        """Until as many requests at once, each for as many samples, are all answered."""

        async def all_at_once() -> None:
            await asyncio.gather(*(self._answer(seed, samples) for seed in range(requests)))

        return _timed(lambda: self._loop.run_until_complete(all_at_once()))

    def close(self) -> None:
        """Let the connections go."""
        self._loop.run_until_complete(self._session.close())
        self._loop.close()

    async def _answer(self, seed: int, samples: int) -> None:
        params = {"max_tokens": NEW, "temperature": 1.0, "seed": seed}
        body = {**self._body, "num_samples": samples, "sampling_params": params}
        async with self._session.post("asample", json=body) as response:
            request = {"request_id": (await response.json())["request_id"]}
        status = 408
        while status == 408:  # the engine's word for "not yet"
            async with self._session.post("retrieve_future", json=request) as response:
                status, answer = response.status, await response.read()
        assert status == 200
        assert len(answer) > 8 * samples * NEW  # four bytes a token and four a log-prob


async def _http_session(url: str) -> aiohttp.ClientSession:
    headers = {"X-API-Key": KEY, "Accept": "application/x-protobuf, application/json"}
    return aiohttp.ClientSession(
        url, headers=headers, connector=aiohttp.TCPConnector(limit=2 * ROWS)
    )


@dataclass(frozen=True)
class Spent:
    """One contestant's seconds by the clock and of the processor, a number a round."""

    seconds: list[float]
    processor: list[float]


class Contest:
    """The contestants; all work on the same prompts and the same batch."""

    def __init__(self, folder: Path, url: str, pid: int, instant: str) -> None:
        self._engine = Path(f"/proc/{pid}/stat")
        self.config = read_config(folder)
        self.weights = read_weights(folder, self.config)
        rng = np.random.default_rng(0)
        self.prompts = rng.integers(5, 200, (ROWS, WIDTH))
        self.batch = rng.integers(5, 200, (ROWS, WIDTH + NEW // 2 + 1))
        self.http = HttpClient(url, folder.name, self.prompts[0].tolist())
        service = tinker.ServiceClient(base_url=url, api_key=KEY)
        other = tinker.ServiceClient(base_url=url, api_key=KEY)
        self.samplers = [s.create_sampling_client(base_model=folder.name) for s in (service, other)]
        ready = tinker.ServiceClient(base_url=instant, api_key=KEY)
        self.instant = ready.create_sampling_client(base_model=folder.name)
        self.training = service.create_lora_training_client(folder.name, rank=RANK, seed=1)
        self.lora_step = bare.LoraStep(self.config, self.weights, RANK)
        self.data = [
            types.Datum(
                model_input=types.ModelInput.from_ints(row[:-1]),
                loss_fn_inputs={
                    "target_tokens": row[1:],
                    "logprobs": [-4.0] * len(row[1:]),
                    "advantages": [1.0] * len(row[1:]),
                },
            )
            for row in self.batch.tolist()
        ]

    def run(self, rounds: int) -> dict[str, Spent]:
        """What each contestant took in each round."""
        prompts = torch.from_numpy(self.prompts)
        contestants: dict[str, Callable[[], float]] = {
            "bare, one batch": lambda: self.bare(bare.decode, prompts),
            "bare, in parts": lambda: self.bare(bare.decode_in_parts, prompts),
            "1 x 64": self.one_request,
            "64 x 1": lambda: self.single_requests(self.samplers[0], [self.prompts[0]] * ROWS),
            "1 x 64, long": lambda: self.one_request(LONG),
            "64 x 1, long": lambda: self.single_requests(
                self.samplers[0], [self.prompts[0]] * ROWS, LONG
            ),
            "64 prompts": lambda: self.single_requests(self.samplers[0], list(self.prompts)),
            "client": lambda: self.single_requests(self.instant, [self.prompts[0]] * ROWS),
            "1 x 64, HTTP": lambda: self.http.seconds(1, ROWS),
            "64 x 1, HTTP": lambda: self.http.seconds(ROWS, 1),
            "one client": lambda: self.clients(1),
            "two clients": lambda: self.clients(2),
            "lone request": self.lone_request,
            "bare step": self.bare_step,
            "step": self.step,
        }
        found = {name: Spent([], []) for name in contestants}
        for _ in range(rounds):
            for name, act in contestants.items():
                before = self._processor_seconds()
                found[name].seconds.append(act())
                found[name].processor.append(self._processor_seconds() - before)
        parts = found["bare, one batch"], found["bare, in parts"]
        found["bare decode"] = Spent(
            [min(pair) for pair in zip(*(p.seconds for p in parts), strict=True)],
            [min(pair) for pair in zip(*(p.processor for p in parts), strict=True)],
        )
        return found

    def _processor_seconds(self) -> float:
        """Of this process, the client, and of the engine together."""
        fields = self._engine.read_text().rsplit(")", 1)[1].split()
        engine_ticks = int(fields[11]) + int(fields[12])
        return time.process_time() + engine_ticks / os.sysconf("SC_CLK_TCK")

    def bare(self, loop: Callable[..., None], prompts: torch.Tensor) -> float:
        """A bare decoding loop."""
        return _timed(lambda: loop(self.config, self.weights, prompts, NEW))

    def one_request(self, new: int = NEW) -> float:
        """64 samples of one prompt in one request."""
        sampler, prompt = self.samplers[0], self.prompts[0]
        return _answered(ROWS, lambda: [_ask(sampler, prompt, ROWS, 1, new)], new)

    def single_requests(
        self, sampler: tinker.SamplingClient, prompts: list[np.ndarray], new: int = NEW
    ) -> float:
        """One request a prompt, all at once."""
        return _answered(
            len(prompts), lambda: [_ask(sampler, p, 1, i, new) for i, p in enumerate(prompts)], new
        )

    def clients(self, count: int) -> float:
        """128 rows in 32 requests of different prompts, sent by one client or by two at once."""
        return _answered(
            2 * ROWS,
            lambda: [
                _ask(self.samplers[i % count], self.prompts[i], 4, i) for i in range(ROWS // 2)
            ],
        )

    def lone_request(self) -> float:
        """One token of one prompt while nothing else is served, in seconds."""
        return _timed(lambda: _ask(self.samplers[0], self.prompts[0], 1, 1, new=1).result())

    def bare_step(self) -> float:
        """One bare LoRA step."""
        tokens = torch.from_numpy(self.batch)
        return _timed(lambda: self.lora_step(tokens))

    def step(self) -> float:
        """forward_backward and optim_step, both in flight."""

        def both() -> None:
            futures = (
                self.training.forward_backward(self.data, "importance_sampling"),
                self.training.optim_step(ADAM),
            )
            for future in futures:
                future.result()

        return _timed(both)


def table(rounds: dict[str, Spent], first_token: float) -> str:
    """The figures with what is asked of them, in Markdown."""
    tokens = ROWS * NEW

    def row(what: str, name: str, over: str, under: str, asked: str, count: int = tokens) -> str:
        by_clock = np.array(rounds[over].seconds) / np.array(rounds[under].seconds)
        low, middle, high = np.quantile(by_clock, [0.25, 0.5, 0.75])
        processor = np.median(rounds[over].processor) / np.median(rounds[under].processor)
        return (
            f"| {what} | {rate(name, count)} | {middle:.2f} ({low:.2f} to {high:.2f}) "
            f"| {processor:.2f} | {asked} |"
        )

    def rate(name: str, count: int = tokens) -> str:
        return f"{count / np.median(rounds[name].seconds):,.0f} tokens/s"

    trained = ROWS * (WIDTH + NEW // 2)
    both = 2 * tokens
    client = 1e3 * np.median(rounds["client"].seconds)
    busy = 1e3 * np.median(rounds["client"].processor)
    lone = 1e3 * np.median(rounds["lone request"].seconds)
    bare_row, to_bare, http = "bare decode", "to bare decoding", "64 x 1, HTTP"
    long = "64 x 1, long"
    alone = "the SDK alone, 64 requests answered at once"
    return "\n".join(
        [
            "| what | median speed | ratio by the clock (quartiles) | of processor time | asked |",
            "| --- | --- | --- | --- | --- |",
            f"| bare batched decoding, 64 rows | {rate(bare_row)} | | | |",
            *(
                row(f"{what}, {to_bare}", name, bare_row, name, ">= 0.6")
                for what, name in (
                    ("1 request for 64 samples", "1 x 64"),
                    ("64 requests, one prompt", "64 x 1"),
                    ("64 requests, 64 prompts", "64 prompts"),
                )
            ),
            row("64 requests, time to that of 1 for 64", "64 x 1", "64 x 1", "1 x 64", "<= 1.25"),
            row(f"the same with {LONG} tokens each", long, long, "1 x 64, long", "", ROWS * LONG),
            row("both by a bare HTTP client", http, http, "1 x 64, HTTP", "<= 1.25"),
            row("two clients, to one", "two clients", "one client", "two clients", ">= 0.9", both),
            f"| bare LoRA step | {rate('bare step', trained)} | | | |",
            row("the engine's step, to bare", "step", "bare step", "step", ">= 0.85", trained),
            f"| {alone} | {client:.0f} ms | | {busy:.0f} ms | |",
            f"| a lone request for one token | {lone:.0f} ms | | | |",
            f"| first token after process start | {first_token:.1f} s | | | < 6 s |",
        ]
    )


def _ask(
    sampler: tinker.SamplingClient, prompt: np.ndarray, samples: int, seed: int, new: int = NEW
) -> Answered:
    params = types.SamplingParams(max_tokens=new, seed=seed)
    return sampler.sample(types.ModelInput.from_ints(prompt.tolist()), samples, params)


def _answered(rows: int, ask: Callable[[], Sequence[Answered]], new: int = NEW) -> float:
    """Seconds until all requests are answered, with `new` tokens in each of `rows` sequences."""
    began = time.perf_counter()
    answers = [future.result() for future in ask()]
    spent = time.perf_counter() - began
    assert sum(len(s.tokens) for a in answers for s in a.sequences) == rows * new
    return spent


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
