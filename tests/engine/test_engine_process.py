"""The engine as a process: its address line, its lock, its death, and what outlives it."""

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tinker
from engine_process import Engine, launch
from tinker import types

from harness.processes import take_lease

# the SDK leaves its sockets to the garbage collector
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <(socket|function _SelectorTransport)"
    ":pytest.PytestUnraisableExceptionWarning"
)

Start = Callable[..., Engine]
Connect = Callable[[Engine], tinker.ServiceClient]
ADAM = types.AdamParams(learning_rate=3e-3)


def _datum(seed: int) -> types.Datum:
    tokens = np.random.default_rng(seed).integers(3, 98, 30).tolist()
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * 29},
    )


def _logprobs(training: tinker.TrainingClient) -> np.ndarray:
    result = training.forward([_datum(99)], "cross_entropy").result()
    found: np.ndarray = result.loss_fn_outputs[0]["logprobs"].to_numpy()
    return found


def _step(training: tinker.TrainingClient, seed: int) -> None:
    training.forward_backward([_datum(seed)], "cross_entropy")
    training.optim_step(ADAM).result()


def test_checkpoints_survive_kill_9(start: Start, connect: Connect) -> None:
    """After kill -9 a new engine on the folder lists, samples and resumes them bit for bit."""
    first = start()
    client = connect(first)
    training = client.create_lora_training_client("tiny", rank=4, seed=1)
    _step(training, 0)
    state = training.save_state("kept").result().path
    weights = training.save_weights_for_sampler("kept").result().path
    prompt, wanted = (
        types.ModelInput.from_ints([5, 6, 7]),
        types.SamplingParams(max_tokens=30, seed=4),
    )
    before = client.create_sampling_client(weights).sample(prompt, 2, wanted).result().sequences
    _step(training, 1)
    expected = _logprobs(training)
    run = training.get_info().model_id
    training.save_state("torn")  # may or may not be on disk when the engine dies
    first.kill()

    again = connect(start(state=first.state))
    after = again.create_sampling_client(weights).sample(prompt, 2, wanted).result().sequences
    resumed = again.create_training_client_from_state_with_optimizer(state)
    _step(resumed, 1)
    assert [(s.tokens, s.logprobs) for s in after] == [(s.tokens, s.logprobs) for s in before]
    assert np.array_equal(_logprobs(resumed), expected)
    listed = again.create_rest_client().list_checkpoints(run).result().checkpoints
    assert {"weights/kept", "sampler_weights/kept"} <= {c.checkpoint_id for c in listed}
    for checkpoint in listed:
        if checkpoint.checkpoint_type == "training":
            again.create_training_client_from_state(checkpoint.tinker_path)


def test_a_second_engine_on_a_folder_refuses_in_one_line(start: Start) -> None:
    """The folder is locked while its engine lives, and free once it was killed."""
    first = start()
    refused = subprocess.run(
        [sys.executable, "-m", "harness.engine", "--base-model", str(first.folder),
         "--state", str(first.state)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.count("\n") == 1
    assert "in use by another engine" in refused.stderr
    first.kill()
    assert start(state=first.state).url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base-model", "{tmp}"], "config.json"),
        (["--base-model", "{model}", "--host", "0.0.0.0"], "give a key"),
        (["--base-model", "{model}", "--api-key-env", "NOT_SET_HERE"], "is not set"),
        (["--base-model", "{model}", "--port", "{taken}"], "choose another"),
    ],
)
def test_a_start_that_can_not_be_is_refused_in_one_line(
    model_folder: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    """Exit 2, nothing on stdout, one line on stderr that names the value."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        filled = [a.format(tmp=tmp_path, model=model_folder, taken=port) for a in arguments]
        refused = subprocess.run(
            [sys.executable, "-m", "harness.engine", *filled],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert (refused.returncode, refused.stdout) == (2, "")
    assert message in refused.stderr.splitlines()[-1]


def test_sigterm_ends_it_cleanly(start: Start) -> None:
    """SIGTERM gives exit code 0."""
    running = start()
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(timeout=30) == 0


def test_it_ends_with_the_process_it_was_told_to_watch(model_folder: Path, tmp_path: Path) -> None:
    """After that process's death the engine goes, with exit code 0."""
    watched = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    process = launch(model_folder, tmp_path / "state", "--exit-with", str(watched.pid))
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline().startswith("http://")
        watched.kill()
        watched.wait()
        assert process.wait(timeout=30) == 0


def test_it_ends_with_the_last_of_those_who_need_it(model_folder: Path, tmp_path: Path) -> None:
    """A lease of another run keeps it serving; it ends when nobody holds one any more."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    first, second = (subprocess.Popen(sleep) for _ in range(2))
    leases = tmp_path / "leases"
    for holder in (first, second):
        take_lease(leases, holder.pid)
    process = launch(model_folder, tmp_path / "state", "--exit-with", str(leases))
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline().startswith("http://")
        first.kill()
        first.wait()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1.5)
        second.kill()
        second.wait()
        assert process.wait(timeout=30) == 0


def test_a_key_is_asked_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a key configured, requests without it get 401 and requests with it are served."""
    import httpx

    monkeypatch.setenv("ENGINE_KEY", "tml-secret")
    url = start("--api-key-env", "ENGINE_KEY").url + "/api/v1/healthz"
    with httpx.Client(trust_env=False) as client:
        assert client.get(url).status_code == 401
        assert client.get(url, headers={"X-API-Key": "tml-wrong"}).status_code == 401
        assert client.get(url, headers={"X-API-Key": "tml-secret"}).status_code == 200
