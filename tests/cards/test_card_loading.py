import json
from pathlib import Path

import pytest

from harness.cards import Card, load_experiment
from harness.errors import CardError

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
GS1 = CARDS / "gs1_vs_grpo_gsm8k_2b.json"
REGISTERED = sorted(p for p in CARDS.glob("*.json") if p.name.count(".") == 1)


@pytest.mark.parametrize("path", REGISTERED, ids=lambda path: path.stem)
def test_every_registered_card_is_understood_whole(path):
    """No registered card has a key that the model does not know."""
    assert json.loads(path.read_text())["title"] == Card.model_validate_json(path.read_text()).title


@pytest.mark.parametrize("scale", ["embedded", "full"])
def test_gs1_loads_at_both_scales(scale):
    """GS1 draws 64 rollouts a step in both arms, 8 x 8 against 64 x 1, for 40 steps."""
    experiment = load_experiment(GS1, scale)
    shapes = [(arm.group_size, arm.groups_per_batch, arm.steps) for arm in experiment.arms]

    assert [(8, 8, 40), (1, 64, 40)] == shapes
    assert [320, 2560] == [arm.prompts for arm in experiment.arms]
    assert 1319 == experiment.card.eval.n_examples


def test_embedded_scale_keeps_the_rule_and_the_bounds():
    """What decides, and what gates, is the card's own at embedded scale."""
    embedded, full = (load_experiment(GS1, scale).card for scale in ("embedded", "full"))
    assert embedded.activation_gate is not None
    assert full.activation_gate is not None
    numeric = slice(0, 5)

    assert full.decision_rule == embedded.decision_rule
    assert full.activation_gate.checks[numeric] == embedded.activation_gate.checks[numeric]
    assert full.correctness_preflight == embedded.correctness_preflight


def test_hash_covers_card_registration_and_scale(card):
    """Any of the three files changes the experiment's identity."""
    before = card.load("embedded").sha256
    card.edit(".embedded", lambda scale: scale.update(claims="something else"))
    scaled = card.load("embedded").sha256
    card.edit(".registration", lambda r: r["power"].update(expected_discordance=0.3))
    registered = card.load("embedded").sha256

    assert 3 == len({before, scaled, registered})


def test_unknown_key_is_refused_by_name(card):
    """A misspelt key is an error that names it."""
    card.edit("", lambda c: c.update(lora_rnak=32))

    with pytest.raises(CardError, match=r"unknown key /lora_rnak; remove it"):
        card.load()


def test_wrong_type_is_refused_with_value(card):
    """A number written as text is not coerced."""
    card.edit("", lambda c: c.update(steps="40"))

    with pytest.raises(CardError, match=r"/steps is '40': input should be a valid integer"):
        card.load()


def test_all_problems_come_at_once(card):
    """Two mistakes give two lines."""
    card.edit("", lambda c: c.update(lora_rnak=32, steps="40"))

    with pytest.raises(CardError) as caught:
        card.load()

    assert 2 == len(str(caught.value).splitlines())


def test_arms_must_make_the_batch(card):
    """Group size times groups is the card's batch size in every arm."""
    card.edit("", lambda c: c["arms"][1].update(groups_per_batch=32))

    with pytest.raises(CardError, match=r"1 x groups_per_batch 32 = 32 .* batch_size is 64"):
        card.load()


def test_changed_card_needs_a_new_registration(card):
    """A card edited after registration is refused by its hash."""
    path = card.path
    path.write_text(path.read_text().replace('"margin": -0.05', '"margin": -0.10'))

    with pytest.raises(CardError, match="a changed card is a new registration"):
        card.load()


def test_missing_file_is_one_line(card):
    """A card that is not there is named, with the place that was looked at."""
    with pytest.raises(CardError, match=r"^absent\.json: can't be read"):
        load_experiment(card.folder / "absent.json", "full")


def test_broken_json_is_one_line(card):
    """A truncated card is one line, not a traceback of the parser."""
    card.path.write_bytes(card.path.read_bytes()[:500])

    with pytest.raises(CardError, match=r"json: not valid JSON: "):
        card.load()


def test_scale_must_give_a_reason_for_each_change(card):
    """A change that is not listed is refused, and so is a listed change that is not made."""
    card.edit(".embedded", lambda s: s["patch"]["card"].update(lora_rank=8))
    card.edit(".embedded", lambda s: s["changes"].append({"pointer": "/card/steps", "reason": "r"}))

    with pytest.raises(CardError) as caught:
        card.load("embedded")

    assert "scale changes /card/lora_rank without a reason" in str(caught.value)
    assert "lists a change of /card/steps but does not change it" in str(caught.value)


def test_gate_that_cannot_fail_is_refused(card):
    """A gate without bounds is not a test."""

    def loosen(document):
        check = document["activation_gate"]["checks"][3]
        del check["min"]

    card.edit("", loosen)

    with pytest.raises(CardError, match="no min, max or one_of, so it can't fail"):
        card.load()


def test_one_decision_rule_must_be_stated(card):
    """A card without a rule needs one in its registration; two would leave a choice."""
    rules = []
    card.edit("", lambda c: rules.append(c.pop("decision_rule")))

    with pytest.raises(CardError, match="no decision rule; the card states none, so register one"):
        card.load()

    card.edit(".registration", lambda r: r.update(decision_rule=rules[0]))

    assert "primary_noninferiority" == card.load().rule.criteria[0].id


def test_arms_are_scheduled_in_one_place(card):
    """What the card states of an arm is not repeated; what it leaves out must be registered."""
    schedule = {"seed": 0, "group_size": 8, "groups_per_batch": 8, "steps": 40}
    schedule["learning_rate"] = 4e-5
    card.edit(".registration", lambda r: r["arms"][0].update(schedule=schedule))

    with pytest.raises(CardError, match="the card states its schedule; don't repeat it"):
        card.load()

    card.edit("", lambda c: c.pop("arms"))

    with pytest.raises(CardError, match="arm gs1_seed0: no schedule"):
        card.load()


def test_criteria_weigh_roles_that_arms_play(card):
    """A criterion on a role that no arm plays is refused."""
    card.edit("", lambda c: c["decision_rule"]["criteria"][0]["weights"].update(placebo=1))

    with pytest.raises(CardError, match=r"weighs \['placebo'\], but the arms play"):
        card.load()
