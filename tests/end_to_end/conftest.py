"""Real runs shared by the tests, by all workers too: the preflights' stores, undisturbed runs."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves test folders off the path

import lag_mini
import mini
import search_mini
from sessions import Session, run
from stored import copied


@dataclass(frozen=True)
class Preflighted:
    """A store that holds every preflight's evidence and no arm."""

    session: Session
    scale: Path
    experiment: str

    def copy(self, folder: Path) -> Path:
        """A runs-dir of one's own that starts with it."""
        return copied(self.session.runs, folder)

    def run(self, folder: Path, *arguments: str, **options: object) -> Session:
        """Run the experiment at its mini scale; see `sessions.run`."""
        options = {"scale": self.scale, "experiment": self.experiment, **options}
        return run(folder, *arguments, **options)


Shared = Callable[[str, Callable[[Path], Session]], Session]


@pytest.fixture(scope="session", name="shared")
def _shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Shared:
    """`shared(name, make)`: a session that one worker makes and all of them read."""
    root = tmp_path_factory.getbasetemp()
    root = root if worker_id == "master" else root.parent

    def once(name: str, make: Callable[[Path], Session]) -> Session:
        folder = root / f"shared-{name}"
        with FileLock(f"{folder}.lock"):
            if not (folder / "ended.json").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder).write(folder / "ended.json")
        return Session.read(folder / "ended.json")

    return once


def preflights(shared: Shared, name: str, experiment: str, write: Callable[[Path], Path]):
    """The preflights of a mini scale, run once."""

    def made(folder: Path) -> Session:
        scale = write(folder / "mini.json")
        options = {"scale": scale, "runs": folder / "runs", "experiment": experiment}
        session = run(folder / "session", "-m", "preflight", **options)
        assert session.exit == 0, session.tail
        return session

    session = shared(name, made)
    return Preflighted(session, session.folder.parent / "mini.json", experiment)


def undisturbed_run(
    shared: Shared, name: str, ready: Preflighted, *arguments: str, executed: bool = False
) -> Session:
    """A run from preflights to verdict that nothing disturbs, run once."""

    def made(folder: Path) -> Session:
        runs = ready.copy(folder)
        session = ready.run(folder / "session", *arguments, runs=runs, executed=executed)
        assert session.exit in (0, 1), session.tail
        return session

    return shared(name, made)


@pytest.fixture(scope="session")
def preflighted(shared: Shared) -> Preflighted:
    """The preflights of the GS1 experiment."""
    return preflights(
        shared, "gs1", "test_gs1.py", lambda path: mini.write_scale(path, mini.mini_scale())
    )


@pytest.fixture(scope="session")
def lag_preflighted(shared: Shared) -> Preflighted:
    """The preflights of the lag experiment."""
    return preflights(shared, "lag", lag_mini.EXPERIMENT, lag_mini.write)


@pytest.fixture(scope="session")
def search_preflighted(shared: Shared) -> Preflighted:
    """The preflights of the search experiment."""
    return preflights(shared, "search", search_mini.EXPERIMENT, search_mini.write)


@pytest.fixture(scope="session")
def undisturbed(shared: Shared, preflighted: Preflighted) -> Session:
    """A whole run of the GS1 experiment, started as a user does."""
    return undisturbed_run(shared, "gs1-whole", preflighted, executed=True)


@pytest.fixture(scope="session")
def lag_undisturbed(shared: Shared, lag_preflighted: Preflighted) -> Session:
    """A whole run of the lag experiment."""
    return undisturbed_run(shared, "lag-whole", lag_preflighted)


@pytest.fixture(scope="session")
def search_undisturbed(shared: Shared, search_preflighted: Preflighted) -> Session:
    """A whole run of the search experiment, by two workers."""
    return undisturbed_run(shared, "search-whole", search_preflighted, "-n", "2")


@pytest.fixture
def again(preflighted: Preflighted, tmp_path: Path) -> Callable[..., Session]:
    """Run the mini scale in this test's own copy of the store; see `sessions.run`."""
    runs = preflighted.copy(tmp_path)

    def run_again(*arguments: str, **options: object) -> Session:
        number = len(list(tmp_path.glob("session-*")))
        return preflighted.run(
            tmp_path / f"session-{number}", *arguments, **{"runs": runs, **options}
        )

    return run_again


@pytest.fixture
def project(tmp_path):
    """A project with the GS1 experiment, whose card and registration may be broken."""
    folder = tmp_path / "project"
    shutil.copytree(mini.CARDS, folder / "experiments" / "cards")
    shutil.copytree(mini.ROOT / "tests" / "references", folder / "tests" / "references")
    shutil.copy(mini.ROOT / "experiments" / "test_gs1.py", folder / "experiments")
    for name in ("conftest.py", "pytest.ini"):
        shutil.copy(mini.ROOT / name, folder)
    return folder
