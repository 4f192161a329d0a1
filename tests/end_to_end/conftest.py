"""Real runs shared by the tests: the preflights' store, and one undisturbed run."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves test folders off the path

from mini import mini_scale, write_scale
from sessions import Session, run


@dataclass(frozen=True)
class Preflighted:
    """A store that holds every preflight's evidence and no arm."""

    session: Session
    scale: Path

    def copy(self, folder: Path) -> Path:
        """A runs-dir of one's own that starts with it, without the engine's state."""
        runs = folder / "runs"
        shutil.copytree(self.session.runs, runs, ignore=shutil.ignore_patterns("engine"))
        return runs


@pytest.fixture(scope="session")
def preflighted(tmp_path_factory: pytest.TempPathFactory) -> Preflighted:
    """The preflights of the mini scale, run once."""
    folder = tmp_path_factory.mktemp("preflighted")
    scale = write_scale(folder / "mini.json", mini_scale())
    session = run(folder / "session", "-m", "preflight", scale=scale, runs=folder / "runs")
    assert session.exit == 0, session.tail
    return Preflighted(session, scale)


@pytest.fixture(scope="session")
def undisturbed(preflighted: Preflighted, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A run from preflights to verdict that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    session = run(folder / "session", scale=preflighted.scale, runs=preflighted.copy(folder))
    assert session.exit in (0, 1), session.tail
    return session


@pytest.fixture
def again(preflighted: Preflighted, tmp_path: Path) -> Callable[..., Session]:
    """Run the mini scale in this test's own copy of the store; see `sessions.run`."""
    runs = preflighted.copy(tmp_path)

    def run_again(*arguments: str, **options: object) -> Session:
        options = {"scale": preflighted.scale, "runs": runs, **options}
        number = len(list(tmp_path.glob("session-*")))
        return run(tmp_path / f"session-{number}", *arguments, **options)

    return run_again
