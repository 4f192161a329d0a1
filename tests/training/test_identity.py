import dataclasses

import pytest
from service_doubles import CARD, GS1

from harness.cards import Arm, load_experiment
from harness.cards.card import Schedule
from harness.cards.registration import (
    ArmSpec,
    EvaluationSpec,
    GradientProbe,
    SearchSpec,
    TrainingSpec,
)
from harness.components import Components
from harness.store import content_key
from harness.training.identity import (
    arm_parts,
    base_parts,
    evaluation_parts,
    preflight_parts,
    service_identity,
    source_sha256,
)
from harness.training.service import ServiceAddress

SEARCH_CARD = CARD.with_name("tailrl_lag8_sec_search_4b.json")
SERVICE = {"kind": "embedded", "base_weights_sha256": "0" * 64}

# every field with another value that it may have
TRAINING = {
    "renderer": "role_colon",
    "few_shot": "standard",
    "max_tokens": 17,
    "temperature": 0.5,
    "format_coefficient": 0.7,
    "adam": {"beta1": 0.5},
    "train_mlp": False,
    "train_attn": False,
    "train_unembed": False,
    "data_order_seed": 9,
    "pilot_steps": 1,
    "checkpoint_every": 1,
    "reuse_prompts": True,
    "drop_zero_variance_groups": True,
}
ARM = {
    "name": "renamed",
    "role": "ablation",
    "seed": 9,
    "group_size": 3,
    "groups_per_batch": 5,
    "steps": 4,
    "learning_rate": 0.5,
    "estimator": "uniform_loo",
    "kernel": None,
    "loss": "ppo",
    "loss_config": {"clip_low_threshold": 0.8},
    "lag": 1,
    "look": 2,
    "estimator_config": {"quantile": 0.5},
    "loss_backends": ("custom", "service"),
    "components": Components({}),
}
EVALUATION = {"max_tokens": 17, "temperature": 0.5, "answer": "boxed", "samples": 8}

RUNTIME = {"pilot_steps", "checkpoint_every", "role", "look", "components"}
# they came when results were already stored, and are in no key at their defaults
LATER = {"estimator_config", "loss_backends", "samples", "task"}

NOT_CLASSED = (
    "{model}.{names} is not classed. Either it changes what is computed: give it another value in "
    "the table of this test, and stored results will be made anew when it changes. Or it does not: "
    "list it as a runtime field in harness/training/identity.py, and in RUNTIME and the table here."
)


@pytest.mark.parametrize(
    ("model", "fields", "table"),
    [
        ("TrainingSpec", TrainingSpec.model_fields, TRAINING),
        ("EvaluationSpec", EvaluationSpec.model_fields, EVALUATION),
        ("Arm", [field.name for field in dataclasses.fields(Arm)], ARM),
        # a schedule is taken apart into the arm's own fields
        ("ArmSpec", set(ArmSpec.model_fields) - {"schedule"}, ARM),
        ("Schedule", Schedule.model_fields, ARM),
    ],
)
def test_every_field_is_classed(model, fields, table):
    """A field that nobody has thought about is in no table."""
    unknown = sorted(set(fields) - set(table))

    assert not unknown, NOT_CLASSED.format(model=model, names=", ".join(unknown))


def arm_key(experiment, service=SERVICE, **changes):
    """The key of the GS1 arm with some of its fields changed."""
    arm = dataclasses.replace(experiment.arm(GS1), **changes)
    return content_key(arm_parts(experiment, arm, service))


def evaluation_key(experiment, service=SERVICE):
    """The key of the GS1 arm's evaluation."""
    policy = arm_parts(experiment, experiment.arm(GS1), service)
    return content_key(evaluation_parts(experiment, policy))


def base_key(experiment, service=SERVICE):
    """The key of the base model's evaluation."""
    return content_key(evaluation_parts(experiment, base_parts(experiment, service)))


def with_training(experiment, **changes):
    """The experiment with changes in its training."""
    if "adam" in changes:
        adam = experiment.registration.training.adam.model_copy(update=changes["adam"])
        changes = {"adam": adam}
    training = experiment.registration.training.model_copy(update=changes)
    return with_registration(experiment, training=training)


def with_registration(experiment, **changes):
    """The experiment with changes in its registration."""
    registration = experiment.registration.model_copy(update=changes)
    return dataclasses.replace(experiment, registration=registration)


def with_card(experiment, **changes):
    """The experiment with changes in its card."""
    return dataclasses.replace(experiment, card=experiment.card.model_copy(update=changes))


@pytest.mark.parametrize("field", sorted(TRAINING))
def test_training_fields_decide_an_arms_key_unless_runtime(small, field):
    """All of TrainingSpec but checkpoint cadence and pilot length retrains."""
    changed = with_training(small, **{field: TRAINING[field]})

    assert changed.registration.training != small.registration.training
    assert (arm_key(changed) == arm_key(small)) is (field in RUNTIME)


