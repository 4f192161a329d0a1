"""A service that the user names: used as it is, or refused in one line. Keys are never shown."""

import json
import socket
import time

import numpy as np
import pytest
import stored
from google.protobuf.message import DecodeError
from mini import CARD, mini_scale, write_scale
from ruled_proxy import noisy, ruled
from sessions import assert_one_line, run, start, started_engine
from tinker.proto import tinker_public_pb2 as pb

from harness.embedded import MODEL_NAME

KEY = "tml-a-key-that-nobody-may-see"
SERVED = ("-m", "preflight", "-k", "restoration")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """An engine that asks for a key."""
    with started_engine(tmp_path_factory.mktemp("service"), KEY) as engine:
        yield engine


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    """The mini scale's file."""
    return write_scale(tmp_path_factory.mktemp("scale") / "mini.json", mini_scale())


def assert_shows_no_key(session, key):
    """The key is in no file that the session wrote, its output included."""
    files = (*session.folder.rglob("*"), *session.runs.rglob("*"))
    assert not [path for path in files if path.is_file() and key.encode() in path.read_bytes()]


class TestServiceOfTheUser:
    def test_is_used_and_no_engine_is_started(self, engine, mini, undisturbed, tmp_path):
        """With TINKER_BASE_URL the same file runs there, to the same tokens and rows."""
        session = run(
            tmp_path / "session", scale=mini, runs=tmp_path / "runs",
            environ={"TINKER_BASE_URL": engine.url, "TINKER_API_KEY": KEY},
        )  # fmt: skip

        assert session.exit == undisturbed.exit, session.tail
        assert session.verdict["experiment"] == CARD
        assert not (session.runs / "engine").exists()
        assert stored.training(session.runs) == stored.training(undisturbed.runs)
        assert stored.rows(session.runs) == stored.rows(undisturbed.runs)
        assert_shows_no_key(session, KEY)
        session.end_of_processes()
        assert engine.process.poll() is None

    def test_need_not_honour_seeds_nor_repeat_its_log_probs(self, mini, tmp_path):
        """What was sampled is what is held; how far readings are apart is measured: no mistakes."""

        def unseeded(asked):
            if asked.path != "asample":
                return None
            body = json.loads(asked.body)
            body["sampling_params"]["seed"] = asked.before
            return json.dumps(body).encode()

        with (
            started_engine(tmp_path / "service") as engine,
            ruled(engine.url, unseeded, noisy(5e-3, 1e-3)) as url,
        ):
            session = run(
                tmp_path / "session", scale=mini, runs=tmp_path / "runs",
                environ={"TINKER_BASE_URL": url, "TINKER_API_KEY": KEY},
            )  # fmt: skip

        assert session.verdict["verdict"] in ("VALIDATED", "REFUTED", "INCONCLUSIVE"), session.tail
        assert session.output.count("so fingerprints tell weights apart from 0.0") == 2

    @pytest.mark.parametrize(
        ("spoil", "said"),
        [
            (lambda row: row[:0], "finite log-probs, at least 1 token"),
            (lambda row: row * np.float32("nan"), "finite log-probs, at least 1 token"),
        ],
        ids=["missing", "nan"],
    )
    def test_must_say_how_likely_its_samples_were(self, engine, mini, tmp_path, spoil, said):
        """Log-probs that are missing or not finite end before any training."""

        def spoiled(path, media, body):
            if path != "retrieve_future" or "protobuf" not in media:
                return body
            found = pb.SampleResponse()
            try:
                found.ParseFromString(body)
            except DecodeError:
                return body
            for each in found.sequences:
                each.logprobs = spoil(np.frombuffer(each.logprobs, np.float32)).tobytes()
            return found.SerializeToString()

        with ruled(engine.url, lambda _: None, spoiled) as url:
            session = run(
                tmp_path / "session", "-m", "preflight", "-k", "capability",
                scale=mini, runs=tmp_path / "runs",
                environ={"TINKER_BASE_URL": url, "TINKER_API_KEY": KEY},
            )  # fmt: skip

        assert_one_line(session, said)
        assert session.verdict["verdict"] == "INVALID"


class TestRefusals:
    def test_of_a_service_that_never_answers_come_within_15_seconds(self, mini, tmp_path):
        """A port that accepts and says nothing is given up, with what to do."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            session = start(
                tmp_path / "session", *SERVED, scale=mini, runs=tmp_path / "runs",
                environ={"TINKER_BASE_URL": url, "TINKER_API_KEY": KEY},
            )  # fmt: skip
            silent.settimeout(120)
            connection, _ = silent.accept()
            asked = time.monotonic()
            with connection:
                connection.settimeout(120)
                while connection.recv(4096):  # until the client gives up
                    pass
            seconds = time.monotonic() - asked
        session.wait()

        assert_one_line(session, f"ServiceUnreachable: service {url}", "TINKER_BASE_URL")
        assert seconds < 15
        assert session.verdict["verdict"] == "INVALID"
        assert_shows_no_key(session, KEY)

    def test_of_a_closed_port_come_at_once(self, mini, tmp_path):
        """Nothing listens: one line, without the SDK's minutes of retries."""
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can open it
            url = f"http://127.0.0.1:{closed.getsockname()[1]}"
            session = run(
                tmp_path / "session", *SERVED, scale=mini, runs=tmp_path / "runs",
                environ={"TINKER_BASE_URL": url, "TINKER_API_KEY": KEY},
            )  # fmt: skip

        assert_one_line(session, f"ServiceUnreachable: service {url}", "TINKER_BASE_URL")
        assert session.seconds < 60
        assert session.verdict["verdict"] == "INVALID"

    def test_of_a_wrong_key_show_no_key(self, engine, mini, tmp_path):
        """The service says 401: the line names the variable, and neither key appears anywhere."""
        wrong = "tml-another-key-that-nobody-may-see"

        session = run(
            tmp_path / "session", *SERVED, scale=mini, runs=tmp_path / "runs",
            environ={"TINKER_BASE_URL": engine.url, "TINKER_API_KEY": wrong},
        )  # fmt: skip

        assert_one_line(session, "ServiceRefused", "401", "TINKER_API_KEY")
        assert session.verdict["verdict"] == "INVALID"
        assert_shows_no_key(session, wrong)

    def test_of_no_key_name_the_variable(self, mini, tmp_path):
        """An address without a key is refused before anything is asked."""
        session = run(
            tmp_path / "session", *SERVED, scale=mini, runs=tmp_path / "runs",
            environ={"TINKER_BASE_URL": "http://127.0.0.1:9"},
        )  # fmt: skip

        assert_one_line(session, "ServiceRefused", "TINKER_API_KEY is not set")
        assert session.verdict["verdict"] == "INVALID"

    def test_of_a_model_that_is_not_served_name_those_that_are(self, engine, tmp_path):
        """The line holds the model that the card wants and those that the service has."""
        scale = mini_scale(lambda card: card.update(base_model="other/model"))

        session = run(
            tmp_path / "session", *SERVED,
            scale=write_scale(tmp_path / "scale.json", scale), runs=tmp_path / "runs",
            environ={"TINKER_BASE_URL": engine.url, "TINKER_API_KEY": KEY},
        )  # fmt: skip

        assert_one_line(session, "does not serve 'other/model'", MODEL_NAME)
        assert session.verdict["verdict"] == "INVALID"
        assert_shows_no_key(session, KEY)
