from pathlib import Path

import pytest

from harness.audit.forecast import check, nearest_passing
from harness.audit.reachable import reachable_lines, unscored_lines
from harness.cards import GateCheck, load_experiment

CARDS = Path(__file__).parents[2] / "experiments" / "cards"


def _at(sound, **changes):
    arm = sound["forecast"].arms[0]
    return sound["forecast"].model_copy(
        update={
            "arms": [
                arm.model_copy(update={"registered": arm.registered.model_copy(update=changes)})
            ]
        }
    )


def test_certain_gate_names_a_tau_that_would_pass(experiment, sound):
    """A kernel that is close to uniform blocks, with figure, bound and the nearest setting."""
    finding = check(_at(sound, contributors_median=58.0219), experiment)

    assert not finding.ok
    assert (
        "gate gs1_effective_contributors_median is certain to fail at tau 0.1: 58.02 on the 192 "
        "prompts that the pilot will draw, bounds [2, 40]" in finding.message
    )
    assert "nearest tau that would pass is about 0.1" in finding.message


def test_gap_fails_only_if_no_simulation_passes(experiment, sound):
    """One passing simulation of rewards leaves the gate open."""
    assert not check(_at(sound, gaps=[0.01, 0.015, 0.019]), experiment).ok
    assert check(_at(sound, gaps=[0.01, 0.015, 0.021]), experiment).ok


TO_SEE = {
    "preflight": "forecast",
    "outcome": "gate_certain_to_fail",
    "reason": "to see it fail",
    "given_for": {
        "metric": "gs1_effective_contributors_median",
        "min": 2.0,
        "max": 40.0,
        "one_of": None,
    },
}


def test_acceptance_turns_certainty_into_a_note(experiment, sound, bend):
    """The author may run a card whose gate is certain to fail, with a reason."""
    accepted = [*experiment.registration.model_dump(mode="json")["accepted"], TO_SEE]
    finding = check(
        _at(sound, contributors_median=58.0), bend(experiment, registration={"accepted": accepted})
    )

    assert finding.ok
    assert any("(accepted: to see it fail)" in note for note in finding.notes)


@pytest.mark.parametrize(
    "other",
    [
        {"max": 50.0},
        {"metric": "gs1_mean_abs_baseline_minus_uniform_loo"},
        {},
    ],
    ids=["bound", "metric", "nothing"],
)
def test_an_acceptance_lapses_when_what_it_was_given_for_changes(experiment, sound, bend, other):
    """A copied one, or one of another bound, is refused; the line says what is accepted now.

    What it would have to be given for can be copied from the line.
    """
    given_for = {**TO_SEE["given_for"], **other} if other else {}
    accepted = [
        *experiment.registration.model_dump(mode="json")["accepted"],
        {**TO_SEE, "given_for": given_for},
    ]

    finding = check(
        _at(sound, contributors_median=58.0), bend(experiment, registration={"accepted": accepted})
    )

    (problem,) = finding.problems
    assert "the registration accepts gate_certain_to_fail for forecast, given for" in problem
    assert problem.endswith(
        'given_for {"max":40.0,"metric":"gs1_effective_contributors_median","min":2.0,'
        '"one_of":null}'
    )


def test_an_acceptance_of_too_little_power_lapses_with_its_margin(experiment, sound, bend):
    """A margin moved after the author took a risk is another risk."""
    accepted = experiment.registration.model_dump(mode="json")["accepted"]
    accepted[0]["given_for"]["margin"] = -0.04

    finding = check(sound["forecast"], bend(experiment, registration={"accepted": accepted}))

    assert "given for" in finding.message
    assert '"margin":-0.05' in finding.message


def test_no_tau_passes_is_said(experiment, sound):
    """Where no temperature helps, the range that was searched is named."""
    arm = sound["forecast"].arms[0]
    grid = [point.model_copy(update={"contributors_median": 60.0}) for point in arm.grid]
    spoiled = arm.model_copy(update={"grid": grid, "registered": grid[1]})
    evidence = sound["forecast"].model_copy(update={"arms": [spoiled]})

    assert "no tau from 0.05 to 0.2 passes" in check(evidence, experiment).message


def test_nearest_is_by_ratio(experiment, sound):
    """0.05 is nearer to 0.1 than 0.3 is."""
    arm = sound["forecast"].arms[0]
    low, _, high = arm.grid
    grid = [low, high.model_copy(update={"tau": 0.3, "contributors_median": 9.0, "gaps": [0.1]})]
    gates = experiment.card.activation_gate.checks

    assert low == nearest_passing(arm.model_copy(update={"grid": grid}), gates)


def test_planned_counts_outside_a_gate_block(experiment, sound, bend):
    """A card whose own plan breaks its gate is certain to fail before any rollout."""
    arms = experiment.card.model_dump(mode="json")["arms"]
    arms[1].update(group_size=2, groups_per_batch=32)
    planned = bend(experiment, card={"arms": arms})

    assert (
        "gate gs1_executed_group_size is certain to fail: 2.0 is planned, bounds [1, 1]"
        in check(sound["forecast"], planned).message
    )


def test_power_block_is_reported(experiment, sound):
    """Half-width, smallest passing gap and P(pass) at equal arms are notes and metrics."""
    finding = check(sound["forecast"], experiment)

    assert 0.0747894 == pytest.approx(finding.metrics["primary_noninferiority.half_width"])
    assert any("VALIDATED only from an observed gap of +2.50 points (net +33)" in note
               for note in finding.notes)  # fmt: skip


