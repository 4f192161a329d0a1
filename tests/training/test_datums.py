import numpy as np
import pytest
import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition

from harness.training.datums import step_data

STOP = 99


def group(*responses):
    """A group whose prompt is [10, 11, 12] in two chunks; responses are (tokens, log-probs)."""
    prompt = tinker.ModelInput(
        chunks=[tinker.EncodedTextChunk(tokens=[10]), tinker.EncodedTextChunk(tokens=[11, 12])]
    )
    empty = tinker.ModelInput.from_ints([])
    turns = [
        Transition(prompt, TokensWithLogprobs(tokens, logprobs), 0.0, True)
        for tokens, logprobs in responses
    ]
    return TrajectoryGroup(
        [Trajectory([turn], empty) for turn in turns], [0.0] * len(turns), [{} for _ in turns]
    )


def inputs(datum):
    """The loss inputs of a datum as lists."""
    return {name: tensor.tolist() for name, tensor in datum.loss_fn_inputs.items()}


def test_a_datum_is_shifted_by_one():
    """Input is all but the last token, targets all but the first; figures belong to targets."""
    (datum,) = step_data([group(([20, 21, STOP], [-0.5, -0.25, -1.0]))], [np.array([0.75])])

    assert datum.model_input.to_ints() == [10, 11, 12, 20, 21]
    assert inputs(datum) == {
        "target_tokens": [11, 12, 20, 21, STOP],
        "logprobs": [0.0, 0.0, -0.5, -0.25, -1.0],
        "advantages": [0.0, 0.0, 0.75, 0.75, 0.75],
    }


def test_the_stop_token_carries_the_advantage():
    """The stop token is an action like any other, also when it is the only one."""
    (datum,) = step_data([group(([STOP], [-2.0]))], [np.array([-0.5])])

    assert inputs(datum)["target_tokens"][-1] == STOP
    assert inputs(datum)["advantages"] == [0.0, 0.0, -0.5]


def test_the_mask_is_not_sent():
    """A Tinker service refuses the cookbook's `mask`."""
    (datum,) = step_data([group(([20], [-1.0]))], [np.array([1.0])])

    assert set(datum.loss_fn_inputs) == {"target_tokens", "logprobs", "advantages"}


def test_one_datum_a_rollout_group_major():
    """Prompt after prompt, rollouts in sampling order, zero-variance groups included."""
    groups = [group(([20], [-1.0]), ([21], [-1.0])), group(([22], [-1.0]), ([23], [-1.0]))]

    data = step_data(groups, [np.array([0.0, 0.0]), np.array([0.5, -0.5])])

    assert [inputs(datum)["target_tokens"][-1] for datum in data] == [20, 21, 22, 23]
    assert [inputs(datum)["advantages"][-1] for datum in data] == [0.0, 0.0, 0.5, -0.5]


def test_advantages_of_another_shape_are_refused():
    """A missing advantage is an error, not a shorter batch."""
    with pytest.raises(ValueError, match="shorter"):
        step_data([group(([20], [-1.0]), ([21], [-1.0]))], [np.array([0.5])])
