"""How far recorded advantages are from what rewards, and texts, make of them by the estimator."""

from collections.abc import Iterator, Sequence

from harness.audit import recomputed
from harness.audit.gate_metric import Unmeasurable, Values
from harness.audit.kernel import Corpus, leave_one_out
from harness.audit.pilot import Executed, step_rewards
from harness.cards import Arm
from harness.records import GroupRecord, StepRecord


def advantage_errors(pilot: Executed) -> Values:
    """|recorded - recomputed| of every advantage, and of every baseline of other prompts."""
    errors: list[float] = []
    for arm, records in pilot.arms:
        if arm.estimator in recomputed.GROUP_ESTIMATORS:
            groups = [(record, group) for record in records for group in record["groups"]]
            errors += [_within_group(arm, record, group) for record, group in groups]
            continue
        similar = None if arm.kernel is None else Corpus.of(pilot.texts, arm.kernel)
        for record in records:
            errors += _across_prompts(arm, record, similar, pilot.texts)
    return errors


def _within_group(arm: Arm, record: StepRecord, group: GroupRecord) -> float:
    if arm.estimator == "rloo" and len(group["rollouts"]) < 2:
        raise Unmeasurable(
            f"arm {arm.name}: step {record['step']}, prompt {group['prompt']} has 1 rollout, rloo "
            "needs at least 2; sample larger groups"
        )
    return recomputed.advantages_difference(arm, group)


def _across_prompts(
    arm: Arm, record: StepRecord, similar: Corpus | None, texts: Sequence[str]
) -> Iterator[float]:
    """Advantages against the recorded baselines, and these against the batch's rewards."""
    rewards, groups, kernel = step_rewards(record), record["groups"], record["kernel"]
    recorded = [] if kernel is None else kernel["baselines_P"]
    if not len(recorded) == len(rewards) == len(groups) or len(groups) < 2:
        raise Unmeasurable(
            f"arm {arm.name}: step {record['step']} recorded {len(recorded)} baselines for "
            f"{len(groups)} prompts with {len(rewards)} rollouts; record one for each of at least "
            "2 prompts with 1 rollout"
        )
    for group, reward, baseline in zip(groups, rewards, recorded, strict=True):
        yield abs(group["rollouts"][0]["advantage"] - (reward - baseline))
    if similar is not None and not texts:
        return
    if similar is not None and not all(0 <= group["prompt"] < len(texts) for group in groups):
        raise Unmeasurable(
            f"arm {arm.name}: step {record['step']} drew a prompt that is none of the "
            f"{len(texts)} of the train split; record the index of each"
        )
    drawn = [texts[group["prompt"]] for group in groups] if similar is not None else []
    expected = leave_one_out(similar, drawn, rewards)
    yield from (abs(a - b) for a, b in zip(recorded, expected, strict=True))
