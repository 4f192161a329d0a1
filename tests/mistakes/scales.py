"""Mistakes in a scale's file that are found before any training: edits of the card as patched."""

from typing import Any

from mistakes.mistake import Edit, Mistake, Stage, Where

GS1, BATCH = "gs1_seed0", 16


def arm(**changes: Any) -> Edit:
    """The GS1 arm is set up otherwise."""

    def edit(card: Any) -> None:
        next(arm for arm in card["arms"] if arm["name"] == GS1).update(changes)

    return edit


def half_the_rollouts(card: Any) -> None:
    """A smaller batch in both arms."""
    card["batch_size"] = BATCH // 2
    for each in card["arms"]:
        each["groups_per_batch"] //= 2


_ROWS: list[tuple[str, Where, Stage, str, str, Edit]] = [
    ("tau_huge", "scale", "preflight", "forecast",
        "contributors_median is certain to fail at tau 1e+06: 15 on the", arm(tau=1e6)),
    ("group_size_2", "scale", "reading", "card",
        f"{GS1}: estimator gs1 takes 1 rollout a prompt, group_size is 2",
        arm(group_size=2, groups_per_batch=BATCH // 2)),
    ("half_the_rollouts", "scale", "preflight", "forecast",
        "rollouts_per_step_both_arms is certain to fail: 8.0", half_the_rollouts),
    ("another_model", "scale", "preflight", "forecast",
        "executed_base_model is certain to fail: 'other/model'",
        lambda card: card.update(base_model="other/model")),
    ("unequal_batches", "card", "reading", "card",
        f"{GS1}: group_size 1 x groups_per_batch 8 = 8 rollouts a step, but batch_size is 16",
        arm(groups_per_batch=BATCH // 2)),
]  # fmt: skip

MISTAKES = tuple(
    Mistake(name, where, stage, frozenset({item}), words, edit, "scale", live=name == "tau_huge")
    for name, where, stage, item, words, edit in _ROWS
)
