"""An evaluation read again: of the weights that were trained, each item graded by the rule."""

from collections.abc import Mapping, Sequence

import numpy as np

from harness.cards.registration import EvaluationSpec
from harness.checks.lag import SAME
from harness.records import ItemRow
from harness.tasks.grading import boxed_number, final_number, is_exact
from harness.tasks.gsm8k import Problem


def row_problems(
    policy: str, rows: Sequence[ItemRow], items: Sequence[Problem], spec: EvaluationSpec
) -> list[str]:
    """Rows whose gold, grade or length is not what their item, response and the rule make it."""
    by_id = {item.id: item for item in items}
    # rows of other items are the pairing's to refuse
    faults = [
        f"item {row['item_id']} {fault}"
        for row in rows
        if row["item_id"] in by_id and (fault := row_fault(row, by_id[row["item_id"]], spec))
    ]
    if not faults:
        return []
    return [
        f"evaluation of {policy}: {len(faults)} of {len(rows)} rows contradict their items: "
        f"{faults[0]}; evaluate again with the registered rule"
    ]


def row_fault(row: ItemRow, item: Problem, spec: EvaluationSpec) -> str | None:
    """What is wrong with one row, None if nothing is."""
    if row["gold"] != item.gold:
        return f"has the gold answer {row['gold']}, the data say {item.gold}"
    text = row["response"]
    answer = final_number(text) if spec.answer == "final_number" else boxed_number(text)
    if row["correct"] != is_exact(answer, item.gold_value):
        return f"is marked {row['correct']} with the answer {answer} for gold {item.gold}"
    # of several samples the stop is the first one's, the length that of all
    limit, length = spec.max_tokens * spec.samples, row["n_tokens"]
    if length > limit or (spec.samples == 1 and row["stop"] == "length" and length != limit):
        return f"ended by {row['stop']} after {length} tokens, max_tokens is {spec.max_tokens}"
    return None


def policy_problems(
    policy: str, trained: Mapping[str, object], scored: Mapping[str, object]
) -> list[str]:
    """Whether the weights that were evaluated are those that training ended with.

    Both are told by their log-probs of one fixed text (T), under `print` in what was noted of the
    arm and of its evaluation. Results of before these were noted, and services that return no
    log-probs of a prompt, leave nothing to compare.
    """
    learner, sampler = trained.get("print"), scored.get("print")
    if not isinstance(learner, list) or not isinstance(sampler, list):
        return []
    if len(learner) == len(sampler):
        difference = float(np.abs(np.subtract(learner, sampler)).max())
        if difference <= SAME:
            return []
        found = f"differ by {difference:.3g} from the trained ones', bound {SAME:g}"
    else:
        found = f"are {len(sampler)}, {len(learner)} of the trained weights"
    return [
        f"evaluation of {policy}: log-probs of the evaluated weights {found}; evaluate the sampler "
        "saved after the last update"
    ]
