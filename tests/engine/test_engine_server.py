"""The real SDK against an engine process."""

import asyncio
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
import tinker
from engine_process import Engine
from tinker import types

from harness.engine.base_model import read_config, read_weights
from harness.engine.kernel_probe import arrangement_of

# the SDK leaves its sockets to the garbage collector
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <(socket|function _SelectorTransport)"
    ":pytest.PytestUnraisableExceptionWarning"
)

PROMPT = list(range(10, 40))
Connect = Callable[[Engine], tinker.ServiceClient]


@pytest.fixture(scope="module")
def client(engine: Engine, connect: Connect) -> tinker.ServiceClient:
    """An SDK client of this module's engine."""
    return connect(engine)


def _text(tokens: list[int]) -> types.ModelInput:
    return types.ModelInput.from_ints(tokens)


def _sampling(**changes: object) -> types.SamplingParams:
    return types.SamplingParams(**{"max_tokens": 24, "seed": 1, **changes})


def _rl_datum(tokens: list[int], seed: int = 0) -> types.Datum:
    rng = np.random.default_rng(seed)
    n = len(tokens) - 1
    return types.Datum(
        model_input=_text(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tokens[1:],
            "logprobs": rng.normal(-4, 0.2, n).tolist(),
            "advantages": rng.normal(size=n).tolist(),
        },
    )


ADAM = types.AdamParams(learning_rate=3e-3, beta1=0.9, beta2=0.95, eps=1e-8)


def test_the_service_names_what_it_serves(client: tinker.ServiceClient, engine: Engine) -> None:
    """Capabilities and get_info carry the folder's name; its tokenizer loads."""
    served = [m.model_name for m in client.get_server_capabilities().supported_models]
    training = client.create_lora_training_client("tiny", rank=4, seed=1)
    info = training.get_info()
    assert served == ["tiny", str(engine.folder)]
    assert info.model_data.model_name == "tiny"
    assert info.model_data.tokenizer_id == str(engine.folder)
    assert info.lora_rank == 4
    assert training.get_tokenizer().encode("a<|im_end|>")[-1] == 2


def test_capabilities_say_whether_bits_are_kept(engine: Engine) -> None:
    """Beside what the SDK reads they carry the promise, and the noise where there is none."""
    answer = httpx.get(f"{engine.url}/api/v1/get_server_capabilities", trust_env=False).json()
    config = read_config(engine.folder)
    found = arrangement_of(config, read_weights(engine.folder, config))
    assert answer["determinism"] == {"bit_exact": found.exact, "noise_nats": found.noise}


def test_an_unknown_base_model_fails_as_the_users_mistake(client: tinker.ServiceClient) -> None:
    """The future fails with category user, in one line that names what is served."""
    with pytest.raises(tinker.RequestFailedError, match="'other' is not served here; served: tiny"):
        client.create_lora_training_client("other", rank=4)


def test_sampled_log_probs_equal_training_log_probs(client: tinker.ServiceClient) -> None:
    """After an update, log-probs of sampling, of scoring and of training agree within 1e-4."""
    training = client.create_lora_training_client("tiny", rank=8, seed=1)
    training.forward_backward([_rl_datum(PROMPT)], "importance_sampling").result()
    training.optim_step(ADAM).result()
    sampler = training.save_weights_and_get_sampling_client()
    sequence = sampler.sample(_text(PROMPT), 1, _sampling()).result().sequences[0]
    row = [*PROMPT, *sequence.tokens]
    scored = sampler.compute_logprobs(_text(row)).result()
    trained = training.forward([_rl_datum(row)], "importance_sampling").result()
    trained_lp = trained.loss_fn_outputs[0]["logprobs"].to_numpy()
    assert scored[0] is None
    assert np.abs(np.array(scored[1:]) - trained_lp).max() < 1e-4
    assert np.abs(np.array(sequence.logprobs) - trained_lp[len(PROMPT) - 1 :]).max() < 1e-4


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dro"])
def test_loss_sum_is_the_sum_over_tokens(client: tinker.ServiceClient, loss: str) -> None:
    """`loss:sum` equals the loss computed from the returned log-probs; two datums add up."""
    training = client.create_lora_training_client("tiny", rank=4, seed=1)
    data = [_rl_datum(PROMPT, 0), _rl_datum(PROMPT[:17], 1)]
    result = training.forward_backward(data, loss).result()
    total = 0.0
    for datum, output in zip(data, result.loss_fn_outputs, strict=True):
        lp = output["logprobs"].to_numpy().astype(float)
        q = datum.loss_fn_inputs["logprobs"].to_numpy().astype(float)
        a = datum.loss_fn_inputs["advantages"].to_numpy().astype(float)
        r = np.exp(lp - q)
        total -= {
            "importance_sampling": r * a,
            "ppo": np.minimum(r * a, r.clip(0.8, 1.2) * a),
            "cispo": r.clip(0, 4) * lp * a,
            "dro": lp * a - 0.5 * 0.05 * (lp - q) ** 2,
        }[loss].sum()
    assert result.metrics["loss:sum"] == pytest.approx(total, rel=1e-5)


