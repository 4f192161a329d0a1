import dataclasses
import hashlib
import statistics
from pathlib import Path

import numpy as np
import pytest

from harness.audit import audit, baseline_correctness, forecast, pins, reference_correctness
from harness.errors import CardError, RunError
from harness.methods import fit_tfidf, softmax_loo_weights
from harness.training.streams import data_order


def test_installed_packages_equal_their_manifests(experiment, cards_dir):
    """What is installed here is what the registration pins, every file of it."""
    from harness.audit.probes import pins as probe

    evidence = probe.collect(experiment, cards_dir)
    for package, files in evidence.packages.items():
        pinned = experiment.registration.pins
        assert files.version == pinned.packages[package]
        assert [] == pins.manifest_problems(package, files, pinned.manifest_sha256[package])
        assert len(files.listed) > 100


@pytest.fixture(name="site")
def _site(tmp_path, monkeypatch):
    """A package of two files in a site-packages of its own, with its manifest."""
    from harness.audit.probes import pins as probe

    folder = tmp_path / "site" / "pkg"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("a = 1\n")
    (folder / "b.py").write_text("b = 2\n")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  pkg/{path.name}"
        for path in sorted(folder.iterdir())
    ]
    manifest = tmp_path / "pkg.sha256"
    manifest.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(probe, "_installed", lambda _: ("1.0", tmp_path / "site"))
    return folder


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "b.py").write_text("b = 3\n"), "1 file(s) changed"),
        (lambda folder: (folder / "b.py").unlink(), "1 file(s) missing"),
        (lambda folder: (folder / "c.py").write_text(""), "1 file(s) not in the manifest"),
    ],
    ids=["changed", "missing", "extra"],
)
def test_a_spoiled_package_is_noticed(site, tmp_path, spoil, words):
    """A file that was changed, removed or added after installation is named."""
    from harness.audit.probes import pins as probe

    digest = hashlib.sha256((tmp_path / "pkg.sha256").read_bytes()).hexdigest()
    before = probe.package_files("pkg", tmp_path, "pkg.sha256")
    spoil(site)
    (line,) = pins.manifest_problems(
        "pkg", probe.package_files("pkg", tmp_path, "pkg.sha256"), digest
    )

    assert [] == pins.manifest_problems("pkg", before, digest)
    assert words in line


def test_a_manifest_that_is_none_is_refused(tmp_path):
    """A line that is no hash and path is an error with its number."""
    from harness.audit.probes import pins as probe

    (tmp_path / "m.sha256").write_text("not a hash\n")

    with pytest.raises(CardError, match=r"m\.sha256: line 1 is 'not a hash'"):
        probe.read_manifest(tmp_path / "m.sha256")


def test_a_missing_package_and_file_are_none():
    """What is not there has no version and no hash."""
    from harness.audit.probes import pins as probe

    assert (None, None) == probe._installed("no-such-package-anywhere")
    assert probe.file_sha256(Path("/nonexistent/file")) is None


def test_baseline_path_is_the_stock_cookbooks(experiment):
    """Datums bit for bit, loss and gradients within the card's tolerances."""
    from harness.audit.probes import baseline_correctness as probe

    evidence = probe.collect(experiment)
    finding = baseline_correctness.check(
        baseline_correctness.BaselineEvidence.of(evidence.plain()), experiment
    )

    assert finding.ok, finding.message
    assert 64 == evidence.datums
    assert 2 <= evidence.zero_variance_groups < 8
    assert evidence.path.parameter_gradient.n > 1000
    assert evidence.path.parameter_gradient.largest_value > 1.0


@pytest.mark.parametrize("estimator", ["rloo", "group_std"])
def test_another_estimator_is_not_the_cookbooks(experiment, monkeypatch, estimator):
    """Leave-one-out means or a division by std differ from what the card calls its baseline."""
    from harness.audit.probes import baseline_correctness as probe
    from harness.methods import advantages

    others = {
        "rloo": advantages.rloo,
        "group_std": lambda rewards: advantages.group_std(rewards, 1, 1e-6),
    }
    monkeypatch.setattr(advantages, "group_mean", others[estimator])
    finding = baseline_correctness.check(probe.collect(experiment), experiment)

    assert "advantages: differs by" in finding.message
    assert "gradient by parameters: differs by" in finding.message


