"""What collection costs, and what an experiment file looks like."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.cards import load_experiment

PROJECT = Path(__file__).parents[2]
EXPERIMENTS = sorted(
    path
    for path in (PROJECT / "experiments").glob("test_*.py")
    if "\nCARD = " in path.read_text()  # the others ask questions and reach no verdict
)

COLLECT = """
import sys
import pytest

status = pytest.main(["--collect-only", "-q", "-p", "no:hypothesispytest", "experiments"])
heavy = {"torch", "tinker", "tinker_cookbook", "transformers", "sklearn"} & set(sys.modules)
sys.exit(f"collection imported {sorted(heavy)}" if heavy else status)
"""


class TestCollection:
    def test_imports_nothing_heavy(self):
        """Collecting every experiment loads no torch, tinker, transformers or scikit-learn."""
        result = subprocess.run(
            [sys.executable, "-c", COLLECT], cwd=PROJECT, capture_output=True, text=True, timeout=60
        )

        assert result.returncode == 0, result.stdout + result.stderr
        assert "test_gs1.py::test_preflight[pins]" in result.stdout


class TestInstalledPlugin:
    def test_serves_an_experiment_anywhere(self, tmp_path):
        """A folder without a conftest gets options, markers and items, with and without xdist."""
        pyproject = tomllib.loads((PROJECT / "pyproject.toml").read_text())
        ((name, module),) = pyproject["project"]["entry-points"]["pytest11"].items()
        shutil.copytree(PROJECT / "experiments", tmp_path / "mine")
        (tmp_path / "pytest.ini").write_text("[pytest]\nstrict = true\n")
        # what pytest does with the entry point: the module under that name
        command = [sys.executable, "-m", "pytest", "-p", name, "mine/test_gs1.py", "--collect-only"]
        environ = {**os.environ, "PYTHONPATH": str(PROJECT)}

        for workers in ([], ["-n1"]):
            result = subprocess.run(
                [*command, "-q", *workers],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert result.returncode == 0, result.stdout + result.stderr
            assert "18 tests collected" in result.stdout
        assert name == module, "conftest.py and the entry point would load two of them"


class TestReadme:
    def test_makes_an_experiment_of_ones_own(self, tmp_path):
        """The commands of its section leave a file and a card that load, and nothing else."""
        section = (PROJECT / "README.md").read_text().partition("## An experiment of your own")[2]
        commands = [line for line in section.splitlines() if line.startswith("    ")]
        shutil.copytree(PROJECT / "experiments", tmp_path / "experiments")

        script = "set -e\n" + "\n".join(commands)
        subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, timeout=20)

        cards = tmp_path / "experiments" / "cards"
        made = {path.name for path in tmp_path.rglob("*") if "mine" in path.name}
        assert {"test_mine.py", *(path.name for path in cards.glob("mine.*json"))} == made
        assert 4 == len(made)
        assert "mine" == load_experiment(cards / "mine.json").id
        assert '\nCARD = "mine"\n' in (cards.parent / "test_mine.py").read_text()


class TestPytest:
    def test_is_imported_by_the_plugin_alone(self):
        """Every other room can be used without pytest."""
        importing = {
            path.relative_to(PROJECT / "harness").parts[0]
            for path in (PROJECT / "harness").rglob("*.py")
            if any(
                line.startswith(("import pytest", "from pytest", "from _pytest"))
                for line in path.read_text().splitlines()
            )
        }

        assert importing == {"plugin"}


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
class TestExperimentFiles:
    def test_are_at_most_40_lines(self, path):
        """An experiment is a claim, a card and what is asked of it."""
        assert len(path.read_text().splitlines()) <= 40

    def test_mark_what_their_fixtures_say(self, path):
        """`-m preflight` selects the preflights, all of them, and nothing that trains."""
        text = path.read_text()
        for marker, fixture in (
            ("preflight", "preflight"),
            ("gate", "gate"),
            ("decision", "criterion"),
        ):
            functions = text.split("\n\n\n")
            asking = [part for part in functions if f"({fixture})" in part.partition(":\n")[0]]

            assert asking, f"no test asks for {fixture}"
            assert all(f"@pytest.mark.{marker}\n" in part for part in asking)
            assert text.count(f"@pytest.mark.{marker}\n") == len(asking)
