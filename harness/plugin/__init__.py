"""The pytest side: options, items, fixtures, live lines, and the verdict at the end.

An experiment is a test file that names its card in one line, `CARD = "<id>"`, the card being
`cards/<id>.json` beside it. Its tests ask for what they speak of:

    preflight    one per preflight: a `harness.audit.finding.Finding`
    gate         one per activation gate of the card: a `harness.audit.finding.GateFinding`
    arm          one per training arm: a `harness.protocol.stages.ArmSummary`
    criterion    one per criterion of the decision rule: a `harness.decisions.Outcome`

A function of the author's own that is marked `preflight`, `gate` or `decision` and asks for none
of these is an assertion (`harness.plugin.assertions`), over read-only fixtures:

    card         the card at the scale of the run
    pilot        the step records of every arm's first steps, by arm
    arms         what each trained arm did, by name
    rows         the score of every evaluated item, by arm, and of the `base` model

Fixtures are the gate: `criterion` needs trained arms, arms need passed gates, gates need the
pilot, the pilot needs every preflight to have passed, whatever was selected and in whatever order.
An item whose precondition failed is an error that starts with `BLOCKED by`, never a skip.

The process that runs an item sends what it learned with the item's report. The process that the
user started builds the table and verdict.json from these reports alone, with and without `-n`.
"""

pytest_plugins = [
    "harness.plugin.options",
    "harness.plugin.collection",
    "harness.plugin.assertions",
    "harness.plugin.fixtures",
    "harness.plugin.reports",
    "harness.plugin.controller",
]