def test_a_rule_that_fails_at_the_expected_effect_must_be_acknowledged(experiment, sound, bend):
    """Without the acknowledgement the same rule blocks."""
    finding = check(sound["forecast"], bend(experiment, registration={"accepted": []}))

    assert "expected effect +0.00 points is below the smallest gap that passes" in finding.message
    assert "accept cannot_pass_at_expected_effect for forecast" in finding.message


def test_a_rule_that_can_pass_needs_no_acknowledgement(experiment, sound, bend):
    """An expected effect above the smallest passing gap is enough."""
    changes = {"accepted": [], "power": {"expected_effect": 0.04}}

    assert check(sound["forecast"], bend(experiment, registration=changes)).ok


@pytest.mark.parametrize(
    ("n", "word"), [(6, "can't be VALIDATED"), (6, "can't be REFUTED"), (1319, "")]
)
def test_a_rule_that_cannot_come_out_both_ways_blocks(experiment, sound, bend, n, word):
    """With six items no observed gap is wide enough for either verdict."""
    message = check(sound["forecast"], bend(experiment, card={"eval": {"n_examples": n}})).message

    assert (word in message) if word else message == ""


def test_an_unknown_method_blocks(experiment, sound, bend):
    """A rule that nothing can apply is found before the run."""
    other = bend(experiment, card={"decision_rule": {"method": "gut_feeling"}})

    assert "unknown decision method 'gut_feeling'" in check(sound["forecast"], other).message


def test_a_method_of_tables_has_a_power_block_of_its_own(experiment, sound, bend):
    """Tango validates more often than Hoeffding at a tie, and the block says how often."""
    hoeffding = check(sound["forecast"], experiment)
    tango = check(
        sound["forecast"], bend(experiment, card={"decision_rule": {"method": "paired_tango"}})
    )
    name = "primary_noninferiority.p_validated_at_tie_discordance_20"

    assert tango.ok
    assert hoeffding.metrics[name] == pytest.approx(0.023, abs=0.0005)
    assert tango.metrics[name] == pytest.approx(0.981, abs=0.0005)


def test_thresholds_on_a_pair_have_the_exact_chances_of_tables(experiment, sound, bend):
    """Comparing the estimate itself, a tie of truly equal arms clears -5 points almost always."""
    rule = {"method": "point_estimate"}
    finding = check(sound["forecast"], bend(experiment, card={"decision_rule": rule}))
    name = "primary_noninferiority.p_validated_at_tie_discordance_20"

    assert finding.metrics[name] == pytest.approx(0.99998, abs=2e-5)
    assert any("point_estimate, no interval" in note for note in finding.notes)


def test_a_method_of_the_order_has_no_power_block_and_says_so(experiment, sound, bend):
    """What depends on the order of the items is not known before there are any scores."""
    rule = {"method": "paired_betting_cs", "order_key": "key"}
    finding = check(sound["forecast"], bend(experiment, card={"decision_rule": rule}))

    assert finding.ok
    assert any("no power block: that of paired_betting_cs" in note for note in finding.notes)


@pytest.mark.parametrize(
    ("metric", "bounds", "problem"),
    [
        ("gs1_effective_contributors_median", {"min": 64.0}, "no reachable value passes"),
        (
            "gs1_effective_contributors_median",
            {"min": 1.0, "max": 63.0},
            "no reachable value fails",
        ),
        ("gs1_executed_group_size", {"min": 1.2, "max": 1.8}, "no reachable value passes"),
        ("gs1_executed_group_size", {"min": 1.0}, "no reachable value fails"),
        ("gs1_mean_abs_baseline_minus_uniform_loo", {"min": 0.0}, "no reachable value fails"),
        ("gs1_mean_abs_baseline_minus_uniform_loo", {"min": 1.2}, "no reachable value passes"),
        ("batch_mean_reward_pilot", {"min": -0.1, "max": 1.0}, "no reachable value fails"),
        ("executed_base_model", {"one_of": []}, "no reachable value passes"),
        ("gs1_vibes", {"min": 0.0}, "no such measurement"),
    ],
)
def test_a_gate_that_cannot_come_out_both_ways_blocks(experiment, metric, bounds, problem):
    """Each gate needs a reachable value that passes and one that fails."""
    gate = GateCheck(metric=metric, measures="x", **bounds)
    problems, _ = reachable_lines(experiment, [gate])

    assert 1 == len(problems)
    assert problem in problems[0]


@pytest.mark.parametrize("metric", ["acuracy", "f4", "pass@", "pass_at_8", "accuracy_best_of_2"])
def test_a_score_that_no_item_has_blocks(experiment, metric, bend):
    """A misspelt metric is not compared as exact match; the line has the names that there are."""
    stated = experiment.rule.criteria[0].model_copy(update={"metric": metric})
    rule = {"criteria": [stated.model_dump(mode="json")]}
    (line,) = unscored_lines(bend(experiment, card={"decision_rule": rule}))

    assert f"no evaluated item has {metric!r}; register one of accuracy, " in line


@pytest.mark.parametrize("path", sorted(CARDS.glob("*.registration.json")), ids=lambda p: p.stem)
def test_every_registered_criterion_is_a_score_or_a_figure_of_steps(path):
    """Supporting ones too, of word problems and of searches."""
    card = path.with_name(path.name.replace(".registration", ""))

    assert [] == unscored_lines(load_experiment(card, "embedded"))


def test_every_gate_of_the_card_can_come_out_both_ways(experiment):
    """For each registered gate an example of either outcome is shown."""
    gates = experiment.card.activation_gate.checks
    problems, notes = reachable_lines(experiment, gates)

    assert [] == problems
    assert len(gates) == len(notes)
    assert all("would pass" in note and "would fail" in note for note in notes)
