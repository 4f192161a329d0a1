"""Scripted doubles of the SDK's clients, and a small experiment for them to train.

Weights are one number and Adam one moment: enough that a run resumed without its optimizer state,
or from other weights, samples something else.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import tinker
import torch

from harness.audit.tracing import step_tracer
from harness.cards import Experiment, load_experiment
from harness.cards.registration import Sense
from harness.methods import loss_and_gradient
from harness.records import StepRecord
from harness.store import RunStore
from harness.tasks.gsm8k import Problem, Task
from harness.training import context
from harness.training.context import ArmContext
from harness.training.word_problems import ProblemAdapter

CARD = Path(__file__).parents[2] / "experiments" / "cards" / "gs1_vs_grpo_gsm8k_2b.json"
GRPO, GS1 = "grpo_gs8_seed0", "gs1_seed0"
STEPS, PILOT, CHECKPOINT_EVERY = 5, 2, 2


def small_experiment(lag: int = 0) -> Experiment:
    """The GS1 experiment with 5 steps of 8 rollouts, 4 x 2 against 8 x 1, and 20 test items."""
    full = load_experiment(CARD, "embedded")
    shapes = {GRPO: {"group_size": 2, "groups_per_batch": 4}, GS1: {"groups_per_batch": 8}}
    card = full.card.model_copy(
        update={
            "arms": [
                arm.model_copy(update={"steps": STEPS, **shapes[arm.name]})
                for arm in full.card.arms or ()
            ],
            "steps": STEPS,
            "batch_size": 8,
            "eval": full.card.eval.model_copy(update={"n_examples": 20}),
        }
    )
    training = {"pilot_steps": PILOT, "checkpoint_every": CHECKPOINT_EVERY}
    registration = full.registration.model_copy(
        update={
            "training": full.registration.training.model_copy(update=training),
            "arms": [arm.model_copy(update={"lag": lag}) for arm in full.registration.arms],
            # what scripted policies answer has been learned by nobody
            "sense": Sense(learned_p=1.0, below_base_p=1e-300, other_split_p=1e-300, max_cut=1.0),
        }
    )
    return dataclasses.replace(full, card=card, registration=registration)


def problems(split: str, count: int) -> tuple[Problem, ...]:
    """Word problems whose question holds its own answer's two terms."""
    names, things = ("Ada", "Ben", "Cleo"), ("pens", "apples", "old books", "nails")

    def problem(index: int) -> Problem:
        a, b, thing = index + 2, index // 3 + 1, things[index % 4]
        question = f"{names[index % 3]} has {a} {thing} and buys {b} more. How many {thing} now?"
        return Problem(f"{split}/{index:05d}", question, f"#### {a + b}", str(a + b))

    return tuple(problem(index) for index in range(count))


def small_task() -> Task:
    """60 train problems and 20 test problems."""
    return Task(problems("train", 60), problems("test", 20), {"train": "0" * 64, "test": "1" * 64})


@dataclass(frozen=True)
class Request:
    """One sampling request as it reached the service, and the weights that serve it."""

    weights: float
    prompt: str
    num_samples: int
    params: tinker.SamplingParams
    model: str


