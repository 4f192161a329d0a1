"""What is executed is not what the card says: a gate turns red, and nothing after it runs.

Preflights vouch for configuration and code before the mistake is planted in the execution, so the
gates alone can find it. One mistake of each kind is planted here, the others over doubles.
"""

import lag_mini
import mini
import pytest
import search_mini
import stored
from mini import ARMS, GS1, PILOT, mini_scale, write_scale
from mistakes import scales
from mistakes.gates import NAN
from mistakes.live import LIVE
from mistakes.mistake import named
from planted import PLANT
from sessions import assert_one_line, run

MINIS = {
    "gs1": ("preflighted", mini), "lag": ("lag_preflighted", lag_mini),
    "search": ("search_preflighted", search_mini),
}  # fmt: skip
GATED = [mistake for mistake in LIVE if mistake.stage == "pilot" and mistake is not NAN]


@pytest.mark.parametrize("mistake", GATED, ids=named)
def test_gate_stops_a_sabotaged_run(mistake, request, tmp_path):
    """The gate names the executed value; training ends with the pilot; INVALID, exit 1."""
    fixture, shape = MINIS[mistake.settings[0]]
    ready = request.getfixturevalue(fixture)

    session = ready.run(
        tmp_path / "session", "-p", "planted", runs=ready.copy(tmp_path),
        environ={PLANT: mistake.name},
    )  # fmt: skip

    assert session.exit == 1, session.tail
    red = {gate["metric"] for gate in session.verdict["gates"] if not gate["ok"]}
    assert red == mistake.items
    said = [x for x in session.output.splitlines() if " was executed, bounds " in x]
    assert any(mistake.words in line for line in said)
    assert all(any(f"gate {gate}: " in line for line in said) for gate in red)
    if shape is mini:
        assert_one_line(session, mistake.words, " was executed, bounds ")
    assert {f["outcome"] for f in session.verdict["preflights"]} == {"passed"}
    assert {arm: stored.arm(session.runs, arm).steps() for arm in shape.ARMS} == {
        arm: list(range(shape.PILOT)) for arm in shape.ARMS
    }
    assert not (session.runs / "entries" / "evaluation").exists()
    words = {item["stage"]: item["verdict"] for item in session.verdict["items"]}
    assert words["arm"] == words["decision"] == "BLOCKED"
    assert {c["outcome"] for c in session.verdict["criteria"]} == {"BLOCKED"}
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


def test_a_mistake_in_the_scale_is_found_before_any_training(tmp_path):
    """The forecast blocks what a gate is certain to find; no engine starts."""
    (mistake,) = (mistake for mistake in scales.MISTAKES if mistake.live)
    scale = write_scale(tmp_path / "scale.json", mini_scale(mistake.edit))

    session = run(
        tmp_path / "session", "-m", "preflight", "-k", "forecast",
        scale=scale, runs=tmp_path / "runs",
    )  # fmt: skip

    assert_one_line(session, mistake.words)
    assert session.verdict["verdict"] == "INVALID"
    assert not (session.runs / "engine").exists()
