"""Evidence for `pins`: versions and file hashes of what is installed."""

import hashlib
from importlib import metadata
from pathlib import Path

from harness import cards
from harness.audit.pins import PackageFiles, PinsEvidence
from harness.cards import Experiment
from harness.errors import CardError

SHIPPED = Path(cards.__file__).parent
"""Where manifests of the releases that the harness knows stand, in `pins/`."""


def collect(
    experiment: Experiment, cards_dir: Path, base_weights_sha256: str | None = None
) -> PinsEvidence:
    """Hash every pinned file.

    Args:
        experiment: names packages, manifests and references.
        cards_dir: the folder of the card; manifests are relative to it, or to the harness's own
            cards, references to the project.
        base_weights_sha256: of the model that the service loaded, where it can be seen.
    """
    pins = experiment.registration.pins
    project = project_of(cards_dir)
    return PinsEvidence(
        packages={
            package: package_files(package, cards_dir, pins.manifests.get(package))
            for package in pins.packages
        },
        references={path: file_sha256(project / path) for path in pins.references},
        base_weights_sha256=base_weights_sha256,
    )


def project_of(cards_dir: Path) -> Path:
    """The folder that holds `experiments`, whose cards stand in `cards` or in the test files."""
    folder = cards_dir.resolve()
    return folder.parents[1] if folder.name == "cards" else folder.parent


def package_files(package: str, cards_dir: Path, manifest: str | None) -> PackageFiles:
    """One installed package against its manifest."""
    version, site = _installed(package)
    path = None if manifest is None else cards_dir / manifest
    if manifest is not None and path is not None and not path.is_file():
        path = SHIPPED / manifest
    digest = None if path is None else file_sha256(path)
    if path is None or digest is None or site is None:
        return PackageFiles(version=version, manifest_sha256=digest, listed={}, installed={})
    listed = read_manifest(path)
    folders = {Path(name).parts[0] for name in listed}
    sources = {
        source.relative_to(site).as_posix()
        for folder in folders
        for source in (site / folder).rglob("*.py")
    }
    hashes = {name: file_sha256(site / name) for name in sorted(sources | set(listed))}
    return PackageFiles(
        version=version,
        manifest_sha256=digest,
        listed=listed,
        installed={name: sha256 for name, sha256 in hashes.items() if sha256 is not None},
    )


def read_manifest(path: Path) -> dict[str, str]:
    """Paths and their sha256 from a file in sha256sum format.

    Raises:
        CardError: a line is not a hash and a path.
    """
    listed = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name:
            raise CardError(
                f"{path.name}: line {number} is {line[:60]!r}, not '<sha256>  <path>'; "
                "write the manifest with sha256sum"
            )
        listed[name] = digest
    return listed


def file_sha256(path: Path) -> str | None:
    """sha256 of a file, in hex, or None if it can't be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _installed(package: str) -> tuple[str | None, Path | None]:
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return None, None
    return distribution.version, Path(str(distribution.locate_file("")))