class ScriptedService:
    """Doubles `tinker.ServiceClient`. `calls` has one entry a call, in the order of submission.

    `reply` makes the texts of a request; by default each is right, wrong or without a box, by the
    hash of what was asked and of the weights. `sequence` makes the sequence of a text. Log-probs of
    a text and of samples are off by up to `noise`, of a sampler and of a learner, otherwise each
    time. An `honest` service gives samples and datums the log-probs of its weights, and reports the
    loss that it was asked for.
    """

    model = "harness/nano-qwen3"
    honest = False

    def __init__(self, adapter: ProblemAdapter, task: Task) -> None:
        self.tokenizer = adapter.renderer.tokenizer
        self.stop = int(adapter.stop[0])
        self.gold = {p.question: p.gold for p in (*task.train, *task.test)}
        self.calls: list[tuple[object, ...]] = []
        self.requests: list[Request] = []
        self.saved: dict[str, tuple[float, float, int]] = {}
        self.under_way = self.most_under_way = 0
        self.reply: Callable[[Request], Sequence[str]] = self.by_hash
        self.sequence: Callable[[str], tinker.SampledSequence] = self.scored
        self.outputs: Callable[[list[dict[str, tinker.TensorData]]], object] = lambda rows: rows
        self.metrics: dict[str, float] = {"loss:sum": 0.5}
        self.noise = (0.0, 0.0)
        self._generator = np.random.Generator(np.random.PCG64(0))

    def noisy(self, logprobs: np.ndarray, scale: float) -> np.ndarray:
        """Log-probs as a service in bfloat16 may give them."""
        if not scale:
            return logprobs
        spread = self._generator.uniform(-scale, scale, size=logprobs.size)
        return np.asarray(logprobs + spread, np.float32)

    def named(self, name: str) -> list[tuple[object, ...]]:
        """The calls of one name."""
        return [call for call in self.calls if call[0] == name]

    def by_hash(self, request: Request) -> list[str]:
        """A text a sample."""
        (gold,) = (g for question, g in self.gold.items() if question in request.prompt)
        texts = [f"It is \\boxed{{{gold}}}", "It is \\boxed{1}", "I do not know"]
        key = f"{request.weights!r}/{request.prompt}/{request.params.seed}"
        return [texts[_hash(f"{key}/{k}") % 3] for k in range(request.num_samples)]

    def scored(self, text: str) -> tinker.SampledSequence:
        """The tokens of a text with the stop token, and a log-prob for each."""
        tokens = [*self.tokenizer.encode(text, add_special_tokens=False), self.stop]
        # so likely that equal responses are no surprise
        logprobs = [-(1 + token % 7) / 800 for token in tokens]
        return sequence(tokens, logprobs)

    async def create_lora_training_client_async(
        self, base_model: str, rank: int, seed: int, **flags: bool
    ) -> ScriptedTrainer:
        """Fresh weights from the init seed."""
        self.calls.append(("create", base_model, rank, seed, tuple(sorted(flags.items()))))
        return ScriptedTrainer(self, float(seed), 0.0, 0)

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str
    ) -> ScriptedTrainer:
        """Weights, moment and updates as they were saved."""
        self.calls.append(("restore", path))
        return ScriptedTrainer(self, *self.saved[path])

    def create_rest_client(self) -> ScriptedService:
        """What was saved is also deleted here."""
        return self

    async def delete_checkpoint_from_tinker_path_async(self, path: str) -> None:
        """Nothing is there under this path any more."""
        self.calls.append(("delete", path))
        del self.saved[path]

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> ScriptedSampler:
        """A sampler of saved weights, or of the base model."""
        self.calls.append(("sampler", model_path or base_model))
        weights = self.saved[model_path][0] if model_path else -1.0
        return ScriptedSampler(self, weights, str(model_path or base_model))


