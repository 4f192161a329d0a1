"""A gate on a figure that every step logs, such as `staleness/kl_k3`, which needs no code."""

import math

from harness.audit.metrics.metric import GateMetric, Unmeasurable, Values, gate_metric
from harness.audit.pilot import Executed


def step_figure(name: str) -> GateMetric:
    """The gate metric of a logged figure: its value in each step of each arm."""

    def measure(pilot: Executed) -> Values:
        values = []
        for arm, records in pilot.arms:
            for record in records:
                value = record["metrics"].get(name, math.nan)
                if not math.isfinite(value):
                    raise Unmeasurable(
                        f"arm {arm.name}: step {record['step']} logs no finite {name}; gate the "
                        f"roles that do, or one of {', '.join(sorted(record['metrics']))}"
                    )
                values.append(value)
        if not values:
            raise Unmeasurable("the pilot holds no arm of these roles; correct them")
        return values

    return gate_metric(
        name, unit="as steps log it", remedy="the pilot did something else than registered"
    )(measure)
