import dataclasses

import pytest
from service_doubles import CARD, GRPO, GS1, PILOT, STEPS

from harness.audit.finding import Finding
from harness.decisions import Verdict
from harness.errors import RunError, StoreError
from harness.protocol import preflights
from harness.protocol.run import open_run
from harness.training import evaluate


class Noted:
    """Evidence that is a number; `of` reads it back."""

    def __init__(self, number):
        self.number = number

    def plain(self):
        """As JSON."""
        return {"number": self.number}

    @staticmethod
    def of(document):
        """From JSON."""
        return Noted(document["number"])


@pytest.fixture
def collected(monkeypatch):
    """Every preflight collects a number and notes its name down here."""
    names = []

    def flight(id, real):
        def collect(_context):
            names.append(real.collection)
            return Noted(len(names))

        return dataclasses.replace(
            real,
            evidence=Noted,
            collect=collect,
            check=lambda evidence, _experiment: Finding(id, metrics={"number": evidence.number}),
        )

    table = {id: flight(id, real) for id, real in preflights.PREFLIGHTS.items()}
    monkeypatch.setattr(preflights, "PREFLIGHTS", table)
    return names


def test_from_pilot_to_outcome(fakes):
    """Every stage in the order of the fixtures, each from what the one before left in the store."""
    run = fakes.run()

    run.pilot()
    values = {metric: run.gate(metric).value for metric in run.gates}
    run.train()
    outcome = run.decision().outcomes[run.criteria[0]]

    assert values["gs1_executed_group_size"] == 1
    assert values["rollouts_per_step_both_arms"] == 8
    assert [run.arm(name).steps for name in (GRPO, GS1)] == [STEPS, STEPS]
    assert run.base().n_items == 20
    assert run.attempts() == 1
    treatment, baseline = (
        {row["item_id"]: row["correct"] for row in rows_of(run, name)} for name in (GS1, GRPO)
    )
    gap = sum(treatment[item] - baseline[item] for item in treatment) / 20
    assert outcome.n == outcome.n_registered == 20
    assert outcome.estimate == pytest.approx(gap)
    assert run.diagnostics()
    assert run.pilot_notes()
    assert len(fakes.scripted.named("optim_step")) == 2 * STEPS


def test_a_figure_that_no_step_measures_ends_the_run_at_the_pilot(fakes, small):
    """A misspelt one, with the names that there are: no other step is taken for it."""
    stated = small.rule.criteria[0]
    misspelt = stated.model_copy(update={"id": "clipped", "metric": "service/loss_sum"})
    registration = small.registration.model_copy(update={"supporting": [misspelt]})
    run = fakes.run(experiment=dataclasses.replace(small, registration=registration))

    with pytest.raises(
        RunError, match=r"clipped: no step measures service/loss_sum; .*service/loss:sum"
    ):
        run.pilot()

    pilot = small.registration.training.pilot_steps
    assert len(fakes.scripted.named("optim_step")) == 2 * pilot


def rows_of(run, name):
    """The stored rows of an arm's evaluation."""
    keeper = run._arms
    return keeper.evaluation_entry(keeper.experiment.arm(name)).read("rows")


def test_gates_are_measured_on_the_pilot_alone(fakes):
    """A gate says the same before and after the rest of the training."""
    run = fakes.run()
    run.pilot()
    before = {metric: run.gate(metric).value for metric in run.gates}
    run.train()

    assert {metric: run.gate(metric).value for metric in run.gates} == before
    assert {len(steps) for steps in run._arms.pilot_evidence().values()} == {PILOT}


def test_an_item_without_a_row_makes_the_outcome_invalid(fakes, monkeypatch):
    """Rows are joined on the registered items: a smaller n is no verdict."""
    original = evaluate.evaluate

    async def but_one(sampler, adapter, spec, items, after_item):
        return await original(sampler, adapter, spec, items[:-1], after_item)

    monkeypatch.setattr(evaluate, "evaluate", but_one)
    run = fakes.run()
    run.pilot()
    run.train()

    outcome = run.decision().outcomes[run.criteria[0]]

    assert outcome.verdict is Verdict.INVALID
    assert any("test/00019" in problem for problem in outcome.problems)


def test_the_order_of_rows_does_not_matter(fakes):
    """Items are paired by id."""
    run = fakes.run()
    run.pilot()
    run.train()
    before = run.decision().outcomes[run.criteria[0]]
    keeper = run._arms
    entry = keeper.evaluation_entry(keeper.experiment.arm(GS1))
    entry.publish("rows", entry.read("rows")[::-1])

    assert run.decision().outcomes[run.criteria[0]] == before


