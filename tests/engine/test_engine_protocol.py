"""Raw HTTP against an engine: retries, duplicates, malformed requests."""

import json
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import zstandard
from engine_process import Engine

from harness.engine.protocol import pb

PROTO = {"content-type": "application/x-protobuf"}


class Wire:
    """A client that speaks HTTP only."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=f"{url}/api/v1/", trust_env=False, timeout=60)

    def post(self, path: str, body: object) -> Any:
        """The JSON answer of a request that must be accepted."""
        answer = self.http.post(path, content=json.dumps(body))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait(self, request_id: str) -> httpx.Response:
        """The answer of a future, polling as long as it takes."""
        while True:
            answer = self.http.post("retrieve_future", json={"request_id": request_id})
            if answer.status_code != 408:
                return answer

    def do(self, path: str, body: object) -> Any:
        """Submit, wait, and give back JSON."""
        return self.wait(self.post(path, body)["request_id"]).json()

    def session(self) -> str:
        """A new session."""
        return str(self.post("create_session", {"tags": []})["session_id"])

    def model(self, session: str, sequence: int = 0) -> str:
        """A new LoRA model."""
        body = {
            "session_id": session,
            "model_seq_id": sequence,
            "base_model": "tiny",
            "lora_config": {"rank": 4, "seed": 1},
        }
        return str(self.do("create_model", body)["model_id"])

    def sampler(self, session: str, sequence: int = 0) -> str:
        """A sampling session on the base model."""
        body = {
            "session_id": session,
            "sampling_session_seq_id": sequence,
            "base_model": "tiny",
        }
        return str(self.post("create_sampling_session", body)["sampling_session_id"])

    def forward_backward(self, message: Any, **headers: str) -> httpx.Response:
        """The answer of a forward_backward future."""
        answer = self.http.post(
            "forward_backward", content=message.SerializeToString(), headers={**PROTO, **headers}
        )
        assert answer.status_code == 200, answer.text
        return self.wait(answer.json()["request_id"])


@pytest.fixture(scope="module")
def wire(engine: Engine) -> Iterator[Wire]:
    """A raw client of this module's engine."""
    client = Wire(engine.url)
    yield client
    client.http.close()


def _tensor(values: np.ndarray) -> Any:
    dtype = pb.DTYPE_INT64 if values.dtype == np.int64 else pb.DTYPE_FLOAT32
    return pb.Tensor(dense=values.tobytes(), dtype=dtype, shape=values.shape)


def _message(model: str, seq_id: int, loss: str = "cross_entropy", n: int = 12) -> Any:
    message = pb.ForwardBackwardRequest(model_id=model, seq_id=seq_id, loss_fn=loss)
    datum = message.data.add()
    tokens = np.arange(5, 5 + n, dtype=np.int32)
    datum.model_input.add().encoded_text.tokens = tokens.tobytes()
    datum.loss_fn_inputs["target_tokens"].CopyFrom(_tensor(tokens.astype(np.int64) + 1))
    names = ("weights",) if loss == "cross_entropy" else ("logprobs", "advantages")
    for name in names:
        datum.loss_fn_inputs[name].CopyFrom(_tensor(np.ones(n, dtype=np.float32)))
    return message


def _sample(sampler: str, seq_id: int, **changes: object) -> dict[str, object]:
    return {
        "sampling_session_id": sampler,
        "seq_id": seq_id,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]},
        "sampling_params": {"max_tokens": 5, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
        **changes,
    }


def _norm(wire: Wire, model: str, seq_id: int) -> float:
    step = {"model_id": model, "seq_id": seq_id, "adam_params": {"learning_rate": 0.0}}
    return float(wire.do("optim_step", step)["metrics"]["grad_norm"])


def test_a_repeated_submission_counts_once(wire: Wire) -> None:
    """The same (model, seq_id) sent five times at once is one request with one gradient."""
    session = wire.session()
    first, second = wire.model(session, 0), wire.model(session, 1)
    body = _message(first, 1).SerializeToString()
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
    wire.forward_backward(_message(second, 1))
    assert _norm(wire, first, 2) == _norm(wire, second, 2) > 0


