"""What an arm may vary, as pure functions over arrays: no I/O, and neither torch nor tinker."""

from harness.methods.advantages import (
    baselines,
    group_mean,
    group_std,
    gs1,
    maxrl,
    per_group,
    rloo,
    tail_quantile,
    tailrl,
    uniform_loo,
)
from harness.methods.kernels import (
    PromptKernel,
    cosine_loo_weights,
    effective_contributors,
    fit_tfidf,
    kernel_loo_weights,
    softmax_loo_weights,
    uniform_loo_weights,
)
from harness.methods.losses import Loss, clip_active, importance_ratio, loss_and_gradient

__all__ = [
    "Loss",
    "PromptKernel",
    "baselines",
    "clip_active",
    "cosine_loo_weights",
    "effective_contributors",
    "fit_tfidf",
    "group_mean",
    "group_std",
    "gs1",
    "importance_ratio",
    "kernel_loo_weights",
    "loss_and_gradient",
    "maxrl",
    "per_group",
    "rloo",
    "softmax_loo_weights",
    "tail_quantile",
    "tailrl",
    "uniform_loo",
    "uniform_loo_weights",
]
