import pytest

from harness.audit import baseline_correctness, capability, feasibility, pins, restoration
from harness.fingerprints import CLEARANCE, SAME


def test_pins_names_five_files_and_the_count(experiment, sound):
    """A reader sees which files differ without reading hundreds of lines."""
    package = sound["pins"].packages["tinker"]
    listed = {f"tinker/{index}.py": "1" * 64 for index in range(7)}
    installed = dict.fromkeys(listed, "2" * 64)
    files = package.model_copy(update={"listed": listed, "installed": installed})
    evidence = sound["pins"].model_copy(
        update={"packages": {**sound["pins"].packages, "tinker": files}}
    )
    message = pins.check(evidence, experiment).message

    assert "7 file(s) changed, bound 0: tinker/0.py, tinker/1.py, tinker/2.py" in message
    assert "tinker/4.py, ...; reinstall" in message


def test_pins_refuses_what_is_still_unresolved(experiment, sound, bend):
    """UNRESOLVED in the card blocks unless the registration settles that very place."""
    resolutions = experiment.registration.model_dump(mode="json")["pins"]["resolutions"]
    other = bend(experiment, registration={"pins": {"resolutions": resolutions[1:]}})
    lines = pins.check(sound["pins"], other).problems

    assert [line.partition(" is ")[0] for line in lines] == [
        "/correctness_preflight/paths/0/baseline_revision"
    ]


def test_pins_refuses_a_resolution_that_resolves_nothing(experiment, sound, bend):
    """A resolution may not say UNRESOLVED itself."""
    resolutions = experiment.registration.model_dump(mode="json")["pins"]["resolutions"]
    resolutions[0]["value"] = "UNRESOLVED: later"
    other = bend(experiment, registration={"pins": {"resolutions": resolutions}})

    assert (
        "/registration/pins/resolutions/0/value is UNRESOLVED"
        in pins.check(sound["pins"], other).message
    )


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({"version": None}, "is not installed"),
        ({"manifest_sha256": None}, "no manifest could be compared"),
        ({"listed": {}, "installed": {}}, "the manifest lists no files"),
    ],
)
def test_pins_needs_something_to_compare(experiment, sound, update, words):
    """A package, a manifest or its list that is missing does not pass."""
    files = sound["pins"].packages["tinker"].model_copy(update=update)
    packages = {**sound["pins"].packages, "tinker": files}

    assert (
        words
        in pins.check(sound["pins"].model_copy(update={"packages": packages}), experiment).message
    )


def test_weights_that_a_remote_service_hides_are_said(experiment, sound):
    """Pinned weights are compared where they can be seen, and named as unverified elsewhere."""
    evidence = sound["pins"].model_copy(update={"base_weights_sha256": None})
    finding = pins.check(evidence, experiment)

    assert finding.ok
    assert any("does not show them; not verified" in note for note in finding.notes)


def test_a_missing_reference_blocks(experiment, sound):
    """A pinned reference that is not there can't be what was pinned."""
    references = dict.fromkeys(sound["pins"].references)
    evidence = sound["pins"].model_copy(update={"references": references})

    assert "can't be read here" in pins.check(evidence, experiment).message


def test_missing_tolerances_block(experiment, sound, bend):
    """A card that requires correctness without tolerances compares nothing."""
    path = experiment.card.model_dump(mode="json")["correctness_preflight"]["paths"][0]
    path["tolerances"] = dict.fromkeys(path["tolerances"])
    other = bend(experiment, card={"correctness_preflight": {"paths": [path]}})
    finding = baseline_correctness.check(sound["baseline_correctness"], other)

    assert "no tolerance 'baseline_loss' is stated" in finding.message
    assert "no tolerance 'baseline_gradient' is stated" in finding.message


def _move_second(sound, difference, moved=0.2):
    first, second = sound["restoration"].groups[0]
    after = [value - moved for value in first.before_T]
    first = first.model_copy(update={"after_T": after})
    second = second.model_copy(update={"after_T": [value + difference for value in after]})
    return sound["restoration"].model_copy(update={"groups": [[first, second]]})


