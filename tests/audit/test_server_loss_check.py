import numpy as np
import pytest

from harness.audit.loss_moves import EXPECTED, KNOWN
from harness.audit.loss_values import LossValue
from harness.audit.server_loss import LossEvidence, check
from harness.methods import loss_and_gradient


def _spoiled(sound, **changes):
    return sound["server_loss"].model_copy(update=changes)


def _scaled_moves(sound, ratios):
    one = sound["server_loss"].moves_T["one"]
    return {"one": one, **{name: [ratio * x for x in one] for name, ratio in ratios.items()}}


def test_a_summing_service_holds(experiment, sound):
    """The outcome is said, and so are the measured ratios."""
    finding = check(sound["server_loss"], experiment)

    assert finding.ok
    assert "outcome: holds" == finding.notes[0]
    assert 2.0 == pytest.approx(finding.metrics["move_ratio.two_copies"])


@pytest.mark.parametrize("rule", KNOWN)
def test_other_aggregations_are_recognised_by_name(experiment, sound, rule):
    """A service that aggregates otherwise is refused, and its rule is guessed from the moves."""
    ratios = dict(zip(EXPECTED, KNOWN[rule], strict=True))
    finding = check(_spoiled(sound, moves_T=_scaled_moves(sound, ratios)), experiment)
    same = [other for other in KNOWN if KNOWN[other] == KNOWN[rule]]

    assert "outcome: fails" == finding.notes[0]
    assert f"this fits {same[0]}" in finding.message


def test_five_per_cent_is_the_tolerance(experiment, sound):
    """A ratio of 1.91 for two copies passes, 1.89 does not."""
    for ratio, ok in ((1.91, True), (1.89, False)):
        moves = _scaled_moves(sound, {**EXPECTED, "two_copies": ratio})
        assert ok == check(_spoiled(sound, moves_T=moves), experiment).ok


@pytest.mark.parametrize(
    ("noise", "ok"), [(0.0, True), (1e-4, True), (1.0, False), (np.nan, False)]
)
def test_moves_within_the_noise_prove_nothing(experiment, sound, noise, ok):
    """What a service can't repeat can't be compared to five per cent."""
    finding = check(_spoiled(sound, noise=noise), experiment)

    assert finding.ok is ok
    assert ok or "too little to measure" in finding.message


@pytest.mark.parametrize(
    ("factor", "likeness"),
    [(1 / 5, "the mean over tokens"), (1 / 2, "the mean over datums"), (-1, "the negated loss")],
)
def test_wrong_values_are_recognised_by_name(experiment, sound, factor, likeness):
    """A reported loss that another formula gives is named with it."""
    value = sound["server_loss"].values[0]
    wrong = value.model_copy(update={"reported": value.reported * factor})
    finding = check(_spoiled(sound, values=[wrong]), experiment)

    assert f"it equals {likeness}" in finding.message


def test_ratio_the_wrong_way_round_is_recognised(experiment, sound):
    """exp(behaviour - learner) instead of exp(learner - behaviour) is named."""
    value = sound["server_loss"].values[0]
    rows = (value.behaviour_D_T, value.logprobs_D_T, value.advantages_D_T)
    wrong = loss_and_gradient("importance_sampling", *(np.concatenate(row) for row in rows)).value
    spoiled_value = value.model_copy(update={"reported": wrong})

    assert (
        "the ratio the wrong way round"
        in check(_spoiled(sound, values=[spoiled_value]), experiment).message
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"moves_T": {}},
        {"moves_T": {name: [1e-7, 2e-7] for name in ("one", *EXPECTED)}},
        {"values": []},
    ],
    ids=["no move", "tiny move", "no value"],
)
def test_what_was_not_measured_is_unverifiable_and_blocks(experiment, sound, changes):
    """Without evidence the preflight neither holds nor passes."""
    finding = check(_spoiled(sound, **changes), experiment)

    assert not finding.ok
    assert "outcome: unverifiable" == finding.notes[0]
    assert "or accept unverifiable for server_loss" in finding.message


def test_noise_is_unverifiable_not_a_failure(experiment, sound):
    """Moves in unlike directions say nothing about aggregation."""
    moves = _scaled_moves(sound, EXPECTED)
    moves["two_copies"] = [-0.004, 0.02, 0.01, 0.0]
    finding = check(_spoiled(sound, moves_T=moves), experiment)

    assert "outcome: unverifiable" == finding.notes[0]
    assert "another direction" in finding.message


NO_METRIC = {
    "preflight": "server_loss",
    "outcome": "unverifiable",
    "reason": "no metric",
    "given_for": {"losses": ["importance_sampling"]},
}


def test_an_accepted_unverifiable_loss_is_a_note(experiment, sound, bend):
    """The registration may accept that a service reports no loss, with its reason."""
    other = bend(experiment, registration={"accepted": [NO_METRIC]})
    value = sound["server_loss"].values[0].model_copy(update={"reported": None})
    finding = check(_spoiled(sound, values=[value]), other)

    assert finding.ok
    assert any("(accepted: no metric)" in note for note in finding.notes)


def test_an_acceptance_does_not_cover_a_failure(experiment, sound, bend):
    """What was measured and is wrong blocks, whatever was accepted as unverifiable."""
    other = bend(experiment, registration={"accepted": [NO_METRIC]})
    moves = _scaled_moves(sound, {**EXPECTED, "longer": 0.5})

    assert not check(_spoiled(sound, moves_T=moves), other).ok


CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}


@pytest.mark.parametrize(("bounds", "ok"), [((0.8, 1.2), True), ((0.5, 1.5), False)])
def test_clip_bounds_of_ppo_are_probed(experiment, sound, bend, bounds, ok):
    """A service that clips elsewhere than registered reports another loss."""
    specs = experiment.registration.model_dump(mode="json")["arms"]
    for spec in specs:
        spec.update(loss="ppo", loss_config=CLIP)
    clipping = bend(experiment, registration={"arms": specs})
    value = sound["server_loss"].values[0]
    rows = [
        np.concatenate(row)
        for row in (value.logprobs_D_T, value.behaviour_D_T, value.advantages_D_T)
    ]
    served = dict(zip(CLIP, bounds, strict=True))
    reported = loss_and_gradient("ppo", *rows, served).value
    ppo = LossValue(**{**dict(value), "loss": "ppo", "config": CLIP, "reported": reported})
    evidence = LossEvidence(**{**dict(sound["server_loss"]), "values": [ppo]})

    assert ok == check(evidence, clipping).ok


def test_a_loss_that_no_arm_trains_with_is_no_evidence(experiment, sound, bend):
    """Values of importance sampling do not vouch for arms that train with ppo."""
    specs = experiment.registration.model_dump(mode="json")["arms"]
    for spec in specs:
        spec.update(loss="ppo", loss_config=CLIP)
    clipping = bend(experiment, registration={"arms": specs})

    assert "loss ppo: no forward_backward was made" in check(sound["server_loss"], clipping).message
