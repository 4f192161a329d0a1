"""Evidence of a run in which everything is right, for tests to spoil."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rollouts import a_group, a_rollout, a_turn

from harness.audit.agreement import compare
from harness.audit.audit import AuditEvidence
from harness.audit.baseline_correctness import BaselineEvidence
from harness.audit.correctness import PathAgreement
from harness.audit.forecast import ArmForecast, ForecastEvidence, TauForecast
from harness.audit.loss_values import LossValue
from harness.audit.pins import PackageFiles, PinsEvidence
from harness.audit.reference_correctness import ComputationEvidence, ReferenceEvidence
from harness.audit.requests import ArmTrace, EvaluationTrace, StepTrace
from harness.audit.restoration import ClientState, RestorationEvidence
from harness.audit.resumed import ResumedArm
from harness.audit.server_loss import LossEvidence
from harness.audit.throw_away import PromptLengths, RoundTrip, ThrowAwayEvidence, ThrowAwaySteps
from harness.cards import Arm, Card, Experiment, Registration, load_experiment
from harness.cards.merge import merge_patch
from harness.evidence import Evidence
from harness.methods import loss_and_gradient, uniform_loo

CARD = Path(__file__).parents[2] / "experiments" / "cards" / "gs1_vs_grpo_gsm8k_2b.json"
ONE_MOVE = [0.01, -0.004, 0.007, 0.002]


def bent(experiment: Experiment, card: Any = None, registration: Any = None) -> Experiment:
    """The experiment with merge patches over its card and its registration."""
    parts = {
        "card": merge_patch(experiment.card.model_dump(mode="json"), card or {}),
        "registration": merge_patch(
            experiment.registration.model_dump(mode="json"), registration or {}
        ),
    }
    return replace(
        experiment,
        card=Card.model_validate(parts["card"], strict=False),
        registration=Registration.model_validate(parts["registration"], strict=False),
    )


@pytest.fixture(scope="session")
def experiment() -> Experiment:
    """The GS1 experiment at its embedded scale."""
    return load_experiment(CARD, "embedded")


@pytest.fixture(scope="session")
def full() -> Experiment:
    """The GS1 experiment as registered."""
    return load_experiment(CARD, "full")


@pytest.fixture(name="bend")
def _bend():
    return bent


@pytest.fixture
def sound(experiment: Experiment) -> dict[str, Evidence]:
    """Evidence by preflight of a run without a flaw; `feasibility` shares capability's."""
    steps = throw_away(experiment)
    return {
        "pins": pins(experiment),
        "baseline_correctness": BaselineEvidence(
            cookbook="0.5.7",
            datums=64,
            action_tokens=820,
            zero_variance_groups=2,
            unequal=[],
            path=path(),
        ),
        "reference_correctness": ReferenceEvidence(
            computations=[computation("grpo_gs8_seed0"), computation("gs1_seed0", tau=0.1)]
        ),
        "server_loss": server_loss(),
        "restoration": restoration(),
        "capability": steps,
        "feasibility": steps,
        "audit": audit(experiment),
        "forecast": forecast(),
    }


@pytest.fixture
def pilot(experiment: Experiment) -> dict[str, list[dict[str, Any]]]:
    """Step records of a pilot in which every gate passes."""
    return {
        arm.name: [
            step_record(step, arm.groups_per_batch, arm.group_size, experiment.card.base_model)
            for step in range(experiment.registration.training.pilot_steps)
        ]
        for arm in experiment.arms
    }