def test_datums_that_differ_are_named(experiment, monkeypatch):
    """Behaviour log-probs that are off by one position are found in every datum."""
    from harness.audit.probes import baseline_correctness as probe

    stock = probe.step_data

    def shifted(groups, advantages):
        return [
            dataclasses.replace(
                datum,
                loss_fn_inputs={
                    **datum.loss_fn_inputs,
                    "logprobs": np.roll(datum.loss_fn_inputs["logprobs"].to_numpy(), 1),
                },
            )
            for datum in stock(groups, advantages)
        ]

    monkeypatch.setattr(probe, "step_data", shifted)
    finding = baseline_correctness.check(probe.collect(experiment), experiment)

    assert "64 of 64 datums differ from the stock cookbook's, bound 0: datum 0: logprobs" in (
        finding.message
    )


def test_gs1_agrees_with_the_independent_reference(experiment, task, cards_dir):
    """Advantages, loss and gradients within the card's tolerances for every reward pattern."""
    from harness.audit.probes import reference_correctness as probe

    evidence = probe.collect(experiment, task, cards_dir)
    finding = reference_correctness.check(
        reference_correctness.ReferenceEvidence.of(evidence.plain()), experiment
    )

    assert finding.ok, finding.message
    assert [["grpo_gs8_seed0"], ["gs1_seed0"]] == [c.arms for c in evidence.computations]
    for found in evidence.computations:
        assert {"all equal", "one right", "random"} == set(found.patterns)
        assert found.patterns["random"].logprob_gradient.largest_value > 0.5
        assert found.patterns["all equal"].advantages.largest_value < 1e-12


@pytest.mark.parametrize("mistake", ["own reward", "uniform", "tau"])
def test_another_baseline_is_not_the_references(experiment, task, cards_dir, monkeypatch, mistake):
    """A baseline that sees its own reward, weighs evenly or at another tau is found out."""
    from harness.audit.probes import reference_correctness as probe
    from harness.methods import advantages, kernels

    def own_reward(rewards_P, weights_P_P):
        weights = (weights_P_P + np.eye(len(rewards_P)) / 63) / (1 + 1 / 63)
        return rewards_P - weights @ rewards_P

    true_weights = kernels.softmax_loo_weights
    if mistake == "own reward":
        monkeypatch.setattr(advantages, "gs1", own_reward)
    elif mistake == "uniform":
        monkeypatch.setattr(kernels, "softmax_loo_weights", lambda s, _: true_weights(s, 1e6))
    else:
        monkeypatch.setattr(
            kernels, "softmax_loo_weights", lambda s, tau: true_weights(s, tau * 1.01)
        )
    finding = reference_correctness.check(probe.collect(experiment, task, cards_dir), experiment)

    assert "rewards random: advantages: differs by" in finding.message
    assert "rewards random: gradient by parameters: differs by" in finding.message


def test_a_reference_must_be_there_and_whole(tmp_path):
    """A missing file, or one without the functions, is one clear line."""
    from harness.audit.probes.reference_correctness import load_reference

    (tmp_path / "r.py").write_text("def loss(): ...\n")

    with pytest.raises(CardError, match=r"r\.py: lacks advantages, loss_gradient"):
        load_reference(tmp_path / "r.py")
    with pytest.raises(CardError, match=r"gone\.py: no such file"):
        load_reference(tmp_path / "gone.py")


def test_forecast_is_of_the_prompts_that_training_draws(experiment, task):
    """The figure equals a computation by hand on the first 192 prompts of the fixed order."""
    from harness.audit.probes import forecast as probe

    evidence = probe.collect(experiment, task)
    arm = evidence.arms[0]
    kernel = experiment.arm("gs1_seed0").kernel
    order = data_order(experiment.registration.training.data_order_seed, len(task.train))
    fitted = fit_tfidf([problem.question for problem in task.train], kernel)
    contributors = []
    for step in range(3):
        batch = [task.train[index].question for index in order[64 * step : 64 * (step + 1)]]
        weights = softmax_loo_weights(fitted.similarity(batch), kernel.tau)
        contributors.extend(1.0 / (row @ row) for row in weights)

    assert 192 == arm.prompts
    assert statistics.median(contributors) == pytest.approx(arm.registered.contributors_median)
    assert len(arm.registered.gaps) == experiment.registration.forecast.repeats
    assert forecast.ForecastEvidence.of(evidence.plain()) == evidence


