"""Runs the cookbook's own training programs against an embedded engine and checks what they did.

    python benchmarks/cookbook_programs.py [--only NAME,...] [--steps N] [--keep DIR]

Each program is the cookbook's, untouched, in a process of its own; it learns of the engine by
`base_url`. This file adds what a program can't know: the nano model's tokenizer and renderer name,
and local rows in place of two data sets of the hub (folders named like them, in the working
directory). Ends with 0 if every program did what it should.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.embedded import MODEL_DIR, MODEL_NAME, RENDERER_NAME
from harness.embedded.problems import Problem, generate
from harness.embedded.styles import write_answer

ARITHMETIC = [
    "tinker_cookbook.recipes.math_rl.train", f"model_name={MODEL_NAME}", "env=arithmetic",
    f"renderer_name={RENDERER_NAME}", "groups_per_batch=32", "group_size=8", "lora_rank=8",
    "learning_rate=2e-3", "eval_every=0", "behavior_if_log_dir_exists=resume",
]  # fmt: skip
ROWS, FAMILIES = 3200, ("change", "age", "wages")
STRAWBERRY, BOXED = (
    "How many r's are in strawberry?",
    " Provide a numerical answer without units, written inside \\boxed{}.",
)
LETTERS = (
    "Let's spell the word out and number all the letters: 1) s 2) t 3) r 4) a 5) w 6) b 7) e 8) r "
    "9) r 10) y. We have r's at positions 3, 8, and 9. \\boxed{3}"
)
POSITIONS = 512  # rl_loop's few-shot prompt alone takes 285 tokens of the nano model's


@dataclass(frozen=True)
class Ground:
    """Where programs run: the engine's address, the working directory, the steps to take."""

    url: str
    folder: Path
    steps: int

    def run(self, name: str, *arguments: str) -> Path:
        """Run a program to its end; its log folder. Raises RuntimeError if it fails."""
        process = self.start(name, *arguments)
        output, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"{name} ended with {process.returncode}:\n{output[-4000:]}")
        return self.folder / name

    def start(self, name: str, module: str, *arguments: str) -> subprocess.Popen[str]:
        """A program as a process; `module` may be one of this file's own functions."""
        return subprocess.Popen(
            [sys.executable, __file__, "--program", module, *arguments,
             f"base_url={self.url}", f"log_path={self.folder / name}"],
            cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "TINKER_API_KEY": "tml-local", "TINKER_TELEMETRY": "0",
                 "NO_PROXY": "127.0.0.1,localhost", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
                 "HF_DATASETS_CACHE": str(self.folder / "cache")},
        )  # fmt: skip


def rl_loop(ground: Ground) -> str:
    """The minimal RL loop on GSM8K rows: every step logged, a final checkpoint."""
    log = ground.run(
        "rl_loop", "tinker_cookbook.recipes.rl_loop", f"model_name={MODEL_NAME}", "batch_size=8",
        "group_size=4", "lora_rank=8", "max_tokens=48", f"max_steps={ground.steps}", "save_every=1",
    )  # fmt: skip
    _expect(_steps(log) == list(range(ground.steps)), f"steps {_steps(log)}")
    _expect(_checkpoints(log)[-1]["name"] == "final", "no final checkpoint")
    return f"{ground.steps} steps, mean reward {_mean(log, 'reward/total'):.2f}"


def sl_loop(ground: Ground) -> str:
    """The minimal supervised loop: the loss falls."""
    log = ground.run(
        "sl_loop", "tinker_cookbook.recipes.sl_loop", f"model_name={MODEL_NAME}", "batch_size=16",
        "lora_rank=8", "learning_rate=2e-3", f"max_steps={ground.steps + 3}", "max_length=512",
    )  # fmt: skip
    losses = _column(log, "train_mean_nll")
    _expect(losses[-1] < losses[0], f"losses {losses}")
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps"


