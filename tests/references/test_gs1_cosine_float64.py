import math

import gs1_cosine_float64 as reference


def test_hand_worked_batch():
    """Of three prompts the two that share a word lean on each other, the stranger on both."""
    corpus = ["red cat", "red dog", "blue bird"]
    advantages = reference.advantages([1.0, 0.0, 1.0], corpus, corpus)

    assert advantages[0] == 1.0 - 0.0
    assert advantages[1] == 0.0 - 1.0
    assert math.isclose(advantages[2], 1.0 - 0.5)


def test_weights_are_the_cosines_themselves():
    """A prompt between two others takes their rewards in proportion to its cosine with each."""
    corpus = ["red red cat", "red cat cat", "cat"]
    idf = dict.fromkeys(("red", "cat"), 1.0)
    vectors = [reference.unit_vector(text, idf) for text in corpus]
    near, far = (reference.cosine(vectors[2], vectors[i]) for i in (1, 0))

    assert math.isclose(near, 2 / math.sqrt(5))
    assert math.isclose(far, 1 / math.sqrt(5))


def test_gradient_is_the_derivative_of_the_loss():
    """A small step along one log-prob changes the loss by its gradient."""
    new, old, advantages = [[-1.0, -0.4], [-2.0]], [[-1.1, -0.5], [-1.5]], [0.7, -0.3]
    step = 1e-6
    moved = [[-1.0 + step, -0.4], [-2.0]]
    slope = (reference.loss(moved, old, advantages) - reference.loss(new, old, advantages)) / step

    assert math.isclose(reference.loss_gradient(new, old, advantages)[0][0], slope, rel_tol=1e-5)
