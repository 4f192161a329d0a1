import dataclasses
import threading

import pytest
from service_doubles import GRPO, GS1, PILOT, STEPS

from harness.errors import BudgetExceeded, RunError, StoreError
from harness.protocol import arms
from harness.protocol.budget import read_clock
from harness.protocol.progress import read_progress
from harness.training import checkpoints, identity


def trained_steps(scripted):
    """How many updates the service has made."""
    return len(scripted.named("optim_step"))


def evaluated_items(scripted):
    """How many greedy requests the service has had."""
    return sum(request.params.temperature == 0.0 for request in scripted.requests)


def pilot_and_train(keeper):
    """What the fixtures ask for, in their order."""
    keeper.pilot()
    keeper.train()
    return keeper


def records(keeper, name):
    """The stored records of an arm, without what a clock said."""
    entry = keeper.entry(keeper.experiment.arm(name))
    return [{**entry.read_step(step), "seconds": None} for step in entry.steps()]


def test_the_pilot_is_the_first_steps_of_every_arm(fakes):
    """After the pilot each arm has its first steps, a checkpoint there, and nothing more."""
    keeper = fakes.keeper()

    keeper.pilot()

    evidence = keeper.pilot_evidence()
    assert {name: [r["step"] for r in rows] for name, rows in evidence.items()} == {
        GRPO: list(range(PILOT)),
        GS1: list(range(PILOT)),
    }
    assert trained_steps(fakes.scripted) == 2 * PILOT
    assert evaluated_items(fakes.scripted) == 0


def test_training_goes_on_from_the_pilot(fakes):
    """Each step of each arm is trained once; both arms and the base model are evaluated once."""
    keeper = pilot_and_train(fakes.keeper())

    assert trained_steps(fakes.scripted) == 2 * STEPS
    assert evaluated_items(fakes.scripted) == 3 * 20
    assert not fakes.scripted.named("restore")
    for arm in keeper.experiment.arms:
        summary = keeper.summary(arm)
        assert (summary.steps, summary.rollouts, summary.n_items) == (STEPS, STEPS * 8, 20)
        assert (summary.planned_steps, summary.planned_rollouts) == (STEPS, STEPS * 8)
        assert summary.accuracy == sum(keeper.rows(arm).values()) / 20
        assert summary.final_reward == keeper.entry(arm).read_step(STEPS - 1)["metrics"]["reward"]


def test_policies_are_evaluated_from_their_own_weights(fakes):
    """The base model by its name, an arm from the sampler that was saved after its last update."""
    keeper = pilot_and_train(fakes.keeper())

    sampled = [call[1] for call in fakes.scripted.named("sampler")]
    final = [keeper.entry(arm).summary()["sampler_path"] for arm in keeper.experiment.arms]
    assert sorted(sampled) == sorted([*final, keeper.experiment.card.base_model])
    saved_after = {call[2]: call[1] for call in fakes.scripted.named("save_sampler")}
    assert [saved_after[path] for path in final] == [STEPS, STEPS]


def test_a_rerun_asks_the_service_nothing(fakes):
    """An unchanged second run reads the store: no client, no attempt, the same rows."""
    first = pilot_and_train(fakes.keeper())
    calls = len(fakes.scripted.calls)

    second = pilot_and_train(fakes.keeper("second"))

    assert second.service.asked == 0
    assert len(fakes.scripted.calls) == calls
    assert second.attempts() == first.attempts() == 1
    assert all(second.rows(arm) == first.rows(arm) for arm in (*first.experiment.arms, None))


def test_a_run_that_failed_in_an_arm_is_resumed(fakes, monkeypatch):
    """The next run goes on at the last checkpoint, ends with the same records, and is counted."""
    whole = pilot_and_train(fakes.keeper())
    expected = {
        arm.name: (records(whole, arm.name), whole.rows(arm)) for arm in whole.experiment.arms
    }
    fakes.scripted.calls.clear()
    monkeypatch.setattr(identity, "TRAINING_VERSION", 99)
    broken = fakes.keeper("broken")
    broken.pilot()
    scored = fakes.scripted.scored

    def fail_in_step_3(text):
        if trained_steps(fakes.scripted) >= 2 * PILOT + 1:
            raise ValueError("the service broke")
        return scored(text)

    fakes.scripted.sequence = fail_in_step_3
    with pytest.raises(ValueError, match="broke"):
        broken.train()
    fakes.scripted.sequence = scored
    resumed = pilot_and_train(fakes.keeper("resumed"))

    for arm in resumed.experiment.arms:
        assert (records(resumed, arm.name), resumed.rows(arm)) == expected[arm.name]
    assert fakes.scripted.named("restore")
    assert resumed.attempts() == 2


