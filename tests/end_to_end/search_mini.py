"""The mini scale of the search experiment: four arms, a lag of 2, a world of 24 companies."""

import json
from pathlib import Path
from typing import Any

from mini import CARDS, embedded

from harness.tasks.sec_search import Selection, World, synthetic_task

CARD = "tailrl_lag8_sec_search_4b"
EXPERIMENT = "test_tailrl_lag8_sec_search.py"
# groups of two are often of equal rewards
STEPS, PILOT, EVERY, GROUP, GROUPS, ITEMS, LAG = 5, 3, 2, 2, 8, 6, 2
TAIL, TAIL_STALE, DR, DR_STALE = ARMS = (
    "tailrl_lag0_seed0", "tailrl_lag8_seed0", "drgrpo_lag0_seed0", "drgrpo_lag8_seed0",
)  # fmt: skip
WORLD = {
    "seed": 5, "companies": 24, "chunks_per_company": 60, "lexical_overlap": 1.0,
    "sentences": [1, 2],
}  # fmt: skip
NEW = (
    "/card/steps", "/card/batch_size", "/card/eval/n_examples",
    "/registration/training/pilot_steps", "/registration/training/checkpoint_every",
    "/registration/decision_rule/criteria",
)  # fmt: skip


def search_scale(folder: Path) -> dict[str, Any]:
    """The embedded scale, smaller; the hashes of its world are found under `folder`."""
    scale: dict[str, Any] = embedded(CARD)
    registered = json.loads((CARDS / f"{CARD}.registration.json").read_text())
    scale["name"] = "mini"
    card, registration = scale["patch"]["card"], scale["patch"]["registration"]
    card |= {"steps": STEPS, "batch_size": GROUP * GROUPS, "eval": {"n_examples": ITEMS}}
    card["dataset"]["n_examples"] = STEPS * GROUPS
    card["optimizer"] = {"lr": 4e-3}
    for arm in registration["arms"]:
        arm["lag"] = LAG if arm["lag"] else 0
        arm["schedule"] |= {
            "steps": STEPS, "group_size": GROUP, "groups_per_batch": GROUPS, "learning_rate": 4e-3,
        }  # fmt: skip
    for gate in registration["extra_gates"]:
        if gate["metric"] == "rollouts_per_step_both_arms":
            gate |= {"min": GROUP * GROUPS, "max": GROUP * GROUPS}
        if gate["metric"] == "batch_mean_reward_pilot":
            gate |= {"min": -0.19, "max": 0.99}
    criteria = registered["decision_rule"]["criteria"]
    for criterion in criteria:
        if "steps" in criterion:
            criterion["steps"] = [LAG, STEPS - 1]
    registration["decision_rule"] = {"criteria": criteria}
    registration["training"] |= {"pilot_steps": PILOT, "checkpoint_every": EVERY}
    registration["search"]["world"] = WORLD
    chosen = registered["search"]["selection"]
    registration["data"] = {f"{name}_sha256": x for name, x in hashes(folder, chosen).items()}
    scale["changes"] += [{"pointer": pointer, "reason": "A run of seconds."} for pointer in NEW]
    return scale


def hashes(folder: Path, chosen: dict[str, Any]) -> dict[str, str]:
    """What the mini world's data hash to."""
    selection = Selection(n_train=STEPS * GROUPS, n_test=ITEMS, **chosen)
    world = World(**{**WORLD, "sentences": tuple(WORLD["sentences"])})
    return dict(synthetic_task(world, folder / "world", selection).sha256s)


def write(path: Path) -> Path:
    """The scale as a file."""
    path.write_text(json.dumps(search_scale(path.parent)))
    return path
