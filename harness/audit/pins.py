"""Preflight: what is installed is what the registration pins, file by file."""

from harness.audit.finding import Finding
from harness.cards import Experiment
from harness.cards.consistency import unresolved
from harness.evidence import Evidence

SHOWN = 5


class PackageFiles(Evidence):
    """One installed package against its manifest; paths are relative to site-packages.

    `version` is None if the package is not installed, `manifest_sha256` None if the manifest file
    can't be read. `listed` is the manifest, `installed` every file that it lists or that is Python
    source under its folders, by sha256.
    """

    version: str | None
    manifest_sha256: str | None
    listed: dict[str, str]
    installed: dict[str, str]


class PinsEvidence(Evidence):
    """What is installed. sha256 is None for a reference that is missing, or weights not seen."""

    packages: dict[str, PackageFiles]
    references: dict[str, str | None]
    base_weights_sha256: str | None


def check(evidence: PinsEvidence, experiment: Experiment) -> Finding:
    """Every pin of the registration holds, and nothing is left unresolved."""
    pins = experiment.registration.pins
    problems = []
    for package, version in pins.packages.items():
        found = evidence.packages.get(package)
        if found is None or found.version is None:
            problems.append(f"{package} is not installed, pinned is {version}; install it")
            continue
        if found.version != version:
            problems.append(
                f"{package} {found.version} is installed, pinned is {version}; install that version"
            )
        problems.extend(manifest_problems(package, found, pins.manifest_sha256.get(package)))
    for path, sha256 in pins.references.items():
        problems.extend(_file_problems(f"reference {path}", evidence.references.get(path), sha256))
    problems.extend(unresolved_problems(experiment))
    notes = [_count(package, files) for package, files in evidence.packages.items()]
    weights = f"weights of {experiment.card.base_model}"
    if pins.base_weights_sha256 is None:
        notes.append(f"{weights}: not pinned, the service holds them")
    elif evidence.base_weights_sha256 is None:
        notes.append(f"{weights}: pinned, but a remote service does not show them; not verified")
    else:
        problems.extend(
            _file_problems(weights, evidence.base_weights_sha256, pins.base_weights_sha256)
        )
        notes.append(f"{weights}: compared with the pinned sha256")
    metrics = {
        "files_compared": float(sum(len(files.listed) for files in evidence.packages.values())),
        "references_compared": float(len(pins.references)),
    }
    return Finding("pins", tuple(problems), tuple(notes), metrics)


def manifest_problems(package: str, found: PackageFiles, pinned: str | None) -> list[str]:
    """Where an installed package differs from its manifest, or the manifest from its own pin."""
    if pinned is None or found.manifest_sha256 is None:
        return [f"{package}: no manifest could be compared; pin one with its sha256"]
    problems = _file_problems(f"{package}: the manifest", found.manifest_sha256, pinned)
    if not found.listed:
        problems.append(f"{package}: the manifest lists no files; write it with sha256sum")
    listed, installed = found.listed, found.installed
    different = {
        "changed": [p for p in listed if p in installed and installed[p] != listed[p]],
        "missing": [p for p in listed if p not in installed],
        "not in the manifest": [p for p in installed if p not in listed],
    }
    for state, paths in different.items():
        if paths:
            shown = ", ".join(sorted(paths)[:SHOWN]) + (", ..." if len(paths) > SHOWN else "")
            problems.append(
                f"{package}: {len(paths)} file(s) {state}, bound 0: {shown}; "
                "reinstall the pinned release"
            )
    return problems


def unresolved_problems(experiment: Experiment) -> list[str]:
    """What card or registration leave UNRESOLVED and no resolution settles."""
    card, registration = experiment.card, experiment.registration
    settled = {resolution.pointer for resolution in registration.pins.resolutions}
    open_ = [p for p in unresolved(card.model_dump(mode="json")) if p not in settled]
    open_ += unresolved(registration.model_dump(mode="json"), "/registration")
    return [f"{p} is UNRESOLVED; settle it under pins.resolutions with a reason" for p in open_]


def _file_problems(what: str, found: str | None, pinned: str) -> list[str]:
    if found is None:
        return [f"{what} can't be read here, pinned is sha256 {pinned[:12]}; provide the file"]
    if found != pinned:
        return [f"{what} has sha256 {found[:12]}, pinned is {pinned[:12]}; restore that file"]
    return []


def _count(package: str, files: PackageFiles) -> str:
    return f"{package} {files.version}: {len(files.listed)} files compared by sha256"
