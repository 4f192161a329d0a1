"""The mini scale of a lag experiment: four arms, custom loss and gradient probe, in seconds."""

import json
from pathlib import Path
from typing import Any

from mini import embedded

CARD = "tailrl_lag4_sensitivity_gsm8k_08b"
EXPERIMENT = "test_tailrl_lag4_sensitivity.py"
STEPS, PILOT, EVERY, GROUP, GROUPS, ITEMS = 8, 6, 3, 8, 4, 100
ARMS = ("grpo_lag0_seed0", "grpo_lag4_seed0", "tailrl_lag0_seed0", "tailrl_lag4_seed0")
FRESH, STALE = ARMS[0], ARMS[1]


def lag_scale() -> dict[str, Any]:
    """The embedded scale, smaller: 32 rollouts a step, so that clipping shows within the pilot."""
    scale: dict[str, Any] = embedded(CARD)
    scale["name"] = "mini"
    card, registration = scale["patch"]["card"], scale["patch"]["registration"]
    batch = GROUP * GROUPS
    card |= {"steps": STEPS, "batch_size": batch, "eval": {"n_examples": ITEMS}}
    card["optimizer"] = {"lr": 3e-3}
    for arm in registration["arms"]:
        arm["schedule"] |= {
            "steps": STEPS, "group_size": GROUP, "groups_per_batch": GROUPS, "learning_rate": 3e-3,
        }  # fmt: skip
    for gate in registration["extra_gates"]:
        if gate["metric"] == "rollouts_per_step_both_arms":
            gate |= {"min": batch, "max": batch}
        if gate["metric"] == "batch_mean_reward_pilot":
            gate |= {"min": 0.01, "max": 0.99}
    registration["decision_rule"]["criteria"][1]["steps"] = [4, STEPS - 1]
    registration["gradient_probe"] = {"every": 4}
    registration["training"] |= {"pilot_steps": PILOT, "checkpoint_every": EVERY}
    new = ("/card/eval/n_examples", "/registration/training/checkpoint_every")
    scale["changes"] += [{"pointer": pointer, "reason": "A run of seconds."} for pointer in new]
    return scale


def write(path: Path) -> Path:
    """The scale as a file."""
    path.write_text(json.dumps(lag_scale()))
    return path