def test_forecast_is_the_same_every_time(experiment, task):
    """Simulated rewards come from a named seed."""
    from harness.audit.probes import forecast as probe

    assert probe.collect(experiment, task) == probe.collect(experiment, task)


def test_a_huge_tau_is_forecast_to_fail_both_gates(experiment):
    """With tau near infinity contributors are P - 1 and the baseline is the plain mean."""
    from harness.audit.probes import forecast as probe

    similarities = [np.random.default_rng(0).random((64, 64))]
    (kernel,) = (arm.kernel for arm in experiment.arms if arm.kernel is not None)
    huge = kernel.model_copy(update={"tau": 1e9})
    point = probe.with_kernel(huge, similarities, np.array([[1.0, 0.0] * 32]))

    assert 63.0 == pytest.approx(point.contributors_median)
    assert point.gaps[0] < 1e-9


def test_simulated_rewards_have_the_registered_mean(experiment):
    """Rewards are 0 or 1 with the mean that the registration expects."""
    from harness.audit.probes import forecast as probe

    rewards = probe.simulated_rewards(experiment.registration.forecast, "arm", 2000)

    assert {0.0, 1.0} == set(np.unique(rewards))
    assert experiment.registration.forecast.reward_mean == pytest.approx(rewards.mean(), abs=0.01)


def test_audit_reads_everything_and_samples_by_seed(experiment, task):
    """All labels are read; the bound is applied to 100 of each split, the same every time."""
    from harness.audit.probes import audit as probe

    evidence = probe.collect(experiment, task)

    assert len(task.train) + len(task.test) == evidence.labels_checked
    assert {"train": 100, "test": 100} == {k: len(v) for k, v in evidence.sampled.items()}
    assert evidence == audit.AuditEvidence.of(probe.collect(experiment, task).plain())


def test_audit_finds_a_leaked_item_and_a_wrong_label(experiment, task):
    """A test question that is a train question, and a gold that its solution does not reach."""
    from harness.audit.probes import audit as probe

    leaked = dataclasses.replace(task.test[0], question=task.train[7].question.upper())
    wrong = dataclasses.replace(task.test[1], gold="123456")
    spoiled = dataclasses.replace(task, test=(leaked, wrong, *task.test[2:]))
    evidence = probe.collect(experiment, spoiled)

    assert [(leaked.id, task.train[7].id)] == evidence.overlaps
    assert [wrong.id] == [id for id, _ in evidence.label_errors]


def test_probes_leave_nothing_behind(live, experiment, task):
    """The throw-away store is gone when the arms are."""
    from harness.audit.probes.arms import throw_away_arms

    with throw_away_arms(live.service, live.adapter, experiment, task) as contexts:
        entry = contexts["gs1_seed0"].entry
        entry.publish("checkpoint", {"version": 1})
        assert entry.folder.exists()

    assert not entry.folder.exists()


def test_a_cosine_kernel_is_forecast_without_a_tau(experiment):
    """It has no grid of temperatures, and says so instead of a tau."""
    from harness.audit.probes import forecast as probe

    (kernel,) = (arm.kernel for arm in experiment.arms if arm.kernel is not None)
    cosine = kernel.model_copy(update={"tau": None, "weighting": "cosine"})
    arm = dataclasses.replace(next(a for a in experiment.arms if a.kernel), kernel=cosine)
    questions = [f"{index} pears and {index % 5} plums" for index in range(300)]
    found = probe.forecast_arm(arm, experiment, questions)

    assert found.registered.tau is None
    assert found.grid == []
    assert 1.0 < found.registered.contributors_median < arm.groups_per_batch


def test_exchanged_roles_are_named(experiment):
    """A baseline with the treatment's estimator can't be compared with the stock cookbook."""
    from harness.audit.probes.baseline_correctness import stock_arm

    roles = {"treatment": "baseline", "baseline": "treatment"}
    arms = [
        arm.model_copy(update={"role": roles[arm.role]}) for arm in experiment.registration.arms
    ]
    registration = experiment.registration.model_copy(update={"arms": arms})

    with pytest.raises(RunError, match=r"gs1_seed0 has the role baseline .* roles exchanged"):
        stock_arm(dataclasses.replace(experiment, registration=registration))
