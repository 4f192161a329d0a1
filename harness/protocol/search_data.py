"""The search task's data of a scale: a generated world, or the published data set; never either."""

import hashlib
from dataclasses import asdict
from pathlib import Path

import filelock
import orjson

from harness.cards import Experiment
from harness.cards.registration import SearchSpec
from harness.errors import CardError
from harness.tasks.sec_search import SearchTask, Selection, World, published_task, synthetic_task


def search_task(experiment: Experiment, folder: Path) -> tuple[SearchTask, Path]:
    """The questions and the index that the experiment names, prepared once under `folder`.

    Returns:
        the task, and the folder that was prepared.

    Raises:
        DataError: the published data are not where HARNESS_SEC_DIR says, or can't be prepared.
        CardError: the registration has no settings of the task.
    """
    spec = experiment.registration.search
    if spec is None:
        raise CardError(f"{experiment.id}: no `search`; register the task's settings")
    selection = Selection(
        n_train=experiment.card.dataset.n_examples,
        n_test=experiment.card.eval.n_examples,
        **spec.selection.model_dump(),
    )
    prepared = folder / f"sec-{_name(spec, selection)}"
    folder.mkdir(parents=True, exist_ok=True)
    # several workers need it at the same time, and it takes minutes at full size
    with filelock.FileLock(folder / f"{prepared.name}.lock", fallback_to_soft=False):
        if spec.world is None:
            return published_task(None, prepared, selection), prepared
        world = World(**spec.world.model_dump())
        return synthetic_task(world, prepared, selection), prepared


def _name(spec: SearchSpec, selection: Selection) -> str:
    """A folder's name of its own for each world or data set, and for what is taken of it."""
    world = None if spec.world is None else spec.world.model_dump()
    key = orjson.dumps([world, asdict(selection)], option=orjson.OPT_SORT_KEYS)
    kind = "published" if world is None else "synthetic"
    return f"{kind}-{hashlib.sha256(key).hexdigest()[:12]}"
