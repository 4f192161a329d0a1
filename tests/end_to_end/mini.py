"""The mini scale: the committed embedded scale, smaller, so that a run takes seconds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
)  # fmt: skip

Document = dict[str, Any]


def mini_scale(change: Callable[[Document], object] = lambda _: None) -> Document:
    """The mini scale; `change` may alter the card as the scale patches it."""
    scale: Document = json.loads((CARDS / f"{CARD}.embedded.json").read_text())
    scale["name"] = "mini"
    card, registration = scale["patch"]["card"], scale["patch"]["registration"]
    card |= {"steps": STEPS, "batch_size": BATCH, "eval": {"n_examples": ITEMS}}
    card["dataset"]["n_examples"] = 1000
    for arm in card["arms"]:
        size = GROUP if arm["group_size"] > 1 else 1
        arm |= {"steps": STEPS, "group_size": size, "groups_per_batch": BATCH // size}
    for check in card["activation_gate"]["checks"]:
        check.update(_BOUNDS.get(check["metric"], {}))
    registration.setdefault("training", {}).update(pilot_steps=PILOT, checkpoint_every=EVERY)
    change(card)
    # of the parents and children of a change one line is enough, and both are too many
    listed = [c for c in scale["changes"] if not c["pointer"].startswith("/registration/training")]
    new = [{"pointer": pointer, "reason": "A run of seconds."} for pointer in _CHANGED]
    scale["changes"] = [*listed, *new]
    return scale


def write_scale(path: Path, scale: Document) -> Path:
    """The scale as a file."""
    path.write_text(json.dumps(scale))
    return path


def arm_of(card: Document, name: str) -> Document:
    """One arm of a card."""
    return next(arm for arm in card["arms"] if arm["name"] == name)