def test_two_dimensional_targets(client: tinker.ServiceClient) -> None:
    """cross_entropy with K targets a position: log-probs have shape (N, K), weights any sign."""
    training = client.create_lora_training_client("tiny", rank=4, seed=1)
    n, k = 12, 3
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(n, k)).astype(np.float32)
    targets = rng.integers(0, 98, (n, k))
    datum = types.Datum(
        model_input=_text(PROMPT[:n]),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_numpy(targets),
            "weights": types.TensorData.from_numpy(weights),
        },
    )
    result = training.forward_backward([datum], "cross_entropy").result()
    lp = result.loss_fn_outputs[0]["logprobs"].to_numpy().reshape(n, k)
    assert result.metrics["loss:sum"] == pytest.approx(-(lp * weights).sum(), rel=1e-4)


def test_a_custom_loss_has_the_gradient_of_its_formula(client: tinker.ServiceClient) -> None:
    """forward_backward_custom with the importance ratio moves the weights as the built-in does."""
    moved = []
    data = [_rl_datum(PROMPT)]
    q, a = (data[0].loss_fn_inputs[k].to_torch() for k in ("logprobs", "advantages"))
    plain = [
        types.Datum(
            model_input=data[0].model_input,
            loss_fn_inputs={"target_tokens": data[0].loss_fn_inputs["target_tokens"]},
        )
    ]
    for custom in (False, True):
        training = client.create_lora_training_client("tiny", rank=4, seed=1)
        for _ in range(2):
            if custom:
                training.forward_backward_custom(
                    plain, lambda _, lps: (-((lps[0] - q).exp() * a).sum(), {"own": 1.0})
                ).result()
            else:
                training.forward_backward(data, "importance_sampling").result()
            training.optim_step(ADAM).result()
        moved.append(training.forward(data, "importance_sampling").result())
    first, second = (m.loss_fn_outputs[0]["logprobs"].to_numpy() for m in moved)
    assert np.abs(first - second).max() < 1e-3


def test_snapshots_are_immutable_and_many_live_at_once(client: tinker.ServiceClient) -> None:
    """Ten named snapshots taken along a run keep sampling what they sampled at first."""
    training = client.create_lora_training_client("tiny", rank=4, seed=1)
    kept = []
    for step in range(10):
        training.forward_backward([_rl_datum(PROMPT, step)], "importance_sampling")
        training.optim_step(ADAM)
        path = training.save_weights_for_sampler(f"step-{step}").result().path
        sampler = client.create_sampling_client(model_path=path)
        kept.append((sampler, sampler.sample(_text(PROMPT), 1, _sampling()).result().sequences[0]))
    assert len({tuple(s.tokens) for _, s in kept}) > 1
    for sampler, before in kept:
        after = sampler.sample(_text(PROMPT), 1, _sampling()).result().sequences[0]
        assert (after.tokens, after.logprobs) == (before.tokens, before.logprobs)


def test_a_restored_run_goes_on_bit_for_bit(client: tinker.ServiceClient) -> None:
    """Three more steps after save and restore give the same log-probs as three undisturbed ones."""
    training = client.create_lora_training_client("tiny", rank=4, seed=1)

    def step(trained: tinker.TrainingClient, index: int) -> None:
        trained.forward_backward([_rl_datum(PROMPT, index)], "importance_sampling")
        trained.optim_step(ADAM).result()

    for index in range(3):
        step(training, index)
    saved = training.save_state("half").result().path
    restored = client.create_training_client_from_state_with_optimizer(saved)
    for index in range(3, 6):
        step(training, index)
        step(restored, index)
    whole, resumed = (
        t.forward([_rl_datum(PROMPT)], "importance_sampling").result() for t in (training, restored)
    )
    assert np.array_equal(
        whole.loss_fn_outputs[0]["logprobs"].to_numpy(),
        resumed.loss_fn_outputs[0]["logprobs"].to_numpy(),
    )


