"""An evaluation read again: of the weights that were trained, each item graded by the rule."""

from collections.abc import Mapping, Sequence

from harness.audit.episodes import episode_fault
from harness.cards import Registration
from harness.cards.registration import EvaluationSpec
from harness.fingerprints import arm_tolerance, distance
from harness.records import EpisodeRow, ItemRow, Row, StepRecord
from harness.tasks.grading import boxed_number, final_number, is_exact
from harness.tasks.gsm8k import Problem
from harness.tasks.sec_search import Query
from harness.tasks.task import Item


def row_problems(
    policy: str, rows: Sequence[Row], items: Sequence[Item], registration: Registration
) -> list[str]:
    """Rows whose grade or length is not what their item, what was stored of it and the rule make.

    A row of one reply is graded again from its response, one of an episode from the set that it
    curated.
    """
    by_id = {item.id: item for item in items}
    # rows of other items are the pairing's to refuse
    faults = [
        f"item {row['item_id']} {fault}"
        for row in rows
        if row["item_id"] in by_id
        and (fault := row_fault(row, by_id[row["item_id"]], registration))
    ]
    if not faults:
        return []
    return [
        f"evaluation of {policy}: {len(faults)} of {len(rows)} rows contradict their items: "
        f"{faults[0]}; evaluate again with the registered rule"
    ]


def row_fault(row: Row, item: Item, registration: Registration) -> str | None:
    """What is wrong with one row, None if nothing is."""
    if "correct" in row and isinstance(item, Problem):
        return answer_fault(row, item, registration.evaluation)
    if "draw" in row and isinstance(item, Query):
        return draw_fault(row, item, registration)
    return "has a row of another task"


def answer_fault(row: ItemRow, item: Problem, spec: EvaluationSpec) -> str | None:
    """What is wrong with the row of a reply."""
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


def draw_fault(row: EpisodeRow, item: Query, registration: Registration) -> str | None:
    """What is wrong with the row of an episode."""
    search, spec, scores = registration.search, registration.evaluation, row["scores"]
    if search is None:
        return "has an episode, and no search is registered"
    if not 0 <= row["draw"] < spec.samples:
        return f"has draw {row['draw']}, {spec.samples} are registered"
    if fault := episode_fault(scores, scores["reward"], search, row["curated"], item.facts):
        return f"draw {row['draw']} {fault}"
    ends = [name for name, on in scores.items() if name.startswith("stop=") and on]
    if ends != [f"stop={row['stop']}"]:
        return f"draw {row['draw']} ended by {row['stop']}, its figures say {ends}"
    if not scores["turns"] <= row["n_tokens"] <= scores["turns"] * spec.max_tokens:
        return (
            f"draw {row['draw']} has {row['n_tokens']} tokens in {scores['turns']:g} turns, "
            f"max_tokens is {spec.max_tokens}"
        )
    return None


def policy_problems(
    policy: str,
    trained: Mapping[str, object],
    scored: Mapping[str, object],
    first: StepRecord | None = None,
) -> list[str]:
    """Whether the weights that were evaluated are those that training ended with.

    Both are known by their log-probs of one fixed text (T), under `fingerprint` in what was noted
    of the arm and of its evaluation; `first` is the arm's first step, which says how far apart the
    service reads the same weights. There is none in results of before these were noted, nor of
    services that return no log-probs of a prompt, which `capability` refuses.
    """
    learner, sampler = trained.get("fingerprint"), scored.get("fingerprint")
    if not isinstance(learner, list) or not isinstance(sampler, list):
        return [
            f"evaluation of {policy}: nothing tells the evaluated weights from others; run again "
            "with --retrain, on a service that returns the log-probs of a prompt"
        ]
    if len(learner) == len(sampler):
        difference, bound = distance(learner, sampler), arm_tolerance(first)
        if difference <= bound:
            return []
        found = f"differ by {difference:.3g} from the trained ones', bound {bound:.3g}"
    else:
        found = f"are {len(sampler)}, {len(learner)} of the trained weights"
    return [
        f"evaluation of {policy}: log-probs of the evaluated weights {found}; evaluate the sampler "
        "saved after the last update"
    ]
