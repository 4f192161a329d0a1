"""Some 280 malformed requests: each a clear error, the engine alive, its other client unharmed."""

import itertools
import re
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from engine_process import Engine
from wire import Wire, gradient_norm, make_tensor, sound_message, sound_sample

from harness.engine.protobuf import pb

HUGE = 1 << 80
NOT_WHOLE: list[object] = ["x", 1.5, [], {}, True, HUGE]


@pytest.fixture(scope="module")
def wire(engine: Engine) -> Iterator[Wire]:
    """A raw client of this module's engine."""
    client = Wire(engine.url)
    yield client
    client.http.close()


@pytest.fixture(autouse=True)
def _another_client(engine: Engine) -> Iterator[None]:
    """Trains and samples all the while; each of its answers must be the one it got undisturbed."""
    other, done = Wire(engine.url), threading.Event()
    session = other.session()
    model, sampler = other.model(session), other.sampler(session)
    expected, found = _work(other, model, sampler, 0), []

    def go_on() -> None:
        number = 1
        while not done.wait(0.05):
            found.append(_work(other, model, sampler, number))
            number += 1

    thread = threading.Thread(target=go_on)
    thread.start()
    yield
    done.set()
    thread.join()
    found.append(_work(other, model, sampler, 10_000))
    other.http.close()
    assert all(answers == expected for answers in found)


def _work(wire: Wire, model: str, sampler: str, number: int) -> tuple[bytes, bytes, float]:
    """A sample, a forward_backward and the norm of its gradient; the weights stay as they are."""
    body = sound_sample(sampler, number, sampling_params={"max_tokens": 5, "seed": 3})
    sampled = wire.wait(wire.post("asample", body)["request_id"]).content
    trained = wire.forward_backward(sound_message(model, 2 * number)).content
    return sampled, trained, gradient_norm(wire, model, 2 * number + 1)


def _bad_messages() -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Ways to spoil a sound forward_backward message, and a word of the refusal."""

    def inputs(name: str, tensor: Any) -> Callable[[Any], None]:
        return lambda m: m.data[0].loss_fn_inputs[name].CopyFrom(tensor)

    def rl(loss: str, name: str, values: np.ndarray) -> Callable[[Any], None]:
        def spoil(m: Any) -> None:
            m.CopyFrom(sound_message(m.model_id, m.seq_id, loss))
            inputs(name, make_tensor(values.astype(np.float32)))(m)

        return spoil

    floats = np.ones(12, dtype=np.float32)
    for bad in (np.nan, np.inf, -np.inf):
        spoiled = floats.copy()
        spoiled[3] = bad
        yield "NaN or infinity at \\[3", inputs("weights", make_tensor(spoiled))
    for length in (1, 11, 13, 500):
        yield "shape", inputs("weights", make_tensor(np.ones(length, dtype=np.float32)))
        yield (
            "target_tokens has",
            inputs("target_tokens", make_tensor(np.ones(length, dtype=np.int64))),
        )
    for token in (-1, 99, 1 << 40, -(1 << 60)):
        yield "tokens lie in", inputs("target_tokens", make_tensor(np.full(12, token)))
    yield "not whole", inputs("target_tokens", make_tensor(floats * 0.5))
    yield "unknown to cross_entropy", inputs("mask", make_tensor(floats))
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
    nan, inf = float("nan"), float("inf")
    for loss in ("importance_sampling", "ppo", "cispo", "dro"):
        for name in ("advantages", "logprobs"):
            for value in (nan, inf, -inf):
                yield f"{name} holds NaN or infinity", rl(loss, name, np.full(12, value))
            yield f"{name} has shape", rl(loss, name, np.ones(11))
    yield "must be finite", rl("importance_sampling", "logprobs", np.full(12, -200.0))
    yield "is not finite", rl("ppo", "logprobs", np.full(12, -200.0))
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
    for value in ("x", 5, [1], True):
        yield "sampling_params", {"sampling_params": value}
        yield "prompt", {"prompt": value}
    for value in (None, "a" * 300, "tinker://", "../..", "tinker://a/b/c/d", 5):
        yield "", {"sampling_session_id": None, "model_path": value}
    for value in ("tiny2", "", 7, "../tiny"):
        yield "base", {"sampling_session_id": None, "base_model": value}


def _bad_bodies(model: str, session: str) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Path, a word of the refusal, and the body of requests that are answered later."""
    names = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")
    for name in names:
        for value in ("x", -1.0, [], True):
            yield "optim_step", name, {"model_id": model, "adam_params": {name: value}}
    for name in ("beta1", "beta2"):
        yield "optim_step", name, {"model_id": model, "adam_params": {name: 1.0}}
    for value in ("x", 3, [1]):
        yield "optim_step", "adam_params", {"model_id": model, "adam_params": value}
    for path in ("optim_step", "save_weights", "save_weights_for_sampler", "unload_model"):
        for value in ("nowhere", "", 5, None, [model], "../../etc"):
            yield path, "model", {"model_id": value, "path": "x"}
    number = itertools.count(90)

    def create(**changes: object) -> dict[str, object]:
        sound = {"session_id": session, "base_model": "tiny", "model_seq_id": next(number)}
        return {**sound, **changes}

    for value in [*NOT_WHOLE, 0, -1, 1025]:
        yield "create_model", "rank", create(lora_config={"rank": value})
    for value in NOT_WHOLE:
        yield "create_model", "seed", create(lora_config={"seed": value})
    off = dict.fromkeys(("train_mlp", "train_attn", "train_unembed"), False)
    yield "create_model", "trains nothing", create(lora_config=off)
    for name in off:
        for value in ("yes", 1, []):
            yield "create_model", name, create(lora_config={name: value})
    for value in [*NOT_WHOLE, -1]:
        yield "create_model", "model_seq_id", create(model_seq_id=value)
    for value in ("nobody", 5, None, [], {}):
        yield "create_model", "session", create(session_id=value)
    for value in ("gpt-2", "", 5, None):
        yield "create_model", "base", create(base_model=value)
    for path in ("save_weights", "save_weights_for_sampler"):
        for value in [*NOT_WHOLE, 0, -5]:
            yield path, "ttl_seconds", {"model_id": model, "path": "x", "ttl_seconds": value}
    for value in ("x", None, 5, "tinker://a/weights", f"tinker://{model}/weights/none", "http://x"):
        yield "load_weights", "", {"model_id": model, "path": value}


