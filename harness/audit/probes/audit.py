"""Evidence for `audit`: overlaps and labels of the whole data set."""

from collections.abc import Sequence

import numpy as np

from harness.audit.audit import AuditEvidence
from harness.cards import Experiment
from harness.errors import DataError
from harness.tasks import gsm8k
from harness.tasks.audit import LabelAudit, label_audit, ngram_overlap, overlap
from harness.tasks.sec_search import SearchTask
from harness.tasks.sec_search.audit import gold_audit
from harness.tasks.task import Item, Task
from harness.training.streams import stream_seed

# where the card names no sample size
LEAST_SAMPLE = 100


def collect(experiment: Experiment, task: Task) -> AuditEvidence:
    """Read every label and compare every question; draw the sample that the card bounds."""
    audit = experiment.card.generation_audit
    size = max(LEAST_SAMPLE, 0 if audit is None else audit.min_sample_size)
    seed = experiment.registration.training.data_order_seed
    splits = {"train": task.train, "test": task.test}
    labels, read_against = labels_of(task)
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
        read_against=read_against,
        origin=task.origin,
    )


def labels_of(task: Task) -> tuple[LabelAudit, str]:
    """All labels of a task, audited, and what they were read against.

    Raises:
        DataError: nobody knows how to read this task's labels.
    """
    if isinstance(task, SearchTask):
        return gold_audit(task), "the corpus"
    if isinstance(task, gsm8k.Task):
        return label_audit([*task.train, *task.test], None, seed=0), "their worked solutions"
    raise DataError(f"{type(task).__name__}: its labels can't be audited; write an audit of them")


def sample_ids(problems: Sequence[Item], size: int, seed: int) -> list[str]:
    """The ids of a random sample without replacement; of all problems if there are too few."""
    generator = np.random.Generator(np.random.PCG64(seed))
    drawn = generator.choice(len(problems), size=min(size, len(problems)), replace=False)
    return [problems[index].id for index in sorted(drawn.tolist())]
