"""What both correctness collectors share: the harness's datums against another's figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.audit.agreement import compare
from harness.audit.correctness import PathAgreement
from harness.cards import Arm
from harness.methods import loss_and_gradient

if TYPE_CHECKING:
    import tinker

    from harness.audit.probes.small_model import SmallModel

SEED = 0


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors as small as the model's take several times longer where threads share them."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def path_agreement(
    arm: Arm,
    ours: Sequence[tinker.Datum],
    expected_advantages: NDArray[np.float64],
    expected_loss: float,
    expected_gradient: NDArray[np.float64],
) -> PathAgreement:
    """The harness's datums, through its own loss, against another's figures."""
    from harness.audit.probes.small_model import datum_logprobs, flat, parameter_gradient

    model = small_model()
    logprobs = datum_logprobs(model, ours)
    loss = loss_and_gradient(
        arm.loss,
        logprobs.detach().numpy(),
        flat(ours, "logprobs"),
        flat(ours, "advantages"),
        {**arm.loss_config},
    )
    return PathAgreement(
        advantages=compare(flat(ours, "advantages"), expected_advantages),
        loss=compare([loss.value], [expected_loss]),
        logprob_gradient=compare(loss.gradient_T, expected_gradient),
        parameter_gradient=compare(
            parameter_gradient(model, logprobs, loss.gradient_T),
            parameter_gradient(model, logprobs, expected_gradient),
        ),
    )


def small_model() -> SmallModel:
    """The model that both sides of a comparison use."""
    from harness.audit.probes.fixed_rollouts import VOCABULARY
    from harness.audit.probes.small_model import SmallModel

    return SmallModel(VOCABULARY, SEED)