def test_what_failed_in_a_run_is_not_tried_again_by_its_other_workers(fakes):
    """The second worker of the run gets the same error; a new run tries anew."""
    fakes.scripted.sequence = lambda _text: arms  # no sequence at all
    with pytest.raises(AttributeError):
        fakes.keeper("first").pilot()
    fakes.scripted.sequence = fakes.scripted.scored

    with pytest.raises(RunError, match=r"arm/.*: AttributeError"):
        fakes.keeper("first").pilot()
    fakes.keeper("second").pilot()


@pytest.mark.parametrize("piloted", [True, False])
def test_retrain_makes_arms_and_evaluations_once_in_a_run(fakes, piloted):
    """Two workers of one run with --retrain: every step and every item anew, exactly once.

    The pilot of the earlier run is stored, and so are its arms and evaluations. `train` alone
    retrains too, since an entry is cleared by whoever produces it first in the run.
    """
    pilot_and_train(fakes.keeper())
    fakes.scripted.calls.clear()
    fakes.scripted.requests.clear()
    workers = [fakes.keeper("retraining", retrain=True) for _ in range(2)]

    for worker in workers:
        if piloted:
            worker.pilot()
    for worker in workers:
        worker.train()

    assert trained_steps(fakes.scripted) == 2 * STEPS
    assert evaluated_items(fakes.scripted) == 3 * 20
    assert len(fakes.scripted.named("create")) == 2
    assert workers[0].attempts() == workers[1].attempts() == 2


