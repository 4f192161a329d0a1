"""REINFORCE with a running mean of rewards as its baseline, drawn towards those of near prompts."""

from pydantic import Field

from harness import Estimate, Settings, StepRewards, estimator


class Decay(Settings):
    """`decay` of the running mean a step, and the `near` part of the baseline, both in [0, 1]."""

    decay: float = Field(ge=0, le=1)
    near: float = Field(ge=0, le=1)


def one_by_one(step: StepRewards, settings: Decay) -> Estimate:
    """The same, rollout by rollout."""
    rewards_P = [rewards_G[0] for rewards_G in step.rewards_P_G]
    mean = 0.0 if step.state is None else float(step.state)
    baselines_P = []
    for weights_P in step.weights_P_P:
        near = sum(w * r for w, r in zip(weights_P.tolist(), rewards_P, strict=True))
        baselines_P.append(settings.near * near + (1.0 - settings.near) * mean)
    advantages = [[r - b] for r, b in zip(rewards_P, baselines_P, strict=True)]
    mean = settings.decay * mean + (1.0 - settings.decay) * sum(rewards_P) / len(rewards_P)
    return Estimate(advantages, state=mean, baselines_P=baselines_P)


@estimator(
    settings=Decay, reference=one_by_one, kernel="registered", group_size=(1, 1), leave_one_out=True
)
def running_mean(step: StepRewards, settings: Decay) -> Estimate:
    """b_i = near * sum_j w_ij r_j + (1 - near) * m, where m is the mean of the steps before."""
    import numpy as np

    rewards_P = np.asarray([rewards_G[0] for rewards_G in step.rewards_P_G])
    mean = step.state or 0.0
    baselines_P = settings.near * step.weights_P_P @ rewards_P + (1.0 - settings.near) * mean
    state = settings.decay * mean + (1.0 - settings.decay) * float(rewards_P.mean())
    return Estimate((rewards_P - baselines_P)[:, None], state, baselines_P.tolist())
