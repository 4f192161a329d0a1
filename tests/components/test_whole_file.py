"""A whole experiment in one test file: its card as a dict, its estimator, plain asserts."""

import shutil

import pytest
from mini import ROOT
from own_experiment import OWN
from sessions import run

from harness.cards import load_experiment
from harness.errors import CardError

WHOLE = OWN / "whole.py"


def project(folder, old="", new=""):
    """A project with that file alone, one place of it edited."""
    text = WHOLE.read_text()
    assert old in text
    (folder / "experiments").mkdir(parents=True)
    (folder / "experiments" / "test_whole.py").write_text(text.replace(old, new, 1))
    (folder / "pytest.ini").write_text("[pytest]\n")
    return {
        "project": folder, "experiment": "test_whole.py", "scale": "embedded",
        "runs": folder / "runs",
    }  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of it, as it stands."""
    folder = tmp_path_factory.mktemp("whole")
    session = run(folder / "session", **project(folder))
    return folder, session


def test_it_is_short():
    """Under 80 lines, card and registration included."""
    assert len(WHOLE.read_text().splitlines()) < 80


def test_it_runs_to_a_verdict(finished):
    """Registered and plain decisions make it together; what has no reference is said."""
    _, session = finished

    assert session.exit == 0, session.output
    assert session.verdict["verdict"] == "VALIDATED"
    assert [c["id"] for c in session.verdict["criteria"]] == ["not_far_below", "test_no_ruin"]
    assert session.verdict["unverified"] == ["estimator running_mean"]
    assert {arm["name"] for arm in session.verdict["arms"]} == {"grpo", "running"}


def test_a_failing_plain_gate_blocks_what_is_selected(finished, tmp_path):
    """Two workers that run decisions alone: the gate is not selected, and blocks none the less.

    Its message is pytest's own.
    """
    folder, _ = finished
    options = project(
        tmp_path, 'for rollout in group["rollouts"]}) > 1', 'for rollout in group["rollouts"]}) > 9'
    )
    bound = shutil.ignore_patterns("record.*", "registered")
    shutil.copytree(folder / "runs", tmp_path / "runs", ignore=bound)

    session = run(tmp_path / "session", "-n", "2", "-m", "decision", **options)

    assert session.exit == 1
    assert "BLOCKED by gate test_rewards_vary: assert" in session.output
    assert session.verdict["verdict"] == "INVALID"


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"margin": -0.3', '"margin": MARGIN', "CARD is no dict of plain values"),
        ('    "registration": {', '    "registratoin": {', "registratoin is none of them"),
        ('"word_problems_1"', '"word_problem_1"', "did you mean 'word_problems_1'?"),
        (
            '"batch_size": 64',
            '"batch_size": 66',
            "group_size 4 x groups_per_batch 16 = 64 rollouts",
        ),
        ('"hypothesis"', '"hypotesis"', "unknown key /hypotesis"),
        ('{"group_size": 4}', '{"group_size": 0}', "/arms/0/schedule/group_size is 0"),
    ],
)
def test_a_mistake_in_the_dict_is_one_line(tmp_path, old, new, line):
    """With the file's name, before anything runs."""
    text = WHOLE.read_text()
    if old not in text:  # ruff may have set it on lines of its own
        pytest.fail(f"{old} is not in the file")
    folder = project(tmp_path, old, new)["project"]

    with pytest.raises(CardError) as caught:
        load_experiment(folder / "experiments" / "test_whole.py")

    assert any(line in said and "test_whole.py" in said for said in str(caught.value).splitlines())


def test_published_defaults_are_never_edited():
    """What a registration inherits by name means the same for ever: a change is a new file."""
    import hashlib

    folder = ROOT / "harness" / "cards" / "defaults"
    found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in folder.glob("*.json")}

    assert found == {"word_problems_1.json": "85ba9c66330f5b56"}
