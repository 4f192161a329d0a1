"""How far apart readings of the same weights are, and what follows from it."""

import math

import pytest

from harness.audit.lag import executed_lags
from harness.audit.restoration import RestorationEvidence, check
from harness.audit.resumed import ResumedArm, resumed_problems
from harness.audit.scored import policy_problems
from harness.audit.weights import indistinct_weights
from harness.fingerprints import (
    FACTOR,
    SAME,
    arm_tolerance,
    distance,
    noise_floor,
    service_tolerance,
    tolerance,
)


def step(number, sampler, learner, sampled=None):
    """A step with fingerprints."""
    return {
        "step": number,
        "sampled_version": number if sampled is None else sampled,
        "fingerprints": {"sampler_T": sampler, "learner_T": learner},
    }


@pytest.mark.parametrize(
    ("measured", "expected"),
    [(0.0, SAME), (1e-6, SAME), (1e-2, FACTOR * 1e-2), (math.nan, SAME), (math.inf, SAME)],
)
def test_a_bound_is_a_multiple_of_the_floor_and_never_below_float32(measured, expected):
    """What can't be measured allows no more than what repeats itself."""
    assert tolerance(measured) == expected


@pytest.mark.parametrize(
    ("a", "b"), [([], []), ([-1.0], [-1.0, -2.0]), ([math.nan], [-1.0]), ([-1.0], [-math.inf])]
)
def test_readings_that_are_none_are_at_no_distance(a, b):
    """NaN, which is within no bound."""
    assert math.isnan(distance(a, b))
    assert math.isnan(noise_floor([([-1.0], [-1.0]), (a, b)]))


def test_the_floor_is_the_largest_of_its_pairs():
    """One pair that differs is enough; of no pair it is 0."""
    assert noise_floor([]) == 0.0
    assert noise_floor([([-1.0], [-1.0]), ([-1.0, -2.0], [-1.5, -2.25])]) == 0.5


def test_only_a_first_step_says_how_far_apart_the_same_weights_are():
    """Sampler and learner hold the initial weights there, and nowhere else for certain."""
    assert arm_tolerance(step(0, [-1.0], [-1.25])) == FACTOR * 0.25
    assert arm_tolerance(step(3, [-1.0], [-1.25])) == SAME
    assert arm_tolerance(None) == SAME
    assert arm_tolerance({"step": 0}) == SAME


def test_an_evaluation_is_held_to_the_floor_of_its_arm():
    """The same difference is noise on one service and other weights on another."""
    trained, scored = {"fingerprint": [-1.0, -2.0]}, {"fingerprint": [-1.0, -2.03]}

    assert policy_problems("a", trained, scored, step(0, [-1.0], [-1.01])) == []
    (line,) = policy_problems("a", trained, scored, step(0, [-1.0], [-1.005]))
    assert "differ by 0.03 from the trained ones', bound 0.02" in line
    assert policy_problems(
        "a", trained, {"fingerprint": [-1.0, math.nan]}, step(0, [-1.0], [-1.01])
    )


@pytest.mark.parametrize(("move", "seen"), [(0.5, 0), (0.03, 1)])
def test_a_lag_shows_where_an_update_moves_more_than_the_bound(move, seen):
    """Step 1 records a fresh sampler and has a stale one; below the bound it is believed."""
    records = [
        step(0, [-1.0], [-1.01]),
        step(1, [-1.0], [-1.0 - move]),
    ]

    assert executed_lags(records) == [0, 1 - seen]
    assert len(indistinct_weights("a", records, None)) == 1
    assert (
        "1 of 1 moves between fingerprints" in indistinct_weights("a", records, None)[0]
    ) is bool(seen)


def test_nothing_is_told_of_an_arm_whose_service_repeats_itself():
    """No note where the bound is that of float32."""
    assert indistinct_weights("a", [step(0, [-1.0], [-1.0 - SAME / 5])], [-1.0]) == []
    assert indistinct_weights("a", [], None) == []


def shifted(row, by):
    """A reading that is off."""
    return [x + by for x in row]


@pytest.mark.parametrize(
    ("off", "apart", "moved", "said"),
    [
        (1e-3, 2e-3, 0.2, None),
        (1e-3, 0.0, 0.2, "before an identical step, bound 1e-05"),
        (1e-3, 2e-3, 0.05, "must be above 0.08"),
        (1e-3, 1.0, 0.2, "must be above 40"),
        (1e-3, math.nan, 0.2, "before an identical step, bound 1e-05"),
    ],
    ids=["noise", "no-floor", "small-move", "large-floor", "nan"],
)
def test_equal_starts_are_held_to_what_the_service_repeats(full, sound, off, apart, moved, said):
    """A floor allows as much difference, and asks for as much larger a step."""
    first, second = sound["restoration"].groups[0]
    sent = {**first.sent, "learning_rate": full.arms[0].learning_rate}
    before = first.before_T
    changes = {"sent": sent, "before_T": before, "after_T": shifted(before, moved)}
    first = first.model_copy(update={**changes, "again": [shifted(before, apart)]})
    changes = {"before_T": shifted(before, off), "after_T": shifted(before, moved + off)}
    second = second.model_copy(update={**changes, "sent": sent})
    evidence = RestorationEvidence.of(RestorationEvidence(groups=[[first, second]]).plain())

    finding = check(evidence, full)

    assert finding.ok is (said is None)
    assert said is None or said in finding.message


@pytest.mark.parametrize(
    ("exact", "apart", "bound"),
    [
        (True, 0.0, 0.0), (True, 1e-3, 4e-3), (False, 0.0, 1e-5), (False, 1e-7, 1e-5),
        (False, 1e-3, 4e-3),
    ],
)  # fmt: skip
def test_only_a_promise_of_equal_bits_leaves_no_room(exact, apart, bound):
    """Without it the bound is 1e-5 at least, and in either case four times the measured floor."""
    assert service_tolerance(apart, exact=exact) == bound


@pytest.mark.parametrize("exact", [True, False])
def test_equal_bits_that_were_not_promised_are_a_note(full, sound, exact):
    """Restoration says what two clients were held to if it is not their bits."""
    evidence = sound["restoration"].model_copy(update={"exact": exact})

    notes = [note for note in check(evidence, full).notes if "promises no equal bits" in note]

    assert notes == [] if exact else "0 nats apart; bound 1e-05" in notes[0]


@pytest.mark.parametrize(
    ("apart", "said"),
    [(1e-3, None), (0.0, "log-probs differ by 0.001, bound 1e-05"), (0.1, "must be above 4")],
)
def test_a_resumed_arm_is_held_to_what_its_clients_repeat(full, sound, apart, said):
    """Two readings of one client say what the service makes of the same weights."""
    resumed = sound["capability"].resumed
    live, stepped = [-1.0, -2.0], [-1.3, -2.0]
    evidence = ResumedArm(
        arm=full.arms[0].name,
        version=resumed.version,
        resumed_version=resumed.version,
        learner=(live, shifted(live, 1e-3)),
        stepped=(stepped, shifted(stepped, 1e-3)),
        samplers=[],
        repeated=[(live, shifted(live, apart))],
    )

    problems = resumed_problems(evidence, full)

    assert len(problems) == (said is not None)
    assert said is None or said in problems[0]
