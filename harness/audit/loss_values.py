"""Losses that a service reports, against the loss that its own log-probs give in float64."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.errors import HarnessError
from harness.evidence import Evidence, Measured
from harness.methods import loss_and_gradient

# float32 sums of a few hundred terms, some services in bfloat16; wrong formulas are off by tens
# of per cent, because the behaviour log-probs sent are far from the learner's
VALUE_TOLERANCE = 1e-3


class LossValue(Evidence):
    """One forward_backward: what was sent, the log-probs that came back, and `loss:sum`.

    Rows are datums, over their target positions. `reported` is None if the service sends no
    `loss:sum`.
    """

    loss: str
    config: dict[str, float]
    logprobs_D_T: list[list[Measured]]
    behaviour_D_T: list[list[Measured]]
    advantages_D_T: list[list[Measured]]
    reported: Measured | None


def value_lines(values: Sequence[LossValue], losses: Sequence[str]) -> tuple[list[str], list[str]]:
    """Lines on reported losses: (failures, what can't be verified)."""
    failures, unknown = [], []
    for loss in losses:
        found = [value for value in values if value.loss == loss]
        if not found:
            unknown.append(f"loss {loss}: no forward_backward was made with it; probe it")
        for value in found:
            if value.reported is None:
                unknown.append(
                    f"loss {loss}: the service reports no loss:sum, so its value can't be compared"
                )
            else:
                failures.extend(_value_problem(value, value.reported))
    return failures, list(dict.fromkeys(unknown))


def _value_problem(value: LossValue, reported: float) -> list[str]:
    logprobs, behaviour, advantages = (
        np.concatenate([np.asarray(row, dtype=np.float64) for row in rows_D_T])
        for rows_D_T in (value.logprobs_D_T, value.behaviour_D_T, value.advantages_D_T)
    )
    try:
        expected = loss_and_gradient(value.loss, logprobs, behaviour, advantages, value.config)
        scale = float(
            np.abs(
                loss_and_gradient("importance_sampling", logprobs, behaviour, advantages).gradient_T
            ).sum()
        )
    except HarnessError as error:
        return [f"loss {value.loss}: {error}"]
    bound = VALUE_TOLERANCE * scale
    if abs(reported - expected.value) <= bound:
        return []
    lengths = [len(row) for row in value.logprobs_D_T]
    likeness = [
        name
        for name, alternative in _alternatives(logprobs, behaviour, advantages, lengths).items()
        if abs(reported - alternative(expected.value)) <= bound
    ]
    hint = f" (it equals {likeness[0]})" if likeness else ""
    return [
        f"loss {value.loss}: the service reports {reported:.6g}, its own log-probs give "
        f"{expected.value:.6g}, bound {bound:.2g}{hint}; use a service with the registered loss"
    ]


def _alternatives(
    logprobs_T: NDArray[np.float64],
    behaviour_T: NDArray[np.float64],
    advantages_T: NDArray[np.float64],
    lengths_D: Sequence[int],
) -> dict[str, Callable[[float], float]]:
    """Loss values that wrong formulas give, by what is wrong."""
    log_ratio_T = logprobs_T - behaviour_T
    terms_T = -np.exp(log_ratio_T) * advantages_T
    starts_D = np.cumsum([0, *lengths_D[:-1]])
    by_sequence = float((np.add.reduceat(terms_T, starts_D) / np.asarray(lengths_D)).sum())
    carried = max(1, int(np.count_nonzero(advantages_T)))
    return {
        "the loss with the ratio the wrong way round": lambda _: float(
            -(np.exp(-log_ratio_T) * advantages_T).sum()
        ),
        "the loss without the ratio": lambda _: float(-advantages_T.sum()),
        "the log-prob loss -sum(p A)": lambda _: float(-(logprobs_T * advantages_T).sum()),
        "the loss without the clip": lambda _: float(terms_T.sum()),
        "the negated loss": lambda expected: -expected,
        "the mean over tokens": lambda expected: expected / max(1, logprobs_T.size),
        "the mean over tokens that carry advantage": lambda expected: expected / carried,
        "the mean over datums": lambda expected: expected / len(lengths_D),
        "the sum of the means of the sequences": lambda _: by_sequence,
        "the mean of the means of the sequences": lambda _: by_sequence / len(lengths_D),
    }
