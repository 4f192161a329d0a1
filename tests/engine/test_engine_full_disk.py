"""A state folder without space."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tinker
from engine_process import Engine

UNSHARE = ("unshare", "--map-root-user", "--mount")
CAN_MOUNT = (
    shutil.which("unshare") is not None
    and subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
    ).returncode
    == 0
)
SERVE = 'mount -t tmpfs -o size=600k none "$1" && exec "$2" -m harness.engine --base-model "$3" --state "$1" --exit-with "$4"'  # noqa: E501 - one command


@pytest.fixture
def cramped(model_folder: Path, tmp_path: Path) -> Iterator[Engine]:
    """An engine whose state folder is a file system of 600 KiB."""
    arguments = [str(tmp_path), sys.executable, str(model_folder), str(os.getpid())]
    with (tmp_path.parent / "cramped.log").open("w") as log:
        process = subprocess.Popen(
            [*UNSHARE, "sh", "-c", SERVE, "sh", *arguments],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    assert process.stdout is not None
    running = Engine(process, process.stdout.readline().strip(), model_folder, tmp_path)
    yield running
    running.end()


@pytest.mark.skipif(not CAN_MOUNT, reason="no unprivileged mounts on this machine")
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_fails_the_checkpoint_and_tears_nothing(
    cramped: Engine, connect: Callable[[Engine], tinker.ServiceClient]
) -> None:
    """The future says what to do; what was saved stays whole; space given back is used."""
    client = connect(cramped)
    training = client.create_lora_training_client("tiny", rank=4, seed=1)
    saved: list[str] = []

    def save_on() -> None:
        while True:
            saved.append(training.save_state(f"state-{len(saved)}").result().path)

    with pytest.raises(tinker.RequestFailedError, match="free some space"):
        save_on()
    assert saved
    inside = Path(f"/proc/{cramped.process.pid}/root{cramped.state}")
    assert not list(inside.rglob("*.tmp"))
    rest = client.create_rest_client()
    run = training.get_info().model_id
    listed = [c.tinker_path for c in rest.list_checkpoints(run).result().checkpoints]
    assert listed == saved
    client.create_training_client_from_state_with_optimizer(saved[-1])
    rest.delete_checkpoint_from_tinker_path(saved[0]).result()
    assert training.save_state("again").result().path.endswith("weights/again")