def test_spoiled_forward_backwards_fail_as_the_users_mistake(wire: Wire) -> None:
    """Each of 75 spoiled messages fails its own future and leaves no gradient behind."""
    model = wire.model(wire.session())
    count = 0
    for seq_id, (word, spoil) in enumerate(_bad_messages(), start=1):
        message = sound_message(model, seq_id)
        spoil(message)
        answer = wire.forward_backward(message)
        content = orjson.loads(answer.content)
        assert content["category"] == "user", content
        assert "\n" not in content["error"]
        assert re.search(word, content["error"]), (word, content["error"])
        count += 1
    assert count >= 75
    assert gradient_norm(wire, model, 1000) == 0.0


def test_spoiled_samples_fail_as_the_users_mistake(wire: Wire) -> None:
    """Each of some 80 spoiled sample requests fails its own future, and the next is served."""
    sampler = wire.sampler(wire.session())
    count = 0
    for seq_id, (word, change) in enumerate(_bad_samples()):
        content = wire.do("asample", sound_sample(sampler, seq_id, **change))
        assert content["category"] == "user", (change, content)
        assert word in content["error"], (change, content)
        count += 1
    assert count >= 80
    good = wire.wait(wire.post("asample", sound_sample(sampler, 5000))["request_id"])
    assert good.headers["content-type"] == "application/x-protobuf"


def test_spoiled_bodies_fail_as_the_users_mistake(wire: Wire) -> None:
    """Each of some 110 spoiled bodies of the other endpoints fails its own future in one line."""
    session = wire.session()
    model = wire.model(session)
    count = 0
    for path, word, body in _bad_bodies(model, session):
        content = wire.do(path, body)
        assert content.get("category") == "user", (path, body, content)
        assert word in content["error"], (path, body, content)
        assert "\n" not in content["error"]
        count += 1
    assert count >= 110
    assert wire.forward_backward(sound_message(model, 1)).status_code == 200
