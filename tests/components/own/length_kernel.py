"""Prompts are alike if they are of about one length."""

import math

from pydantic import Field

from harness import Settings, kernel


class Width(Settings):
    """`words`, the difference of lengths at which a weight has fallen to 1/e."""

    words: float = Field(gt=0)


def one_by_one(_train, settings):
    """The same, pair by pair."""

    def weights(questions_P):
        import numpy as np

        lengths = [len(question.split()) for question in questions_P]
        rows = []
        for i, a in enumerate(lengths):
            row = [
                0.0 if i == j else math.exp(-abs(a - b) / settings.words)
                for j, b in enumerate(lengths)
            ]
            rows.append([w / math.fsum(row) for w in row])
        return np.array(rows)

    return weights


@kernel(settings=Width, reference=one_by_one)
def of_one_length(_train, settings):
    """w_ij is proportional to exp(-|len_i - len_j| / words)."""

    def weights(questions_P):
        import numpy as np

        lengths_P = np.array([len(question.split()) for question in questions_P], float)
        weights_P_P = np.exp(-np.abs(lengths_P[:, None] - lengths_P) / settings.words)
        np.fill_diagonal(weights_P_P, 0.0)
        return weights_P_P / weights_P_P.sum(axis=1, keepdims=True)

    return weights
