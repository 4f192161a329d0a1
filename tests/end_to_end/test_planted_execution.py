"""What is executed is not what the card says: a gate turns red, and nothing after it runs.

Preflights vouch for configuration and code before the mistake is planted in the execution, so the
gates alone can find it.
"""

import pytest
import stored
from mini import ARMS, BATCH, GS1, PILOT, arm_of, mini_scale, write_scale
from planted import PLANT, SABOTAGES
from sessions import assert_one_line, run


@pytest.mark.parametrize("name", SABOTAGES)
def test_gate_stops_a_sabotaged_run(name, again):
    """The gate names executed value and bounds; training ends with the pilot; INVALID, exit 1."""
    sabotage = SABOTAGES[name]

    session = again("-p", "planted", environ={PLANT: name})

    assert session.exit == 1, session.tail
    gates = {gate["metric"]: gate for gate in session.verdict["gates"]}
    assert gates[sabotage.gate]["ok"] is False
    line = assert_one_line(session, f"gate {sabotage.gate}: ", " was executed, bounds ")
    assert f"gate {sabotage.gate}: {sabotage.executed}" in line
    assert {f["outcome"] for f in session.verdict["preflights"]} == {"passed"}
    assert {arm: stored.arm(session.runs, arm).steps() for arm in ARMS} == {
        arm: list(range(PILOT)) for arm in ARMS
    }
    assert not (session.runs / "entries" / "evaluation").exists()
    words = {item["stage"]: item["verdict"] for item in session.verdict["items"]}
    assert words["arm"] == words["decision"] == "BLOCKED"
    assert session.verdict["verdict"] == "INVALID"
    assert "BLOCKED by gate" in session.output


def test_a_datum_out_of_line_is_found_before_any_training(preflighted, tmp_path):
    """What the loop sends to a real service is recorded, whatever the loop means to send."""
    session = run(
        tmp_path / "session", "-p", "planted", "-m", "preflight", "-k", "capability",
        scale=preflighted.scale, runs=tmp_path / "runs", environ={PLANT: "stop_token_masked"},
    )  # fmt: skip

    assert_one_line(session, f"arm {GS1}: step 0 sent a datum of train item", "targets")
    assert session.verdict["verdict"] == "INVALID"


def test_other_prompts_than_registered_end_the_run_behind_the_pilot(again):
    """No gate looks at prompts; the pilot's records are held against the registered order."""
    session = again("-p", "planted", environ={PLANT: "other_prompts_in_one_arm"})

    assert session.exit == 1, session.tail
    line = f"arm {GS1}: step 0 (and {PILOT - 1} more): drew train item"
    assert_one_line(session, "BLOCKED by training", line)
    assert {stored.arm(session.runs, arm).steps()[-1] for arm in ARMS} == {PILOT - 1}
    words = {item["stage"]: item["verdict"] for item in session.verdict["items"]}
    assert words["arm"] == words["decision"] == "BLOCKED"
    assert session.verdict["verdict"] == "INVALID"


def tau_huge(card):
    """A kernel that tells no prompts apart."""
    arm_of(card, GS1)["tau"] = 1e6


def group_size_2(card):
    """Two rollouts of half the prompts in the GS1 arm."""
    arm_of(card, GS1).update(group_size=2, groups_per_batch=BATCH // 2)


def half_the_rollouts(card):
    """A smaller batch in both arms."""
    card["batch_size"] = BATCH // 2
    for arm in card["arms"]:
        arm["groups_per_batch"] //= 2


def unequal_batches(card):
    """Half the rollouts in one arm."""
    arm_of(card, GS1)["groups_per_batch"] //= 2


def another_model(card):
    """A base model that the gate does not expect."""
    card["base_model"] = "other/model"


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (tau_huge, ("contributors_median is certain to fail at tau 1e+06: 15 ", "[1.1, 12]")),
        (group_size_2, ("gs1_executed_group_size is certain to fail: 2.0 is planned", "[1, 1]")),
        (half_the_rollouts, ("rollouts_per_step_both_arms is certain to fail: 8.0", "[16, 16]")),
        (another_model, ("executed_base_model is certain to fail: 'other/model'", "nano-qwen3")),
        (unequal_batches, (f"{GS1}: group_size 1 x groups_per_batch 8 = 8", "batch_size is 16")),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_same_mistakes_in_the_scale_are_found_before_any_training(change, parts, tmp_path):
    """Forecast or card reading blocks what a gate is certain to find; no engine starts."""
    scale = write_scale(tmp_path / "scale.json", mini_scale(change))

    session = run(
        tmp_path / "session",
        "-m",
        "preflight",
        "-k",
        "forecast",
        scale=scale,
        runs=tmp_path / "runs",
    )

    assert_one_line(session, *parts)
    assert session.verdict["verdict"] == "INVALID"
    assert not (session.runs / "engine").exists()
