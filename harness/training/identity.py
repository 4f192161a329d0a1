"""What a stored result depends on, as content keys: the settings that change what is computed.

Every field of the models is either in a key or listed as one that changes nothing; a test holds
the two lists against the models, so that a new field has to be classed.
"""

import hashlib
from dataclasses import asdict
from pathlib import Path

from harness.cards import Arm, Experiment
from harness.training.service import ServiceAddress

RUNTIME_FIELDS = frozenset({"checkpoint_every", "pilot_steps"})
"""Of TrainingSpec: they decide when state is kept and read, not what is computed."""


def service_identity(experiment: Experiment, remote: ServiceAddress | None) -> dict[str, object]:
    """Who trains: the remote service's address, or the pinned weights of the embedded engine."""
    if remote is not None:
        return {"kind": "remote", "base_url": remote.base_url}
    weights = experiment.registration.pins.base_weights_sha256
    return {"kind": "embedded", "base_weights_sha256": weights}


def arm_parts(
    experiment: Experiment, arm: Arm, service: dict[str, object], version: int
) -> dict[str, object]:
    """The key of one arm's training."""
    training = experiment.registration.training.model_dump(mode="json")
    described = asdict(arm)
    described["kernel"] = arm.kernel.model_dump(mode="json") if arm.kernel else None
    del described["role"]
    return {
        "version": version,
        "arm": described,
        "training": {k: v for k, v in training.items() if k not in RUNTIME_FIELDS},
        "base_model": experiment.card.base_model,
        "lora_rank": experiment.card.lora_rank,
        "train_sha256": experiment.registration.data.train_sha256,
        "packages": dict(experiment.registration.pins.packages),
        "service": service,
    }


def evaluation_parts(
    experiment: Experiment, policy: dict[str, object], version: int
) -> dict[str, object]:
    """The key of one evaluation; `policy` is an arm's key parts, or what identifies the base."""
    registration = experiment.registration
    return {
        "version": version,
        "policy": policy,
        "evaluation": registration.evaluation.model_dump(mode="json"),
        "renderer": registration.training.renderer,
        "few_shot": registration.training.few_shot,
        "items": experiment.card.eval.n_examples,
        "test_sha256": registration.data.test_sha256,
    }


def base_parts(experiment: Experiment, service: dict[str, object]) -> dict[str, object]:
    """What identifies the base model as a policy."""
    return {"base_model": experiment.card.base_model, "service": service}


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
