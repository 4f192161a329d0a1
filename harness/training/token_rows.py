"""A trajectory as one token sequence, with everything aligned: mask, log-probs, turns, advantage.

The arrays of a `TokenRow` are in the order of the cookbook's datum: shifted by
one, entry t belongs to the target of position t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.errors import RunError

if TYPE_CHECKING:
    from tinker_cookbook.rl.types import Trajectory

NO_TURN = -1


@dataclass(frozen=True)
class TokenRow:
    """One trajectory, T targets long.

    `mask_T` is True where the target was sampled; there `turn_T` is the index of its transition
    and `logprobs_T` the sampler's log-prob, elsewhere they are -1 and 0.
    """

    inputs_T: NDArray[np.int64]
    targets_T: NDArray[np.int64]
    mask_T: NDArray[np.bool_]
    logprobs_T: NDArray[np.float64]
    turn_T: NDArray[np.int64]


def token_row(trajectory: Trajectory) -> TokenRow:
    """Lay the transitions of a token-in, token-out trajectory out in one row.

    An episode that ended before a token was sampled has an empty row, as it has no datum.

    Raises:
        RunError: a prompt does not extend the prompt and reply before it, or an action does not
            have one log-prob a token.
    """
    tokens: list[int] = []
    turns: list[int] = []
    logprobs: list[float] = []
    for turn, transition in enumerate(trajectory.transitions):
        prompt, action = transition.ob.to_ints(), transition.ac
        if prompt[: len(tokens)] != tokens or len(action.tokens) != len(action.logprobs):
            raise RunError(
                f"turn {turn}: the prompt does not extend the turn before, or {len(action.tokens)} "
                f"tokens have {len(action.logprobs)} log-probs; sample token-in, token-out"
            )
        added = len(prompt) - len(tokens)
        tokens = [*prompt, *action.tokens]
        turns += [NO_TURN] * added + [turn] * len(action.tokens)
        logprobs += [0.0] * added + list(action.logprobs)
    whole, turn_T = np.asarray(tokens, dtype=np.int64), np.asarray(turns, dtype=np.int64)[1:]
    return TokenRow(
        inputs_T=whole[:-1],
        targets_T=whole[1:],
        mask_T=turn_T != NO_TURN,
        logprobs_T=np.asarray(logprobs, dtype=np.float64)[1:],
        turn_T=turn_T,
    )