def test_an_answer_can_be_fetched_again(wire: Wire) -> None:
    """A poll whose answer was lost gets the same bytes again; so does a repeated submission."""
    sampler = wire.sampler(wire.session())
    request_id = wire.post("asample", _sample(sampler, 0))["request_id"]
    first, again = wire.wait(request_id), wire.wait(request_id)
    repeated = wire.wait(wire.post("asample", _sample(sampler, 0))["request_id"])
    assert first.headers["content-type"] == "application/x-protobuf"
    assert first.content == again.content == repeated.content


def test_a_missing_number_does_not_hold_up_the_model(wire: Wire) -> None:
    """Requests run in the order of arrival: a number that never comes is not waited for."""
    model = wire.model(wire.session())
    assert wire.forward_backward(_message(model, 7)).status_code == 200
    assert _norm(wire, model, 9) > 0


def test_zstd_bodies_are_accepted(wire: Wire) -> None:
    """A compressed forward_backward gives the plain one's answer."""
    session = wire.session()
    plain = wire.forward_backward(_message(wire.model(session, 0), 1))
    packed = zstandard.compress(_message(wire.model(session, 1), 1).SerializeToString())
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
        message = _message(wire.model(session, sequence), 1, n=n)
        inputs = message.data[0].loss_fn_inputs
        inputs["target_tokens"].CopyFrom(_tensor(targets))
        if sparse:
            rows, columns = np.nonzero(weights)
            starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
            tensor = pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=(n, k))
            tensor.sparse_csr.values = weights[rows, columns].tobytes()
            tensor.sparse_csr.crow_indices = starts.astype(np.int64).tobytes()
            tensor.sparse_csr.col_indices = columns.astype(np.int64).tobytes()
            inputs["weights"].CopyFrom(tensor)
        else:
            inputs["weights"].CopyFrom(_tensor(weights))
        answers.append(wire.forward_backward(message).content)
    assert answers[0] == answers[1]


