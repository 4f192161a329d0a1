"""Preflights and gates: pure functions from evidence to a finding.

Every preflight is a pair: a collector in `harness.audit.probes` that gathers evidence, and
`check(evidence, experiment)` in the module of its id here. Evidence is plain JSON, so that a check
can be read again from the run store.
"""

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
