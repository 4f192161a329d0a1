"""A registration binds: the attacks of docs/record.md, each refused by a line that names it."""

import dataclasses
import json
import shutil

import pytest
from service_doubles import CARD

from harness.cards import Card, Registration, load_experiment
from harness.cards.merge import merge_patch
from harness.decisions import Decision, Outcome, Verdict
from harness.errors import HarnessError, RunError, StoreError
from harness.protocol.registered import Registered, binding_document, differences


def changed(experiment, card=None, registration=None, **fields):
    """The experiment with a merge patch over card and registration."""
    parts = {}
    for name, model, patch in (("card", Card, card), ("registration", Registration, registration)):
        document = merge_patch(getattr(experiment, name).model_dump(mode="json"), patch or {})
        parts[name] = model.model_validate_json(json.dumps(document))
    return dataclasses.replace(experiment, **parts, **fields)


@pytest.fixture(name="full", scope="module")
def _full():
    """The GS1 experiment at its embedded scale."""
    return load_experiment(CARD, "embedded")


def decision(verdict=Verdict.REFUTED, estimate=-0.061):
    """What a rule found, of one criterion."""
    outcome = Outcome(
        id="primary", metric="accuracy", verdict=verdict, estimate=estimate,
        lower=estimate - 0.02, upper=estimate + 0.02, margin=-0.05, half_width=0.02, n=100,
        n_registered=100, range=2.0, alpha=0.05, sides=2, method="paired_hoeffding",
        unit="fixed_checkpoint_items", p_validated=None, p_refuted=None, counts=None, problems=(),
        notes=(), sentence=f"{verdict}: it is so",
    )  # fmt: skip
    return Decision(verdict, "it is so", {"primary": outcome})


def run(experiment, root, name, *, redrawn=False, found=None):
    """One run from its first step to its outcome, as far as the record knows it."""
    bound = Registered(experiment, root)
    bound.bind()
    bound.attempt(name, redrawn=redrawn, trained=False)
    return bound.decided(found or decision())


RULE = {"decision_rule": {"criteria": [{"id": "primary_noninferiority", "margin": -0.15}]}}
GATE = {"activation_gate": {"checks": [{"metric": "batch_mean_reward_pilot", "min": 0.0}]}}