def test_workers_at_the_same_time_share_the_work(fakes):
    """Two workers in two threads with --retrain: nothing is trained or evaluated twice."""
    pilot_and_train(fakes.keeper())
    fakes.scripted.calls.clear()
    fakes.scripted.requests.clear()
    failures = []

    def work(service):
        try:
            pilot_and_train(fakes.keeper("retraining", retrain=True, served=service))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(fakes.apart(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures
    assert trained_steps(fakes.scripted) == 2 * STEPS
    assert evaluated_items(fakes.scripted) == 3 * 20


def test_an_arm_taken_further_by_another_worker_is_not_continued_from_old_weights(
    fakes, monkeypatch
):
    """A live client of the pilot is dropped if another process has trained the arm since."""

    async def kept(_service, _paths):
        """Nothing is deleted."""

    monkeypatch.setattr(checkpoints, "delete_saved", kept)
    first, second = fakes.keeper(), fakes.keeper()
    first.pilot()
    second.train()
    expected = {arm.name: records(second, arm.name) for arm in second.experiment.arms}
    entry = first.entry(first.experiment.arms[0])
    # as if the other worker had died after its last checkpoint
    (entry.folder / "records" / "complete.json.zst").unlink()

    first._finish(first.experiment.arms[0])

    assert {arm.name: records(first, arm.name) for arm in first.experiment.arms} == expected
    assert trained_steps(fakes.scripted) == 2 * STEPS


def test_a_missing_record_is_an_error_and_no_smaller_count(fakes):
    """A step without a readable record is named; rollouts of the others are not a summary."""
    keeper = pilot_and_train(fakes.keeper())
    arm = keeper.experiment.arm(GS1)
    path = keeper.entry(arm).folder / "records" / "step-000003.json.zst"
    path.write_bytes(path.read_bytes()[:-5])

    with pytest.raises(RunError, match=r"arm/gs1_seed0: steps \[3\] have no .*--retrain"):
        keeper.summary(arm)


def test_a_pilot_without_a_record_that_its_checkpoint_counts_is_an_error(fakes):
    """The next run says which step is missing and what to do, and --retrain does it."""
    keeper = pilot_and_train(fakes.keeper())
    (keeper.entry(keeper.experiment.arm(GS1)).folder / "records" / "step-000001.json.zst").unlink()

    with pytest.raises(RunError, match=r"arm/gs1_seed0: steps \[1\] have no .*--retrain"):
        fakes.keeper("second").pilot()
    again = pilot_and_train(fakes.keeper("third", retrain=True))
    assert again.summary(again.experiment.arm(GS1)).steps == STEPS


def test_unreadable_rows_are_an_error(fakes):
    """Items that were scored and can't be read are not a smaller n."""
    keeper = pilot_and_train(fakes.keeper())
    (keeper.evaluation_entry(None).folder / "records" / "rows.json.zst").unlink()

    with pytest.raises(RunError, match="evaluation/base: its rows can't be read"):
        keeper.rows(None)


def with_cap(experiment, minutes):
    """The experiment with another wall-time cap."""
    budget = experiment.card.budget.model_copy(update={"max_wall_minutes": minutes})
    card = experiment.card.model_copy(update={"budget": budget})
    return dataclasses.replace(experiment, card=card)


def test_a_reached_cap_stops_the_run_and_keeps_its_state(fakes, small):
    """BudgetExceeded between two steps; with a larger budget the run goes on where it stopped."""
    keeper = fakes.keeper()
    keeper.pilot()
    capped = fakes.keeper("capped", experiment=with_cap(small, 1e-9))

    with pytest.raises(BudgetExceeded, match="registered cap of 1e-09 min"):
        capped.train()

    assert trained_steps(fakes.scripted) == 2 * PILOT
    pilot_and_train(fakes.keeper("extended"))
    assert trained_steps(fakes.scripted) == 2 * STEPS


def test_a_cap_that_is_reached_during_an_evaluation_stops_it(fakes, monkeypatch):
    """The cap is looked at every few items, and the time until then is on the clock."""
    monkeypatch.setattr(arms, "ITEMS_A_TICK", 4)
    keeper = fakes.keeper()
    looks = iter(range(100))

    def refuse(*_arguments):
        if next(looks) == 2:
            raise BudgetExceeded("the cap")

    monkeypatch.setattr(arms, "refuse_overspending", refuse)
    base = keeper.evaluation_entry(None)

    with pytest.raises(BudgetExceeded):
        keeper._evaluate(base, None)

    assert not base.is_complete
    ((start, end),) = read_clock(base)
    assert start < end


def test_live_lines_end_at_the_last_item(fakes, small):
    """A line per arm and one for the base model; an evaluation's has no reward."""
    pilot_and_train(fakes.keeper())

    lines = read_progress(fakes.runs_dir, small.id, small.scale.name)

    assert [(line.arm, line.stage, line.step, line.steps, line.reward) for line in lines] == [
        (name, "evaluation", 20, 20, None) for name in ("base model", GRPO, GS1)
    ]


def test_b_eff_of_the_kernel_is_noted_on_the_pilots_rollouts(fakes):
    """One line for the arm with a kernel, and none for the baseline."""
    keeper = fakes.keeper()
    keeper.pilot()

    *gaps, note = keeper.pilot_notes()

    assert f"B_eff (ours, diagnostic) of {GS1} on {PILOT} pilot steps" in note
    assert [gap.partition(":")[0] for gap in gaps] == [GRPO, GS1]
    assert all("log-probs of sampler and learner" in gap for gap in gaps)


def test_a_full_store_is_told_and_the_arm_can_go_on(fakes, monkeypatch):
    """An error while a record is written leaves the arm at its checkpoint."""
    keeper = fakes.keeper()
    publish = type(keeper.entry(keeper.experiment.arms[0])).publish_step

    def fail(entry, step, value):
        if step == 1:
            raise StoreError("no space left")
        publish(entry, step, value)

    with monkeypatch.context() as patch:
        patch.setattr(type(keeper.entry(keeper.experiment.arms[0])), "publish_step", fail)
        with pytest.raises(StoreError, match="no space"):
            keeper.pilot()
    again = fakes.keeper("second")
    again.pilot()

    assert [record["step"] for record in again.pilot_evidence()[GRPO]] == [0, 1]
