"""Preflights and gates: pure functions from evidence to a finding.

Every preflight is a pair: a collector in `harness.audit.probes` that gathers evidence, and
`check(evidence, experiment)` in the module of its id here. Evidence is plain JSON, so that a check
can be read again from the run store.
"""

from harness.cards import Experiment
from harness.errors import CardError

PREFLIGHTS = (
    "pins",
    "baseline_correctness",
    "reference_correctness",
    "server_loss",
    "restoration",
    "capability",
    "feasibility",
    "audit",
    "forecast",
)


def preflight_ids(experiment: Experiment) -> tuple[str, ...]:
    """The preflights that an experiment passes: the harness's, then its own.

    Raises:
        CardError: the experiment declares one under a name that the harness has.
    """
    own = experiment.registration.preflights
    if taken := [name for name in own if name in PREFLIGHTS]:
        raise CardError(f"preflight {taken[0]!r}: the harness has one of that name; rename yours")
    return (*PREFLIGHTS, *own)
