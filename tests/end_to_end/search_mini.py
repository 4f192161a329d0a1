"""The mini scale of the search experiment: four arms, a lag of 3, a world of 8 companies."""

import json
from pathlib import Path
from typing import Any

from mini import CARDS

from harness.tasks.sec_search import Selection, World, synthetic_task

CARD = "tailrl_lag8_sec_search_4b"
EXPERIMENT = "test_tailrl_lag8_sec_search.py"
STEPS, PILOT, EVERY, GROUP, GROUPS, ITEMS, LAG = 7, 4, 2, 4, 4, 6, 3
TRAIN = STEPS * GROUPS
ARMS = ("tailrl_lag0_seed0", "tailrl_lag8_seed0", "drgrpo_lag0_seed0", "drgrpo_lag8_seed0")
STALE = ARMS[1]
WORLD = {
    "seed": 5, "companies": 24, "chunks_per_company": 60, "lexical_overlap": 1.0,
    "sentences": [1, 2],
}  # fmt: skip


def search_scale(folder: Path) -> dict[str, Any]:
    """The embedded scale, smaller; the hashes of its world are found under `folder`."""
    scale: dict[str, Any] = json.loads((CARDS / f"{CARD}.embedded.json").read_text())
    scale["name"] = "mini"
    card, registration = scale["patch"]["card"], scale["patch"]["registration"]
    card |= {"steps": STEPS, "batch_size": GROUP * GROUPS}
    card["dataset"] |= {"n_examples": TRAIN}
    card["eval"] = {**card.get("eval", {}), "n_examples": ITEMS}
    for arm in registration["arms"]:
        arm["lag"] = LAG if arm["lag"] else 0
        arm["schedule"] |= {
            "steps": STEPS, "group_size": GROUP, "groups_per_batch": GROUPS, "learning_rate": 4e-3,
        }  # fmt: skip
    card["optimizer"] = {"lr": 4e-3}
    for gate in registration["extra_gates"]:
        if gate["metric"] == "rollouts_per_step_both_arms":
            gate |= {"min": GROUP * GROUPS, "max": GROUP * GROUPS}
        if gate["metric"] == "batch_mean_reward_pilot":
            gate |= {"min": -0.19, "max": 0.99}
    for criterion in registration["decision_rule"]["criteria"]:
        if "steps" in criterion:
            criterion["steps"] = [LAG, STEPS - 1]
    registration["training"] |= {"pilot_steps": PILOT, "checkpoint_every": EVERY}
    registration["search"]["world"] = WORLD
    registration["data"] = {f"{k}_sha256": v for k, v in hashes(folder).items()}
    listed = {change["pointer"] for change in scale["changes"]}
    parents = ("/card", "/registration", "/registration/training", "/card/eval")
    wanted = ("/card/eval/n_examples", "/registration/training/pilot_steps",
              "/registration/training/checkpoint_every")  # fmt: skip
    scale["changes"] += [
        {"pointer": pointer, "reason": "A run of seconds."}
        for pointer in wanted
        if not any(
            f"{pointer}/".startswith(f"{each}/") for each in listed if each not in parents[:2]
        )
    ]
    return scale


def hashes(folder: Path) -> dict[str, str]:
    """What the mini world's data hash to."""
    selection = Selection(n_train=TRAIN, n_test=ITEMS, seed=42, radius=4, background=None)
    world = World(**{**WORLD, "sentences": tuple(WORLD["sentences"])})
    return dict(synthetic_task(world, folder / "world", selection).sha256s)


def write(path: Path) -> Path:
    """The scale as a file."""
    path.write_text(json.dumps(search_scale(path.parent)))
    return path
