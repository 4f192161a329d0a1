"""A copy of the GS1 card with its registration and scale, for tests to bend."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cards import Experiment, load_experiment

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
GS1 = "gs1_vs_grpo_gsm8k_2b"


class CardCopy:
    """The GS1 files in a folder of their own; `edit` changes one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / f"{GS1}.json"
        for path in CARDS.glob(f"{GS1}*.json"):
            shutil.copy(path, folder)

    def edit(self, suffix: str, change: Callable[[Any], None]) -> None:
        """Change the JSON of `.registration`, `.embedded` or the card itself ("")."""
        path = self.folder / f"{GS1}{suffix}.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))
        if not suffix:
            self.edit(".registration", lambda r: r.update(card_sha256=sha256(path)))

    def load(self, scale: str = "full") -> Experiment:
        """Load what is there."""
        return load_experiment(self.path, scale)


def sha256(path: Path) -> str:
    """The hash that a registration pins."""
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(name="card")
def _card(tmp_path: Path) -> CardCopy:
    return CardCopy(tmp_path)
