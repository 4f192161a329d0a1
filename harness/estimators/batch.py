"""Estimators whose peers are the other prompts of the batch, one rollout each."""

import math

from harness.components import Estimate, Settings, StepRewards, estimator


def weighted_peers(step: StepRewards, _: Settings) -> Estimate:
    """A_i = r_i - sum_{j != i} w_ij r_j, by the kernel's leave-one-out weights."""
    from harness.methods import advantages

    rewards_P = [reward for (reward,) in step.rewards_P_G]
    assert step.weights_P_P is not None
    return Estimate(
        advantages_P_G=[[a] for a in advantages.gs1(rewards_P, step.weights_P_P)],
        baselines_P=advantages.baselines(rewards_P, step.weights_P_P).tolist(),
    )


def _peers_one_by_one(step: StepRewards, _: Settings) -> Estimate:
    rewards_P = [reward for (reward,) in step.rewards_P_G]
    assert step.weights_P_P is not None
    baselines_P = [
        math.fsum(w * r for w, r in zip(row.tolist(), rewards_P, strict=True))
        for row in step.weights_P_P
    ]
    advantages_P = [r - b for r, b in zip(rewards_P, baselines_P, strict=True)]
    return Estimate([[a] for a in advantages_P], baselines_P=baselines_P)


def _mean_of_others(step: StepRewards, _: Settings) -> Estimate:
    rewards_P = [reward for (reward,) in step.rewards_P_G]
    total, others = math.fsum(rewards_P), len(rewards_P) - 1
    baselines_P = [(total - reward) / others for reward in rewards_P]
    advantages_P = [r - b for r, b in zip(rewards_P, baselines_P, strict=True)]
    return Estimate([[a] for a in advantages_P], baselines_P=baselines_P)


DECLARED = (
    estimator(
        "gs1",
        reference=_peers_one_by_one,
        kernel="registered",
        group_size=(1, 1),
        min_prompts=2,
        leave_one_out=True,
        pinned=True,
    )(weighted_peers),
    estimator(
        "uniform_loo",
        reference=_mean_of_others,
        kernel="uniform",
        group_size=(1, 1),
        min_prompts=2,
        leave_one_out=True,
    )(weighted_peers),
)
