"""What a service may do in the middle of training: got over, or told in one line and gone on from.

The SDK is the real one, and so is the engine; a proxy between them fails.
"""

import dataclasses
import os
from pathlib import Path

import pytest
from mini import CARDS
from ruled_proxy import Answer, Asked, for_a_while, from_then_on, never_done, ruled
from sessions import started_engine

from harness.audit.tracing import step_tracer
from harness.cards import load_experiment
from harness.errors import ServiceError, ServiceUnreachable
from harness.protocol.data import experiment_task
from harness.protocol.services import Service
from harness.store import RunStore
from harness.training import embedded_service
from harness.training.context import arm_context
from harness.training.loop import train_until

KEY = "tml-a-key-that-nobody-may-see"
CARD, ARM = "tailrl_lag4_accuracy_gsm8k_08b", "tailrl_lag4_seed0"
STEPS, EVERY, LAG = 5, 2, 2
GROUPS, GROUP = 2, 2


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """An engine that somebody else started."""
    with started_engine(tmp_path_factory.mktemp("engine")) as engine:
        yield engine.url


@pytest.fixture(scope="module")
def experiment():
    """A lagged arm of a few small steps."""
    full = load_experiment(CARDS / f"{CARD}.json", "embedded")
    training = full.registration.training.model_copy(
        update={"checkpoint_every": EVERY, "max_tokens": 8}
    )
    registration = full.registration.model_copy(update={"training": training})
    return dataclasses.replace(full, registration=registration)


@pytest.fixture(scope="module")
def task(experiment, tmp_path_factory):
    """Its word problems."""
    return experiment_task(experiment, tmp_path_factory.mktemp("data"), None)


@pytest.fixture(scope="module")
def train(experiment, task):
    """`train(url, folder)` takes the arm to its end as a run does; the records of its steps."""

    def trained(url, folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TINKER_BASE_URL", url)
            patch.setenv("TINKER_API_KEY", KEY)
            service = Service(experiment, folder, os.getpid())
        arm = dataclasses.replace(
            experiment.arm(ARM), lag=LAG, groups_per_batch=GROUPS, group_size=GROUP
        )
        entry = RunStore(folder).entry("arm/one", {"arm": "one"})
        try:
            client, adapter = service.client(), service.adapter(task)
            tracer = step_tracer(experiment, adapter)
            context = arm_context(experiment, arm, task, client, adapter, entry, tracer=tracer)
            service.run(train_until(context, None, STEPS))
        finally:
            service.close()
        return [{**entry.read_step(step), "seconds": None} for step in range(STEPS)]

    return trained


@pytest.fixture(scope="module")
def undisturbed(train, engine, tmp_path_factory):
    """The records of an arm that nothing disturbed."""
    return train(engine, tmp_path_factory.mktemp("undisturbed"))


LATER = Answer(429, {"detail": "slow down"}, {"Retry-After": "0.1"})


@pytest.mark.parametrize(
    "rule",
    [
        for_a_while("asample", 4, 3, LATER),
        for_a_while("optim_step", 2, 2, LATER),
        for_a_while("forward_backward", 3, 2, Answer(503, {"detail": "overloaded"})),
        for_a_while("save_weights_for_sampler", 2, 1, Answer(502, b"<html>bad gateway</html>")),
        for_a_while("retrieve_future", 7, 5, Answer(500, {"detail": "oops"})),
        for_a_while("retrieve_future", 9, 2, Answer(None)),
        for_a_while("save_weights", 1, 1, Answer(None)),
    ],
    ids=["429-sample", "429-step", "503", "502", "500-poll", "cut-poll", "cut-save"],
)
def test_what_passes_changes_no_record(train, engine, undisturbed, tmp_path, rule):
    """Refusals and cut connections of a moment are the SDK's to get over; nothing counts twice."""
    with ruled(engine, rule) as url:
        assert train(url, tmp_path) == undisturbed


QUIET = "the account has no credit left"


def billed(asked: Asked) -> Answer | None:
    """The account is empty from the third step on, and the SDK is told not to wait for an hour."""
    if asked.path == "client/config":
        config = {"billing_exception_max_pause_duration_sec": 0, "parallel_fwdbwd_chunks": False}
        return Answer(200, config)
    empty = asked.path == "forward_backward" and asked.before >= 5
    return Answer(402, {"detail": "quota used up"}) if empty else None


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (from_then_on("optim_step", 3, Answer(401, {"detail": f"bad key {KEY}"})), "check TINKER"),
        (from_then_on("asample", 12, Answer(401, {"detail": f"bad {KEY}"})), "check TINKER"),
        (billed, QUIET),
        (from_then_on("retrieve_future", 30, Answer(404, {"detail": "no session"})), "no session"),
        (from_then_on("retrieve_future", 30, Answer(410, {"detail": "gone"})), "Promise expired"),
        (from_then_on("forward_backward", 5, Answer(404, {"detail": "no such model"})), "no such"),
        (from_then_on("retrieve_future", 30, Answer(200, b"<html>hello</html>")), "service's log"),
        (
            from_then_on("retrieve_future", 30, Answer(200, {"error": "OOM"})),
            "OOM",
        ),
    ],
    ids=[
        "key-step", "key-sample", "quota", "session", "promise", "model",
        "html-poll", "failed",
    ],
)  # fmt: skip
def test_what_stays_is_told_in_one_line_and_gone_on_from(
    train, engine, undisturbed, tmp_path, rule, said
):
    """What was finished is stored; once the service is well again the arm ends as undisturbed."""
    with ruled(engine, rule) as url, pytest.raises(ServiceError) as caught:
        train(url, tmp_path)

    message = str(caught.value)
    assert said in message
    assert "run again: the run resumes at the last checkpoint" in message
    assert "\n" not in message
    assert KEY not in message
    assert train(engine, tmp_path) == undisturbed


def test_an_answer_that_never_comes_is_given_up(train, engine, undisturbed, tmp_path, monkeypatch):
    """The SDK would ask for ever; after SILENT_SECONDS without any answer the run stops."""
    monkeypatch.setattr(embedded_service, "SILENT_SECONDS", 2.0)
    with (
        ruled(engine, never_done("retrieve_future", 30)) as url,
        pytest.raises(ServiceUnreachable, match="no request was answered for") as caught,
    ):
        train(url, tmp_path)

    assert "\n" not in str(caught.value)
    assert train(engine, tmp_path) == undisturbed


def test_a_service_that_lost_everything_never_goes_on_from_other_weights(
    train, undisturbed, tmp_path
):
    """Restarted without its state it has no checkpoint: the arm starts over, and says so."""
    lost = from_then_on("forward_backward", 7, Answer(404, {"detail": "no such model"}))
    runs = tmp_path / "runs"
    with (
        started_engine(tmp_path / "first") as engine,
        ruled(engine.url, lost) as url,
        pytest.raises(ServiceError),
    ):
        train(url, runs)

    with started_engine(tmp_path / "second") as engine, ruled(engine.url, lambda _: None) as again:
        with pytest.raises(ServiceError, match="is gone from the service") as caught:
            train(again, runs)
        folder = Path(str(caught.value).partition("delete ")[2].partition(" and run again")[0])
        assert runs in folder.parents
        folder.rename(tmp_path / "deleted")

        assert train(again, runs) == undisturbed
