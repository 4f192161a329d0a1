"""Which setting gives which entry another key: generated over all experiments, kinds and fields."""

import copy
import dataclasses
import functools
import itertools
import json
import types
import typing
from pathlib import Path

import pytest
from golden_keys import NAMES, Served, card_path, kept_entries
from pydantic import BaseModel

from harness.cards import load_experiment
from harness.cards.registration import GradientProbe, Tuning
from harness.protocol.tuning import Tuner
from harness.store import content_key
from harness.training import identity

RATE = 1e-4
TUNING = Tuning(
    learning_rates=[RATE, 3e-4, 9e-4], steps=2, heldout=8, factor=3.0, max_extensions=1,
    max_wall_minutes=60.0,
)  # fmt: skip
SEARCH_CARDS = {name for name in NAMES if "search" in name}

ARM, EVALUATION, BASE, TRIAL = "arm", "evaluation", "base", "tuning"
TRAINED = {ARM, EVALUATION, TRIAL}
SCORED = {EVALUATION, BASE, TRIAL}
ALL = TRAINED | SCORED
SEARCHES = "of a search"
"""All kinds of entries of an experiment that searches; none of another."""

# by the longest prefix of a field's path; what is not listed gives nothing another key
MATTERS = {
    "registration.task": ALL,
    "registration.pins.packages": ALL,
    "registration.pins.base_weights_sha256": ALL,
    "registration.data.train_sha256": TRAINED,
    "registration.data.test_sha256": {EVALUATION, BASE},
    "registration.data.corpus_sha256": SEARCHES,
    "registration.arms.*": TRAINED,
    "registration.arms.*.role": set(),
    "registration.arms.*.look": set(),
    "registration.training": TRAINED,
    "registration.training.renderer": ALL,
    "registration.training.few_shot": ALL,
    "registration.training.pilot_steps": set(),
    "registration.training.checkpoint_every": set(),
    "registration.evaluation": SCORED,
    "registration.tuning.steps": {TRIAL},
    "registration.tuning.heldout": {TRIAL},
    "registration.gradient_probe": TRAINED,
    "registration.search": SEARCHES,
    "card.base_model": ALL,
    "card.lora_rank": TRAINED,
    "card.dataset.n_examples": TRAINED,
    "card.eval.n_examples": {EVALUATION, BASE},
    "card.max_seq_len": SEARCHES,
    "card.arms.*.group_size": TRAINED,
    "card.arms.*.groups_per_batch": TRAINED,
    "card.arms.*.seed": TRAINED,
    "card.arms.*.steps": {ARM, EVALUATION},
    "card.arms.*.lr": {ARM, EVALUATION},
    "registration.arms.*.schedule.steps": {ARM, EVALUATION},
    "registration.arms.*.schedule.learning_rate": {ARM, EVALUATION},
}

VERSIONS = {
    "TRAINING_VERSION": TRAINED,
    "EVALUATION_VERSION": SCORED,
    "SEARCH_VERSION": SEARCHES,
    "TUNING_VERSION": {TRIAL},
}


@functools.cache
def experiment_of(name):
    """A registered experiment at the embedded scale, with a tuning stage."""
    experiment = load_experiment(card_path(name), "embedded")
    registration = experiment.registration.model_copy(update={"tuning": TUNING})
    return dataclasses.replace(experiment, registration=registration)


class Parts:
    """Doubles `RunStore`: the key of an entry is the text that is hashed, which takes less time."""

    def entry(self, name, parts):
        """The entry's key alone."""
        return types.SimpleNamespace(name=name, key=json.dumps(parts, sort_keys=True))


def keys(experiment):
    """The keys of an experiment by kind: of arms and what is made of them in the arms' order."""
    found = [entry.key for entry in kept_entries(experiment, Parts())]
    tuner = Tuner(experiment, Parts(), Served(experiment), None, "keys", False, None)
    n = len(experiment.arms)
    return {
        ARM: found[:n],
        EVALUATION: found[n : 2 * n],
        BASE: found[2 * n :],
        TRIAL: [tuner.entry(arm, RATE).key for arm in experiment.arms],
    }


def moved(before, after):
    """The kinds of which some entry has another key."""
    assert [len(keys) for keys in before.values()] == [len(keys) for keys in after.values()]
    return {kind for kind in before if before[kind] != after[kind]}


def expected(name, kinds):
    """The kinds of entries of a card."""
    if kinds == SEARCHES:
        return ALL if name in SEARCH_CARDS else set()
    return kinds


@pytest.mark.parametrize(("name", "version"), [*itertools.product(NAMES, VERSIONS)])
def test_a_raised_version_makes_anew_what_it_is_of(monkeypatch, name, version):
    """A version is in the key of every entry that it speaks of, whatever the task."""
    before = keys(experiment_of(name))
    monkeypatch.setattr(identity, version, getattr(identity, version) + 1)
    after = keys(experiment_of(name))

    assert moved(before, after) == expected(name, VERSIONS[version])
    for kind in expected(name, VERSIONS[version]):
        assert not set(before[kind]) & set(after[kind]), "every entry of the kind is made anew"


