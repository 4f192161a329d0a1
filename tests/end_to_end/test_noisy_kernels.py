"""On a processor whose kernels keep no bits: the engine says so, and a run is held to tolerances.

Such kernels are planted in the engine's process. What then differs is in the last bits.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import stored
from mini import ARMS, EVERY, GS1, STEPS
from sessions import Session, clean_environment, run, start_and_stop_at

from harness.records import GroupRecord, logprobs_of, tokens_of

NOISY = {
    "PYTHONPATH": os.pathsep.join(
        (str(Path(__file__).parent / "noisy_kernels"), clean_environment()["PYTHONPATH"])
    )
}
AT = STEPS - 1
CHECKPOINT = AT - AT % EVERY
SAID = "results can't be repeated bit for bit, only within a tolerance"


@pytest.fixture(scope="module")
def killed(preflighted, tmp_path_factory) -> Session:
    """A run, preflights included, that is killed before the last step of the GS1 arm."""
    folder = tmp_path_factory.mktemp("noisy")
    session = start_and_stop_at(
        folder / "killed", f"{GS1}:{AT}", scale=preflighted.scale, runs=folder / "runs",
        environ=NOISY,
    )  # fmt: skip
    session.kill(group=True)
    session.end_of_processes()
    return session


@pytest.fixture(scope="module")
def resumed(killed, preflighted) -> Session:
    """The run that goes on from there."""
    folder = killed.folder.with_name("resumed")
    session = run(folder, scale=preflighted.scale, runs=killed.runs, environ=NOISY)
    assert session.exit in (0, 1), session.tail
    return session


def test_the_engine_says_so_in_one_line(killed):
    """Its log has one line with how far apart the log-probs of one row came out."""
    log = (killed.runs / "engine" / "engine.log").read_text()
    lines = [line for line in log.splitlines() if SAID in line]

    assert len(lines) == log.count(" serving ")
    assert " nats " in lines[0]


def test_the_preflights_hold_it_to_its_noise(resumed):
    """All pass, and what compares clients says that equal bits were not promised."""
    preflights = resumed.verdict["preflights"]

    assert {flight["outcome"] for flight in preflights} == {"passed"}
    (restoration,) = (f for f in preflights if f["id"] == "restoration")
    assert any("promises no equal bits" in note for note in restoration["notes"])


def test_the_preflights_of_kernels_that_keep_bits_say_nothing_of_it(undisturbed):
    """On this machine's own kernels the bound between two clients is zero."""
    (restoration,) = (f for f in undisturbed.verdict["preflights"] if f["id"] == "restoration")

    assert not any("bits" in note for note in restoration["notes"])


def test_a_killed_run_resumes_and_ends_in_a_verdict(resumed, killed):
    """It goes on from the last checkpoint, and every gate is green."""
    files = stored.step_files(resumed.runs, GS1)

    assert set(files) == set(range(STEPS))
    assert resumed.verdict["verdict"] in ("VALIDATED", "REFUTED", "INCONCLUSIVE")
    assert all(gate["ok"] for gate in resumed.verdict["gates"])
    assert resumed.verdict["attempts"] == 2
    untouched = {step for step, (_, at) in files.items() if at < killed_at(killed)}
    assert untouched == set(range(CHECKPOINT))


def test_what_is_stored_is_not_done_again(resumed, preflighted, tmp_path):
    """A rerun reads everything, starts no engine, and says the same."""
    runs = tmp_path / "runs"
    shutil.copytree(resumed.runs, runs)
    log = (runs / "engine" / "engine.log").read_bytes()

    rerun = run(tmp_path / "rerun", scale=preflighted.scale, runs=runs, environ=NOISY)

    assert rerun.verdict == resumed.verdict
    assert (runs / "engine" / "engine.log").read_bytes() == log


def test_what_is_sampled_is_the_same_within_a_tolerance(resumed, undisturbed):
    """In the first step, log-probs of equal tokens lie within 1e-4, and not on each other."""
    noisy, own = stored.training(resumed.runs), stored.training(undisturbed.runs)
    pairs = [
        (a, b)
        for name in ARMS
        for one, other in zip(noisy[name][0]["groups"], own[name][0]["groups"], strict=True)
        for a, b in zip(rollouts(one), rollouts(other), strict=True)
    ]
    apart = [np.abs(np.subtract(a[1], b[1])).max() for a, b in pairs if a[0] == b[0]]

    assert len(apart) >= 0.9 * len(pairs)
    assert 0 < max(apart) < 1e-4


def rollouts(group: GroupRecord) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probs of each rollout."""
    return [(tokens_of(rollout), logprobs_of(rollout)) for rollout in group["rollouts"]]


def killed_at(session: Session) -> int:
    """When it had come to where it was killed, in ns."""
    return session.folder.with_name(f"{session.folder.name}.marker").stat().st_mtime_ns
