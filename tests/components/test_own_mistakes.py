"""A mistake in a component of one's own turns an item red that names it."""

import os
from dataclasses import dataclass

import own_experiment
import pytest
from own_experiment import mini, source

from harness.audit.decided import limit_problems
from harness.cards import load_experiment
from harness.decisions import Criterion, decide
from harness.errors import CardError, HarnessError
from harness.protocol.run import CardRun


@dataclass(frozen=True)
class Planted:
    """An edit of a component file, the preflight that it turns red, and what that says."""

    name: str
    file: str
    edit: tuple[str, str]
    preflight: str
    words: str


MISTAKES = [
    Planted(
        "advantages with the other sign", "running_mean",
        ("(rewards_P - baselines_P)[:, None]", "(baselines_P - rewards_P)[:, None]"),
        "reference_correctness", "rewards random: gradient by parameters: cosine -1",
    ),
    Planted(
        "own reward in the baseline, of function and reference alike", "running_mean",
        ("near * near + ", "near * near + 0.1 * rewards_P[len(baselines_P)] + "),
        "reference_correctness", "advantages: differs by",
    ),
    Planted(
        "weights whose rows do not sum to 1", "length_kernel",
        ("return weights_P_P / weights_P_P.sum(axis=1, keepdims=True)", "return weights_P_P"),
        "reference_correctness", "sum to",
    ),
    Planted(
        "a kernel that sees its own prompt", "length_kernel",
        ("np.fill_diagonal(weights_P_P, 0.0)", "pass"),
        "reference_correctness", "gives its own reward the weight 0",
    ),
    Planted(
        "another width", "length_kernel",
        ("lengths_P) / settings.words", "lengths_P) / (2.0 * settings.words)"),
        "reference_correctness", "differs by",
    ),
    Planted(
        "a preflight that breaks", "checks", ("min(words)", "words[10**9]"),
        "lengths_differ", "preflight lengths_differ raised IndexError",
    ),
    Planted(
        "a preflight that finds something", "checks",
        ("evidence.shortest < evidence.longest", "evidence.shortest > evidence.longest"),
        "lengths_differ", "choose another kernel",
    ),
    Planted(
        "a method that always validates", "checks",
        ("return Interval(mean, mean - half,", "return Interval(1, 1, 1, n) or (mean,"),
        "forecast", "can't be REFUTED",
    ),
    Planted(
        "a method that breaks", "checks",
        ("mean, n = float(sample.z_N.mean()), sample.z_N.size", "mean, n = 1 / 0, 1"),
        "forecast", "method paired_normal raised ZeroDivisionError",
    ),
    Planted(
        "a gate of no metric", "checks", ("def baseline_spread(", "def baseline_spreads("),
        "forecast", "did you mean 'baseline_spreads'?",
    ),
]  # fmt: skip


def preflighted(folder, preflight, **files):
    """What a preflight says of the experiment with these component files, in its own process."""
    test_file, scale = own_experiment.build(folder, **files)
    card = test_file.parent / "cards" / f"{mini.CARD}.json"
    experiment = load_experiment(card, str(scale))
    run = CardRun(experiment, card, folder / "runs", False, None, os.getpid(), "a")
    try:
        return run.preflight(preflight)
    finally:
        run.close()


@pytest.mark.parametrize("preflight", ["reference_correctness", "lengths_differ", "forecast"])
def test_without_a_mistake_nothing_is_red(tmp_path, preflight):
    """The same preflights pass on the components as they are."""
    finding = preflighted(tmp_path, preflight)

    assert finding.ok, finding.message


@pytest.mark.parametrize("planted", MISTAKES, ids=lambda planted: planted.name)
def test_a_mistake_is_named(tmp_path, planted):
    """By the preflight that holds the component to its reference, or tries it."""
    text = source(planted.file)
    old, new = planted.edit
    assert old in text

    try:
        said = preflighted(tmp_path, planted.preflight, **{planted.file: text.replace(old, new)})
        said = said.message
    except HarnessError as error:
        said = str(error)

    assert planted.words in said


def test_limits_are_held_to_the_reference(tmp_path):
    """A half-width that is too small decides nothing: the reference says so, naming both limits."""
    narrow = source("checks").replace("half *= float(", "half *= 0.5 * float(")
    test_file, scale = own_experiment.build(tmp_path, checks=narrow)
    card = test_file.parent / "cards" / f"{mini.CARD}.json"
    experiment = load_experiment(card, str(scale))
    stated = experiment.rule.criteria[0]
    criterion = Criterion.resolved(stated, experiment.rule, experiment.components)
    items = [f"item{i}" for i in range(100)]
    scores = {
        "treatment": {item: float(i % 3 == 0) for i, item in enumerate(items)},
        "baseline": {item: float(i % 4 == 0) for i, item in enumerate(items)},
    }
    outcome = decide(criterion, scores, items)

    problems = limit_problems(criterion, outcome, scores, items, None)

    assert ["lower limit", "upper limit"] == [line.split(": ")[1][:11] for line in problems]
    assert all("its reference makes" in line for line in problems)


@pytest.mark.parametrize(
    ("file", "old", "new", "line"),
    [
        ("running_mean", "import Field", "import Feild", "can't be run (ImportError"),
        ("running_mean", "def one_by_one(", "def one_by_one)(", "no Python (SyntaxError"),
        ("running_mean", "def running_mean(", "def rloo(", "'rloo' is declared already"),
        ("running_mean", "def running_mean(", "def runing_mean(", "did you mean 'runing_mean'?"),
        ("running_mean", "from pydantic", "import checks2\nfrom pydantic", "list checks2.py"),
        ("running_mean", "near: float", "nearby: float", "nearby is missing"),
        ("length_kernel", "def of_one_length(", "def of_a_length(", "did you mean 'of_a_length'?"),
        ("checks", "def lengths_differ(", "def length_differs(", "did you mean 'length_differs'?"),
    ],
)  # fmt: skip
def test_a_component_that_does_not_fit_is_refused_at_load(tmp_path, file, old, new, line):
    """Before anything runs, in one line with the nearest name."""
    text = source(file)
    assert old in text
    test_file, scale = own_experiment.build(tmp_path, **{file: text.replace(old, new)})
    (test_file.parent / "checks2.py").write_text("")
    card = test_file.parent / "cards" / f"{mini.CARD}.json"

    with pytest.raises(CardError) as caught:
        load_experiment(card, str(scale))

    assert line in str(caught.value)
