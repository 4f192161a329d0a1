"""The content keys of every entry of the registered experiments at the embedded scale.

A key says which stored result is found again, so a change of one is a decision: it is seen in the
difference of a file here. `python tests/golden/golden_keys.py --update` writes the files anew.
"""

import argparse
import json
import tempfile
from pathlib import Path

from harness.cards import Experiment, load_experiment
from harness.protocol.arms import ArmKeeper
from harness.store import Entry, RunStore
from harness.training.identity import service_identity

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
FOLDER = Path(__file__).parent / "keys"
NAMES = sorted(path.name.split(".")[0] for path in CARDS.glob("*.registration.json"))


class Served:
    """Doubles `harness.protocol.services.Service`: the embedded engine, never started."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment

    def identity(self) -> dict[str, object]:
        """The pinned weights."""
        return service_identity(self._experiment, None)


def card_path(name: str) -> Path:
    """The file of a registered card."""
    return CARDS / f"{name}.json"


def kept_entries(experiment: Experiment, store: RunStore) -> list[Entry]:
    """The entries of every arm, then of every arm's evaluation, then of the base model's."""
    keeper = ArmKeeper(
        experiment,
        store,
        Served(experiment),  # type: ignore[arg-type]  # a double
        task=lambda: None,  # type: ignore[arg-type, return-value]  # nothing is read
        runs_dir=FOLDER,
        run_id="keys",
        retrain=False,
        loss_backend=lambda arm: arm.loss_backends[0],
    )
    arms = [keeper.entry(arm) for arm in experiment.arms]
    evaluations = [keeper.evaluation_entry(arm) for arm in (*experiment.arms, None)]
    return [*arms, *evaluations]


def document(name: str) -> str:
    """The golden file of a card: key and parts of every entry, sorted.

    An evaluation's policy is named where its parts are those of an arm in this file.
    """
    with tempfile.TemporaryDirectory() as folder:
        entries = kept_entries(load_experiment(card_path(name), "embedded"), RunStore(Path(folder)))
    named = {json.dumps(entry.parts, sort_keys=True): entry.name for entry in entries}
    written = {}
    for entry in entries:
        parts = dict(entry.parts)
        if "policy" in parts:
            parts["policy"] = (
                named.get(json.dumps(parts["policy"], sort_keys=True)) or parts["policy"]
            )
        written[entry.name] = {"key": entry.key, "parts": parts}
    return json.dumps(written, indent=2, sort_keys=True) + "\n"


def main() -> None:
    """Write the golden files anew."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--update", action="store_true", required=True)
    parser.parse_args()
    for name in NAMES:
        (FOLDER / f"{name}.json").write_text(document(name))


if __name__ == "__main__":
    main()
