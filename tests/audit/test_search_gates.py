"""Gates of episodes of several turns and of dropped groups, on records made by hand."""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves test folders off the path

from lagged import episodes, measure_kept, sent

from harness.audit.gates import check_gate
from harness.audit.pilot import pilot_problems
from harness.audit.recomputed import kept_figures, staleness_figures
from harness.cards import load_experiment
from harness.training.staleness_metrics import staleness_metrics

CARDS = Path(__file__).parents[2] / "experiments" / "cards"
FRESH, STALE = "tailrl_lag0_seed0", "tailrl_lag8_seed0"


@pytest.fixture(scope="module", name="search")
def _search():
    return load_experiment(CARDS / "tailrl_lag8_sec_search_4b.json", "embedded")


@pytest.fixture(scope="module", name="once")
def _once(search):
    steps = range(search.registration.training.pilot_steps)
    return {arm.name: [steps_of(search, arm, step) for step in steps] for arm in search.arms}


@pytest.fixture(name="pilot")
def _pilot(once):
    return copy.deepcopy(once)


def steps_of(search, arm, step):
    """A step whose first group is constant, with its figures."""
    made = episodes(arm, step, search.card.base_model)
    made["groups"][0]["rewards_G"] = [0.0] * arm.group_size
    made["groups"][0]["advantages_G"] = [0.0] * arm.group_size
    measure_kept(arm, made)
    return made


def failed(search, pilot):
    """The gates that this pilot does not pass."""
    return {c.metric for c in search.gates if not check_gate(c, pilot, search).ok}


def test_a_sound_pilot_passes_every_gate(search, pilot):
    """Turns add up, equal groups are dropped, and every figure is the records' own."""
    assert failed(search, pilot) == set()


def test_two_computations_of_every_figure_agree(once):
    """By turn, before and after the drop: the same names and values by code that shares nothing."""
    made = once[STALE][8]
    logged = {
        k: v
        for k, v in made["metrics"].items()
        if k.startswith(("staleness/", "kept/"))
    }  # fmt: skip
    expected = staleness_figures(made, 0.8, 1.2) | kept_figures(made, 0.8, 1.2)

    assert logged == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert {"staleness/turn=0/kl_k3", "staleness/turn=2/ratio_p95", "kept/turn=1/tokens"} <= set(
        logged
    )


def keep(record):
    """Send the zero-variance group too, as if it had differed."""
    record["groups"][0]["dropped"] = False
    record["metrics"]["kept/rollouts"] += len(record["groups"][0]["rewards_G"])


def say_less(record):
    """Call a group dropped that was not."""
    record["groups"][1]["dropped"] = True


def send_more(record):
    """Send what the record calls dropped."""
    record["metrics"]["kept/rollouts"] += 1.0


def skip(record):
    """Update nothing though groups differ."""
    record["metrics"]["updated"] = 0.0


@pytest.mark.parametrize("mistake", [keep, say_less, send_more, skip])
def test_a_group_kept_or_dropped_wrongly_is_caught(search, pilot, mistake):
    """In one step of one arm, whatever the record says of itself."""
    mistake(pilot[STALE][2])

    assert "executed_drop_error" in failed(search, pilot)


def short(group):
    """A turn that lost a token."""
    group["turn_lengths_G_K"][0][0] -= 1


def joined(group):
    """Two turns recorded as one."""
    g = next(i for i, lengths in enumerate(group["turn_lengths_G_K"]) if len(lengths) > 1)
    group["turn_lengths_G_K"][g] = [sum(group["turn_lengths_G_K"][g])]


def silent(group):
    """A turn that said nothing."""
    group["turn_lengths_G_K"][0].append(0)
    group["episodes_G"][0]["turns"] += 1


def test_rollouts_without_turns_are_no_whole_pilot(search, pilot):
    """Turns that are recorded of fewer rollouts than were sampled leave nothing to add up."""
    pilot[FRESH][1]["groups"][3]["turn_lengths_G_K"].pop()

    (problem,) = pilot_problems(search, pilot)

    assert f"arm {FRESH}: step 1, prompt" in problem
    assert "8 stop_G, 7 turns recorded" in problem


@pytest.mark.parametrize("mistake", [short, joined, silent])
def test_turns_that_do_not_add_up_are_caught(search, pilot, mistake):
    """To the tokens of their rollout, or to the episode's own count."""
    mistake(pilot[FRESH][1]["groups"][3])

    assert "executed_turn_error" in failed(search, pilot)


def test_figures_of_shifted_turns_are_caught(search, pilot):
    """Each token counted for the turn of its neighbour: the recorded lengths say otherwise."""
    made = pilot[STALE][8]
    data, turns = sent(made["groups"])
    shifted = []
    for turn_T in turns:
        moved = turn_T.copy()
        moved[turn_T >= 0] = np.roll(turn_T[turn_T >= 0], 1)
        shifted.append(moved)
    arm = search.arm(STALE)
    made["metrics"] |= staleness_metrics("here", arm, made["groups"], data, shifted)

    assert failed(search, pilot) == {"logged_metrics_error"}


def test_records_without_turns_or_drops_fail_the_gates_that_need_them(search, pilot):
    """What was not recorded is not taken for sound."""
    for group in pilot[FRESH][0]["groups"]:
        del group["turn_lengths_G_K"]
        del group["dropped"]

    assert {"executed_turn_error", "executed_drop_error"} <= failed(search, pilot)


def test_a_step_without_an_update_has_no_loss_to_compare(search, pilot):
    """Every group constant: nothing was sent, so the service reported nothing."""
    made = pilot[FRESH][1]
    for group in made["groups"]:
        group["rewards_G"] = [0.0] * len(group["rewards_G"])
        group["advantages_G"] = [0.0] * len(group["rewards_G"])
        group["dropped"] = True
    arm = search.arm(FRESH)
    made["metrics"] = {
        **staleness_metrics("here", arm, made["groups"], *sent(made["groups"])),
        "kept/rollouts": 0.0,
        "updated": 0.0,
    }

    assert failed(search, pilot) <= {"batch_mean_reward_pilot"}
