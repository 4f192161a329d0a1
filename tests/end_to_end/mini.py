"""The mini scale: the committed embedded scale, smaller, so that a run takes seconds."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.cards.merge import merge_patch

ROOT = Path(__file__).parents[2]
CARD = "gs1_vs_grpo_gsm8k_2b"
CARDS = ROOT / "experiments" / "cards"

STEPS, PILOT, EVERY, BATCH, GROUP, ITEMS = 6, 2, 2, 16, 4, 100
GRPO, GS1 = "grpo_gs8_seed0", "gs1_seed0"
ARMS = (GRPO, GS1)

_BOUNDS = {
    "rollouts_per_step_both_arms": {"min": BATCH, "max": BATCH},
    # of 16 prompts at most 15 contribute, and few of them are alike
    "gs1_effective_contributors_median": {"min": 1.1, "max": 12},
    # 32 rollouts are a noisy mean
    "batch_mean_reward_pilot": {"min": -0.05, "max": 0.98},
}
_CHANGED = (
    "/card/steps", "/card/batch_size", "/card/eval/n_examples", "/registration/training",
    "/registration/accepted", "/registration/sense",
)  # fmt: skip

PARTS = ("", ".registration", ".embedded")

Document = dict[str, Any]


def mini_scale(change: Callable[[Document], object] = lambda _: None) -> Document:
    """The mini scale; `change` may alter the card as the scale patches it."""
    scale = embedded(CARD)
    scale["name"] = "mini"
    card, registration = scale["patch"]["card"], scale["patch"]["registration"]
    card |= {"steps": STEPS, "batch_size": BATCH, "eval": {"n_examples": ITEMS}}
    card["dataset"]["n_examples"] = 1000
    for arm in card["arms"]:
        size = GROUP if arm["group_size"] > 1 else 1
        arm |= {"steps": STEPS, "group_size": size, "groups_per_batch": BATCH // size}
    for check in card["activation_gate"]["checks"]:
        check.update(_BOUNDS.get(check["metric"], {}))
    # accepted for these items, as the card's is for its own
    (accepted,) = json.loads((CARDS / f"{CARD}.registration.json").read_text())["accepted"]
    accepted["given_for"]["n"] = ITEMS
    registration["accepted"] = [accepted]
    # six steps teach nothing that a hundred items show
    registration["sense"] = {"learned_p": 1.0}
    registration.setdefault("training", {}).update(pilot_steps=PILOT, checkpoint_every=EVERY)
    change(card)
    # of the parents and children of a change one line is enough, and both are too many
    listed = [c for c in scale["changes"] if not c["pointer"].startswith("/registration/training")]
    new = [{"pointer": pointer, "reason": "A run of seconds."} for pointer in _CHANGED]
    scale["changes"] = [*listed, *new]
    return scale


def embedded(name: str) -> Document:
    """A card's embedded scale, whose lists that merge by name are written out whole."""
    read = {part: json.loads((CARDS / f"{name}{part}.json").read_text()) for part in PARTS}
    scale: Document = read[".embedded"]
    base = {"card": read[""], "registration": read[".registration"]}
    scale["patch"] = whole(scale["patch"], merge_patch(base, scale["patch"]))
    return scale


def whole(patch: Any, merged: Any) -> Any:
    """A patch with the lists of the merged document in the place of its own."""
    if isinstance(patch, dict) and isinstance(merged, dict):
        return {k: whole(v, merged[k]) if k in merged else v for k, v in patch.items()}
    return copy.deepcopy(merged) if isinstance(patch, list) else patch


def write_scale(path: Path, scale: Document) -> Path:
    """The scale as a file."""
    path.write_text(json.dumps(scale))
    return path


def arm_of(card: Document, name: str) -> Document:
    """One arm of a card."""
    return next(arm for arm in card["arms"] if arm["name"] == name)
