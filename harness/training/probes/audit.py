"""Evidence for `audit`: overlaps and labels of the whole data set."""

from collections.abc import Sequence

import numpy as np

from harness.cards import Experiment
from harness.checks.audit import AuditEvidence
from harness.tasks.audit import label_audit, ngram_overlap, overlap
from harness.tasks.gsm8k import Problem, Task
from harness.training.streams import stream_seed

# where the card names no sample size
LEAST_SAMPLE = 100


def collect(experiment: Experiment, task: Task) -> AuditEvidence:
    """Read every label and compare every question; draw the sample that the card bounds."""
    audit = experiment.card.generation_audit
    size = max(LEAST_SAMPLE, 0 if audit is None else audit.min_sample_size)
    seed = experiment.registration.training.data_order_seed
    splits = {"train": task.train, "test": task.test}
    labels = label_audit([*task.train, *task.test], None, seed=0)
    ngrams = ngram_overlap(task.train, task.test)
    return AuditEvidence(
        n_train=len(task.train),
        n_test=len(task.test),
        sha256s=dict(task.sha256s),
        overlaps=overlap(task.train, task.test),
        ngram=ngrams.n,
        shared_ngrams=len(ngrams.shared_ids),
        too_short=ngrams.too_short,
        sampled={
            split: sample_ids(problems, size, stream_seed(seed, "label_audit", split))
            for split, problems in splits.items()
        },
        labels_checked=labels.n_checked,
        label_errors=[(finding.id, finding.reason) for finding in labels.errors],
        label_notes=len(labels.notes),
    )


def sample_ids(problems: Sequence[Problem], size: int, seed: int) -> list[str]:
    """The ids of a random sample without replacement; of all problems if there are too few."""
    generator = np.random.Generator(np.random.PCG64(seed))
    drawn = generator.choice(len(problems), size=min(size, len(problems)), replace=False)
    return [problems[index].id for index in sorted(drawn.tolist())]