class ScriptedTrainer:
    """Doubles `tinker.TrainingClient`."""

    def __init__(self, service: ScriptedService, weights: float, moment: float, updates: int):
        self.service = service
        self.weights, self.moment, self.updates = weights, moment, updates
        self.gradient = 0.0
        self.id = f"run-{len(service.calls)}"

    async def get_info_async(self) -> object:
        """The model's name."""
        return SimpleNamespace(model_data=SimpleNamespace(model_name=self.service.model))

    async def forward_backward_async(
        self, data: list[tinker.Datum], loss: str, config: dict[str, float] | None = None
    ) -> Later:
        """The gradient is a number that depends on every token and advantage."""
        self.service.calls.append(("forward_backward", self.updates, data, loss, config))
        rows = []
        for datum in data:
            targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
            self.gradient += float(targets @ datum.loss_fn_inputs["advantages"].to_numpy())
            values = np.asarray(-(targets % 5) / 4 - abs(self.weights) / 1e6, dtype=np.float32)
            values = self.read(datum) if self.service.honest else values
            rows.append({"logprobs": tinker.TensorData.from_numpy(values)})
        metrics = dict(self.service.metrics)
        if self.service.honest:
            metrics["loss:sum"] = sum(map(partial(loss_of, loss, config), data, rows))
        answer = SimpleNamespace(loss_fn_outputs=self.service.outputs(rows), metrics=metrics)
        return Later(self.service, "forward_backward", answer)

    async def forward_async(self, data: list[tinker.Datum], _loss: str) -> Later:
        """Log-probs that tell weights apart, without a gradient."""
        self.service.calls.append(("forward", self.updates))
        rows = [{"logprobs": tinker.TensorData.from_numpy(self.read(d))} for d in data]
        return Later(self.service, "forward", SimpleNamespace(loss_fn_outputs=rows, metrics={}))

    def read(self, datum: tinker.Datum) -> np.ndarray:
        """The learner's log-probs of a datum's targets."""
        exact = read_by(self.weights, datum.loss_fn_inputs["target_tokens"].to_numpy())
        return self.service.noisy(exact, self.service.noise[1])

    async def load_state_async(self, path: str) -> Later:
        """Weights as they were saved, a fresh optimizer."""
        self.service.calls.append(("load", path))
        self.weights, self.moment = self.service.saved[path][0], 0.0
        return Later(self.service, "load", SimpleNamespace(path=path))

    async def forward_backward_custom_async(
        self, data: list[tinker.Datum], loss: Callable[..., tuple[torch.Tensor, dict[str, float]]]
    ) -> Later:
        """What the SDK does: a forward pass, the client's loss, its gradient as weights."""
        assert all(set(d.loss_fn_inputs) == {"target_tokens"} for d in data)
        leaves = [torch.tensor(self.read(d), requires_grad=True) for d in data]
        value, metrics = loss(data, leaves)
        value.backward()
        self.service.calls.append(("custom", self.updates, [leaf.grad.numpy() for leaf in leaves]))
        values = [leaf.detach().numpy() for leaf in leaves]
        rows = [{"logprobs": tinker.TensorData.from_numpy(row)} for row in values]
        self.gradient += float(sum(leaf.grad.sum() for leaf in leaves))
        surrogate = sum(float(leaf.grad.double() @ leaf.detach().double()) for leaf in leaves)
        reported = surrogate if self.service.honest else 0.25
        answer = SimpleNamespace(loss_fn_outputs=rows, metrics={"loss:sum": reported, **metrics})
        return Later(self.service, "custom", answer)

    async def optim_step_async(self, adam: tinker.AdamParams) -> Later:
        """One step of momentum."""
        self.service.calls.append(("optim_step", self.updates, adam))
        self.moment = 0.9 * self.moment + self.gradient
        self.weights += adam.learning_rate * self.moment
        self.gradient, self.updates = 0.0, self.updates + 1
        return Later(self.service, "optim_step", SimpleNamespace(metrics={"grad_norm": 1.0}))

    async def save_state_async(self, name: str, ttl_seconds: int) -> Later:
        """Weights, moment and updates, under a name."""
        assert ttl_seconds > 0
        return self._save("save_state", f"tinker://{self.id}/weights/{name}")

    async def save_weights_for_sampler_async(
        self, name: str, _ttl_seconds: int | None = None
    ) -> Later:
        """Weights for a sampler, under a name."""
        return self._save("save_sampler", f"tinker://{self.id}/sampler_weights/{name}")

    def save_weights_and_get_sampling_client(self) -> ScriptedSampler:
        """A sampler that has no name."""
        self.service.calls.append(("snapshot", self.updates))
        return ScriptedSampler(self.service, self.weights, f"after-{self.updates}")

    def _save(self, call: str, path: str) -> Later:
        self.service.calls.append((call, self.updates, path))
        self.service.saved[path] = (self.weights, self.moment, self.updates)
        return Later(self.service, call, SimpleNamespace(path=path))


