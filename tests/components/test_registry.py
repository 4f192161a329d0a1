"""Where components live, which one a name means, and what an edit of their source changes."""

import dataclasses
import sys
from importlib import metadata
from types import SimpleNamespace

import own_experiment
import pytest
from own_experiment import mini, source

from harness.cards import load_experiment
from harness.cards.experiment import BUILT_IN
from harness.components import Estimator
from harness.errors import CardError
from harness.training.identity import arm_parts, preflight_parts

SERVICE = {"kind": "embedded"}


def loaded(folder, **files):
    """The experiment with these component files."""
    test_file, scale = own_experiment.build(folder, **files)
    return load_experiment(test_file.parent / "cards" / f"{mini.CARD}.json", str(scale))


def keys(experiment):
    """Of each arm, what its training is kept under."""
    return {arm.name: arm_parts(experiment, arm, SERVICE) for arm in experiment.arms}


@pytest.mark.parametrize(
    ("file", "old", "new", "retrained"),
    [
        ("running_mean", "mean = step.state or 0.0", "mean = step.state or 0.5", True),
        ("length_kernel", "np.exp(-np.abs", "np.exp(-2 * np.abs", True),
        ("running_mean", "    import numpy as np\n", "    import numpy as np  # fast\n", False),
        ("checks", "spreads.append(", "spreads.append(1.0 * ", False),
        ("checks", "half *= ", "half *= 2.0 * ", False),
    ],
    ids=["estimator", "kernel", "comment", "gate", "method"],
)
def test_an_edit_retrains_what_depends_on_it(tmp_path, file, old, new, retrained):
    """The arm of an edited estimator or kernel, and no other; nothing for a comment or a gate."""
    text = source(file)
    assert old in text

    before = loaded(tmp_path / "before")
    after = loaded(tmp_path / "after", **{file: text.replace(old, new)})

    changed = {name for name, key in keys(after).items() if key != keys(before)[name]}
    assert changed == ({own_experiment.ARM} if retrained else set())
    # the registration says which sources it was made with, but for comments
    assert (after.sha256 == before.sha256) is ("fast" in new)
    renewed = preflight_parts(after, SERVICE) != preflight_parts(before, SERVICE)
    assert renewed is ("fast" not in new)


def test_a_helper_is_part_of_whatever_imports_it(tmp_path):
    """Listed, it is imported by its plain name, hashed, and leaves that name to other folders."""
    text = source("running_mean").replace("import Field", "import Field\nfrom scales import ONE")
    text = text.replace("mean = step.state or 0.0", "mean = step.state or 0.0 * ONE")
    found = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        _, scale = own_experiment.build(folder, running_mean=text, scales=f"ONE = {number}\n")
        scale.write_text(scale.read_text().replace('"checks.py"]', '"checks.py", "scales.py"]'))
        card = folder / "experiments" / "cards" / f"{mini.CARD}.json"
        found.append(load_experiment(card, str(scale)))
        declared = found[-1].arm(own_experiment.ARM).declared
        assert declared.function.__globals__["ONE"] == number
        assert "scales" not in sys.modules

    assert keys(found[0])[own_experiment.ARM] != keys(found[1])[own_experiment.ARM]


def test_a_name_that_nobody_declares_is_told_the_nearest():
    """And all that there are."""
    with pytest.raises(CardError, match="estimator 'grop_mean' is unknown, did you mean 'group_me"):
        BUILT_IN.find(Estimator, "grop_mean")


def test_an_installed_package_offers_components_by_entry_points(tmp_path, monkeypatch):
    """Under harness.components, each entry named after the component; asked only if one is wanted.

    What can't be imported is named with its package's own words.
    """
    module = tmp_path / "someones_package.py"
    module.write_text(source("running_mean"))
    monkeypatch.syspath_prepend(tmp_path)
    entries = [
        metadata.EntryPoint("running_mean", "someones_package", "harness.components"),
        metadata.EntryPoint("broken", "no_such_package", "harness.components"),
    ]
    asked = SimpleNamespace(groups=[])

    def entry_points(group):
        asked.groups.append(group)
        return entries

    monkeypatch.setattr(metadata, "entry_points", entry_points)

    found = BUILT_IN.with_installed(["running_mean", "rloo"])

    assert asked.groups == ["harness.components"]
    assert found.find(Estimator, "running_mean").leave_one_out
    assert len(found.source_sha256(Estimator, "running_mean")) == 64
    with pytest.raises(CardError, match="no_such_package can't be imported: ModuleNotFoundError"):
        BUILT_IN.with_installed(["broken"])


def test_what_is_declared_can_not_be_changed():
    """A declaration is a value: nobody exchanges the formula of an arm that is under way."""
    declared = BUILT_IN.find(Estimator, "rloo")

    with pytest.raises(dataclasses.FrozenInstanceError):
        declared.function = None