def test_an_arm_with_a_missing_step_is_an_error(fakes):
    """An arm is not counted from what is left of it."""
    run = fakes.run()
    run.pilot()
    run.train()
    (run._arms.entry(run.experiment.arm(GRPO)).folder / "records/step-000004.json.zst").write_bytes(
        b"torn"
    )

    with pytest.raises(RunError, match=r"arm/grpo_gs8_seed0: steps \[4\]"):
        run.arm(GRPO)


def test_attempts_count_runs(fakes):
    """Two workers of one run are one attempt, a second run is another, a rerun is none."""
    for worker in (fakes.run("one"), fakes.run("one")):
        worker.pilot()
    second = fakes.run("two")
    second.pilot()  # nothing to do
    assert second.attempts() == 1

    second.train()
    assert second.attempts() == 2


def test_evidence_is_collected_once_and_checked_each_time(fakes, collected):
    """Asked again, by another worker or in another run: read from the store."""
    first = fakes.run("one")
    found = [first.preflight("audit").metrics, first.preflight("audit").metrics]
    found += [fakes.run("one").preflight("audit").metrics]
    found += [fakes.run("two").preflight("audit").metrics]

    assert found == [{"number": 1}] * 4
    assert collected == ["audit"]


def test_one_collection_answers_two_preflights(fakes, collected):
    """Capability and feasibility read the same throw-away steps."""
    run = fakes.run()

    assert run.preflight("capability").metrics == run.preflight("feasibility").metrics
    assert collected == ["throw_away"]


def test_what_is_not_kept_is_collected_each_time(fakes, collected):
    """Pins are of the moment."""
    run = fakes.run()
    run.preflight("pins")
    run.preflight("pins")

    assert collected == ["pins", "pins"]


def test_retrain_collects_evidence_once_in_a_run(fakes, collected):
    """Two workers with --retrain: every kept collection anew, once; the shared one once too."""
    for id in preflights.PREFLIGHTS:
        fakes.run("one").preflight(id)
    collected.clear()

    for worker in (fakes.run("two", retrain=True), fakes.run("two", retrain=True)):
        for id in preflights.PREFLIGHTS:
            worker.preflight(id)

    kept = {flight.collection for flight in preflights.PREFLIGHTS.values() if flight.kept}
    assert sorted(name for name in collected if name != "pins") == sorted(kept)


def test_a_collection_that_failed_is_told_to_the_other_worker(fakes, collected, monkeypatch):
    """It is not tried twice in a run; the next run tries anew."""
    real = preflights.PREFLIGHTS["audit"]

    def fail(_context):
        collected.append("failed")
        raise StoreError("no space left")

    with monkeypatch.context() as patch:
        patch.setitem(preflights.PREFLIGHTS, "audit", dataclasses.replace(real, collect=fail))
        for _ in range(2):
            with pytest.raises(StoreError, match="no space left"):
                fakes.run("one").preflight("audit")
    assert collected == ["failed"]
    fakes.run("two").preflight("audit")
    assert collected == ["failed", "audit"]


def opened(tmp_path, worker, pid=7):
    """The id of the run that a worker opens."""
    run = open_run(
        CARD,
        scale="embedded",
        runs_dir=tmp_path,
        retrain=False,
        data_dir=None,
        controller_pid=pid,
        worker=worker,
    )
    run.close()
    return run._run_id


def test_workers_of_one_run_share_its_id(tmp_path, monkeypatch):
    """xdist's workers have one id, another run's workers another, whatever its id is called."""
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "chosen-by-hand")
    assert opened(tmp_path, "gw0") == opened(tmp_path, "gw1")
    assert opened(tmp_path, "gw0") != opened(tmp_path, "gw0", pid=8)

    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "another")
    assert opened(tmp_path, "gw0") != opened(tmp_path, "main")


def test_a_run_without_workers_is_its_process(tmp_path, monkeypatch):
    """Also inside a worker of somebody else's run, whose environment it inherits."""
    monkeypatch.delenv("PYTEST_XDIST_TESTRUNUID", raising=False)
    outside = opened(tmp_path, "main")
    monkeypatch.setenv("PYTEST_XDIST_TESTRUNUID", "of-another-run")

    assert opened(tmp_path, "main") == outside
    assert "of-another-run" not in outside


def test_opening_a_run_produces_nothing(fakes):
    """No service is asked and nothing is stored until a stage is."""
    fakes.run().close()

    assert fakes.scripted.calls == []
    assert [path.name for path in fakes.runs_dir.iterdir()] == ["store.json"]
