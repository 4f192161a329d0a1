"""Request traces: those that are missing are reported, and what they hold is compared."""

from rollouts import a_group, a_rollout, a_turn

from harness.audit.requests import (
    Carried,
    StepTrace,
    asked_digest,
    digest,
    record_problems,
    rows_digest,
    scored_problems,
)
from harness.tasks.gsm8k import Problem

TRAIN = [Problem(f"train/{i}", f"How many are {i}?", f"#### {i}", str(i)) for i in range(400)]


def test_results_without_an_account_are_told(experiment):
    """What an earlier version stored is not vouched for; --retrain makes a trace."""
    arm = experiment.arms[0]

    (line,) = record_problems([{"step": 0}, {"step": 1}], arm, experiment, TRAIN, "service")
    assert "2 of 2 steps have no request trace; run again with --retrain" in line
    (line,) = scored_problems("base", [], {"accuracy": 0.5}, experiment)
    assert line.startswith("evaluation of base: no request trace; run again")


def test_a_record_is_held_against_its_account(experiment, sound):
    """Tokens, log-probs and advantages as sent, of the questions that its items hold."""
    arm = experiment.arms[0]
    (sent,) = (s for s in sound["capability"].traces if s.arm == arm.name)
    prompts = list(range(arm.groups_per_batch))
    rows = [([7, 2], [-0.5, -0.25], 0.1 * g) for g in range(arm.group_size)]

    def record(step: int, trace: StepTrace) -> dict:
        carried = [Carried(t, q, [a, a]) for _ in prompts for t, q, a in rows]
        asked = asked_digest([TRAIN[prompt] for prompt in prompts])
        recorded = {"datums_sha256": digest(carried), "questions_sha256": asked}
        groups = [
            a_group(prompt, [a_rollout(0.0, a_turn(t, q), advantage=a) for t, q, a in rows])
            for prompt in prompts
        ]
        return {"step": step, "groups": groups, "trace": trace.model_copy(update=recorded).plain()}

    def problems(change=lambda _: None, train=TRAIN) -> list[str]:
        records = [record(step, trace) for step, trace in enumerate(sent.steps)]
        change(records[1]["groups"][3])
        return record_problems(records, arm, experiment, train, "service")

    assert problems() == []
    for change in (
        lambda group: group["rollouts"][1]["turns"][0].update(tokens_T=[8, 2]),
        lambda group: group["rollouts"][1]["turns"][0].update(logprobs_T=[-0.5, 0.0]),
        lambda group: group["rollouts"][1].update(advantage=9.0),
    ):
        (line,) = problems(change)
        assert f"arm {arm.name}: step 1 sent datums of other tokens, log-probs or adv" in line
    (line,) = problems(train=TRAIN[1:])
    assert "step 0 asked other questions than the registered items of its record hold" in line


def test_rows_are_told_from_others_whatever_their_order():
    """A row that is edited, missing or there twice makes another digest."""
    rows = [{"item_id": str(i), "correct": i == 1, "n_tokens": i} for i in range(3)]

    assert rows_digest(rows) == rows_digest(rows[::-1])
    others = [rows[1:], [*rows, rows[0]], [*rows[1:], rows[0] | {"correct": True}]]
    assert rows_digest(rows) not in [rows_digest(other) for other in others]
