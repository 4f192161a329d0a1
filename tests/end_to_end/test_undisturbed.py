"""From preflight to verdict, and once more: nothing is done twice or comes out otherwise."""

import shutil
from pathlib import Path

import stored
from mini import ARMS, BATCH, CARD, ITEMS, STEPS
from planted import AT, MARKER, PLANT
from sessions import run

VERDICT_KEYS = {
    "experiment", "scale", "card_sha256", "verdict", "sentence", "criteria", "gates", "preflights",
    "arms", "base", "attempts",
}  # fmt: skip
PROPERTIES = {"experiment", "scale", "stage", "arm", "verdict"}
STAGE_ITEMS = {"preflight": 9, "gate": 6, "arm": 2, "decision": 1}


class TestPreflights:
    def test_pass_without_training_an_arm(self, preflighted):
        """`-m preflight` passes on the committed model and leaves no arm and no evaluation."""
        session = preflighted.session

        assert {flight["outcome"] for flight in session.verdict["preflights"]} == {"passed"}
        assert session.verdict["verdict"] is None
        kinds = {path.name for path in (session.runs / "entries").iterdir()}
        assert kinds == {"preflight"}


class TestUndisturbedRun:
    def test_ends_in_a_verdict(self, undisturbed):
        """verdict.json holds the public keys, and the exit code says what it says."""
        verdict = undisturbed.verdict

        assert verdict.keys() >= VERDICT_KEYS
        assert verdict["experiment"] == CARD
        assert verdict["scale"] == "mini"
        assert verdict["verdict"] in ("VALIDATED", "REFUTED", "INCONCLUSIVE")
        assert undisturbed.exit == (1 if verdict["verdict"] == "REFUTED" else 0)
        assert verdict["sentence"] in undisturbed.output
        (criterion,) = verdict["criteria"]
        assert criterion["lower"] <= criterion["estimate"] <= criterion["upper"]
        assert criterion["outcome"] == verdict["verdict"]
        assert all(gate["ok"] for gate in verdict["gates"])
        assert verdict["attempts"] == 1
        assert verdict["not_run"] == []

    def test_names_every_item_in_junit(self, undisturbed):
        """Each test case carries experiment, scale, stage, arm and verdict; figures are metrics."""
        cases = undisturbed.junit
        stages = [properties["stage"] for properties in cases.values()]

        assert {stage: stages.count(stage) for stage in STAGE_ITEMS} == STAGE_ITEMS
        for name, properties in cases.items():
            assert properties.keys() >= PROPERTIES, name
            assert properties["experiment"] == CARD
            assert properties["scale"] == "mini"
        gate = cases["test_gate[rollouts_per_step_both_arms]"]
        assert float(gate["metric.rollouts_per_step_both_arms"]) == BATCH
        assert {cases[f"test_arm[{name}]"]["arm"] for name in ARMS} == set(ARMS)

    def test_counts_every_rollout(self, undisturbed):
        """Each arm stored every step's rollouts, with tokens, log-probs, rewards and advantages."""
        for name, records in stored.training(undisturbed.runs).items():
            assert [record["step"] for record in records] == list(range(STEPS)), name
            for record in records:
                groups = record["groups"]
                rollouts = [rollout for group in groups for rollout in group["rollouts"]]
                assert len(rollouts) == BATCH
                for rollout in rollouts:
                    assert {"reward", "advantage"} <= rollout.keys()
                    (turn,) = rollout["turns"]
                    assert len(turn["tokens_T"]) == len(turn["logprobs_T"]) > 0
        for arm in undisturbed.verdict["arms"]:
            assert (arm["steps"], arm["rollouts"]) == (STEPS, STEPS * BATCH)

    def test_saves_a_row_for_every_item(self, undisturbed):
        """Both arms and the base model answered the same items, and accuracies are those rows'."""
        rows = stored.rows(undisturbed.runs)
        verdict = undisturbed.verdict
        reported = {arm["name"]: arm for arm in verdict["arms"]} | {"base": verdict["base"]}

        for policy, found in rows.items():
            assert [row["item_id"] for row in found] == [f"test/{n:05d}" for n in range(ITEMS)]
            share = sum(row["correct"] for row in found) / ITEMS
            assert reported[policy]["accuracy"] == share
            assert reported[policy]["n_items"] == ITEMS

    def test_leaves_no_process(self, undisturbed):
        """The engine ends with pytest."""
        undisturbed.end_of_processes()


class TestUnchangedRerun:
    def test_calls_no_engine_and_trains_nothing(self, undisturbed, preflighted, tmp_path):
        """A second run reads everything from the store: no engine, no attempt, the same verdict."""
        runs = tmp_path / "runs"
        shutil.copytree(undisturbed.runs, runs)
        engine = {path: path.stat().st_mtime_ns for path in files_of(runs / "engine")}
        entries = {path: path.stat().st_mtime_ns for path in files_of(runs / "entries")}

        session = run(tmp_path / "session", scale=preflighted.scale, runs=runs)

        assert session.exit == undisturbed.exit
        assert session.verdict == undisturbed.verdict
        assert {path: path.stat().st_mtime_ns for path in files_of(runs / "engine")} == engine
        after = {path: path.stat().st_mtime_ns for path in files_of(runs / "entries")}
        assert {p for p in after if p.name != "lock"} == {p for p in entries if p.name != "lock"}
        assert all(after[p] == entries[p] for p in entries if p.name != "lock")


class TestTwoWorkers:
    def test_train_both_arms_at_once_to_the_same_results(self, undisturbed, preflighted, tmp_path):
        """`-n 2` from nothing equals `-n 0`; each arm trains once, both in one stretch."""
        meeting = tmp_path / "meeting"
        meeting.mkdir()
        session = run(
            tmp_path / "session", "-n", "2", "-p", "planted",
            scale=preflighted.scale, runs=tmp_path / "runs",
            environ={PLANT: "meet", AT: f"{','.join(ARMS)}:{STEPS - 1}", MARKER: str(meeting)},
        )  # fmt: skip

        assert session.exit == undisturbed.exit, session.tail
        for key in ("verdict", "sentence", "criteria", "gates", "base", "attempts"):
            assert session.verdict[key] == undisturbed.verdict[key]
        assert session.junit.keys() == undisturbed.junit.keys()
        assert all(properties.keys() >= PROPERTIES for properties in session.junit.values())
        assert stored.training(session.runs) == stored.training(undisturbed.runs)
        assert stored.rows(session.runs) == stored.rows(undisturbed.runs)
        assert stored.attempts(session.runs) == stored.attempts(undisturbed.runs)
        one, other = (stored.intervals(session.runs, name) for name in ARMS)
        assert any(a < d and c < b for a, b in one for c, d in other), (one, other)
        session.end_of_processes()


def files_of(folder: Path) -> list[Path]:
    """Every file under a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]
