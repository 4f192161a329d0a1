"""An experiment of one's own in a folder of its own: components, card and scale."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import mini
from mini import ROOT

OWN = Path(__file__).parent / "own"
ARM = mini.GS1
COMPONENTS = ("running_mean.py", "length_kernel.py", "checks.py")

GATES = [
    {"metric": "baseline_spread", "measures": "are baselines of prompts apart?", "min": 1e-3},
    {
        "metric": "staleness/kl_k3",
        "measures": "a figure that steps log, of the treatment alone",
        "max": 0.1,
        "roles": ["treatment"],
    },
]
RULE = {"method": "paired_normal"}
"""What the scale changes of the card's rule."""


def scale() -> dict[str, Any]:
    """The mini scale with another treatment, and the gates, preflight and method of its own."""

    def change(card: dict[str, Any]) -> None:
        for gate in card["activation_gate"]["checks"]:
            if gate["metric"].startswith("gs1_"):
                gate["remove"] = True
        card["decision_rule"] = copy.deepcopy(RULE)

    made = mini.mini_scale(change)
    registered = json.loads((mini.CARDS / f"{mini.CARD}.registration.json").read_text())
    gone = dict.fromkeys(registered["arms"][1]["kernel"])
    treatment = {
        "name": ARM,
        "estimator": "running_mean",
        "estimator_config": {"decay": 0.9, "near": 0.5},
        "kernel": {**gone, "name": "of_one_length", "settings": {"words": 5.0}},
    }
    made["patch"]["registration"] |= {
        "components": list(COMPONENTS),
        "preflights": ["lengths_differ"],
        "arms": [treatment],
        "extra_gates": GATES,
    }
    changed = ("components", "preflights", "arms", "extra_gates")
    pointers = ["/card/decision_rule", *(f"/registration/{name}" for name in changed)]
    made["changes"] += [{"pointer": pointer, "reason": "Its own."} for pointer in pointers]
    return made


def build(folder: Path, **files: str) -> tuple[Path, Path]:
    """The experiment in a folder: its test file and its scale. `files` replace components."""
    experiments = folder / "experiments"
    experiments.mkdir(parents=True)
    shutil.copytree(mini.CARDS, experiments / "cards")
    shutil.copy(OWN / "experiment.py", experiments / "test_mine.py")
    for name in COMPONENTS:
        shutil.copy(OWN / name, experiments / name)
    for stem, text in files.items():
        (experiments / f"{stem}.py").write_text(text)
    # a pinned reference is named by its path in the project
    shutil.copytree(ROOT / "tests" / "references", folder / "tests" / "references")
    (folder / "pytest.ini").write_text("[pytest]\n")
    return experiments / "test_mine.py", mini.write_scale(folder / "mine.json", scale())


def source(name: str) -> str:
    """One of its component files."""
    return (OWN / f"{name}.py").read_text()
