"""What a stored result depends on, as content keys: the settings that change what is computed.

Every field of the models is in a key unless it is listed here as one that changes nothing; a test
knows each field by name, so that a new one has to be classed.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from harness.cards import Arm, Experiment
from harness.cards.registration import OwnKernel
from harness.components import DeclaredKernel, Estimator
from harness.store import merge_parts
from harness.training.service import ServiceAddress

RUNTIME_FIELDS = frozenset({"checkpoint_every", "pilot_steps"})
"""Of TrainingSpec: they decide when state is kept and read, not what is computed."""

RUNTIME_ARM_FIELDS = frozenset({"role", "look", "components"})
"""Of Arm: they say who is compared with whom and when. The name is in the seeds of rollouts.

Of the components, those that the arm names are in its key, by their sources.
"""

LATER_FIELDS: Mapping[str, object] = {
    "estimator_config": {},
    "loss_backends": ("service",),
    "samples": 1,
    "task": "gsm8k",
}
"""Fields that came when results were already stored: at these values they leave a key as it was."""

TRAINING_VERSION = 3
"""Raised when the same settings would train differently."""

EVALUATION_VERSION = 3
"""Raised when the same response would grade differently."""

SEARCH_VERSION = 2
"""Raised when the same settings of a search would train, grade or record differently."""

TUNING_VERSION = 1
"""Raised when the same trial would train or be scored differently."""


def service_identity(experiment: Experiment, remote: ServiceAddress | None) -> dict[str, object]:
    """Who trains: the remote service's address, or the pinned weights of the embedded engine."""
    if remote is not None:
        return {"kind": "remote", "base_url": remote.base_url}
    weights = experiment.registration.pins.base_weights_sha256
    return {"kind": "embedded", "base_weights_sha256": weights}


def arm_parts(experiment: Experiment, arm: Arm, service: dict[str, object]) -> dict[str, object]:
    """The key of one arm's training."""
    # a setting added later has the default that earlier results were made with, and no key
    training = experiment.registration.training.model_dump(mode="json", exclude_defaults=True)
    described = {
        **{field.name: getattr(arm, field.name) for field in fields(arm)},
        "kernel": arm.kernel.model_dump(mode="json", exclude_defaults=True) if arm.kernel else None,
    }
    return merge_parts(
        {
            "version": TRAINING_VERSION,
            "arm": _keyed({k: v for k, v in described.items() if k not in RUNTIME_ARM_FIELDS}),
            "training": {k: v for k, v in training.items() if k not in RUNTIME_FIELDS},
            "base_model": experiment.card.base_model,
            "lora_rank": experiment.card.lora_rank,
            "train_sha256": experiment.registration.data.train_sha256,
            # of a longer file only the first items are taken: order and kernel depend on them
            "train_items": experiment.card.dataset.n_examples,
            "packages": dict(experiment.registration.pins.packages),
            "service": service,
        },
        _task_parts(experiment),
        _probe_parts(experiment),
        _component_parts(arm),
    )


def evaluation_parts(experiment: Experiment, policy: dict[str, object]) -> dict[str, object]:
    """The key of one evaluation; `policy` is an arm's key parts, or what identifies the base."""
    items, test = experiment.card.eval.n_examples, experiment.registration.data.test_sha256
    return _scored_parts(experiment, policy, items, test)


def trial_parts(
    experiment: Experiment, trial: Arm, heldout: int, service: dict[str, object]
) -> dict[str, object]:
    """The key of a tuning trial: of an arm, scored on a slice of the train split."""
    policy = arm_parts(experiment, trial, service)
    return merge_parts(
        {"tuning_version": TUNING_VERSION},
        _scored_parts(experiment, policy, heldout, "held out of the train split"),
    )


def base_parts(experiment: Experiment, service: dict[str, object]) -> dict[str, object]:
    """What identifies the base model as a policy; prompts are the pinned cookbook's work."""
    return {
        "base_model": experiment.card.base_model,
        "packages": dict(experiment.registration.pins.packages),
        "service": service,
    }


def preflight_parts(experiment: Experiment, service: dict[str, object]) -> dict[str, object]:
    """The key of preflight evidence: the experiment, who serves it, and the harness's own source.

    Preflights vouch for the code, so any edit of it collects them anew; arms are not retrained for
    an edit, only for a raised version.
    """
    return {
        "experiment": experiment.sha256,
        "service": service,
        "source": source_sha256(Path(__file__).parents[1]),
    }


def source_sha256(package: Path) -> str:
    """One hash over every Python file of a package, by path and content."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def _scored_parts(
    experiment: Experiment, policy: dict[str, object], items: int, items_sha256: str | None
) -> dict[str, object]:
    training, evaluation = experiment.registration.training, experiment.registration.evaluation
    return merge_parts(
        {
            "version": EVALUATION_VERSION,
            "policy": policy,
            "evaluation": _keyed(evaluation.model_dump(mode="json")),
            "renderer": training.renderer,
            "few_shot": training.few_shot,
            "items": items,
            "test_sha256": items_sha256,
        },
        _task_parts(experiment),
    )


def _task_parts(experiment: Experiment) -> dict[str, object]:
    """The task, and what episodes of a search depend on beside the questions."""
    task, search = _keyed({"task": experiment.registration.task}), experiment.registration.search
    if search is None:
        return task
    return merge_parts(
        task,
        {
            "search_version": SEARCH_VERSION,
            "search": search.model_dump(mode="json"),
            "corpus_sha256": experiment.registration.data.corpus_sha256,
            "trajectory_tokens": experiment.card.max_seq_len,
        },
    )


def _component_parts(arm: Arm) -> dict[str, object]:
    """The sources of what an arm names, where that is not the harness's own."""
    named: dict[str, tuple[type, str]] = {"estimator_sha256": (Estimator, arm.estimator)}
    if isinstance(arm.kernel, OwnKernel):
        named["kernel_sha256"] = (DeclaredKernel, arm.kernel.name)
    found = {key: arm.components.source_sha256(*name) for key, name in named.items()}
    return {key: sha256 for key, sha256 in found.items() if sha256 is not None}


def _probe_parts(experiment: Experiment) -> dict[str, object]:
    """A gradient probe changes what is recorded, and what is left to be drawn again."""
    registration = experiment.registration
    if registration.gradient_probe is None:
        return {}
    parts: dict[str, object] = {
        "gradient_probe": registration.gradient_probe.model_dump(mode="json")
    }
    if not registration.training.reuse_prompts:
        return parts
    # the arm of most steps decides it, whichever that is
    return merge_parts(parts, {"probe_prompts": experiment.probe_prompts})


def _keyed(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields without those of `LATER_FIELDS` that are at the value given there."""
    return {k: v for k, v in fields.items() if k not in LATER_FIELDS or v != LATER_FIELDS[k]}
