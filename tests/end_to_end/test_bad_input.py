"""Bad input gets one clear line, a non-zero exit, an INVALID verdict, and nothing half-written."""

import hashlib
import json
import os
import shutil
import time

import orjson
import pytest
import stored
from mini import ARMS, CARD, CARDS, GS1, mini_scale, write_scale
from planted import PLANT
from sessions import assert_one_line, run

from harness.cards import load_experiment
from harness.embedded import write_splits
from harness.store import RunStore
from harness.training.identity import arm_parts, service_identity

FORECAST = ("-m", "preflight", "-k", "forecast or audit")


def edit(project, part, change):
    """Change the card or its registration; the registration names the changed card's hash."""
    cards = project / "experiments" / "cards"
    paths = {"card": cards / f"{CARD}.json", "registration": cards / f"{CARD}.registration.json"}
    document = json.loads(paths[part].read_text())
    change(document)
    paths[part].write_text(json.dumps(document))
    registration = json.loads(paths["registration"].read_text())
    registration["card_sha256"] = hashlib.sha256(paths["card"].read_bytes()).hexdigest()
    paths["registration"].write_text(json.dumps(registration))


class TestCard:
    def test_is_refused_as_it_is_read(self, project, tmp_path):
        """A misspelt key is named with its place; nothing is run, and the verdict is INVALID."""
        edit(project, "card", lambda card: card.update(lora_rnak=32))

        session = run(tmp_path / "session", scale="full", runs=tmp_path / "runs", project=project)

        line = assert_one_line(session, "unknown key /lora_rnak", "spelling")
        assert CARD in line
        assert session.verdict["verdict"] == "INVALID"
        assert not (tmp_path / "runs" / "entries").exists()

    def test_with_an_open_pin_is_refused(self, project, tmp_path):
        """What the card leaves UNRESOLVED and nobody settled fails the pins, by its place."""
        edit(project, "registration", lambda d: d["pins"].update(resolutions=[]))

        session = run(
            tmp_path / "session", "-m", "preflight", "-k", "pins",
            scale="full", runs=tmp_path / "runs", project=project,
        )  # fmt: skip

        pointer = "/correctness_preflight/paths/0/baseline_revision"
        assert_one_line(session, f"{pointer} is UNRESOLVED", "pins.resolutions")
        assert session.verdict["verdict"] == "INVALID"


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    """A folder with generated files of the registered size."""
    folder = tmp_path_factory.mktemp("splits")
    write_splits(folder)
    return folder


def on_generated_files(splits):
    """The scale of the registered card on the generated files, whose hashes it pins."""
    pins = {
        f"{split}_sha256": hashlib.sha256((splits / f"{split}.jsonl").read_bytes()).hexdigest()
        for split in ("train", "test")
    }
    changes = [{"pointer": "/registration/data", "reason": "Generated."}]
    return {
        "name": "generated", "claims": "nothing", "service": "remote", "data": "gsm8k",
        "changes": changes, "patch": {"registration": {"data": pins}},
    }  # fmt: skip


