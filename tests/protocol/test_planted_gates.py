"""Mistakes in the execution of a pilot, over doubles: the gates that are named turn red."""

import dataclasses
import os

import pytest
from mini_pilots import SETTINGS, MiniPilot, mini
from mistakes import scales
from mistakes.gates import MISTAKES
from mistakes.mistake import cells, named
from service_doubles import CARD

from harness.cards import load_experiment
from harness.errors import CardError
from harness.protocol.run import CardRun


@pytest.fixture(scope="session", name="minis")
def _minis(tmp_path_factory):
    """Each experiment at its mini scale."""
    return {
        name: MiniPilot(setting, tmp_path_factory.mktemp(name))
        for name, setting in SETTINGS.items()
    }


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_sound_pilot_passes_every_gate(minis, tmp_path, setting):
    """Without a mistake no gate of the three experiments complains."""
    assert minis[setting].red(tmp_path) == {}


def test_noise_of_a_service_is_no_mistake(minis, tmp_path, monkeypatch):
    """On one with noise the lags are still told, within the bounds of the full scale's gates."""
    mini = minis["lag"]
    full = {"lag0_max_abs_log_ratio": {"max": 0.5}, "reported_loss_error": {"max": 0.01}}
    gates = [
        gate.model_copy(update=full.get(gate.metric, {}))
        for gate in mini.experiment.registration.extra_gates
    ]
    registration = mini.experiment.registration.model_copy(update={"extra_gates": gates})
    monkeypatch.setattr(
        mini, "experiment", dataclasses.replace(mini.experiment, registration=registration)
    )

    assert mini.red(tmp_path, noise=(5e-3, 1e-3)) == {}


@pytest.mark.parametrize(("mistake", "setting"), cells(MISTAKES), ids=named)
def test_a_mistake_turns_its_gate_red(minis, tmp_path, monkeypatch, mistake, setting):
    """The gates that are named and no other, and what they say names what was executed."""
    mistake.edit(monkeypatch)

    found = minis[setting].red(tmp_path)

    assert set(found) == mistake.items
    assert any(mistake.words in said for said in found.values())


@pytest.mark.parametrize("mistake", scales.MISTAKES, ids=named)
def test_a_mistake_in_the_scale_is_found_before_any_training(tmp_path, mistake):
    """Card reading or the forecast says what a gate is certain to find."""
    scale = mini.write_scale(tmp_path / "scale.json", mini.mini_scale(mistake.edit))

    def taken():
        run = CardRun(
            load_experiment(CARD, str(scale)),
            CARD,
            tmp_path / "runs",
            False,
            None,
            os.getpid(),
            "a",
        )
        try:
            return "\n".join(run.preflight(mistake.item).problems)
        finally:
            run.close()

    if mistake.stage == "reading":
        with pytest.raises(CardError) as refused:
            taken()
        said = str(refused.value)
    else:
        said = taken()
    assert mistake.words in said
    assert not list((tmp_path / "runs").glob("engine*"))
