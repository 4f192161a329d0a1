"""Preflight: the service's loss is the token sum that the card assumes.

Two kinds of evidence. The value: `loss:sum` as returned, against the loss computed in float64 from
the log-probs that came with it. The aggregation: with Adam's eps far above every gradient, one
step moves the weights by (learning rate / eps) times the gradient, so log-probs move in proportion
to it. What the move does when a datum is doubled, lengthened or cut in two tells a sum from every
normalisation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.cards import Experiment
from harness.checks.acceptance import settle
from harness.checks.evidence import Evidence, Measured
from harness.checks.finding import Finding
from harness.errors import HarnessError
from harness.methods import loss_and_gradient

Outcome = Literal["holds", "fails", "unverifiable"]

# float32 sums of a few hundred terms, some services in bfloat16; wrong formulas are off by tens
# of per cent, because the behaviour log-probs sent are far from the learner's
VALUE_TOLERANCE = 1e-3
RATIO_TOLERANCE = 0.05
# float32 log-probs repeat to about 1e-6, so smaller moves can't carry 5 per cent
SMALLEST_MOVE = 1e-4
SMALLEST_COSINE = 0.99

# how far each probe moves, relative to one datum, under a sum over tokens and datums
EXPECTED = {
    "two_copies": 2.0,
    "doubled_advantages": 2.0,
    "longer": 1.0,
    "halves": 1.0,
    "doubled_ratio": 2.0,
}
# the same under other rules; `longer` is twice as long, all of `one` carries advantage
KNOWN = {
    "mean over the datums of a batch": (1.0, 2.0, 1.0, 0.5, 2.0),
    "mean over the tokens of a batch": (1.0, 2.0, 0.5, 0.5, 2.0),
    "mean over the tokens of a sequence, summed over datums": (2.0, 2.0, 0.5, 1.0, 2.0),
    "mean over tokens, then over datums": (1.0, 2.0, 0.5, 0.5, 2.0),
    "mean over the tokens that carry advantage, in each sequence": (2.0, 2.0, 1.0, 2.0, 2.0),
    "mean over the tokens that carry advantage, in the batch": (1.0, 2.0, 1.0, 1.0, 2.0),
    "division by the sum of the advantages": (1.0, 1.0, 1.0, 1.0, 2.0),
    "a sum, with the ratio the wrong way round": (2.0, 2.0, 1.0, 1.0, 0.5),
    "a sum, without the ratio": (2.0, 2.0, 1.0, 1.0, 1.0),
}


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


class LossEvidence(Evidence):
    """Loss values, and the move of one datum's log-probs (T) after one step of each probe.

    `moves_T` has `one` and the keys of `EXPECTED`. `step_size` is learning rate / eps.
    """

    values: list[LossValue]
    moves_T: dict[str, list[Measured]]
    step_size: float


def check(evidence: LossEvidence, experiment: Experiment) -> Finding:
    """Whether the service sums: holds, fails, or can't be verified."""
    ratios = move_ratios(evidence.moves_T)
    value_failures, value_unknown = value_lines(evidence.values, losses_of(experiment))
    move_failures, move_unknown = move_lines(evidence.moves_T, ratios)
    settled = settle(experiment, "server_loss", "unverifiable", [*value_unknown, *move_unknown])
    failures = [*value_failures, *move_failures]
    outcome = outcome_of(failures, [*value_unknown, *move_unknown])
    notes = [f"outcome: {outcome}", *settled.notes]
    if ratios:
        shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
        notes.append(f"move of log-probs relative to one datum: {shown}")
    metrics = {f"move_ratio.{name}": ratio for name, ratio in ratios.items()}
    metrics["largest_move"] = _largest(evidence.moves_T.get("one", []))
    metrics["step_size"] = evidence.step_size
    for value in evidence.values:
        if value.reported is not None:
            metrics[f"{value.loss}.reported"] = value.reported
    return Finding("server_loss", (*failures, *settled.problems), tuple(notes), metrics)


def losses_of(experiment: Experiment) -> tuple[str, ...]:
    """The losses that the arms train with, each once."""
    return tuple(dict.fromkeys(arm.loss for arm in experiment.arms))


def outcome_of(failures: Sequence[str], unknown: Sequence[str]) -> Outcome:
    """`fails` outweighs `unverifiable`, which outweighs `holds`."""
    if failures:
        return "fails"
    return "unverifiable" if unknown else "holds"


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


def move_lines(
    moves_T: Mapping[str, Sequence[float]], ratios: Mapping[str, float]
) -> tuple[list[str], list[str]]:
    """Lines on how log-probs move: (failures, what can't be verified)."""
    missing = [name for name in ("one", *EXPECTED) if not moves_T.get(name)]
    if missing:
        return [], [f"aggregation: no move measured for {', '.join(missing)}; probe them"]
    move = _largest(moves_T["one"])
    if not move >= SMALLEST_MOVE:
        return [], [
            f"aggregation: one step moves log-probs by {move:.3g}, below {SMALLEST_MOVE:g}, too "
            "little to measure; probe with a larger step"
        ]
    unlike = {name: _cosine(moves_T[name], moves_T["one"]) for name in EXPECTED}
    name, cosine = min(unlike.items(), key=lambda item: -2.0 if math.isnan(item[1]) else item[1])
    if not cosine >= SMALLEST_COSINE:
        return [], [
            f"aggregation: {name} moves log-probs in another direction than one datum (cosine "
            f"{cosine:.3f}, bound {SMALLEST_COSINE:g}): noise, or clients that start unequal; "
            "look at restoration"
        ]
    failures = [
        f"aggregation: {name} moves log-probs {ratios[name]:.3f} times as far as one datum, "
        f"{expected:g} expected within {RATIO_TOLERANCE:.0%}{_known(ratios)}; "
        "use a service that sums over tokens and datums"
        for name, expected in EXPECTED.items()
        if not abs(ratios[name] - expected) <= RATIO_TOLERANCE * expected
    ]
    return failures, []


def move_ratios(moves_T: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Each probe's move, projected on the move of one datum; empty if that did not move."""
    one_T = _vector(moves_T.get("one", []))
    norm = float(one_T @ one_T)
    if not norm > 0.0:
        return {}
    return {
        name: float(_vector(moves_T[name]) @ one_T) / norm
        for name in EXPECTED
        if len(moves_T.get(name, ())) == one_T.size
    }


def _value_problem(value: LossValue, reported: float) -> list[str]:
    logprobs, behaviour, advantages = (
        np.concatenate([_vector(row) for row in rows_D_T])
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


def _known(ratios: Mapping[str, float]) -> str:
    """Which other rule the measured ratios fit, as an addition to a sentence."""
    for rule, expected in KNOWN.items():
        fits = zip(EXPECTED, expected, strict=True)
        if all(abs(ratios[name] - value) <= RATIO_TOLERANCE * value for name, value in fits):
            return f" (this fits {rule})"
    return ""


def _vector(values: Sequence[float]) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)


def _largest(values: Sequence[float]) -> float:
    return float(np.abs(_vector(values)).max()) if len(values) else 0.0


def _cosine(a_T: Sequence[float], b_T: Sequence[float]) -> float:
    if len(a_T) != len(b_T):
        return math.nan
    a, b = _vector(a_T), _vector(b_T)
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    # a probe that does not move at all has no direction that contradicts
    return float(a @ b) / norms if norms != 0.0 else 1.0
