"""From preflight to verdict, and once more: nothing is done twice or comes out otherwise."""

import shutil
from pathlib import Path

import stored
from mini import ARMS, BATCH, CARD, ITEMS, PILOT, STEPS
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


OWN = """


@pytest.mark.preflight
def test_own_preflight(card):
    assert card.lora_rank > 0


@pytest.mark.gate
def test_own_gate(pilot):
    assert {step["step"] for steps in pilot.values() for step in steps} == set(range(PILOT))
    assert all(step["groups"] for steps in pilot.values() for step in steps)


@pytest.mark.decision
def test_own_decision(arms, rows):
    assert {name: len(scores) for name, scores in rows.items()} == dict.fromkeys(
        ("base", *arms), ITEMS
    )
    assert all(arm.accuracy == sum(rows[name].values()) / ITEMS for name, arm in arms.items())
    assert rows["base"] is None, "for once"
"""


class TestOwnAssertions:
    def test_are_over_what_was_stored(self, undisturbed, preflighted, project, tmp_path):
        """Plain tests read the run's pilot and rows; one that fails refutes in its words."""
        file = project / "experiments" / "test_gs1.py"
        own = OWN.replace("PILOT", str(PILOT)).replace("ITEMS", str(ITEMS))
        file.write_text(file.read_text() + own)
        session = run(
            tmp_path / "session", scale=preflighted.scale, project=project,
            runs=stored.copied(undisturbed.runs, tmp_path),
        )  # fmt: skip

        words = {
            item["item"].partition("::")[2]: item["verdict"] for item in session.verdict["items"]
        }
        assert [words[f"test_own_{stage}"] for stage in ("preflight", "gate", "decision")] == [
            "PASSED", "PASSED", "REFUTED",
        ]  # fmt: skip
        assert session.exit == 1
        assert "test_own_decision, an assertion without an error rate: for once" in session.output
        assert stored.attempts(session.runs) == stored.attempts(undisturbed.runs)


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