def test_tokens_do_not_depend_on_load(client: tinker.ServiceClient) -> None:
    """A seeded request gives the same bits alone and among 120 others with training going on."""
    sampler = client.create_sampling_client(base_model="tiny")
    alone = sampler.sample(_text(PROMPT), 4, _sampling(max_tokens=60)).result().sequences
    training = client.create_lora_training_client("tiny", rank=4, seed=1)
    busy = [training.forward([_rl_datum(PROMPT)] * 40, "ppo") for _ in range(3)]
    others = [
        sampler.sample(_text(PROMPT[: 3 + i % 25]), 1, _sampling(seed=i, max_tokens=5 + i % 60))
        for i in range(120)
    ]
    crowd = sampler.sample(_text(PROMPT), 4, _sampling(max_tokens=60)).result().sequences
    for future in (*others, *busy):
        future.result()
    assert [(s.tokens, s.logprobs) for s in crowd] == [(s.tokens, s.logprobs) for s in alone]


def test_unseeded_requests_depend_on_their_number_not_on_arrival(
    connect: Connect, start: Callable[..., Engine]
) -> None:
    """Two engines with one seed give equal unseeded samples, whatever order requests arrive in."""

    async def many(sampler: tinker.SamplingClient) -> list[list[int]]:
        wanted = types.SamplingParams(max_tokens=20)
        found = await asyncio.gather(
            *(sampler.sample_async(_text(PROMPT), 1, wanted) for _ in range(20))
        )
        return [f.sequences[0].tokens for f in found]

    outcomes = []
    for _ in range(2):
        sampler = connect(start()).create_sampling_client(base_model="tiny")
        outcomes.append(asyncio.run(many(sampler)))
    assert outcomes[0] == outcomes[1]
    assert len({tuple(tokens) for tokens in outcomes[0]}) == 20


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_tokens": 600}, "exceeds the context of 512"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"stop": [""]}, "empty text"),
    ],
)
def test_impossible_sampling_fails_as_the_users_mistake(
    client: tinker.ServiceClient, params: dict[str, object], message: str
) -> None:
    """The future fails with category user and says which value can't be used."""
    sampler = client.create_sampling_client(base_model="tiny")
    with pytest.raises(tinker.RequestFailedError, match=message):
        sampler.sample(_text(PROMPT), 1, _sampling(**params)).result()


def test_listing_deleting_and_expiring_checkpoints(client: tinker.ServiceClient) -> None:
    """Checkpoints are listed by run, deleted by path, and expire by their TTL."""
    training = client.create_lora_training_client("tiny", rank=4, user_metadata={"note": "x"})
    run = training.get_info().model_id
    rest = client.create_rest_client()
    training.save_state("a").result()
    path = training.save_weights_for_sampler("b").result().path
    found = rest.list_checkpoints(run).result().checkpoints
    assert [(c.checkpoint_id, c.checkpoint_type) for c in found] == [
        ("weights/a", "training"),
        ("sampler_weights/b", "sampler"),
    ]
    assert rest.get_training_run(run).result().user_metadata == {"note": "x"}
    rest.set_checkpoint_ttl_from_tinker_path(path, 1000).result()
    assert rest.list_checkpoints(run).result().checkpoints[1].expires_at is not None
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert len(rest.list_checkpoints(run).result().checkpoints) == 1
    with pytest.raises(tinker.APIStatusError, match="does not exist"):
        client.create_sampling_client(model_path=path)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_a_downloaded_adapter_is_what_peft_loads(
    client: tinker.ServiceClient, engine: Engine, tmp_path: Path
) -> None:
    """The archive of a sampler checkpoint gives, in PEFT, the engine's own log-probs."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    training = client.create_lora_training_client("tiny", rank=4, seed=1)
    training.forward_backward([_rl_datum(PROMPT)], "importance_sampling")
    training.optim_step(types.AdamParams(learning_rate=3e-2)).result()
    path = training.save_weights_for_sampler("adapter").result().path
    rest = client.create_rest_client()
    link = rest.get_checkpoint_archive_url_from_tinker_path(path).result().url
    with (
        httpx.Client(trust_env=False) as http,
        tarfile.open(fileobj=io.BytesIO(http.get(link).content)) as tar,
    ):
        tar.extractall(tmp_path, filter="data")
    base = AutoModelForCausalLM.from_pretrained(engine.folder, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, str(tmp_path))
    with torch.no_grad():
        logits = adapted(torch.tensor([PROMPT[:-1]])).logits[0]
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(PROMPT[1:])[:, None])[:, 0].numpy()
    ours = training.forward([_rl_datum(PROMPT)], "ppo").result().loss_fn_outputs[0]["logprobs"]
    assert np.abs(ours.to_numpy() - expected).max() < 1e-4
