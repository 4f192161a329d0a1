"""Evidence for `forecast`: the kernel on the very prompts of the pilot, rewards simulated."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.audit.forecast import ArmForecast, ForecastEvidence, TauForecast
from harness.audit.metrics.kernel_arms import contributors_median, mean_abs_gap
from harness.cards import Arm, Experiment, Kernel
from harness.cards.registration import Forecast
from harness.methods import (
    PromptKernel,
    baselines,
    effective_contributors,
    fit_tfidf,
    kernel_loo_weights,
)
from harness.tasks.task import Task
from harness.training.streams import data_order, stream_seed

# other temperatures: an eighth of an octave apart, down to 1/16 and up to 16 times the card's
OCTAVES = 4
PER_OCTAVE = 8


def collect(experiment: Experiment, task: Task) -> ForecastEvidence:
    """Forecast every arm with a similarity-weighted baseline."""
    spec = experiment.registration.forecast
    questions = [problem.question for problem in task.train]
    arms = [arm for arm in experiment.arms if arm.tfidf is not None]
    return ForecastEvidence(
        arms=[forecast_arm(arm, experiment, questions) for arm in arms],
        reward_mean=spec.reward_mean,
        repeats=spec.repeats,
    )


def forecast_arm(arm: Arm, experiment: Experiment, questions: Sequence[str]) -> ArmForecast:
    """One arm's two model-free gates, at its own tau and, if it has one, on a grid of others."""
    kernel, training = arm.tfidf, experiment.registration.training
    assert kernel is not None  # only such arms are forecast
    similarities = pilot_similarities(
        fit_tfidf(questions, kernel), arm, questions, training.data_order_seed, training.pilot_steps
    )
    prompts = sum(len(similarity_P_P) for similarity_P_P in similarities)
    rewards = simulated_rewards(experiment.registration.forecast, arm.name, prompts)
    steps = range(-OCTAVES * PER_OCTAVE, OCTAVES * PER_OCTAVE + 1)
    taus = [] if kernel.tau is None else [kernel.tau * 2.0 ** (s / PER_OCTAVE) for s in steps]
    grid = [kernel.model_copy(update={"tau": tau}) for tau in taus]
    return ArmForecast(
        arm=arm.name,
        prompts=prompts,
        steps=len(similarities),
        registered=with_kernel(kernel, similarities, rewards),
        grid=[with_kernel(other, similarities, rewards) for other in grid],
    )


def pilot_similarities(
    kernel: PromptKernel, arm: Arm, questions: Sequence[str], order_seed: int, steps: int
) -> list[NDArray[np.float64]]:
    """Similarities (P, P) of the prompts of each pilot step, in the order that training draws."""
    order, n = data_order(order_seed, len(questions)), arm.groups_per_batch
    batches = [order[step * n : (step + 1) * n] for step in range(steps)]
    return [kernel.similarity([questions[index] for index in batch]) for batch in batches]


def simulated_rewards(spec: Forecast, arm: str, prompts: int) -> NDArray[np.float64]:
    """Rewards (repeats, prompts) of 0 or 1, one rollout a prompt, of a spread of difficulty."""
    generator = np.random.Generator(np.random.PCG64(stream_seed(spec.seed, "forecast", arm)))
    success = generator.beta(
        spec.reward_mean * spec.reward_concentration,
        (1.0 - spec.reward_mean) * spec.reward_concentration,
        size=(spec.repeats, prompts),
    )
    return (generator.random(success.shape) < success).astype(np.float64)


def with_kernel(
    kernel: Kernel, similarities: Sequence[NDArray[np.float64]], rewards_R_N: NDArray[np.float64]
) -> TauForecast:
    """Both gates with one kernel, pooled over steps as the gates pool them."""
    weights = [kernel_loo_weights(similarity_P_P, kernel) for similarity_P_P in similarities]
    ends = np.cumsum([len(weights_P_P) for weights_P_P in weights])[:-1]
    gaps = []
    for rewards_N in rewards_R_N:
        rewards = np.split(rewards_N, ends)
        advantages = [
            r_P - baselines(r_P, w_P_P) for r_P, w_P_P in zip(rewards, weights, strict=True)
        ]
        gaps.append(mean_abs_gap([r.tolist() for r in rewards], [a.tolist() for a in advantages]))
    return TauForecast(
        tau=kernel.tau,
        contributors_median=contributors_median(
            [effective_contributors(w).tolist() for w in weights]
        ),
        gaps=gaps,
    )