ATTACKS = [
    ("margin moved", {"card": RULE},
     "card.decision_rule.criteria.primary_noninferiority.margin: registered -0.05, now -0.15"),
    ("alpha raised", {"card": {"decision_rule": {"alpha": 0.2}}},
     "card.decision_rule.alpha: registered 0.05, now 0.2"),
    ("gate bound widened", {"card": GATE},
     "card.activation_gate.checks.batch_mean_reward_pilot.min: registered 0.1, now 0.0"),
    ("gate removed", {"card": {"activation_gate": {"checks": [
        {"metric": "gs1_effective_contributors_median", "remove": True}]}}},
     "card.activation_gate.checks.gs1_effective_contributors_median: registered {"),
    ("items removed", {"card": {"eval": {"n_examples": 1000}}},
     "card.eval.n_examples: registered 1319, now 1000"),
    ("another test set", {"registration": {"data": {"test_sha256": "0" * 64}}},
     "registration.data.test_sha256: registered"),
    ("seed swapped", {"card": {"arms": [{"name": "gs1_seed0", "seed": 7}]}},
     "card.arms.gs1_seed0.seed: registered 0, now 7"),
    ("role renamed", {"registration": {"arms": [{"name": "gs1_seed0", "role": "ablation"}]}},
     'registration.arms.gs1_seed0.role: registered "treatment", now "ablation"'),
    ("estimator swapped", {"registration": {"arms": [
        {"name": "gs1_seed0", "estimator": "uniform_loo", "kernel": None}]}},
     'registration.arms.gs1_seed0.estimator: registered "gs1", now "uniform_loo"'),
    ("sense loosened", {"registration": {"sense": {"below_base_p": 1e-9}}},
     "registration.sense: registered nothing, now"),
    ("acceptance added", {"registration": {"accepted": []}}, "registration.accepted.0: registered"),
    ("evaluation sampled", {"registration": {"evaluation": {"temperature": 1.0}}},
     "registration.evaluation.temperature: registered 0.0, now 1.0"),
    ("longer", {"card": {"steps": 41}}, "card.steps: registered 40, now 41"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("attack", "line"), [row[1:] for row in ATTACKS], ids=[a[0] for a in ATTACKS]
)
def test_what_was_registered_binds(tmp_path, full, attack, line):
    """After the first step nothing that a verdict rests on may differ; each difference is named."""
    run(full, tmp_path, "first")

    with pytest.raises(RunError) as caught:
        run(changed(full, **attack), tmp_path, "second")

    said = str(caught.value).splitlines()
    assert any(one.startswith(line) for one in said)
    assert "no amendment says so" in said[-1]
    assert run(full, tmp_path, "third").verdict is Verdict.REFUTED


def test_words_do_not_bind(tmp_path, full):
    """A title, a reason or a longer budget can be corrected: no result rests on it."""
    run(full, tmp_path, "first")
    other = changed(
        full,
        card={"title": "Another", "budget": {"max_wall_minutes": 60.0}},
        registration={"settled": []},
    )

    assert run(other, tmp_path, "second").sentence == "it is so"


def test_an_edited_component_is_a_difference(full):
    """By the name of the component."""
    was = binding_document(full)
    assert list(differences(was, was)) == []
    now = {**was, "components": {"estimator mine": "1" * 64}}
    assert [place for place, _, _ in differences(was, now)] == ["components.estimator mine"]


def amended(full, root, seen, **patch):
    """The attack of the moved margin as an amendment that says what had been seen."""
    lines = Registered(full, root).record.lines()
    latest = [line for line in lines if "sha256" in line.facts][-1].facts["sha256"]
    amends = {"sha256": latest, "reason": "a typing mistake", "results_seen": seen}
    return changed(full, card=RULE, registration={"amends": amends, **patch})


def test_an_honest_amendment_before_any_result_is_part_of_the_plan(tmp_path, full):
    """The verdict mentions it, and is an ordinary one."""
    Registered(full, tmp_path).bind()

    found = run(amended(full, tmp_path, "none"), tmp_path, "first")

    assert found.sentence == "it is so; amended (a typing mistake), seen: none"


def test_an_amendment_after_the_outcome_is_post_hoc(tmp_path, full):
    """In the sentence of every verdict that follows, with the outcome that had been seen."""
    run(full, tmp_path, "first")
    other = amended(full, tmp_path, "outcomes")

    found = run(other, tmp_path, "second", found=decision(Verdict.VALIDATED, 0.02))

    assert "POST HOC: amended (a typing mistake), seen: outcomes" in found.sentence
    assert "attempt 1; found before: REFUTED" in found.sentence


@pytest.mark.parametrize(("stage", "seen"), [("gates", "none"), ("outcomes", "gates")])
def test_an_amendment_can_not_say_less_than_the_record(tmp_path, full, stage, seen):
    """After training has started gates have been seen, after a decision outcomes."""
    bound = Registered(full, tmp_path)
    bound.bind()
    bound.attempt("first", redrawn=False, trained=False)
    if stage == "outcomes":
        bound.decided(decision())

    with pytest.raises(RunError, match=f"results_seen is '{seen}', but the record has {stage}"):
        Registered(amended(full, tmp_path, seen), tmp_path).bind()


def test_an_amendment_of_something_else_is_refused(tmp_path, full):
    """A copied amendment names another registration."""
    run(full, tmp_path, "first")
    amends = {"sha256": "0" * 64, "reason": "copied", "results_seen": "outcomes"}

    with pytest.raises(RunError, match="amends names another registration"):
        Registered(changed(full, card=RULE, registration={"amends": amends}), tmp_path).bind()


def test_drawing_until_it_fits_is_counted_and_ends(tmp_path, full):
    """Earlier outcomes stand in the sentence, and beyond the registered number nothing is spent.

    A resume is no new draw.
    """
    run(full, tmp_path, "first")
    Registered(full, tmp_path).attempt("resumed", redrawn=False, trained=False)
    second = run(full, tmp_path, "second", redrawn=True, found=decision(estimate=-0.055))
    third = run(
        full, tmp_path, "third", redrawn=True, found=decision(Verdict.INCONCLUSIVE, estimate=-0.04)
    )

    assert second.sentence == "it is so; attempt 2; found before: REFUTED"
    assert third.sentence == "it is so; attempt 3; found before: REFUTED, REFUTED"
    with pytest.raises(RunError, match="was drawn 3 times, max_runs is 3"):
        Registered(full, tmp_path).refuse_beyond("fourth")
    Registered(full, tmp_path).refuse_beyond("third")  # its second worker


def test_an_unchanged_rerun_leaves_no_line(tmp_path, full):
    """It trains nothing and finds the same; two workers of a run are one attempt."""
    run(full, tmp_path, "first")
    bound = Registered(full, tmp_path)
    before = bound.head()

    bound.bind()
    bound.attempt("second", redrawn=False, trained=True)
    bound.attempt("first", redrawn=False, trained=False)
    bound.decided(decision())

    assert bound.head() == before
    assert [line.kind for line in bound.record.lines()] == ["registered", "started", "decided"]


def keep(root, count):
    """The first lines of the record alone."""
    path = root / "record.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))


def edit(root, old, new):
    """One place of the record, exchanged."""
    path = root / "record.jsonl"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def forge(root):
    """The registered document made to say what is wanted now."""
    (path,) = root.glob("registered/*/*.json")
    path.write_text(path.read_text().replace("-0.05", "-0.15"))


@pytest.mark.parametrize(
    ("attack", "line"),
    [
        (lambda root: (root / "record.jsonl").unlink(), "lines were removed"),
        (lambda root: keep(root, 0), "lines were removed"),
        (lambda root: edit(root, '"REFUTED"', '"VALIDATED"'), None),
        (lambda root: edit(root, '"kind":"registered"', '"kind":"noted"'), "does not continue"),
        (forge, "is gone or was edited"),
    ],
    ids=["deleted", "truncated", "last_line", "first_line", "document"],
)  # fmt: skip
def test_a_store_that_was_worked_over_decides_nothing(tmp_path, full, attack, line):
    """A removed record, lines taken away, a line or the registered document edited.

    The last line has none after it: an edit of it shows against a head that was published.
    """
    run(full, tmp_path, "first")
    head = Registered(full, tmp_path).head()
    attack(tmp_path)

    other = changed(full, card=RULE) if line == "is gone or was edited" else full
    if line is None:
        assert Registered(full, tmp_path).head() != head
        return
    with pytest.raises(HarnessError, match=line):
        run(other, tmp_path, "second")


def test_two_stores_have_two_records(tmp_path, full):
    """A copied store goes on from its own lines; its head shows where the two part."""
    run(full, tmp_path / "one", "first")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    run(full, tmp_path / "two", "second", redrawn=True, found=decision(estimate=0.0))

    one, two = (Registered(full, tmp_path / name) for name in ("one", "two"))
    assert two.record.lines()[: one.head()[0]] == one.record.lines()
    assert one.head() != two.head()


def test_a_clock_that_is_set_back_changes_no_order(tmp_path, full, monkeypatch):
    """Lines are ordered by their chain; the time is what the clock said."""
    run(full, tmp_path, "first")

    class Earlier:
        @staticmethod
        def now(zone):
            from datetime import datetime

            return datetime(1999, 1, 1, tzinfo=zone)

    monkeypatch.setattr("harness.store.record.datetime", Earlier)
    found = run(full, tmp_path, "second", redrawn=True, found=decision(estimate=0.0))

    lines = Registered(full, tmp_path).record.lines()
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1].at.startswith("1999")
    assert "found before: REFUTED" in found.sentence


def test_a_broken_record_is_a_store_error(tmp_path, full):
    """Named with its file, so that a reader finds it."""
    run(full, tmp_path, "first")
    edit(tmp_path, '"n":2', '"n":3')

    with pytest.raises(StoreError, match=r"record\.jsonl: line 2 is numbered 3"):
        Registered(full, tmp_path).head()
