"""What must hold between the parts of an experiment: pure functions from models to problems."""

from collections import Counter
from collections.abc import Iterable

from pydantic import JsonValue

from harness.cards.card import Card, GateCheck
from harness.cards.experiment import Change, Experiment
from harness.cards.merge import changed_pointers
from harness.cards.registration import Registration


def experiment_problems(experiment: Experiment) -> list[str]:
    """Everything that does not fit between a card and its registration, as one-line problems."""
    card, registration = experiment.card, experiment.registration
    return [
        *arm_name_problems(card, registration),
        *batch_problems(card),
        *gate_problems([*gates_of(card), *registration.extra_gates]),
        *criterion_problems(card),
        *pilot_problems(card, registration),
        *kernel_problems(card, registration),
    ]


def gates_of(card: Card) -> list[GateCheck]:
    """The gates that the card declares, none if it says that they do not apply."""
    gate = card.activation_gate
    return list(gate.checks) if gate is not None and gate.applicable else []


def arm_name_problems(card: Card, registration: Registration) -> list[str]:
    """Card and registration name the same arms, each once, with one treatment and one baseline."""
    stated = [arm.name for arm in card.arms or ()]
    registered = [arm.name for arm in registration.arms]
    problems = [f"arms: {name!r} is named twice" for name in _twice([*stated])]
    if set(stated) != set(registered):
        problems.append(
            f"arms: the card names {sorted(stated)}, the registration {sorted(registered)}; "
            "name the same arms in both"
        )
    roles = {arm.role for arm in registration.arms}
    problems.extend(
        f"arms: no arm plays the {role}; give one arm that role in the registration"
        for role in ("treatment", "baseline")
        if role not in roles
    )
    return problems


def batch_problems(card: Card) -> list[str]:
    """Every arm makes its optimizer step of the card's batch size, for the card's steps."""
    problems = []
    for arm in card.arms or ():
        rollouts = arm.group_size * arm.groups_per_batch
        if rollouts != card.batch_size:
            problems.append(
                f"arm {arm.name}: group_size {arm.group_size} x groups_per_batch "
                f"{arm.groups_per_batch} = {rollouts} rollouts a step, but batch_size is "
                f"{card.batch_size}; make them equal"
            )
        if arm.steps != card.steps:
            problems.append(
                f"arm {arm.name}: steps {arm.steps}, but the card says {card.steps}; "
                "make them equal"
            )
    return problems


def gate_problems(gates: Iterable[GateCheck]) -> list[str]:
    """Every gate can come out both ways: it has a bound, and some value lies inside it."""
    problems = []
    for gate in gates:
        if gate.min is None and gate.max is None and not gate.one_of:
            problems.append(f"gate {gate.metric}: no min, max or one_of, so it can't fail; add one")
        if gate.min is not None and gate.max is not None and gate.min > gate.max:
            problems.append(
                f"gate {gate.metric}: min {gate.min} is above max {gate.max}, so nothing passes"
            )
    return problems


def criterion_problems(card: Card) -> list[str]:
    """Criteria have distinct ids, a real contrast, and bounds in order."""
    if card.decision_rule is None:
        return []
    criteria = card.decision_rule.criteria
    problems = [f"criterion {name!r} is named twice" for name in _twice([c.id for c in criteria])]
    for criterion in criteria:
        low, high = criterion.bounds
        if low >= high:
            problems.append(f"criterion {criterion.id}: bounds [{low}, {high}] hold no interval")
        if not any(criterion.weights.values()):
            problems.append(f"criterion {criterion.id}: every weight is 0, so it contrasts nothing")
        unknown = sorted(set(criterion.weights) - {"treatment", "baseline"})
        if unknown:
            problems.append(
                f"criterion {criterion.id}: weights for unknown roles {unknown}; "
                "use treatment and baseline"
            )
    return problems


def pilot_problems(card: Card, registration: Registration) -> list[str]:
    """The pilot is shorter than the run."""
    pilot = registration.training.pilot_steps
    if pilot < card.steps:
        return []
    return [f"training.pilot_steps is {pilot}, but the run has {card.steps} steps; make it shorter"]


def kernel_problems(card: Card, registration: Registration) -> list[str]:
    """A gs1 arm has one rollout a prompt, at least two prompts, a kernel and a temperature."""
    stated = {arm.name: arm for arm in card.arms or ()}
    problems = []
    for spec in registration.arms:
        arm = stated.get(spec.name)
        if spec.estimator != "gs1" or arm is None:
            continue
        if spec.kernel is None:
            problems.append(f"arm {spec.name}: estimator gs1 needs a kernel in the registration")
        elif spec.kernel.tau is None and arm.tau is None:
            problems.append(f"arm {spec.name}: no tau in card or registration; give one")
        if arm.groups_per_batch < 2:
            problems.append(f"arm {spec.name}: gs1 needs at least 2 prompts a step, not 1")
    return problems


def scale_problems(before: JsonValue, after: JsonValue, changes: Iterable[Change]) -> list[str]:
    """Every change that a scale makes is listed with a reason, and every listed change is made."""
    made = list(changed_pointers(before, after))
    listed = [change.pointer for change in changes]
    problems = [
        f"scale changes {pointer} without a reason; add it to changes"
        for pointer in made
        if not any(_under(pointer, parent) for parent in listed)
    ]
    problems.extend(
        f"scale lists a change of {parent} but does not change it; remove the line"
        for parent in listed
        if not any(_under(pointer, parent) for pointer in made)
    )
    return problems


def unresolved(document: JsonValue, at: str = "") -> list[str]:
    """JSON pointers of every text that starts with UNRESOLVED, in any case."""
    if isinstance(document, dict):
        return [p for key, value in document.items() for p in unresolved(value, f"{at}/{key}")]
    if isinstance(document, list):
        return [p for i, value in enumerate(document) for p in unresolved(value, f"{at}/{i}")]
    if isinstance(document, str) and document.strip().lower().startswith("unresolved"):
        return [at]
    return []


def _under(pointer: str, parent: str) -> bool:
    return pointer == parent or pointer.startswith(f"{parent}/")


def _twice(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