@pytest.mark.parametrize("field", sorted(ARM))
def test_arm_fields_decide_its_key_unless_runtime(small, field):
    """All of Arm but its role retrains; the name is in the seeds of its rollouts."""
    assert getattr(small.arm(GS1), field) != ARM[field]
    assert (arm_key(small, **{field: ARM[field]}) == arm_key(small)) is (field in RUNTIME)


def test_fields_that_came_later_leave_stored_keys_alone(small):
    """At their defaults they are in no key, so what was stored before them is still found."""
    for parts in (arm_parts(small, small.arm(GS1), SERVICE)["arm"], evaluation_fields(small)):
        assert not parts.keys() & LATER
    sampled = small.registration.evaluation.model_copy(update={"samples": 8})
    assert evaluation_fields(with_registration(small, evaluation=sampled))["samples"] == 8


def evaluation_fields(experiment):
    """The evaluation's part of an evaluation's key."""
    return evaluation_parts(experiment, {})["evaluation"]


def test_a_gradient_probe_decides_an_arms_key(small):
    """It changes no weight, but stored steps without its figures can't stand in for others."""
    probed = with_registration(small, gradient_probe=GradientProbe(groups=2, every=1))
    rarer = with_registration(small, gradient_probe=GradientProbe(groups=2, every=5))

    assert len({arm_key(small), arm_key(probed), arm_key(rarer)}) == 3


@pytest.mark.parametrize("beta", ["beta1", "beta2", "eps", "weight_decay", "grad_clip_norm"])
def test_every_setting_of_adam_decides_an_arms_key(small, beta):
    """Nested settings are in the key one by one."""
    assert arm_key(with_training(small, adam={beta: 0.125})) != arm_key(small)


@pytest.mark.parametrize(
    "field", ["ngram_range", "lowercase", "sublinear_tf", "stop_words", "tau", "weighting"]
)
def test_every_setting_of_the_kernel_decides_an_arms_key(small, field):
    """Another kernel weighs other prompts."""
    values = {
        "ngram_range": (1, 2),
        "lowercase": False,
        "sublinear_tf": True,
        "stop_words": "english",
        "tau": 9.0,
        "weighting": "cosine",
    }
    kernel = small.arm(GS1).kernel.model_copy(update={field: values[field]})

    assert arm_key(small, kernel=kernel) != arm_key(small)


@pytest.mark.parametrize("field", sorted(EVALUATION))
def test_evaluation_fields_decide_an_evaluations_key_and_no_arms(small, field):
    """Another way to evaluate evaluates anew, base and arms, and trains nothing."""
    evaluation = small.registration.evaluation.model_copy(update={field: EVALUATION[field]})
    changed = with_registration(small, evaluation=evaluation)

    assert evaluation_key(changed) != evaluation_key(small)
    assert base_key(changed) != base_key(small)
    assert arm_key(changed) == arm_key(small)


def data(experiment, **changes):
    """The experiment with another hash of a data file."""
    return with_registration(
        experiment, data=experiment.registration.data.model_copy(update=changes)
    )


def pins(experiment, **changes):
    """The experiment with other pins."""
    return with_registration(
        experiment, pins=experiment.registration.pins.model_copy(update=changes)
    )


def counted(experiment, part, n):
    """The experiment with another number of train ("dataset") or test ("eval") items."""
    stated = getattr(experiment.card, part).model_copy(update={"n_examples": n})
    return with_card(experiment, **{part: stated})


@pytest.mark.parametrize(
    ("change", "retrains", "evaluates", "evaluates_base"),
    [
        (lambda e: with_card(e, base_model="another"), True, True, True),
        (lambda e: with_card(e, lora_rank=4), True, True, False),
        (lambda e: data(e, train_sha256="f" * 64), True, True, False),
        (lambda e: counted(e, "dataset", 50), True, True, False),
        (lambda e: data(e, test_sha256="f" * 64), False, True, True),
        (lambda e: counted(e, "eval", 10), False, True, True),
        (lambda e: pins(e, packages={"tinker": "0.26.0"}), True, True, True),
        (lambda e: pins(e, references={}), False, False, False),
        (lambda e: with_training(e, renderer="role_colon"), True, True, True),
        (lambda e: with_training(e, few_shot="standard"), True, True, True),
        (lambda e: with_training(e, format_coefficient=0.9), True, True, False),
        (lambda e: with_card(e, title="another", decision_rule=None), False, False, False),
        (
            lambda e: with_card(e, budget=e.card.budget.model_copy(update={"gpu_hours": 0.5})),
            False,
            False,
            False,
        ),
        (lambda e: with_registration(e, settled=[], assumptions=[]), False, False, False),
    ],
    ids=[
        "base model",
        "lora rank",
        "train file",
        "train items",
        "test file",
        "test items",
        "packages",
        "references",
        "renderer",
        "few-shot",
        "format coefficient",
        "title and rule",
        "budget",
        "settled",
    ],
)
def test_what_makes_which_result_anew(small, change, retrains, evaluates, evaluates_base):
    """Whatever a result is computed from is in its key, and nothing else."""
    changed = change(small)

    assert (arm_key(changed) != arm_key(small)) is retrains
    assert (evaluation_key(changed) != evaluation_key(small)) is evaluates
    assert (base_key(changed) != base_key(small)) is evaluates_base


