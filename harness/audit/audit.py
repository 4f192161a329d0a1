"""Preflight: the test items are not train items, and the labels hold.

The card bounds label errors in a sample, so the bound is applied to a random sample of each split.
All labels are read nevertheless, and what is wrong outside the sample is said.
"""

from harness.audit.finding import Finding
from harness.cards import Experiment
from harness.evidence import Evidence

SHOWN = 3


class AuditEvidence(Evidence):
    """What was found in the data.

    `overlaps` has (test id, train id) of equal questions. `shared_ngrams` counts test items that
    share a run of `ngram` words with any train item. `labels_checked` labels, all of both splits,
    gave `label_errors`, as (id, reason); `label_notes` counts oddities that a careful reader
    accepts. `sampled` has the ids, by split, to which the card's bound applies. `sha256s` has the
    data files' hashes by split. Labels were read against `read_against`; `origin` says where the
    data come from, if the hashes do not say it all.
    """

    n_train: int
    n_test: int
    sha256s: dict[str, str]
    overlaps: list[tuple[str, str]]
    ngram: int
    shared_ngrams: int
    too_short: int
    sampled: dict[str, list[str]]
    labels_checked: int
    label_errors: list[tuple[str, str]]
    label_notes: int
    read_against: str = "their worked solutions"
    origin: str | None = None


def check(evidence: AuditEvidence, experiment: Experiment) -> Finding:
    """Files as pinned and whole, overlaps and label errors within the card's bounds."""
    audit = experiment.card.generation_audit
    problems = [*file_problems(evidence, experiment)]
    notes = [
        *([] if evidence.origin is None else [f"data: {evidence.origin}"]),
        f"{evidence.n_train} train and {evidence.n_test} test items: {len(evidence.overlaps)} "
        "questions in both, compared as words without case and punctuation",
        f"{evidence.shared_ngrams} test items share a run of {evidence.ngram} words with a train "
        f"item, reported only ({evidence.too_short} are shorter than that)",
        f"{evidence.labels_checked} labels read against {evidence.read_against}: "
        f"{len(evidence.label_errors)} errors{_shown(evidence.label_errors)}, "
        f"{evidence.label_notes} oddities",
    ]
    if audit is None:
        notes.append("the card sets no bounds on overlaps and labels; figures only")
    else:
        problems.extend(overlap_problems(evidence, audit.max_eval_overlaps))
        problems.extend(label_problems(evidence, audit.max_label_errors, audit.min_sample_size))
    metrics = {
        "overlaps": float(len(evidence.overlaps)),
        "ngram_share": evidence.shared_ngrams / max(1, evidence.n_test),
        "labels_checked": float(evidence.labels_checked),
        "labels_sampled": float(sum(len(ids) for ids in evidence.sampled.values())),
        "label_errors": float(len(evidence.label_errors)),
        "label_notes": float(evidence.label_notes),
    }
    return Finding("audit", tuple(problems), tuple(notes), metrics)


def file_problems(evidence: AuditEvidence, experiment: Experiment) -> list[str]:
    """Data files that are not the pinned ones, or that hold another number of items."""
    pinned, card = experiment.registration.data, experiment.card
    problems = []
    for split, sha256, count, expected in (
        ("train", pinned.train_sha256, evidence.n_train, card.dataset.n_examples),
        ("test", pinned.test_sha256, evidence.n_test, card.eval.n_examples),
    ):
        found = evidence.sha256s.get(split, "none")
        if found != sha256:
            pinned_to = "nothing" if sha256 is None else sha256[:12]
            problems.append(
                f"{split}: sha256 {found[:12]}, pinned is {pinned_to}; use the pinned data file"
            )
        if count != expected:
            problems.append(
                f"{split}: {count} items, the card says {expected}; use the whole data file"
            )
    return problems


def overlap_problems(evidence: AuditEvidence, bound: int) -> list[str]:
    """More questions in both splits than the card allows."""
    if len(evidence.overlaps) <= bound:
        return []
    shown = ", ".join(f"{test} is {train}" for test, train in evidence.overlaps[:SHOWN])
    return [
        f"{len(evidence.overlaps)} test questions are train questions, bound {bound}: {shown}; "
        "remove them from train"
    ]


def label_problems(evidence: AuditEvidence, bound: int, least: int) -> list[str]:
    """Too few labels in the sample of a split, or too many of them wrong."""
    problems = []
    for split in ("train", "test"):
        sampled = set(evidence.sampled.get(split, ()))
        if len(sampled) < least or not sampled:
            problems.append(
                f"{split}: {len(sampled)} labels were sampled, at least {max(1, least)} needed; "
                "sample more"
            )
        errors = [error for error in evidence.label_errors if error[0] in sampled]
        if len(errors) > bound:
            problems.append(
                f"{split}: {len(errors)} label errors in a sample of {len(sampled)}, bound "
                f"{bound}{_shown(errors)}; correct or drop these items"
            )
    return problems


def _shown(errors: list[tuple[str, str]]) -> str:
    if not errors:
        return ""
    more = f", and {len(errors) - SHOWN} more" if len(errors) > SHOWN else ""
    return " (" + "; ".join(f"{id}: {reason}" for id, reason in errors[:SHOWN]) + more + ")"
