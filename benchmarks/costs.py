"""What intervals cost on a million items, and kernels on GSM8K-sized batches. Prints one table.

    python benchmarks/costs.py

Each cost is the time of the cheapest of five tries after a warm-up, as a multiple of one pass of
`numpy.sort` over a million doubles in the same process, and in milliseconds.
"""

import sys
import time
from collections.abc import Callable

import numpy as np

from harness.cards import Kernel
from harness.methods import fit_tfidf, gs1, kernel_loo_weights
from harness.statistics import (
    PairedCounts,
    betting_interval,
    clopper_pearson_pair,
    clustered_t,
    contrast,
    empirical_bernstein,
    hoeffding,
    paired_counts,
    predictable_empirical_bernstein,
    t_interval,
    tango,
)

MILLION = 1_000_000
TRIES = 5
WORDS = 46
VOCABULARY = 8000
SETTINGS = Kernel(
    text="question",
    fitted_on="train_questions",
    ngram_range=(1, 1),
    lowercase=True,
    sublinear_tf=False,
    stop_words="none",
    tau=0.1,
)


def main() -> None:
    """Measure everything and print the table."""
    rng = np.random.default_rng(7)
    unit = cheapest(lambda: np.sort(rng.random(MILLION)))
    rows = [("numpy.sort, 1e6 doubles", unit)]
    rows += [(f"{name}, 1e6 items", cheapest(work)) for name, work in intervals(rng).items()]
    rows += [(name, cheapest(work)) for name, work in kernels(rng).items()]
    lines = ["| what | ms | times a sort |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {seconds * 1e3:.1f} | {seconds / unit:.2f} |" for name, seconds in rows]
    sys.stdout.write("\n".join(lines) + "\n")


def intervals(rng: np.random.Generator) -> dict[str, Callable[[], object]]:
    """Every interval on a million paired 0/1 items."""
    treatment_N = (rng.random(MILLION) < 0.70).astype(np.float64)
    baseline_N = (rng.random(MILLION) < 0.69).astype(np.float64)
    z_N = treatment_N - baseline_N
    table = PairedCounts(500_000, 110_000, 100_000, 290_000)
    pair = {"t": treatment_N, "b": baseline_N}
    clusters_N = np.arange(MILLION) // 10
    return {
        "contrast": lambda: contrast({"t": 1, "b": -1}, (0, 1)).values(pair),
        "Hoeffding": lambda: hoeffding(z_N, 2, 0.05),
        "empirical Bernstein": lambda: empirical_bernstein(z_N, 2, 0.05),
        "paired counts": lambda: paired_counts(treatment_N, baseline_N),
        "Clopper-Pearson pair": lambda: clopper_pearson_pair(table, 0.05),
        "Tango": lambda: tango(table, 0.05),
        "t": lambda: t_interval(z_N, 0.05),
        "clustered t": lambda: clustered_t(z_N, clusters_N, 0.05),
        "betting": lambda: betting_interval(z_N, -1, 1, 0.05),
        "predictable Bernstein": lambda: predictable_empirical_bernstein(z_N, -1, 1, 0.05),
    }


def kernels(rng: np.random.Generator) -> dict[str, Callable[[], object]]:
    """TF-IDF on as many texts as GSM8K has, and the weights of one huge batch."""
    shares = 1.0 / np.arange(1, VOCABULARY + 1)
    words = rng.choice(VOCABULARY, p=shares / shares.sum(), size=(7473, WORDS))
    texts = [" ".join(f"word{word}" for word in row) for row in words.tolist()]
    fitted = fit_tfidf(texts, SETTINGS)
    rewards_P = rng.random(4096)
    return {
        "TF-IDF fit, 7,473 prompts": lambda: fit_tfidf(texts, SETTINGS),
        "GS1 weights and advantages, 4,096 prompts": lambda: gs1(
            rewards_P, kernel_loo_weights(fitted.similarity(texts[:4096]), SETTINGS)
        ),
    }


def cheapest(work: Callable[[], object]) -> float:
    """Seconds of the cheapest of a few tries."""
    work()
    costs = []
    for _ in range(TRIES):
        started = time.perf_counter()
        work()
        costs.append(time.perf_counter() - started)
    return min(costs)


if __name__ == "__main__":
    main()
