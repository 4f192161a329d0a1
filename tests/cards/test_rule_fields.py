"""What card and registration may say of roles, rules and kernels, and what is refused."""

import pytest

from harness.errors import CardError


def own_rule(card, **changes):
    """Move arms and rule from the card to the registration, changed."""
    stated = {}

    def strip(document):
        stated.update(arms=document.pop("arms"), rule=document.pop("decision_rule"))

    card.edit("", strip)

    def state(registration):
        for spec, arm in zip(registration["arms"], stated["arms"], strict=True):
            spec["schedule"] = {
                "seed": arm["seed"],
                "group_size": arm["group_size"],
                "groups_per_batch": arm["groups_per_batch"],
                "steps": arm["steps"],
                "learning_rate": arm["lr"],
            }
            if "kernel" in spec:
                spec["kernel"]["tau"] = 0.1
        registration["decision_rule"] = stated["rule"] | changes

    card.edit(".registration", state)


def spec(registration, name):
    """One registered arm."""
    return next(arm for arm in registration["arms"] if arm["name"] == name)


def test_an_ablation_may_be_added_to_the_arms_that_a_card_states(card):
    """A role that no criterion weighs; a second treatment is not an addition but another card."""

    def add(registration, role):
        registration["arms"].append(
            {
                "name": "more",
                "role": role,
                "estimator": "uniform_loo",
                "schedule": {
                    "seed": 0,
                    "group_size": 1,
                    "groups_per_batch": 64,
                    "steps": 40,
                    "learning_rate": 4e-5,
                },
            }
        )

    card.edit(".registration", lambda r: add(r, "ablation"))
    assert card.load().role("ablation")[0].name == "more"
    assert card.load().weighed_roles == ("baseline", "treatment")

    card.edit(".registration", lambda r: spec(r, "more").update(role="treatment"))
    with pytest.raises(CardError, match="name the same arms in both"):
        card.load()


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        ({"weighting": "cosine"}, "cosine weights have no tau"),
        ({"tau": None}, "no tau in card or registration"),
    ],
)
def test_a_softmax_has_a_tau_and_a_cosine_has_none(card, kernel, problem):
    """A number that nothing reads would look like a setting."""
    own_rule(card)
    card.edit(".registration", lambda r: spec(r, "gs1_seed0")["kernel"].update(kernel))

    with pytest.raises(CardError, match=problem):
        card.load()


def test_no_arm_plays_the_base_model(card):
    """The role is the untrained model's, and a criterion of it alone tests nothing."""
    own_rule(card)
    card.edit(".registration", lambda r: spec(r, "grpo_gs8_seed0").update(role="base"))

    with pytest.raises(CardError, match="is the untrained base model's"):
        card.load()


def test_a_point_estimate_has_no_p_for_holm(card):
    """Holm orders p values; without any the rule could not be applied."""
    own_rule(card, method="point_estimate", combine="any_may_pass")

    with pytest.raises(CardError, match="which any_may_pass needs for Holm"):
        card.load()


def test_fields_of_the_rule_are_read_from_the_registration(card):
    """Sides, order key and the rest; a misspelt one is an error."""
    own_rule(card, sides=1, method="paired_betting_cs", order_key="key")
    rule = card.load().rule
    assert (rule.sides, rule.order_key, rule.combine) == (1, "key", "all_must_pass")

    card.edit(".registration", lambda r: r["decision_rule"].update(side=1))
    with pytest.raises(CardError, match="unknown key /decision_rule/side"):
        card.load()
