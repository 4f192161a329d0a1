"""What the decision rule can show at the registered number of items, before the run."""

from collections.abc import Mapping

from pydantic import JsonValue

from harness.audit.acceptance import settle
from harness.audit.finding import Finding
from harness.audit.table_power import TablePower, seed_power_lines, table_power
from harness.cards import Experiment
from harness.decisions import Criterion, Unit, can_come_out_both_ways
from harness.decisions.methods import registered_method
from harness.decisions.tables import takes_tables
from harness.errors import HarnessError
from harness.statistics.power import PowerBlock, power_block
from harness.statistics.threshold_power import ThresholdPower, threshold_power

# the method whose half-width depends on n alone, so that its power has closed forms
METHOD = "paired_hoeffding"


def power_report(experiment: Experiment) -> Finding:
    """Every criterion's power block, and what it can't show."""
    rule = experiment.rule
    problems: list[str] = []
    notes: list[str] = []
    metrics: dict[str, float] = {}
    units = len(rule.seeds) if rule.unit == Unit.SEEDS else experiment.card.eval.n_examples
    for stated in rule.criteria:
        try:
            criterion = Criterion.resolved(stated, rule, experiment.components)
            problems.extend(can_come_out_both_ways(criterion, units))
            block = criterion_power(criterion, experiment)
        except HarnessError as error:
            named = f"criterion {stated.id}: "
            problems.append(named + str(error).removeprefix(named))
            continue
        if block is None:
            unknown = unknown_power_lines(criterion, experiment)
            notes.extend(f"{stated.id}: {line}" for line in unknown)
            continue
        lines = [f"criterion {stated.id}: {line}" for line in block.problems()]
        given_for = power_facts(criterion, experiment, units)
        outcome = "cannot_pass_at_expected_effect"
        settled = settle(experiment, "forecast", outcome, lines, given_for)
        problems.extend(settled.problems)
        notes.extend([*(f"{stated.id}: {line}" for line in block.lines()), *settled.notes])
        if len(criterion.seeds) > 1:
            notes.append(
                f"{stated.id}: scores are averaged over {len(criterion.seeds)} seeds; half-width "
                "and gaps hold, nets and probabilities are those of a single seed an arm"
            )
        if not isinstance(block, ThresholdPower):
            metrics |= power_metrics(stated.id, block)
    if rule.combine == "all_must_agree":
        notes.append(
            "the criteria must agree, so the chances of one criterion are upper bounds of the "
            "verdict's: each is multiplied by how often the others say the same"
        )
    return Finding("power", tuple(problems), tuple(notes), metrics)


def power_facts(
    criterion: Criterion, experiment: Experiment, units: int
) -> Mapping[str, JsonValue]:
    """What the chances of a criterion rest on."""
    power = experiment.registration.power
    return {
        "criterion": criterion.id,
        "margin": criterion.margin,
        "method": criterion.method,
        "n": units,
        "expected_effect": power.expected_effects.get(criterion.id, power.expected_effect),
    }


def unknown_power_lines(criterion: Criterion, experiment: Experiment) -> list[str]:
    """What is said of a criterion whose power is not known before the run."""
    if criterion.own is not None:
        return [
            f"no power block: {criterion.method} is this experiment's own, so how often it "
            "validates is not known before the run"
        ]
    if registered_method(criterion).by_estimate:
        return [
            f"no power block: how {criterion.metric} varies between runs is not known before the "
            f"run, and {criterion.method} compares its averages as they are"
        ]
    return seed_power_lines(criterion, experiment)


def criterion_power(
    criterion: Criterion, experiment: Experiment
) -> PowerBlock | TablePower | ThresholdPower | None:
    """The power block of one criterion at the card's number of items.

    None for a method whose power depends on more than wins, losses and ties: on the order of the
    items, their clusters, or the spread between seeds.

    Raises:
        HarnessError: bounds, alpha or a discordance that the formula does not accept.
    """
    power, n = experiment.registration.power, experiment.card.eval.n_examples
    discordances = sorted({*power.discordances, power.expected_discordance})
    effect = power.expected_effects.get(criterion.id, power.expected_effect)
    if criterion.method == METHOD:
        return power_block(
            n,
            criterion.contrast().range,
            criterion.margin,
            criterion.alpha,
            criterion.sides,
            discordances,
            effect,
        )
    if takes_tables(criterion):
        look = experiment.rule.second_look
        return table_power(
            criterion,
            n,
            discordances,
            power.expected_discordance,
            effect,
            look if look is not None and look.criterion == criterion.id else None,
            tuple(power.seed_sds),
        )
    of_items = criterion.unit == Unit.FIXED_CHECKPOINT_ITEMS
    if of_items and registered_method(criterion).by_estimate:
        return threshold_power(
            n,
            criterion.contrast().range,
            criterion.alpha,
            criterion.sides,
            criterion.margin,
            None if criterion.refuting is None else criterion.refuting[1],
            discordances,
            effect,
            criterion.refuted_from,
        )
    return None


def power_metrics(criterion: str, block: PowerBlock | TablePower) -> dict[str, float]:
    """The block's figures by name, in score units."""
    metrics = {
        f"{criterion}.p_validated_at_tie_discordance_{100 * row.discordance:g}": row.p_at_tie
        for row in block.rows
    }
    if isinstance(block, TablePower):
        return metrics
    return metrics | {
        f"{criterion}.half_width": block.half_width,
        f"{criterion}.smallest_passing_gap": block.smallest_passing_gap,
        f"{criterion}.refuting_gap": block.refuting_gap,
    }