def step_record(step: int, groups: int, size: int, model: str) -> dict[str, Any]:
    """Half of the rollouts are right; a GS1 baseline lies 0.05 off the plain mean."""
    rewards = np.resize([1.0, 0.0], groups * size)
    advantages = uniform_loo(rewards) + np.resize([0.05, 0.05, -0.05, -0.05], groups * size)
    rows = [
        (
            rewards[i * size : (i + 1) * size].tolist(),
            advantages[i * size : (i + 1) * size].tolist(),
        )
        for i in range(groups)
    ]
    return {
        "step": step,
        "version": step,
        "sampled_version": step,
        "model": model,
        "groups": [
            a_group(
                step * groups + index,
                [
                    a_rollout(reward, a_turn([5, 2], [-0.5, -0.1]), advantage=advantage)
                    for reward, advantage in zip(rewards_G, advantages_G, strict=True)
                ],
            )
            for index, (rewards_G, advantages_G) in enumerate(rows)
        ],
        "kernel": None
        if size > 1
        else {"contributors_P": [30.0] * groups, "baselines_P": (rewards - advantages).tolist()},
        "metrics": {"reward": 0.5},
        "seconds": {"sample": 1.0, "train": 1.0, "snapshot": 0.1},
    }


def pins(experiment: Experiment) -> PinsEvidence:
    """Packages, references and weights as pinned."""
    pinned = experiment.registration.pins
    files = {"a/__init__.py": "1" * 64, "a/b.py": "2" * 64}
    return PinsEvidence(
        packages={
            package: PackageFiles(
                version=version,
                manifest_sha256=pinned.manifest_sha256[package],
                listed=dict(files),
                installed=dict(files),
            )
            for package, version in pinned.packages.items()
        },
        references=dict(pinned.references),
        base_weights_sha256=pinned.base_weights_sha256,
    )


def path() -> PathAgreement:
    """Two computations that differ by float32's rounding."""
    values = np.linspace(-1.0, 1.0, 50)
    same = compare(values * (1.0 + 1e-8), values)
    one = compare([12.0], [12.0])
    return PathAgreement(advantages=same, loss=one, logprob_gradient=same, parameter_gradient=same)


def computation(*arms: str, tau: float | None = None) -> ComputationEvidence:
    """Arms whose path agrees with another computation of it."""
    return ComputationEvidence(
        arms=list(arms), reference="r.py", prompts=64, tau=tau, patterns={"random": path()}
    )


def server_loss() -> LossEvidence:
    """A service that sums."""
    logprobs = [[-1.0, -0.5, -2.0], [-0.3, -1.2]]
    behaviour = [[-1.4, -0.2, -1.8], [-0.6, -1.0]]
    advantages = [[0.9, 0.4, 0.7], [-0.5, -0.2]]
    value = loss_and_gradient(
        "importance_sampling", *(np.concatenate(rows) for rows in (logprobs, behaviour, advantages))
    ).value
    ratios = {
        "one": 1.0,
        "two_copies": 2.0,
        "doubled_advantages": 2.0,
        "longer": 1.0,
        "halves": 1.0,
        "doubled_ratio": 2.0,
    }
    return LossEvidence(
        values=[
            LossValue(
                loss="importance_sampling",
                config={},
                logprobs_D_T=logprobs,
                behaviour_D_T=behaviour,
                advantages_D_T=advantages,
                reported=value,
            )
        ],
        moves_T={name: [ratio * x for x in ONE_MOVE] for name, ratio in ratios.items()},
        step_size=1e-4,
    )


def restoration() -> RestorationEvidence:
    """Two arms that start equal and that an equal step keeps equal."""
    sent = {
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "learning_rate": 3e-4,
        "weight_decay": 0.0,
        "grad_clip_norm": 0.0,
        "init_seed": 0.0,
        "lora_rank": 32.0,
    }
    arms = [
        ClientState(
            arm=name,
            sent=sent,
            reported_rank=32,
            before_T=[-1.0, -2.0],
            after_T=[-0.9, -2.2],
        )
        for name in ("grpo_gs8_seed0", "gs1_seed0")
    ]
    return RestorationEvidence(groups=[arms], exact=True)


