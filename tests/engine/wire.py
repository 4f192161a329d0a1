"""A raw HTTP client, and sound requests to send or to spoil."""

import json
from typing import Any

import httpx
import numpy as np

from harness.engine.protobuf import pb

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


def make_tensor(values: np.ndarray) -> Any:
    """A dense tensor of the wire."""
    dtype = pb.DTYPE_INT64 if values.dtype == np.int64 else pb.DTYPE_FLOAT32
    return pb.Tensor(dense=values.tobytes(), dtype=dtype, shape=values.shape)


def sound_message(model: str, seq_id: int, loss: str = "cross_entropy", n: int = 12) -> Any:
    """A sound forward_backward of one datum."""
    found = pb.ForwardBackwardRequest(model_id=model, seq_id=seq_id, loss_fn=loss)
    datum = found.data.add()
    tokens = np.arange(5, 5 + n, dtype=np.int32)
    datum.model_input.add().encoded_text.tokens = tokens.tobytes()
    datum.loss_fn_inputs["target_tokens"].CopyFrom(make_tensor(tokens.astype(np.int64) + 1))
    names = ("weights",) if loss == "cross_entropy" else ("logprobs", "advantages")
    for name in names:
        datum.loss_fn_inputs[name].CopyFrom(make_tensor(np.ones(n, dtype=np.float32)))
    return found


def sound_sample(sampler: str, seq_id: int, **changes: object) -> dict[str, object]:
    """A sound sample request."""
    return {
        "sampling_session_id": sampler,
        "seq_id": seq_id,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7]}]},
        "sampling_params": {"max_tokens": 5, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
        **changes,
    }


def gradient_norm(wire: Wire, model: str, seq_id: int) -> float:
    """The gradient norm that a step without learning rate reports."""
    step = {"model_id": model, "seq_id": seq_id, "adam_params": {"learning_rate": 0.0}}
    return float(wire.do("optim_step", step)["metrics"]["grad_norm"])
