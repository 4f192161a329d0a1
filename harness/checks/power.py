"""What the decision rule can show at the registered number of items, before the run."""

from harness.cards import Criterion, Experiment
from harness.checks.acceptance import Settled, settle
from harness.checks.finding import Finding
from harness.errors import StatisticsError
from harness.statistics.power import PowerBlock, power_block

METHOD = "paired_hoeffding"
SIDES = 2


def power_report(experiment: Experiment) -> Finding:
    """Every criterion's power block, and what it can't show."""
    rule = experiment.card.decision_rule
    if rule is None:
        return Finding("power", ("the card has no decision rule, so no verdict; add one",))
    if rule.method != METHOD:
        line = f"decision method {rule.method}: the power block is known for {METHOD} only"
        return Finding("power", notes=(line,))
    problems: list[str] = []
    notes: list[str] = []
    metrics: dict[str, float] = {}
    for criterion in rule.criteria:
        try:
            block = criterion_power(criterion, experiment)
        except StatisticsError as error:
            problems.append(f"criterion {criterion.id}: {error}")
            continue
        problems.extend(both_ways_problems(criterion, block))
        settled = _expected(criterion, block, experiment)
        problems.extend(settled.problems)
        notes.extend([*(f"{criterion.id}: {line}" for line in block.lines()), *settled.notes])
        metrics |= _metrics(criterion, block)
    return Finding("power", tuple(problems), tuple(notes), metrics)


def criterion_power(criterion: Criterion, experiment: Experiment) -> PowerBlock:
    """The power block of one criterion at the card's number of items.

    Raises:
        StatisticsError: bounds, alpha or a discordance that the formula does not accept.
    """
    rule, power = experiment.card.decision_rule, experiment.registration.power
    low, high = contrast_range(criterion)
    return power_block(
        experiment.card.eval.n_examples,
        high - low,
        criterion.margin,
        0.0 if rule is None else rule.alpha,
        SIDES,
        sorted({*power.discordances, power.expected_discordance}),
        power.expected_effect,
    )


def contrast_range(criterion: Criterion) -> tuple[float, float]:
    """The smallest and the largest value of one item's contrast."""
    ends = [
        sorted(weight * bound for bound in criterion.bounds)
        for weight in criterion.weights.values()
    ]
    return sum(end[0] for end in ends), sum(end[1] for end in ends)


def both_ways_problems(criterion: Criterion, block: PowerBlock) -> list[str]:
    """A rule that can't validate, or can't refute, whatever the items say."""
    low, high = contrast_range(criterion)
    problems = []
    if block.smallest_passing_gap > high:
        problems.append(
            f"criterion {criterion.id}: VALIDATED takes an observed gap of "
            f"{block.smallest_passing_gap:+.4f}, the largest possible is {high:+.4f} at "
            f"n={block.n}; evaluate more items or change the margin"
        )
    if block.refuting_gap < low:
        problems.append(
            f"criterion {criterion.id}: REFUTED takes an observed gap of "
            f"{block.refuting_gap:+.4f}, the smallest possible is {low:+.4f} at n={block.n}; "
            "evaluate more items or change the margin"
        )
    return problems


def _expected(criterion: Criterion, block: PowerBlock, experiment: Experiment) -> Settled:
    lines = [f"criterion {criterion.id}: {line}" for line in block.problems()]
    return settle(experiment, "forecast", "cannot_pass_at_expected_effect", lines)


def _metrics(criterion: Criterion, block: PowerBlock) -> dict[str, float]:
    metrics = {
        f"{criterion.id}.half_width": block.half_width,
        f"{criterion.id}.smallest_passing_gap": block.smallest_passing_gap,
        f"{criterion.id}.refuting_gap": block.refuting_gap,
    }
    for row in block.rows:
        name = f"{criterion.id}.p_validated_at_tie_discordance_{100 * row.discordance:g}"
        metrics[name] = row.p_at_tie
    return metrics