@pytest.mark.parametrize(("name", "version"), [*itertools.product(NAMES, VERSIONS)])
def test_a_raised_version_renews_preflights(tmp_path, monkeypatch, name, version):
    """It is an edit of the source, whose hash is in the key of preflights."""
    (tmp_path / "training").mkdir()
    source = Path(identity.__file__).read_text()
    copied = tmp_path / "training" / "identity.py"
    copied.write_text(source)
    monkeypatch.setattr(identity, "__file__", str(copied))
    before = content_key(identity.preflight_parts(experiment_of(name), {}))
    raised = source.replace(f"\n{version} = ", f"\n{version} = 1 + ")
    assert raised != source
    copied.write_text(raised)

    assert content_key(identity.preflight_parts(experiment_of(name), {})) != before


def leaves(model, path=()):
    """The paths of all fields of a model that hold no further fields, through lists and dicts."""
    children = children_of(model)
    if not children:
        return [path]
    return [leaf for name, child in children.items() for leaf in leaves(child, (*path, name))]


def children_of(value):
    """What a model, a mapping or a list of models holds, by name or place."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return dict(enumerate(value))
    return {}


def other(value, annotation):
    """Another value of the same kind; None where the field has none that stands for itself."""
    kinds = {annotation, *typing.get_args(annotation)}
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case tuple() | list():
            return type(value)([other(value[0], None), *value[1:]] if value else ["x"])
        case dict():
            return {"x": 1.0}
        case None if GradientProbe in kinds:
            return GradientProbe(groups=1, every=1)
        case None if str in kinds:
            return "x"
        case None if kinds & {int, float}:
            return 7
    return None


def with_leaf(value, path):
    """A copy of a model in which the field at this path has another value; None if it has none."""
    name, *rest = path
    if rest:
        new = with_leaf(children_of(value)[name], rest)
    else:
        fields = type(value).model_fields if isinstance(value, BaseModel) else {}
        new = other(children_of(value)[name], fields[name].annotation if fields else None)
    if new is None:
        return None
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: new})
    copied = copy.copy(value)
    copied[name] = new
    return copied


def changes_of(experiment):
    """The experiment with one field of card or registration changed, by the field's path."""
    found = {}
    for part in ("card", "registration"):
        for path in leaves(getattr(experiment, part)):
            # an arm of another name is another arm, which card and registration must both know
            if path[0] == "arms" and path[-1] == "name":
                continue
            changed = with_leaf(getattr(experiment, part), path)
            if changed is not None:
                found[(part, *path)] = dataclasses.replace(experiment, **{part: changed})
    return found


def classed(name, experiment, path):
    """The kinds of entries that a field is in the key of."""
    if path[:2] == ("card", "arms") and path[-1] == "tau":
        arm = experiment.arm(experiment.card.arms[path[2]].name)
        return TRAINED if arm.kernel is not None and arm.kernel.tau is not None else set()
    names = ["*" if isinstance(step, int) else step for step in path]
    prefixes = (".".join(names[:n]) for n in range(len(names), 0, -1))
    return expected(name, next((MATTERS[p] for p in prefixes if p in MATTERS), set()))


@pytest.mark.parametrize("name", NAMES)
def test_every_field_gives_another_key_to_what_depends_on_it_and_to_nothing_else(name):
    """Each field of card and registration, changed alone, against each kind of entry."""
    experiment = experiment_of(name)
    before, changes = keys(experiment), changes_of(experiment)

    found = {path: moved(before, keys(changed)) for path, changed in changes.items()}

    assert found == {path: classed(name, experiment, path) for path in changes}
    assert len(changes) > 100


def test_every_line_of_the_table_is_a_field_of_some_experiment():
    """None speaks of a field that is there no more; what one card leaves out another states."""
    paths = {
        ".".join("*" if isinstance(step, int) else step for step in path) + "."
        for name in NAMES
        for path in changes_of(experiment_of(name))
    }
    assert [line for line in MATTERS if not any(p.startswith(f"{line}.") for p in paths)] == []


@pytest.mark.parametrize("name", NAMES)
def test_an_arms_field_leaves_other_arms_alone(name):
    """Another setting of the first arm gives no entry of another arm, nor the base, another key."""
    experiment = experiment_of(name)
    before = keys(experiment)
    for path, changed in changes_of(experiment).items():
        if path[:3] == ("registration", "arms", 0):
            after = keys(changed)
            assert [after[kind][1:] for kind in TRAINED] == [before[kind][1:] for kind in TRAINED]
            assert after[BASE] == before[BASE]