def arithmetic(ground: Ground) -> str:
    """RL on additions: the mean reward of the last quarter is above that of the first."""
    steps = 5 * ground.steps
    log = ground.run("arithmetic", *ARITHMETIC, f"max_steps={steps}", "save_every=0")
    rewards = _column(log, "env/all/reward/total")
    quarter = max(1, steps // 4)
    first, last = (sum(part) / quarter for part in (rewards[:quarter], rewards[-quarter:]))
    _expect(last > first + 0.02, f"rewards {rewards}")
    return f"reward {first:.3f} to {last:.3f} in {steps} steps"


def resumed(ground: Ground) -> str:
    """The same, killed after its first checkpoint and started again: it goes on from there."""
    arguments = [*ARITHMETIC, f"max_steps={ground.steps + 1}", "save_every=1"]
    process = ground.start("resumed", *arguments)
    log = ground.folder / "resumed"
    while process.poll() is None and len(_checkpoints(log)) < 1:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    _expect(process.returncode == -signal.SIGKILL, f"it ended by itself:\n{output[-2000:]}")
    kept, done = len(_checkpoints(log)), len(_steps(log))
    again = ground.run("resumed", *arguments)
    steps = _steps(again)
    _expect(steps[done] > 0, f"started from the beginning: {steps}")
    _expect(sorted(set(steps)) == list(range(ground.steps + 1)), f"steps {steps}")
    return f"killed with {kept} checkpoints, went on with step {steps[done]}"


def off_policy(ground: Ground) -> str:
    """Asynchronous RL: sampling and training overlap, samples lag by at most two steps."""
    log = ground.run(
        "off_policy", *ARITHMETIC, f"max_steps={ground.steps + 2}", "max_steps_off_policy=2"
    )
    lags = [
        row["training_client/step"] - row["sampling_client/step_min"]
        for row in _metrics(log)
        if "sampling_client/step_min" in row
    ]
    _expect(bool(lags) and max(lags) <= 2, f"lags {lags}")
    return f"{len(lags)} updates, oldest sampler {max(lags):.0f} steps behind"


def penalised(ground: Ground) -> str:
    """A KL penalty to the base, KL after each update, and checkpoints that roll."""
    log = ground.run("penalised", "penalised", f"max_steps={ground.steps + 1}")
    for key in ("kl_policy_base", "kl_pre_post_v1"):
        found = [v for row in _metrics(log) for k, v in row.items() if k.endswith(key)]
        _expect(bool(found) and all(v == v for v in found), f"{key}: {found}")
    kept = [path.name for path in (ground.folder / "state").glob("runs/*/weights/*.safetensors")
            if path.name.startswith("rolling")]  # fmt: skip
    _expect(len(kept) <= 1, f"rolling checkpoints left: {kept}")
    _expect(_checkpoints(log)[-1]["name"] == "final", "no final checkpoint")
    return f"KL to the base {_mean(log, 'kl_policy_base'):.4f} on average"


PROGRAMS: dict[str, Callable[[Ground], str]] = {
    f.__name__: f for f in (rl_loop, sl_loop, arithmetic, resumed, off_policy, penalised)
}


def main() -> int:
    """Run the chosen programs one after the other; the number of those that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(PROGRAMS), help="names, separated by commas")
    parser.add_argument("--steps", type=int, default=4, help="scales the length of each program")
    parser.add_argument("--keep", type=Path, help="a folder for logs and checkpoints")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        write_rows(folder)
        with engine(folder) as url:
            for name in options.only.split(","):
                began = time.monotonic()
                try:
                    outcome = PROGRAMS[name](Ground(url, folder, options.steps))
                except (AssertionError, RuntimeError) as error:
                    failed += 1
                    outcome = f"FAILED: {error}"
                spent = time.monotonic() - began
                print(f"{name:12s} {spent:5.0f} s  {outcome}", flush=True)  # noqa: T201 - its report
    return failed


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """An engine that serves the nano model with room for long prompts; its log is in `folder`."""
    model = folder / "model"
    shutil.copytree(MODEL_DIR, model, dirs_exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = POSITIONS
    (model / "config.json").write_text(json.dumps(config))
    with (folder / "engine.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.engine", "--base-model", str(model),
             "--model-name", MODEL_NAME, "--state", str(folder / "state"),
             "--exit-with", str(os.getpid())],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
        )  # fmt: skip
        assert process.stdout is not None
        with process.stdout:
            try:
                yield process.stdout.readline().strip()
            finally:
                process.terminate()
                process.wait()


def write_rows(folder: Path) -> None:
    """Local rows in place of the two data sets that the programs ask the hub for.

    The talks of the second are laid out as the two RL programs put their questions, few-shot
    example included: a model that was trained on them is right often enough to learn from reward.
    """
    problems = [p for p in generate().train if p.family in FAMILIES]
    rng = Random(0)
    talks = [_told(p, rng) for p in problems[: ROWS // 2]]
    talks += [_added(rng.randint(0, 100), rng.randint(0, 100)) for _ in range(ROWS // 2)]
    for name, config, content in (
        ("openai/gsm8k", "main", [p.record() for p in problems[ROWS // 2 :]]),
        ("HuggingFaceH4/no_robots", "default", [{"messages": talk} for talk in talks]),
    ):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "train.jsonl").write_text("\n".join(map(json.dumps, content)))
        (place / "README.md").write_text(
            f"---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: train\n"
            "    path: train.jsonl\n---\n"
        )


def _told(problem: Problem, rng: Random) -> list[dict[str, str]]:
    """A word problem as `rl_loop` puts it; two answers of three lack the box it asks for."""
    style = rng.choice(("worked", "hashed", "told"))
    return _talk(
        STRAWBERRY + BOXED, LETTERS, problem.question + BOXED, write_answer(problem, style)
    )


def _added(x: int, y: int) -> list[dict[str, str]]:
    """An addition as `math_rl.train` puts it."""
    return _talk("What is 4 + 5?", "9", f"What is {x} + {y}?", str(x + y))


def _talk(*turns: str) -> list[dict[str, str]]:
    return [
        {"role": ("user", "assistant")[at % 2], "content": turn} for at, turn in enumerate(turns)
    ]


def program(module: str, arguments: list[str]) -> None:
    """In the program's own process: register the nano model, then run the module as it is."""
    from tinker_cookbook import model_info, tokenizer_utils
    from transformers import AutoTokenizer

    tokenizer_utils.register_tokenizer(
        MODEL_NAME, lambda: AutoTokenizer.from_pretrained(str(MODEL_DIR))
    )
    known = model_info.get_recommended_renderer_name
    model_info.get_recommended_renderer_name = lambda name: (
        RENDERER_NAME if name == MODEL_NAME else known(name)
    )
    sys.argv = [module, *arguments]
    if module == "penalised":
        asyncio.run(_train_penalised(dict(a.split("=", 1) for a in arguments)))
    else:
        runpy.run_module(module, run_name="__main__")


async def _train_penalised(given: dict[str, str]) -> None:
    """The cookbook's RL trainer with options that none of its command lines offers."""
    from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDatasetBuilder
    from tinker_cookbook.rl import train

    await train.main(
        train.Config(
            learning_rate=2e-3,
            dataset_builder=ArithmeticDatasetBuilder(
                batch_size=16,
                model_name_for_tokenizer=MODEL_NAME,
                renderer_name=RENDERER_NAME,
                n_batches=100,
                group_size=4,
            ),
            model_name=MODEL_NAME,
            recipe_name="penalised",
            renderer_name=RENDERER_NAME,
            max_tokens=5,
            lora_rank=8,
            log_path=given["log_path"],
            base_url=given["base_url"],
            max_steps=int(given["max_steps"]),
            kl_penalty_coef=0.05,
            kl_reference_config=train.KLReferenceConfig(base_model=MODEL_NAME),
            compute_post_kl=True,
            rolling_save_every=1,
            eval_every=0,
            save_every=0,
        )
    )


def _lines(path: Path) -> list[dict]:
    """The rows of a file that may not be there yet, or whose last row is still being written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")]  # fmt: skip


def _metrics(log: Path) -> list[dict]:
    return _lines(log / "metrics.jsonl")


def _checkpoints(log: Path) -> list[dict]:
    return _lines(log / "checkpoints.jsonl")


def _steps(log: Path) -> list[int]:
    return [row["step"] for row in _metrics(log)]


def _column(log: Path, key: str) -> list[float]:
    return [row[key] for row in _metrics(log) if key in row]


def _mean(log: Path, suffix: str) -> float:
    found = [v for row in _metrics(log) for k, v in row.items() if k.endswith(suffix)]
    return sum(found) / len(found)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--program"]:
        program(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main())