def _bad_messages() -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Ways to spoil a sound forward_backward message, and a word of the refusal."""

    def inputs(name: str, tensor: Any) -> Callable[[Any], None]:
        return lambda m: m.data[0].loss_fn_inputs[name].CopyFrom(tensor)

    floats = np.ones(12, dtype=np.float32)
    for bad in (np.nan, np.inf, -np.inf):
        spoiled = floats.copy()
        spoiled[3] = bad
        yield "NaN or infinity at \\[3", inputs("weights", _tensor(spoiled))
    for length in (1, 11, 13, 500):
        yield "shape", inputs("weights", _tensor(np.ones(length, dtype=np.float32)))
        yield "target_tokens has", inputs("target_tokens", _tensor(np.ones(length, dtype=np.int64)))
    for token in (-1, 99, 1 << 40, -(1 << 60)):
        yield "tokens lie in", inputs("target_tokens", _tensor(np.full(12, token)))
    yield "not whole", inputs("target_tokens", _tensor(floats * 0.5))
    yield "unknown to cross_entropy", inputs("mask", _tensor(floats))
    yield "dtype", inputs("weights", pb.Tensor(dense=b"\0" * 48, shape=[12]))
    yield (
        "multiple of",
        inputs("weights", pb.Tensor(dense=b"\0" * 47, dtype=pb.DTYPE_FLOAT32, shape=[12])),
    )
    yield (
        "its shape is",
        inputs(
            "weights", pb.Tensor(dense=b"\0" * 48, dtype=pb.DTYPE_FLOAT32, shape=[1 << 30, 1 << 30])
        ),
    )
    yield "shape", inputs("weights", pb.Tensor(dense=b"", dtype=pb.DTYPE_FLOAT32, shape=[-1]))
    csr = pb.Tensor(dtype=pb.DTYPE_FLOAT32, shape=[12, 2])
    csr.sparse_csr.values = struct.pack("<f", 1.0)
    yield "do not fit", inputs("weights", csr)
    for tokens in ([], [-5], [99], [1 << 30], list(range(3, 90)) * 8):
        raw = np.array(tokens, dtype=np.int32).tobytes()
        yield (
            "token",
            lambda m, raw=raw: setattr(m.data[0].model_input[0].encoded_text, "tokens", raw),
        )
    yield "int32", lambda m: setattr(m.data[0].model_input[0].encoded_text, "tokens", b"abc")
    yield "encoded_text", lambda m: setattr(m.data[0].model_input[0].image, "data", b"png")
    yield "no datum", lambda m: m.ClearField("data")
    yield "lacks target_tokens", lambda m: m.data[0].ClearField("loss_fn_inputs")
    yield "not loaded", lambda m: setattr(m, "model_id", "../../etc/passwd")
    for loss in ("", "ppo2", "__import__", "importance_sampling", "ppo", "cispo", "dro"):
        yield "loss|lacks|unknown", lambda m, loss=loss: setattr(m, "loss_fn", loss)
    for key, value in (("beta", 1.0), ("clip_high_threshold", float("nan"))):
        yield (
            "loss_fn_config",
            lambda m, key=key, value=value: m.loss_fn_config.update({key: value}),
        )


def _bad_samples() -> Iterator[tuple[str, dict[str, object]]]:
    """Changes that spoil a sound sample request, and a word of the refusal."""

    def params(**changes: object) -> dict[str, object]:
        return {"sampling_params": {"max_tokens": 5, **changes}}

    wrong: list[object] = ["x", -3, 1.5, [], {}, True, 1 << 80]
    for value in wrong:
        yield "max_tokens", params(max_tokens=value)
        yield "num_samples", {"num_samples": value}
        if value not in (-3,):
            yield "seed", params(seed=value)
        yield "topk_prompt_logprobs", {"topk_prompt_logprobs": value}
    for value in ["x", -0.1, float("1e300"), [], True]:
        yield "temperature", params(temperature=value)
    for value in ["x", 0, -1, 1.01, []]:
        yield "top_p", params(top_p=value)
    for value in ["x", -2, 1.5, []]:
        yield "top_k", params(top_k=value)
    for value in [[""], [1, None], [[1]], {}, 1.5, list(range(65))]:
        yield "stop", params(stop=value)
    for value in ["x", None, 3, [1, 2], [{"type": "image"}], [{"tokens": 3}], [{"tokens": []}], []]:
        yield "prompt", {"prompt": {"chunks": value}}
    for token in [-1, 99, 1 << 31, 1 << 90, 1.5, "a", None, True]:
        chunk = {"type": "encoded_text", "tokens": [5, token]}
        yield "prompt", {"prompt": {"chunks": [chunk]}}
    chunk = {"type": "encoded_text", "tokens": [5] * 600}
    yield "exceeds the context", {"prompt": {"chunks": [chunk]}}
    for value in ["nowhere", 5, {}, []]:
        yield "sampling", {"sampling_session_id": value}
    yield "prompt_logprobs", {"prompt_logprobs": "yes"}


def test_spoiled_forward_backwards_fail_as_the_users_mistake(wire: Wire) -> None:
    """Each of some 40 spoiled messages fails its own future and leaves no gradient behind."""
    model = wire.model(wire.session())
    count = 0
    for seq_id, (word, spoil) in enumerate(_bad_messages(), start=1):
        message = _message(model, seq_id)
        spoil(message)
        answer = wire.forward_backward(message)
        content = orjson.loads(answer.content)
        assert content["category"] == "user", content
        assert "\n" not in content["error"]
        assert re.search(word, content["error"]), (word, content["error"])
        count += 1
    assert count >= 40
    assert _norm(wire, model, 1000) == 0.0


def test_spoiled_samples_fail_as_the_users_mistake(wire: Wire) -> None:
    """Each of some 60 spoiled sample requests fails its own future, and the next is served."""
    sampler = wire.sampler(wire.session())
    count = 0
    for seq_id, (word, change) in enumerate(_bad_samples()):
        content = wire.do("asample", _sample(sampler, seq_id, **change))
        assert content["category"] == "user", (change, content)
        assert word in content["error"], (change, content)
        count += 1
    assert count >= 60
    good = wire.wait(wire.post("asample", _sample(sampler, 5000))["request_id"])
    assert good.headers["content-type"] == "application/x-protobuf"


def test_bodies_that_are_no_requests_get_400(wire: Wire) -> None:
    """Truncated protobuf, no JSON, no object, bad zstd: status 400 with one line, never 5xx."""
    whole = _message("m", 1).SerializeToString()
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