def throw_away(experiment: Experiment) -> ThrowAwayEvidence:
    """Fast steps of both arms."""
    return ThrowAwayEvidence(
        arms=[
            ThrowAwaySteps(
                arm=arm.name,
                model=experiment.card.base_model,
                rollouts=64,
                stopped=60,
                parsed=40,
                tokens=3000,
                reward=0.4,
                seconds=[{"sample": 0.5, "train": 0.3, "snapshot": 0.1}] * 2,
            )
            for arm in experiment.arms
        ],
        round_trip=RoundTrip(prompts=128, broken=[]),
        lengths={
            "train": PromptLengths(prompts=2560, longest=90, item="train/00001"),
            "test": PromptLengths(prompts=1319, longest=91, item="test/00001"),
        },
        evaluated=128,
        evaluation_seconds=1.0,
        prompt_logprobs=True,
        traces=[sent_arm(experiment, arm) for arm in experiment.arms],
        evaluation_trace=EvaluationTrace(
            samples=[
                {"num_samples": 1.0, "max_tokens": 64.0, "temperature": 0.0, "top_p": 1.0}
                | {"top_k": -1.0, "seed": float(seed)}
                for seed in range(128)
            ],
            faults=[],
            multi_turn=False,
            samplers=[],
            rows_sha256="",
            replies=128,
        ),
        resumed=ResumedArm(
            arm="grpo_gs8_seed0",
            version=2,
            resumed_version=2,
            learner=([-1.0, -2.0], [-1.0, -2.0]),
            stepped=([-0.9, -2.2], [-0.9, -2.2]),
            samplers=[],
        ),
    )


def sent_arm(experiment: Experiment, arm: Arm) -> ArmTrace:
    """Two steps of an arm that asks for what is registered."""
    adam = experiment.registration.training.adam.model_dump()
    created = {"base_model": experiment.card.base_model, "rank": 32.0, "seed": 0.0}
    flags = {"train_mlp": 1.0, "train_attn": 1.0, "train_unembed": 1.0}
    asked = {"num_samples": float(arm.group_size), "max_tokens": 64.0, "temperature": 1.0}
    asked |= {"top_p": 1.0, "top_k": -1.0}
    return ArmTrace(
        arm=arm.name,
        multi_turn=False,
        loss_backend=arm.loss_backends[0],
        steps=[
            StepTrace(
                loaded=[],
                created=[] if step else [{**created, **flags}],
                probed=[],
                datums_sha256="",
                questions_sha256="",
                samples=[
                    {**asked, "seed": float(seed), "version": float(step)}
                    for seed in range(arm.groups_per_batch)
                ],
                losses=[{"loss": arm.loss}],
                optimizer=[{"learning_rate": arm.learning_rate, **adam}],
                faults=[],
                replies=arm.rollouts_per_step,
                updates=1,
            )
            for step in range(2)
        ],
        unregistered=[],
    )


def audit(experiment: Experiment) -> AuditEvidence:
    """Data as pinned, without overlap, every sampled label right."""
    data, card = experiment.registration.data, experiment.card
    return AuditEvidence(
        n_train=card.dataset.n_examples,
        n_test=card.eval.n_examples,
        sha256s={"train": data.train_sha256, "test": data.test_sha256},
        overlaps=[],
        ngram=13,
        shared_ngrams=3,
        too_short=0,
        sampled={
            split: [f"{split}/{index:05d}" for index in range(100)] for split in ("train", "test")
        },
        labels_checked=8792,
        label_errors=[("train/00356", "gold 66, but the solution concludes with 64")],
        label_notes=10,
    )


def forecast() -> ForecastEvidence:
    """A kernel that tells prompts apart at the registered tau."""
    return ForecastEvidence(
        arms=[
            ArmForecast(
                arm="gs1_seed0",
                prompts=192,
                steps=3,
                registered=TauForecast(tau=0.1, contributors_median=25.0, gaps=[0.05, 0.06]),
                grid=[
                    TauForecast(tau=0.05, contributors_median=12.0, gaps=[0.1, 0.1]),
                    TauForecast(tau=0.1, contributors_median=25.0, gaps=[0.05, 0.06]),
                    TauForecast(tau=0.2, contributors_median=55.0, gaps=[0.01, 0.01]),
                ],
            )
        ],
        reward_mean=0.5,
        repeats=2,
    )
