import subprocess
import sys

import pytest

from harness.protocol.progress import progress_folder, read_progress, write_progress
from harness.protocol.stages import Progress

TRAINING = Progress("gs1_seed0", "training", 3, 40, 0.25, 1500.0, 61.5)
EVALUATION = Progress("base model", "evaluation", 64, 1319, None, 900.0, 12.0)


@pytest.fixture
def folder(tmp_path):
    """The folder of one experiment at one scale."""
    return progress_folder(tmp_path, "card", "embedded")


def test_lines_come_back_as_they_were_left(tmp_path, folder):
    """By arm, equal in every field, with the reward of an evaluation still None."""
    write_progress(folder, TRAINING)
    write_progress(folder, EVALUATION)

    assert read_progress(tmp_path, "card", "embedded") == (EVALUATION, TRAINING)


def test_a_line_that_has_not_changed_is_equal(tmp_path, folder):
    """Whoever shows lines knows those of an earlier run by their being equal."""
    write_progress(folder, EVALUATION)
    before = set(read_progress(tmp_path, "card", "embedded"))

    assert set(read_progress(tmp_path, "card", "embedded")) == before


def test_an_arm_has_one_line(tmp_path, folder):
    """The later line replaces the earlier one, and no temporary file stays."""
    for step in range(5):
        write_progress(folder, Progress("a", "training", step, 5, 0.0, 1.0, 0.0))

    (line,) = read_progress(tmp_path, "card", "embedded")
    assert line.step == 4
    assert [path.name for path in folder.iterdir()] == ["a.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"arm": "b"}', b'"text"'])
def test_a_broken_file_is_left_out(tmp_path, folder, content):
    """A torn or strange file hides its own line and no other."""
    write_progress(folder, TRAINING)
    (folder / "broken.json").write_bytes(content)

    assert read_progress(tmp_path, "card", "embedded") == (TRAINING,)


def test_nothing_to_show_is_no_line(tmp_path):
    """Before the first step there is no folder; nobody waits for one."""
    assert read_progress(tmp_path, "card", "embedded") == ()


def test_scales_do_not_mix(tmp_path, folder):
    """Another scale of the same card has lines of its own."""
    write_progress(folder, TRAINING)

    assert read_progress(tmp_path, "card", "full") == ()


def test_showing_lines_loads_no_engine_and_no_sdk():
    """The controller imports these two modules in every session with experiments."""
    code = (
        "import sys, harness.protocol.stages, harness.protocol.progress\n"
        "heavy = {'torch', 'tinker', 'tinker_cookbook', 'transformers', 'sklearn', 'httpx'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    reported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert reported.stdout.strip() == "[]"
