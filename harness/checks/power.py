"""What the decision rule can show at the registered number of items, before the run."""

from harness.cards import Experiment
from harness.checks.acceptance import settle
from harness.checks.finding import Finding
from harness.decisions import Criterion, can_come_out_both_ways
from harness.errors import HarnessError
from harness.statistics.power import PowerBlock, power_block

# the method whose half-width depends on n alone, so that its power is known exactly
METHOD = "paired_hoeffding"


def power_report(experiment: Experiment) -> Finding:
    """Every criterion's power block, and what it can't show."""
    rule = experiment.rule
    problems: list[str] = []
    notes: list[str] = []
    metrics: dict[str, float] = {}
    for stated in rule.criteria:
        try:
            criterion = Criterion.from_card(stated, rule)
            problems.extend(can_come_out_both_ways(criterion, experiment.card.eval.n_examples))
            block = criterion_power(criterion, experiment) if criterion.method == METHOD else None
        except HarnessError as error:
            problems.append(f"criterion {stated.id}: {error}")
            continue
        if block is None:
            notes.append(
                f"criterion {stated.id}: no power block, it is known for {METHOD} only and the "
                f"registered method is {criterion.method}"
            )
            continue
        lines = [f"criterion {stated.id}: {line}" for line in block.problems()]
        settled = settle(experiment, "forecast", "cannot_pass_at_expected_effect", lines)
        problems.extend(settled.problems)
        notes.extend([*(f"{stated.id}: {line}" for line in block.lines()), *settled.notes])
        metrics |= power_metrics(stated.id, block)
    return Finding("power", tuple(problems), tuple(notes), metrics)


def criterion_power(criterion: Criterion, experiment: Experiment) -> PowerBlock:
    """The power block of one criterion at the card's number of items.

    Raises:
        HarnessError: bounds, alpha or a discordance that the formula does not accept.
    """
    power = experiment.registration.power
    return power_block(
        experiment.card.eval.n_examples,
        criterion.contrast().range,
        criterion.margin,
        criterion.alpha,
        criterion.sides,
        sorted({*power.discordances, power.expected_discordance}),
        power.expected_effect,
    )


def power_metrics(criterion: str, block: PowerBlock) -> dict[str, float]:
    """The block's figures by name, in score units."""
    metrics = {
        f"{criterion}.half_width": block.half_width,
        f"{criterion}.smallest_passing_gap": block.smallest_passing_gap,
        f"{criterion}.refuting_gap": block.refuting_gap,
    }
    for row in block.rows:
        name = f"{criterion}.p_validated_at_tie_discordance_{100 * row.discordance:g}"
        metrics[name] = row.p_at_tie
    return metrics
