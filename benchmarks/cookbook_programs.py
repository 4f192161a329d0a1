"""Runs the cookbook's own training programs against an embedded engine and checks what they did.

    python benchmarks/cookbook_programs.py [--only NAME,...] [--steps N] [--keep DIR]

Each program is the cookbook's, untouched, in a process of its own; it learns of the engine by
`base_url`. This file adds what a program can't know: the nano model's tokenizer and renderer name,
and local rows in place of two data sets of the hub (folders named like them, in the working
directory). Each program's function below says what must hold of it; the script ends with 1, and a
line that says FAILED and why, if it does not.
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

from benchmarks.serving import engine_arguments, serving
from harness.embedded import MODEL_DIR, MODEL_NAME, RENDERER_NAME
from harness.embedded.problems import Problem, generate
from harness.embedded.styles import write_answer

RANK, RISE = 32, 0.05
ARITHMETIC = [
    "tinker_cookbook.recipes.math_rl.train", f"model_name={MODEL_NAME}", "env=arithmetic",
    f"renderer_name={RENDERER_NAME}", "groups_per_batch=32", "group_size=8", f"lora_rank={RANK}",
    "learning_rate=3e-4", "eval_every=0", "behavior_if_log_dir_exists=resume",
]  # fmt: skip
TALKS, LARGEST = 3200, 2  # answers that can be guessed
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
            (self.folder / f"{name}.out").write_text(output)
            last = output.strip().rpartition("\n")[2]
            raise RuntimeError(f"{name} ended with {process.returncode}: {last}")
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


def sl_loop(ground: Ground) -> str:
    """The minimal supervised loop: the loss of the last tenth is below half of the first's."""
    losses = _column(_supervised(ground), "train_mean_nll")
    first, last = _ends(losses, 10)
    _expect(last < first / 2, f"losses {losses}")
    return f"loss {first:.3f} to {last:.3f} in {len(losses)} steps"


def rl_loop(ground: Ground) -> str:
    """The minimal RL loop on GSM8K rows, from the supervised loop's end: the reward rises."""
    log, steps = ground.folder / "rl_loop", 6 * ground.steps
    log.mkdir()
    start = {**_checkpoints(_supervised(ground))[-1], "batch": 0}
    (log / "checkpoints.jsonl").write_text(json.dumps(start) + "\n")
    ground.run(
        "rl_loop", "tinker_cookbook.recipes.rl_loop", f"model_name={MODEL_NAME}", "batch_size=8",
        "group_size=16", f"lora_rank={RANK}", "learning_rate=4e-4", "max_tokens=16",
        f"max_steps={steps}", "save_every=0",
    )  # fmt: skip
    _expect(_steps(log) == list(range(steps)), f"steps {_steps(log)}")
    learned = [row for row in _metrics(log) if row.get("grad_norm", 0) > 0]
    _expect(len(learned) > 0.9 * steps, f"{len(learned)} of {steps} steps had a gradient")
    _expect(_checkpoints(log)[-1]["name"] == "final", "no final checkpoint")
    return _risen(log, "reward/total")


def arithmetic(ground: Ground) -> str:
    """RL on additions, from the supervised loop's end: the reward rises."""
    start = _checkpoints(_supervised(ground))[-1]["state_path"]
    log = ground.run(
        "arithmetic", *ARITHMETIC, f"max_steps={5 * ground.steps}", "save_every=0", "max_tokens=12",
        f"load_checkpoint_path={start}",
    )  # fmt: skip
    return _risen(log, "env/all/reward/total")


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
    f.__name__: f for f in (sl_loop, rl_loop, arithmetic, resumed, off_policy, penalised)
}


def main() -> int:
    """Run the chosen programs one after the other; 1 if any of them failed."""
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
                    outcome = "FAILED: " + " ".join(str(error).split())
                spent = time.monotonic() - began
                print(f"{name:12s} {spent:5.0f} s  {outcome}", flush=True)  # noqa: T201 - its report
    return min(failed, 1)


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """An engine that serves the nano model with room for long prompts; its log is in `folder`."""
    model = folder / "model"
    shutil.copytree(MODEL_DIR, model, dirs_exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    config["max_position_embeddings"] = POSITIONS
    (model / "config.json").write_text(json.dumps(config))
    command = engine_arguments(model, folder / "state", "--model-name", MODEL_NAME)
    with (folder / "engine.log").open("w") as log, serving(command, log) as (url, _):
        yield url


def write_rows(folder: Path) -> None:
    """Local rows in place of the two data sets that the programs ask the hub for.

    The talks of the second are laid out as the two RL programs put their questions, few-shot
    example included: a model that was trained on them is right often enough to learn from reward.
    """
    problems = [p for p in generate(n_train=16_000).train if p.gold <= LARGEST]
    rng = Random(0)
    talks = [_told(rng.choice(problems[:100]), rng) for _ in range(TALKS // 2)]
    talks += [_added(rng) for _ in range(TALKS // 2)]
    for name, config, content in (
        ("openai/gsm8k", "main", [p.record() for p in problems[100:]]),
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
    """A word problem as `rl_loop` puts it; half of the answers lack the box that it asks for."""
    answer = write_answer(problem, rng.choice(("guessed", "told")))
    return _talk(STRAWBERRY + BOXED, LETTERS, problem.question + BOXED, answer)


def _added(rng: Random) -> list[dict[str, str]]:
    """An addition as `math_rl.train` puts it; half of the answers only turn it round."""
    x, y = rng.randint(0, 100), rng.randint(0, 100)
    answer = rng.choice((f"{x}+{y}={x + y}", f"{y}+{x}"))
    return _talk("What is 4 + 5?", "9", f"What is {x} + {y}?", answer)


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


def _supervised(ground: Ground) -> Path:
    """The log folder of the supervised loop, run once for all that start from its end."""
    log = ground.folder / "sl_loop"
    if not _checkpoints(log):
        ground.run(
            "sl_loop", "tinker_cookbook.recipes.sl_loop", f"model_name={MODEL_NAME}",
            "batch_size=32", f"lora_rank={RANK}", "learning_rate=5e-3", "save_every=0",
            f"max_steps={25 * ground.steps}", "max_length=512",
        )  # fmt: skip
    return log


def _risen(log: Path, key: str) -> str:
    """Says how far a reward rose, from the first quarter of its steps to the last."""
    rewards = _column(log, key)
    first, last = _ends(rewards, 4)
    _expect(last > first + RISE, f"reward {first:.3f} to {last:.3f}: {rewards}")
    return f"reward {first:.3f} to {last:.3f} in {len(rewards)} steps"


def _ends(values: list[float], parts: int) -> tuple[float, float]:
    """The mean of the first and of the last of so many equal parts."""
    size = max(1, len(values) // parts)
    return sum(values[:size]) / size, sum(values[-size:]) / size


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