def test_restoration_is_exact_on_the_embedded_engine(experiment, sound):
    """There the same step gives the same bits."""
    assert restoration.check(_move_second(sound, 0.0), experiment).ok
    assert "bound 0" in restoration.check(_move_second(sound, 1e-9), experiment).message


def test_restoration_allows_rounding_elsewhere(full, sound):
    """A remote service may batch differently, up to the bound."""
    rates = {"learning_rate": full.arms[0].learning_rate}
    evidence = _move_second(sound, SAME / 2)
    evidence = evidence.model_copy(
        update={
            "exact": False,
            "groups": [
                [
                    client.model_copy(update={"sent": {**client.sent, **rates}})
                    for client in evidence.groups[0]
                ]
            ],
        }
    )

    assert restoration.check(evidence, full).ok
    assert not restoration.check(_move_second(sound, SAME * 2), full).ok


def test_a_step_too_small_to_tell_two_a_apart_blocks(full, sound):
    """The throw-away step must move log-probs well beyond the bound it is judged by."""
    small = _move_second(sound, 0.0, moved=SAME * CLEARANCE / 2)
    small = small.model_copy(update={"exact": False})

    assert "shows nothing about A" in restoration.check(small, full).message


def test_restoration_needs_two_arms(experiment, sound):
    """One client is equal to itself, which shows nothing."""
    groups = [sound["restoration"].groups[0][:1]]
    evidence = sound["restoration"].model_copy(update={"groups": groups})

    assert "equality takes at least 2" in restoration.check(evidence, experiment).message


def test_config_key_of_the_card_that_is_not_sent_blocks(experiment, sound, bend):
    """Every key of the card's optimizer configuration is looked for in what was sent."""
    groups = experiment.card.model_dump(mode="json")["restoration_preflight"]["groups"]
    groups[0]["arms"][0]["optimizer_config"]["momentum"] = 0.5
    other = bend(experiment, card={"restoration_preflight": {"groups": groups}})

    assert (
        "momentum 0.5 is stated and was not sent"
        in restoration.check(sound["restoration"], other).message
    )


def test_capability_names_the_sum_that_does_not_fit(experiment, sound):
    """A prompt that leaves no room is named with its length, max_tokens and the bound."""
    lengths = sound["capability"].lengths
    longest = lengths["test"].model_copy(update={"longest": 480})
    evidence = sound["capability"].model_copy(update={"lengths": {**lengths, "test": longest}})

    message = capability.check(evidence, experiment).message

    assert "prompt test/00001 has 480 tokens, with max_tokens 64 that is 544, above" in message
    assert "max_seq_len 512" in message


def test_capability_of_no_arm_blocks(experiment, sound):
    """Arms that were not tried are not capable."""
    evidence = sound["capability"].model_copy(update={"arms": []})

    assert 2 == len(capability.check(evidence, experiment).problems)


def test_feasibility_multiplies_out_the_whole_card(experiment, sound):
    """40 steps of both arms, and three evaluations of 1,319 items, from measured seconds."""
    finding = feasibility.check(sound["feasibility"], experiment)

    assert 2 * 40 * 0.9 == pytest.approx(finding.metrics["predicted_training_seconds"])
    assert 3 * 1319 / 128 == pytest.approx(finding.metrics["predicted_evaluation_seconds"])
    assert finding.metrics["predicted_wall_minutes"] == pytest.approx((72 + 3957 / 128) / 60)
    assert 0.0 == finding.metrics["predicted_gpu_hours"]


def test_feasibility_counts_every_gpu(full, sound, bend):
    """GPU-hours are wall hours times GPUs, and have a budget of their own."""
    eight = bend(full, registration={"feasibility": {"gpus": 100}})
    message = feasibility.check(sound["feasibility"], eight).message

    assert "GPU time: 2.86 GPU-hours predicted, budget 2" in message


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_feasibility_refuses_what_is_no_duration(experiment, sound, seconds):
    """A phase that took no time was not measured."""
    arms = sound["feasibility"].arms
    phases = [{"sample": seconds, "train": 0.3, "snapshot": 0.1}] * 2
    spoiled = [arms[0].model_copy(update={"seconds": phases}), arms[1]]
    evidence = sound["feasibility"].model_copy(update={"arms": spoiled})

    assert "no duration for sample" in feasibility.check(evidence, experiment).message