class ScriptedSampler:
    """Doubles `tinker.SamplingClient`."""

    def __init__(self, service: ScriptedService, weights: float, model: str) -> None:
        self.service, self.weights, self.model = service, weights, model

    async def compute_logprobs_async(self, prompt: tinker.ModelInput) -> list[float | None]:
        """What these weights make of a text; its first token has no log-prob."""
        exact = read_by(self.weights, np.asarray(prompt.to_ints()[1:]))
        return [None, *self.service.noisy(exact, self.service.noise[0]).tolist()]

    async def sample_async(
        self,
        prompt: tinker.ModelInput,
        num_samples: int,
        sampling_params: tinker.SamplingParams,
    ) -> tinker.SampleResponse:
        """What the service's script replies."""
        service = self.service
        text = str(service.tokenizer.decode(prompt.to_ints()))
        request = Request(self.weights, text, num_samples, sampling_params, self.model)
        service.requests.append(request)
        service.calls.append(("sample", self.model))
        service.under_way += 1
        service.most_under_way = max(service.most_under_way, service.under_way)
        await asyncio.sleep(0)
        service.under_way -= 1
        sequences = [service.sequence(text) for text in service.reply(request)]
        if service.honest:
            sequences = [
                dataclasses.replace(each, logprobs_np=read_by(self.weights, each.tokens_np))
                for each in sequences
            ]
        if scale := service.noise[0]:
            sequences = [
                dataclasses.replace(
                    each, logprobs_np=np.minimum(service.noisy(each.logprobs_np, scale), 0)
                )
                for each in sequences
            ]
        return tinker.SampleResponse(sequences=sequences)


@dataclass
class Later:
    """Doubles `tinker.APIFuture`; awaiting it is a call of its own."""

    service: ScriptedService
    name: str
    answer: object

    async def result_async(self) -> object:
        """The answer."""
        self.service.calls.append((f"await {self.name}",))
        await asyncio.sleep(0)
        return self.answer


def arm_context(
    experiment: Experiment,
    name: str,
    task: Task,
    service: ScriptedService,
    adapter: ProblemAdapter,
    folder: Path,
    before_step: Callable[[], None] = lambda: None,
    after_step: Callable[[StepRecord], None] = lambda _record: None,
) -> ArmContext:
    """The context in which one arm trains, with its entry under `folder`."""
    return context.arm_context(
        experiment,
        experiment.arm(name),
        task,
        service,  # type: ignore[arg-type]  # a double
        adapter,
        RunStore(folder).entry(f"arm/{name}", {"arm": name}),
        before_step=before_step,
        after_step=after_step,
        tracer=step_tracer(experiment, adapter, replayed=None),
    )


def sequence(
    tokens: list[int], logprobs: list[float] | None, reason: str = "stop"
) -> tinker.SampledSequence:
    """A sampled sequence."""
    return tinker.SampledSequence(
        stop_reason=reason,  # type: ignore[arg-type]  # one of the SDK's literals
        tokens_np=np.asarray(tokens, dtype=np.int32),
        logprobs_np=None if logprobs is None else np.asarray(logprobs, dtype=np.float32),
    )


def read_by(weights: float, targets: np.ndarray) -> np.ndarray:
    """Log-probs of tokens that differ between any two weights by far more than rounding."""
    return np.asarray(-1.0 - (targets % 5) / 4 - np.tanh(weights / 100 + targets % 3), np.float32)


def loss_of(
    loss: str,
    config: dict[str, float] | None,
    datum: tinker.Datum,
    row: dict[str, tinker.TensorData],
) -> float:
    """The loss of one datum, a sum over its tokens."""
    sent = datum.loss_fn_inputs
    logprobs, behaviour, advantages = (
        np.asarray(x.to_numpy(), np.float64)
        for x in (row["logprobs"], sent["logprobs"], sent["advantages"])
    )
    return loss_and_gradient(loss, logprobs, behaviour, advantages, config).value


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