def test_the_margin_does_not_retrain(small):
    """Another margin, level or criterion decides anew on the same arms."""
    rule = small.card.decision_rule
    criterion = rule.criteria[0].model_copy(update={"margin": 0.5})
    changed = with_card(
        small, decision_rule=rule.model_copy(update={"criteria": [criterion], "alpha": 0.01})
    )

    assert arm_key(changed) == arm_key(small)
    assert evaluation_key(changed) == evaluation_key(small)


def test_the_service_is_part_of_every_key(small):
    """The embedded engine by its weights, a remote service by its address, never by its key."""
    remote = ServiceAddress("https://a.example", "remote", "tml-secret")
    other = ServiceAddress("https://b.example", "remote", "tml-secret")
    rekeyed = ServiceAddress("https://a.example", "remote", "tml-another")
    heavier = pins(small, base_weights_sha256="f" * 64)
    identities = [
        service_identity(small, None),
        service_identity(heavier, None),
        service_identity(small, remote),
        service_identity(small, other),
    ]

    for key in (arm_key, evaluation_key, base_key):
        assert len({key(small, service=identity) for identity in identities}) == 4
    assert service_identity(small, rekeyed) == service_identity(small, remote)
    assert "secret" not in str(identities)


def test_any_edit_of_the_source_renews_preflights(tmp_path):
    """Content, name and presence of a Python file count; what is no Python file does not."""
    package = tmp_path / "package"
    (package / "sub").mkdir(parents=True)
    (package / "a.py").write_text("x = 1\n")
    (package / "sub" / "b.py").write_text("y = 2\n")
    seen = [source_sha256(package)]

    (package / "notes.txt").write_text("no code\n")
    assert source_sha256(package) == seen[0]
    (package / "sub" / "b.py").write_text("y = 3\n")
    seen.append(source_sha256(package))
    (package / "sub" / "b.py").rename(package / "sub" / "c.py")
    seen.append(source_sha256(package))
    (package / "d.py").write_text("")
    seen.append(source_sha256(package))

    assert len(set(seen)) == 4


def test_preflights_depend_on_experiment_service_and_source(small):
    """Evidence vouches for one experiment, on one service, by one state of the code."""
    parts = preflight_parts(small, SERVICE)
    other = preflight_parts(dataclasses.replace(small, sha256="f" * 64), SERVICE)

    assert content_key(parts) != content_key(other)
    assert content_key(parts) != content_key(preflight_parts(small, {}))
    assert len(parts["source"]) == 64


SEARCH = {
    "syntax": "json",
    "max_turns": 3,
    "broken_reply": "floor",
    "session": {"default_k": 9},
    "selection": {"seed": 1},
    "world": {"seed": 2},
}


def searching(experiment, field):
    """The search experiment with another value of one field of its task."""
    search = experiment.registration.search
    value = SEARCH[field]
    if isinstance(value, dict):
        value = getattr(search, field).model_copy(update=value)
    return with_registration(experiment, search=search.model_copy(update={field: value}))


@pytest.fixture(scope="module", name="searches")
def _searches():
    return load_experiment(SEARCH_CARD, "embedded")


def search_keys(experiment):
    """The keys of an arm, of its evaluation and of the base model's."""
    arm = arm_parts(experiment, experiment.arms[0], SERVICE)
    base = evaluation_parts(experiment, base_parts(experiment, SERVICE))
    return [content_key(each) for each in (arm, evaluation_parts(experiment, arm), base)]


@pytest.mark.parametrize("field", SearchSpec.model_fields)
def test_every_setting_of_a_search_decides_arms_and_evaluations(searches, field):
    """Other episodes are other rollouts and other scores, the base model's included."""
    changed = searching(searches, field)

    assert not set(search_keys(changed)) & set(search_keys(searches))


def test_the_corpus_and_the_length_of_an_episode_decide_too(searches):
    """What is searched, and how far an episode may go."""
    others = [data(searches, corpus_sha256="f" * 64), with_card(searches, max_seq_len=999)]
    for changed in others:
        assert not set(search_keys(changed)) & set(search_keys(searches))


def test_word_problems_know_nothing_of_searches(small):
    """Their keys are what they were."""
    parts = arm_parts(small, small.arm(GS1), SERVICE) | evaluation_parts(small, {})
    searches = {"task", "search_version", "search", "corpus_sha256", "trajectory_tokens"}
    assert not parts.keys() & searches
