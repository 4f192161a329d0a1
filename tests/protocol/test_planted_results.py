"""Mistakes in what comes after the first steps: stored steps, evaluations and decisions give them
away, over scripted doubles."""

import dataclasses

import pytest
from service_doubles import GRPO, GS1, PILOT, STEPS

from harness.errors import RunError
from harness.protocol import arms
from harness.protocol.arms import ArmKeeper
from harness.protocol.run import CardRun
from harness.training import evaluate, loop, word_problems
from harness.training.prints import learner_print


def one_update_early(monkeypatch):
    """The final sampler is saved before the last update."""

    def finish(self, arm):
        self._advance(arm, arm.steps - 1)
        client, text = self._states[arm.name].client, self._print_text()
        path = self.service.run(arms._save_sampler(client, text))["sampler_path"]
        self._advance(arm, arm.steps)
        trained = self.service.run(learner_print(self._states.pop(arm.name).client, text))
        self.entry(arm).finish({"sampler_path": path, "print": trained})

    monkeypatch.setattr(ArmKeeper, "_finish", finish)


def always_the_base_model(monkeypatch):
    """Every evaluation samples from the untrained model."""
    from service_doubles import ScriptedService

    original = ScriptedService.create_sampling_client_async

    async def base(self, _path=None, _base=None):
        return await original(self, None, "harness/nano-qwen3")

    monkeypatch.setattr(ScriptedService, "create_sampling_client_async", base)


def always_the_first_arm(monkeypatch):
    """Every arm is evaluated from the first final sampler."""
    from service_doubles import ScriptedService

    original, seen = ScriptedService.create_sampling_client_async, []

    async def first(self, path=None, base=None):
        seen.extend([path] if path else [])
        return await original(self, seen[0] if path else None, base)

    monkeypatch.setattr(ScriptedService, "create_sampling_client_async", first)


def lenient_grades(monkeypatch):
    """A response that holds the gold anywhere is right."""
    original = word_problems.grade

    def grade(item, text, *more):
        row = original(item, text, *more)
        return {**row, "correct": row["correct"] or "not know" in text}

    monkeypatch.setattr(word_problems, "grade", grade)


def half_evaluated_and_copied(monkeypatch):
    """The second half of the items gets the rows of the first."""
    original = evaluate.evaluate

    async def copied(sampler, prompter, spec, items, after):
        half = await original(sampler, prompter, spec, items[: len(items) // 2], after)
        return [{**half[i % len(half)], "item_id": item.id} for i, item in enumerate(items)]

    monkeypatch.setattr(evaluate, "evaluate", copied)


def late_other_prompts(monkeypatch):
    """Past the pilot an arm draws the same prompts again and again."""
    original = loop.step_prompts
    changed = lambda context, step: original(context, min(step, PILOT))  # noqa: E731
    monkeypatch.setattr(loop, "step_prompts", changed)


def other_groups(monkeypatch):
    """GRPO draws twice as many prompts half as often: as many rollouts a step."""
    original = ArmKeeper._context

    def context(self, arm, after_step):
        made = original(self, arm, after_step)
        if arm.name != GRPO:
            return made
        shape = {"group_size": 1, "groups_per_batch": 8}
        return dataclasses.replace(made, arm=dataclasses.replace(arm, **shape))

    monkeypatch.setattr(ArmKeeper, "_context", context)


def steps_counted_twice(monkeypatch):
    """Each record counts from an update that was made twice."""
    original = loop.run_step

    async def twice(context, state):
        record = await original(context, state)
        return {**record, "version": 2 * record["version"]}

    monkeypatch.setattr(loop, "run_step", twice)


MISTAKES = {
    one_update_early: "log-probs of the evaluated weights differ by",
    always_the_base_model: "log-probs of the evaluated weights differ by",
    always_the_first_arm: f"evaluation of {GS1}: log-probs of the evaluated weights differ by",
    lenient_grades: "is marked True with the answer None",
    half_evaluated_and_copied: "10 of 20 rows contradict their items",
    late_other_prompts: f"step {PILOT + 1} (and {STEPS - PILOT - 2} more): drew train item",
    other_groups: f"step 0 (and {PILOT - 1} more): groups of [1] rollouts, 2 registered",
    steps_counted_twice: "step 1: updated version 2 with rollouts of version 1, 1 and 1 registered",
}


def taken_to_the_end(run):
    """What is asked of a run before anything is decided."""
    run.train()
    for arm in run.experiment.arms:
        run.arm(arm.name)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_in_the_run_ends_it(fakes, monkeypatch, mistake):
    """The verdict is not reached, and the line names arm, step or item."""
    mistake(monkeypatch)
    run = fakes.run()
    run.pilot()

    with pytest.raises(RunError) as refused:
        taken_to_the_end(run)

    assert MISTAKES[mistake] in str(refused.value)


def test_nothing_is_trained_behind_a_pilot_that_did_something_else(fakes, monkeypatch):
    """What the pilot shows is refused before the rest is paid for."""
    other_groups(monkeypatch)
    run = fakes.run()
    run.pilot()

    with pytest.raises(RunError):
        run.train()

    assert len(fakes.scripted.named("optim_step")) == 2 * PILOT


def test_rollouts_that_share_their_noise_are_named(fakes):
    """A service that gives a group one sample over and over: too much alike for these log-probs."""
    scored = fakes.scripted.scored

    def surprising(text):
        found = scored(text)
        return dataclasses.replace(found, logprobs_np=found.logprobs_np * 100)

    fakes.scripted.sequence = surprising
    fakes.scripted.reply = lambda request: fakes.scripted.by_hash(request)[:1] * request.num_samples
    run = fakes.run()
    run.pilot()

    with pytest.raises(RunError, match="rollouts of one prompt are alike beyond chance"):
        taken_to_the_end(run)


@pytest.mark.parametrize(
    ("method", "change", "said"),
    [
        ("_scores", "arms", "look for arms or signs exchanged"),
        ("_criterion", "weights", "look for arms or signs exchanged"),
        ("_criterion", "margin", "decided at the margin 0.05, -0.05 is registered"),
    ],
)
def test_a_decision_on_something_else_is_refused(fakes, monkeypatch, method, change, said):
    """Exchanged arms, flipped signs and another margin do not follow from the stored rows."""
    original = getattr(CardRun, method)

    def exchanged(self, *these):
        found = original(self, *these)
        if change == "arms":
            return {**found, "treatment": found["baseline"], "baseline": found["treatment"]}
        if change == "weights":
            return dataclasses.replace(found, weights={k: -v for k, v in found.weights.items()})
        return dataclasses.replace(found, margin=-found.margin)

    models = []

    def differing(request):
        if request.params.temperature > 0:
            return fakes.scripted.by_hash(request)
        models.extend([request.model] if request.model not in models else [])
        (gold,) = (g for question, g in fakes.scripted.gold.items() if question in request.prompt)
        right = request.params.seed % 5 <= models.index(request.model)
        return [f"\\boxed{{{gold if right else 1}}}"]

    fakes.scripted.reply = differing
    run = fakes.run()
    run.pilot()
    run.train()
    accuracies = {run.arm(arm.name).accuracy for arm in run.experiment.arms}
    assert len(accuracies) == 2, "arms that are equal can't be told apart"
    assert run.outcome(run.criteria[0]).estimate is not None
    monkeypatch.setattr(CardRun, method, exchanged)

    with pytest.raises(RunError, match=said):
        run.outcome(run.criteria[0])
