"""Raw HTTP against an engine: retries, duplicates, encodings, bodies that are no requests."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import zstandard
from engine_process import Engine
from wire import PROTO, Wire, gradient_norm, make_tensor, sound_message, sound_sample

from harness.engine.protobuf import pb


@pytest.fixture(scope="module")
def wire(engine: Engine) -> Iterator[Wire]:
    """A raw client of this module's engine."""
    client = Wire(engine.url)
    yield client
    client.http.close()


def test_a_repeated_submission_counts_once(wire: Wire) -> None:
    """The same (model, seq_id) sent five times at once is one request with one gradient."""
    session = wire.session()
    first, second = wire.model(session, 0), wire.model(session, 1)
    body = sound_message(first, 1).SerializeToString()
    ids: list[str] = []

    def send() -> None:
        answer = wire.http.post("forward_backward", content=body, headers=PROTO)
        ids.append(answer.json()["request_id"])

    threads = [threading.Thread(target=send) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 1
    wire.wait(ids[0])
    wire.forward_backward(sound_message(second, 1))
    assert gradient_norm(wire, first, 2) == gradient_norm(wire, second, 2) > 0


def test_an_answer_can_be_fetched_again(wire: Wire) -> None:
    """A poll whose answer was lost gets the same bytes again; so does a repeated submission."""
    sampler = wire.sampler(wire.session())
    request_id = wire.post("asample", sound_sample(sampler, 0))["request_id"]
    first, again = wire.wait(request_id), wire.wait(request_id)
    repeated = wire.wait(wire.post("asample", sound_sample(sampler, 0))["request_id"])
    assert first.headers["content-type"] == "application/x-protobuf"
    assert first.content == again.content == repeated.content


def test_a_missing_number_does_not_hold_up_the_model(wire: Wire) -> None:
    """Requests run in the order of arrival: a number that never comes is not waited for."""
    model = wire.model(wire.session())
    assert wire.forward_backward(sound_message(model, 7)).status_code == 200
    assert gradient_norm(wire, model, 9) > 0


def test_zstd_bodies_are_accepted(wire: Wire) -> None:
    """A compressed forward_backward gives the plain one's answer."""
    session = wire.session()
    plain = wire.forward_backward(sound_message(wire.model(session, 0), 1))
    packed = zstandard.compress(sound_message(wire.model(session, 1), 1).SerializeToString())
    answer = wire.http.post(
        "forward_backward", content=packed, headers={**PROTO, "content-encoding": "zstd"}
    )
    assert wire.wait(answer.json()["request_id"]).content == plain.content


def test_sparse_targets_equal_dense_ones(wire: Wire) -> None:
    """cross_entropy with sparse (N, K) weights gives the dense answer."""
    session, n, k = wire.session(), 6, 2
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(n, k)).astype(np.float32)
    weights[1] = 0
    targets = rng.integers(1, 90, (n, k))
    answers = []
    for sequence, sparse in enumerate((False, True)):
        message = sound_message(wire.model(session, sequence), 1, n=n)
        inputs = message.data[0].loss_fn_inputs
        inputs["target_tokens"].CopyFrom(make_tensor(targets))
        if sparse:
            rows, columns = np.nonzero(weights)
            starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
            tensor = pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=(n, k))
            tensor.sparse_csr.values = weights[rows, columns].tobytes()
            tensor.sparse_csr.crow_indices = starts.astype(np.int64).tobytes()
            tensor.sparse_csr.col_indices = columns.astype(np.int64).tobytes()
            inputs["weights"].CopyFrom(tensor)
        else:
            inputs["weights"].CopyFrom(make_tensor(weights))
        answers.append(wire.forward_backward(message).content)
    assert answers[0] == answers[1]


def test_bodies_that_are_no_requests_get_400(wire: Wire) -> None:
    """Truncated protobuf, no JSON, no object, bad zstd: status 400 with one line, never 5xx."""
    whole = sound_message("m", 1).SerializeToString()
    for content in (whole[:-3], whole[:17], b"\xff" * 40):
        assert wire.http.post("forward_backward", content=content).status_code == 400
    for path in ("asample", "optim_step", "create_model", "save_weights", "retrieve_future"):
        for content in (b"{", b"[1]", b"\x00\x01", b'"x"', b"{}{}"):
            answer = wire.http.post(path, content=content)
            assert answer.status_code == 400
            assert "\n" not in answer.json()["error"]
    answer = wire.http.post("asample", content=b"junk", headers={"content-encoding": "zstd"})
    assert answer.status_code == 400
    bomb = zstandard.compress(bytes(300 << 20))
    answer = wire.http.post("asample", content=bomb, headers={"content-encoding": "zstd"})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "..", ".hidden", "", "x" * 200, "a\x00b", "/etc/passwd", 5, ["a"]]
)
def test_names_can_not_leave_the_state_folder(wire: Wire, name: object) -> None:
    """A checkpoint name that is no plain name is refused, for saving, loading and deleting."""
    model = wire.model(wire.session())
    for seq_id, path in enumerate(("save_weights", "save_weights_for_sampler")):
        content = wire.do(path, {"model_id": model, "seq_id": seq_id, "path": name})
        assert content["category"] == "user"
    tinker_path = f"tinker://{model}/weights/{name}"
    load = {"model_id": model, "seq_id": 5, "path": tinker_path, "optimizer": False}
    assert wire.do("load_weights", load)["category"] == "user"
    assert wire.http.post("weights_info", json={"tinker_path": tinker_path}).status_code == 400


def test_an_answer_does_not_wait_for_acknowledgements(wire: Wire) -> None:
    """The fastest of ten round trips takes under 20 ms: a delayed acknowledgement takes 40."""
    times = []
    for _ in range(10):
        began = time.perf_counter()
        wire.post("client/config", {"sdk_version": "0.25.0"})
        times.append(time.perf_counter() - began)
    assert min(times) < 0.02


def test_unknown_futures_fail_and_unknown_paths_are_404(wire: Wire) -> None:
    """A request id of another engine is a failure, not a hot loop; no path answers 409 or 5xx."""
    assert wire.wait("no-such-id").json()["category"] == "unknown"
    assert wire.http.get("nothing/here").status_code == 404
    assert wire.http.get("training_runs/none").status_code == 400
    assert wire.http.delete("training_runs/none/checkpoints/weights/x").status_code == 400