class TestData:
    def test_is_examined_without_any_service(self, splits, tmp_path):
        """Forecast and audit of a remote scale need its data only, and report their figures."""
        scale = write_scale(tmp_path / "scale.json", on_generated_files(splits))

        session = run(
            tmp_path / "session", *FORECAST, "--gsm8k-dir", str(splits),
            scale=scale, runs=tmp_path / "runs",
        )  # fmt: skip

        metrics = {flight["id"]: flight["metrics"] for flight in session.verdict["preflights"]}
        assert metrics["audit"]["labels_checked"] == 7473 + 1319
        assert metrics["forecast"][f"{GS1}.contributors_median"] > 1
        assert not (session.runs / "engine").exists()

    @pytest.mark.parametrize(
        ("keep", "parts"),
        [
            (None, ("train.jsonl: can't be read", "HARNESS_GSM8K_DIR")),
            (999.5, ("train.jsonl: line 1000 of 1000 is not JSON", "truncated")),
        ],
        ids=["missing", "cut_in_a_line"],
    )
    def test_that_is_not_whole_is_refused(self, keep, parts, splits, tmp_path):
        """A missing file and a truncated one are named with what they hold and should hold."""
        folder = tmp_path / "data"
        folder.mkdir()
        shutil.copy(splits / "test.jsonl", folder)
        if keep is not None:
            lines = (splits / "train.jsonl").read_bytes().splitlines(keepends=True)
            whole = int(keep)
            cut = lines[whole][:20] if keep != whole else b""
            (folder / "train.jsonl").write_bytes(b"".join(lines[:whole]) + cut)

        session = run(
            tmp_path / "session", *FORECAST, "--gsm8k-dir", str(folder),
            scale="full", runs=tmp_path / "runs",
        )  # fmt: skip

        assert_one_line(session, *parts)
        assert session.exit == 1
        assert session.verdict["verdict"] == "INVALID"

    def test_of_another_origin_is_refused(self, splits, tmp_path):
        """Files of the right size that are not the registered ones are refused by their hash."""
        session = run(
            tmp_path / "session", *FORECAST,
            scale="full", runs=tmp_path / "runs", environ={"HARNESS_GSM8K_DIR": str(splits)},
        )  # fmt: skip

        assert_one_line(
            session, "train.jsonl: sha256", "is not the registered", "use the registered"
        )
        assert session.verdict["verdict"] == "INVALID"

    def test_with_fewer_prompts_than_the_run_needs_is_refused(self, tmp_path):
        """Before any engine starts, a line says how many prompts the arm needs and how many are."""
        scale = mini_scale(lambda card: card["dataset"].update(n_examples=95))
        path = write_scale(tmp_path / "scale.json", scale)

        session = run(tmp_path / "session", *FORECAST, scale=path, runs=tmp_path / "runs")

        assert_one_line(session, f"arm {GS1}", "16 prompts need 96", "has 95")
        assert session.verdict["verdict"] == "INVALID"
        assert not (session.runs / "engine").exists()


class TestRun:
    def test_with_a_nan_reward_stops(self, again):
        """The first NaN ends the run before any update, named by arm, step, prompt and rollout."""
        session = again("-p", "planted", environ={PLANT: "nan_reward"})

        line = assert_one_line(session, "BLOCKED by pilot: RunError", "the reward is nan")
        assert "step 0, train item" in line
        assert session.exit == 1
        assert session.verdict["verdict"] == "INVALID"
        assert stored.arm(session.runs, ARMS[0]).steps() == []

    def test_stops_at_the_wall_cap(self, preflighted, again, tmp_path):
        """At the registered cap the run stops after a step, with a checkpoint of that step."""
        experiment = load_experiment(CARDS / f"{CARD}.json", str(preflighted.scale))
        cap = experiment.card.budget.max_wall_minutes * 60
        parts = arm_parts(experiment, experiment.arm(GS1), service_identity(experiment, None))
        now = time.time()
        earlier = [[now - 2 * cap, now - cap - 0.001]]  # less than any step takes is left
        RunStore(tmp_path / "runs").entry(f"arm/{GS1}", parts).publish("clock", earlier)

        session = again()

        assert_one_line(session, "BudgetExceeded", "wall time 30.", "cap of 30 min", "kept")
        assert session.exit == 1
        assert session.verdict["verdict"] == "INVALID"
        first = stored.arm(session.runs, ARMS[0])
        assert first.read("checkpoint")["version"] == len(first.steps()) == 1

    def test_on_a_store_of_a_newer_version_is_refused(self, preflighted, tmp_path):
        """The store's format and the one that can be read are named, and nothing is changed."""
        runs = tmp_path / "runs"
        runs.mkdir()
        (runs / "store.json").write_bytes(orjson.dumps({"format": 99}))

        session = run(tmp_path / "session", "-m", "preflight", scale=preflighted.scale, runs=runs)

        assert_one_line(session, "StoreVersionError", "format 99", "reads up to 1")
        assert session.verdict["verdict"] == "INVALID"
        assert not (runs / "entries").exists()


@pytest.mark.skipif(
    "HARNESS_GSM8K_DIR" not in os.environ, reason="HARNESS_GSM8K_DIR names no folder with GSM8K"
)
def test_registered_card_on_gsm8k_itself(tmp_path):
    """`--scale full` reports forecast and audit of the registered card, without any service."""
    session = run(
        tmp_path / "session", *FORECAST, "--gsm8k-dir", os.environ["HARNESS_GSM8K_DIR"],
        scale="full", runs=tmp_path / "runs",
    )  # fmt: skip

    metrics = {flight["id"]: flight["metrics"] for flight in session.verdict["preflights"]}
    assert metrics["audit"]["overlaps"] == 0
    assert metrics["forecast"][f"{GS1}.contributors_median"] > 1
