"""Gates of episodes of several turns and of dropped groups, on records made by hand."""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode leaves test folders off the path

from lagged import episodes, measure_kept, sent
from rollouts import a_turn, set_advantages, set_rewards

from harness.audit.gates import check_gate
from harness.audit.pilot import pilot_problems
from harness.audit.recomputed import kept_figures, staleness_figures
from harness.cards import load_experiment
from harness.records import learner_logprobs_of, logprobs_of, tokens_of
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
    level(made["groups"][0])
    measure_kept(arm, made)
    return made


def level(group):
    """Equal rewards, which make no advantage."""
    set_rewards(group, [0.0] * len(group["rollouts"]))
    set_advantages(group, [0.0] * len(group["rollouts"]))


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
    record["metrics"]["kept/rollouts"] += len(record["groups"][0]["rollouts"])


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
    group["rollouts"][0]["turns"][0]["tokens_T"].pop()


def joined(group):
    """Two turns recorded as one."""
    each = next(each for each in group["rollouts"] if len(each["turns"]) > 1)
    each["turns"] = [
        a_turn(tokens_of(each), logprobs_of(each), learner_logprobs_of(each)),
    ]


def silent(group):
    """A turn that said nothing."""
    group["rollouts"][0]["turns"].append(a_turn([]))
    group["rollouts"][0]["scores"]["turns"] += 1


def test_rollouts_without_turns_are_no_whole_pilot(search, pilot):
    """A rollout that is recorded without a turn leaves nothing to add up."""
    pilot[FRESH][1]["groups"][3]["rollouts"][7]["turns"].clear()

    (problem,) = pilot_problems(search, pilot)

    assert f"arm {FRESH}: step 1, prompt" in problem
    assert "rollout 7: 0 turns, at least 1 expected" in problem


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


def test_records_whose_task_counts_no_turns_fail_the_gate_that_needs_them(search, pilot):
    """What was not recorded is not taken for sound."""
    for group in pilot[FRESH][0]["groups"]:
        for rollout in group["rollouts"]:
            del rollout["scores"]["turns"]

    assert failed(search, pilot) == {"executed_turn_error"}


def test_a_step_without_an_update_has_no_loss_to_compare(search, pilot):
    """Every group constant: nothing was sent, so the service reported nothing."""
    made = pilot[FRESH][1]
    for group in made["groups"]:
        level(group)
        group["dropped"] = True
    arm = search.arm(FRESH)
    made["metrics"] = {
        **staleness_metrics("here", arm, made["groups"], *sent(made["groups"])),
        "kept/rollouts": 0.0,
        "updated": 0.0,
    }

    assert failed(search, pilot) <= {"batch_mean_reward_pilot"}
