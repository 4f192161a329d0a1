import math

import gs1_float64 as reference


def test_two_prompts_have_each_other_as_baseline():
    """With two prompts the softmax over j != i has one term, whatever the texts and tau."""
    advantages = reference.advantages([1.0, 0.0], ["red cat", "blue dog"], ["red", "blue"], 0.1)

    assert [1.0, -1.0] == advantages


def test_hand_worked_batch():
    """Two equal prompts lean on each other by exp(1/tau) against exp(0) for a stranger."""
    questions = ["red cat", "red cat", "blue dog"]
    advantages = reference.advantages([1.0, 0.0, 1.0], questions, questions, 0.5)
    near, far = math.exp(2.0), 1.0

    assert math.isclose(1.0 - far / (near + far), advantages[0])
    assert math.isclose(0.0 - (near + far) / (near + far), advantages[1])
    assert math.isclose(1.0 - 0.5, advantages[2])


def test_gradient_is_the_derivative_of_the_loss():
    """A small step along one log-prob changes the loss by its gradient."""
    new, old, advantages = [[-1.0, -0.4], [-2.0]], [[-1.1, -0.5], [-1.5]], [0.7, -0.3]
    step = 1e-6
    moved = [[-1.0 + step, -0.4], [-2.0]]
    slope = (reference.loss(moved, old, advantages) - reference.loss(new, old, advantages)) / step

    assert math.isclose(reference.loss_gradient(new, old, advantages)[0][0], slope, rel_tol=1e-5)
