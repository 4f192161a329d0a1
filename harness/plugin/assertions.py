"""Tests of the author's own in an experiment file: a plain assert that blocks, or that decides.

A function marked `preflight`, `gate` or `decision` that asks for none of the fixtures of the same
name is an assertion. One that is a preflight or a gate blocks whatever comes after it unless it
passed, selected or not; one that is a decision is a criterion whose outcome is pytest's, without an
error rate. Each runs once a process, for itself or for those that it blocks.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from harness.errors import CardError
from harness.plugin.collection import STAGES, SUBJECT, Subject, card_of, load
from harness.plugin.facts import Assertion
from harness.plugin.recording import facts_of

ASSERTED = pytest.StashKey["AssertedTest"]()
_TESTS = pytest.StashKey[dict[str, dict[str, "AssertedTest"]]]()

_NEEDS = {"gate": "pilot", "decision": "trained_arms"}
"""The fixture that an assertion of a stage stands on, whether it asks for it or not."""
_LATER = {
    "preflight": {"passed_preflights", "pilot", "passed_gates", "trained_arms", "arms", "rows"},
    "gate": {"passed_gates", "trained_arms", "arms", "rows"},
    "decision": set[str](),
}
"""Fixtures that wait for the assertions of a stage, and so can't be asked for by them."""


def inconclusive(reason: str) -> NoReturn:
    """Say in a decision that the data do not tell: the outcome is INCONCLUSIVE, for this reason."""
    raise pytest.xfail.Exception(reason)


@dataclass
class AssertedTest:
    """One assertion, and how it came out in this process.

    `error` is what it raised, None if it passed or has not run.
    """

    stage: str
    name: str
    function: Callable[..., object]
    parameters: Mapping[str, object]
    ran: bool = False
    error: BaseException | None = field(default=None, repr=False)

    @property
    def fact(self) -> Assertion:
        """What the verdict says of it."""
        source = inspect.getsource(self.function)
        return Assertion(self.stage, hashlib.sha256(source.encode()).hexdigest())

    def run(self, value_of: Callable[[str], object]) -> BaseException | None:
        """Run it, unless it has run; `value_of` gives the fixtures that it asks for."""
        if not self.ran:
            names = inspect.signature(self.function).parameters
            try:
                given = {name: value_of(name) for name in names if name not in self.parameters}
                self.function(**given, **self.parameters)
            except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
                self.error = error
            self.ran = True
        return self.error


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, obj: object
) -> Generator[None, object, object]:
    """Find the assertions of an experiment's file, also those that will not be selected."""
    made = yield
    if card_of(collector.path) is None:
        return made
    where = f"{collector.path.name}::{getattr(obj, '__name__', '')}"
    if isinstance(made, pytest.Class) and any(map(marked, (obj, *vars(obj).values()))):
        raise pytest.Collector.CollectError(
            f"{where}: a marked test stands in a class; write it as a function of the module"
        )
    for item in made if isinstance(made, list) else []:
        if isinstance(item, pytest.Function) and (test := asserted(item, where)):
            file_id = item.nodeid.partition("::")[0]
            item.stash[ASSERTED] = test
            collector.config.stash.setdefault(_TESTS, {}).setdefault(file_id, {})[test.name] = test
            facts_of(collector.config, file_id).assertions[test.name] = test.fact
            if needed := _NEEDS.get(test.stage):
                item.fixturenames.insert(0, needed)
    return made


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Say what each assertion speaks of, before it runs: of itself."""
    for item in items:
        card, test = card_of(item.path), item.stash.get(ASSERTED, None)
        if card is not None and test is not None:
            try:
                experiment = load(config, card)
            except CardError as error:
                raise pytest.UsageError(str(error)) from None
            subject = Subject(experiment.id, experiment.scale.name, test.stage, test.name, True)
            item.stash[SUBJECT] = subject
            item.user_properties.extend(subject.properties())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an assertion, or say again what it said when it blocked or let pass."""
    test = pyfuncitem.stash.get(ASSERTED, None)
    if test is None:
        return None
    if error := test.run(lambda name: pyfuncitem.funcargs[name]):
        raise error
    return True


def asserted(item: pytest.Function, where: str) -> AssertedTest | None:
    """The assertion that an item is, None if it is none.

    Raises:
        pytest.Collector.CollectError: it can't be run when it has to be.
    """
    if set(STAGES) & set(item.fixturenames) or not (stages := stages_of(item)):
        return None
    if len(stages) > 1:
        raise pytest.Collector.CollectError(
            f"{where} is marked {' and '.join(stages)}; a test speaks of one stage"
        )
    (stage,) = stages
    if inspect.iscoroutinefunction(item.obj):
        raise pytest.Collector.CollectError(f"{where} is a coroutine; write a plain function")
    names = list(inspect.signature(item.obj).parameters)
    late = _LATER[stage] & set(item.fixturenames)
    if late:
        late = late & set(names) or late
        raise pytest.Collector.CollectError(
            f"{where}: a {stage} asks for {', '.join(sorted(late))}, which comes after it; "
            "ask for less, or mark it as what comes later"
        )
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    # others run it too, from fixtures of the module
    definitions = item._fixtureinfo.name2fixturedefs
    narrow = sorted(
        name
        for name in names
        if name in definitions and definitions[name][-1].scope in ("function", "class")
    )
    if narrow and stage != "decision":
        raise pytest.Collector.CollectError(
            f"{where}: a {stage} asks for {', '.join(narrow)}, of one test's scope; "
            "use fixtures of module or session scope"
        )
    return AssertedTest(stage, item.name, item.obj, dict(parameters))


def stages_of(item: pytest.Function) -> list[str]:
    """The stages that a test is marked with, by itself or by its module."""
    return list(dict.fromkeys(m.name for m in item.iter_markers() if m.name in _LATER))


def marked(part: object) -> bool:
    """Whether a class, or what stands in it, is marked with a stage."""
    marks = getattr(part, "pytestmark", []) if callable(part) else []
    return any(mark.name in _LATER for mark in marks)


def tests_of(config: pytest.Config, file_id: str) -> Mapping[str, AssertedTest]:
    """The assertions of a test file, given by its node id, in the order of the file."""
    return config.stash.get(_TESTS, {}).get(file_id, {})


def failed(request: pytest.FixtureRequest, stage: str) -> dict[str, str]:
    """Run the assertions of a stage; what is wrong, by the name of each that did not pass."""
    tests = tests_of(request.config, request.node.nodeid).values()
    errors = {t.name: t.run(request.getfixturevalue) for t in tests if t.stage == stage}
    return {name: said(error) for name, error in errors.items() if error is not None}


def said(error: BaseException) -> str:
    """What an assertion says that did not pass, in pytest's own words."""
    text = str(error)
    if isinstance(error, pytest.skip.Exception):
        return f"skipped, and what did not run has not passed: {text}"
    if isinstance(error, AssertionError | pytest.fail.Exception | pytest.xfail.Exception):
        return text
    return f"{type(error).__name__}: {text}"
