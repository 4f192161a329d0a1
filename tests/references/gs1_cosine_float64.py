"""An independent reference for GS1 with cosine weights in plain Python floats (float64).

The card: "the advantage is r_i - b_i, where b_i = sum_{j!=i} w_ij r_j / sum_{j!=i} w_ij. The
weights are w_ij = max(0, cos(e_i, e_j)), where e is a TF-IDF vector of the prompt text. If all
weights are zero, the code falls back to the uniform leave-one-out batch mean."

TF-IDF is the textbook one with smoothed document frequencies, as the registration settles it:
a word is two or more letters, digits or underscores, in lower case; tf is the count in the text;
idf(w) = ln((1 + n) / (1 + df(w))) + 1 over the n train questions; vectors have length one.

The loss is the importance-sampling policy gradient, summed over tokens and rollouts:
L = -sum_i sum_t exp(logprob_it - behaviour_it) * A_i, so dL/dlogprob_it is its own summand.

Shares no code with the harness, and uses neither numpy nor scikit-learn: slow and plain on purpose.
A registration pins this file by its sha256, so it stands alone.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

WORD = re.compile(r"\w\w+")


def advantages(
    rewards: Sequence[float], train_questions: Sequence[str], questions: Sequence[str]
) -> list[float]:
    """GS1 advantages of one batch: rewards (P,), questions (P,) -> (P,)."""
    documents = Counter(word for text in train_questions for word in set(words(text)))
    n = len(train_questions)
    idf = {word: math.log((1 + n) / (1 + df)) + 1 for word, df in documents.items()}
    vectors = [unit_vector(question, idf) for question in questions]
    result = []
    for i, reward in enumerate(rewards):
        others = [j for j in range(len(rewards)) if j != i]
        masses = [max(0.0, cosine(vectors[i], vectors[j])) for j in others]
        if not any(masses):
            masses = [1.0] * len(others)
        terms = [mass * rewards[j] for mass, j in zip(masses, others, strict=True)]
        result.append(reward - math.fsum(terms) / math.fsum(masses))
    return result


def loss(
    logprobs: Sequence[Sequence[float]],
    behaviour: Sequence[Sequence[float]],
    advantages: Sequence[float],
) -> float:
    """The loss of a batch; per-token log-probs of the action tokens, one advantage a rollout."""
    return math.fsum(term for row in loss_gradient(logprobs, behaviour, advantages) for term in row)


def loss_gradient(
    logprobs: Sequence[Sequence[float]],
    behaviour: Sequence[Sequence[float]],
    advantages: Sequence[float],
) -> list[list[float]]:
    """dL/dlogprob for every token, in the shape of `logprobs`."""
    return [
        [-math.exp(new - old) * advantage for new, old in zip(new_T, old_T, strict=True)]
        for new_T, old_T, advantage in zip(logprobs, behaviour, advantages, strict=True)
    ]


def unit_vector(text: str, idf: dict[str, float]) -> dict[str, float]:
    """The TF-IDF vector of a text, of length one; words without idf are left out."""
    weights = {word: tf * idf[word] for word, tf in Counter(words(text)).items() if word in idf}
    length = math.sqrt(math.fsum(weight * weight for weight in weights.values()))
    return {word: weight / length for word, weight in weights.items()} if length else {}


def cosine(a: dict[str, float], b: dict[str, float]) -> float:
    """The cosine of two unit vectors."""
    return math.fsum(weight * b[word] for word, weight in a.items() if word in b)


def words(text: str) -> list[str]:
    """The words of a text."""
    return WORD.findall(text.lower())
