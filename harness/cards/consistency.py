"""What must hold between the parts of an experiment: pure functions from models to problems."""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from pydantic import JsonValue

from harness.cards.card import Card, CriterionSpec, DecisionRule, GateCheck, Schedule
from harness.cards.experiment import Change, Experiment
from harness.cards.merge import changed_pointers
from harness.cards.registration import LOSS_SETTINGS, ArmSpec, OwnKernel, Registration
from harness.components import (
    Components,
    DeclaredKernel,
    Estimator,
    nearest,
    settings_problems,
)
from harness.errors import CardError
from harness.kernels.tfidf import Kernel
from harness.names import BASE, BY_ESTIMATE, POINT_THRESHOLDS

READ_BY = {
    "clusters": "clustered_t",
    "order_key": "paired_betting_cs",
    "log_events": "paired_empirical_bernstein",
}
"""What a rule may state for one method alone."""

NEVER_SILENT = frozenset({"learning_rate", "steps", "loss_backends"})
"""Fields of arms in which roles may differ if the registration's contrast says so, and else not."""


def experiment_problems(experiment: Experiment) -> list[str]:
    """Everything that does not fit between a card and its registration, as one-line problems."""
    card, registration = experiment.card, experiment.registration
    problems = [
        *arm_name_problems(card, registration),
        *schedule_problems(card, registration),
        *gate_problems(experiment.gates, {arm.role for arm in registration.arms}),
        *rule_problems(card, registration),
        *unread_problems(experiment),
        *pilot_problems(card, registration),
        *kernel_problems(card, registration),
        *estimator_problems(experiment),
        *preflight_problems(experiment),
        *drop_problems(card, registration),
        *loss_problems(registration),
        *tolerance_problems(card, registration),
        *lag_problems(registration),
        *measured_problems(card, registration),
        *power_problems(card, registration),
        *task_problems(experiment),
    ]
    # arms can be compared once each has a schedule, and looks once there is a rule
    return problems or [
        *seed_problems(experiment),
        *contrast_problems(experiment),
        *restoration_problems(experiment),
        *look_problems(experiment),
        *tuning_problems(experiment),
    ]


def arm_name_problems(card: Card, registration: Registration) -> list[str]:
    """Arms are named once each; to the arms that a card states only ablations may be added."""
    stated = [arm.name for arm in card.arms or ()]
    registered = [arm.name for arm in registration.arms]
    problems = [f"arms: {name!r} is named twice" for name in _twice(stated) + _twice(registered)]
    rule = card.decision_rule or registration.decision_rule
    weighed = {role for criterion in rule.criteria for role in criterion.weights} if rule else set()
    ablations = {arm.name for arm in registration.arms if arm.role not in weighed}
    if card.arms is not None and set(stated) != set(registered) - (ablations - set(stated)):
        problems.append(
            f"arms: the card names {sorted(stated)}, the registration {sorted(registered)}; "
            "name the same arms in both"
        )
    return problems


def schedule_problems(card: Card, registration: Registration) -> list[str]:
    """Every arm has one schedule, which makes the card's batch for the card's steps."""
    stated = {arm.name: arm.schedule() for arm in card.arms or ()}
    problems = []
    for spec in registration.arms:
        schedule = stated.get(spec.name, spec.schedule)
        if spec.name in stated and spec.schedule is not None:
            problems.append(f"arm {spec.name}: the card states its schedule; don't repeat it")
        if schedule is None:
            problems.append(f"arm {spec.name}: no schedule; the card states none, so register one")
            continue
        rollouts = schedule.group_size * schedule.groups_per_batch
        if rollouts != card.batch_size:
            problems.append(
                f"arm {spec.name}: group_size {schedule.group_size} x groups_per_batch "
                f"{schedule.groups_per_batch} = {rollouts} rollouts a step, but batch_size is "
                f"{card.batch_size}; make them equal"
            )
        if schedule.steps != card.steps:
            problems.append(
                f"arm {spec.name}: steps {schedule.steps}, but the card says {card.steps}; "
                "make them equal"
            )
    return problems


def gate_problems(gates: Iterable[GateCheck], roles: Collection[str]) -> list[str]:
    """Every gate can come out both ways: it has a bound, and some value lies inside it."""
    gates = list(gates)
    problems = [f"gate {name} is stated twice" for name in _twice(gate.metric for gate in gates)]
    for gate in gates:
        if gate.one_of is not None and (gate.min is not None or gate.max is not None):
            problems.append(
                f"gate {gate.metric}: one_of is of names, min and max of numbers; give one kind"
            )
        if gate.min is None and gate.max is None and not gate.one_of:
            problems.append(f"gate {gate.metric}: no min, max or one_of, so it can't fail; add one")
        if gate.min is not None and gate.max is not None and gate.min > gate.max:
            problems.append(
                f"gate {gate.metric}: min {gate.min} is above max {gate.max}, so nothing passes"
            )
        if unknown := sorted(set(gate.roles or ()) - set(roles)):
            problems.append(
                f"gate {gate.metric}: no arm plays {', '.join(unknown)}; the arms play "
                f"{', '.join(sorted(roles))}"
            )
    return problems


def rule_problems(card: Card, registration: Registration) -> list[str]:
    """One rule is stated; its criteria are real contrasts of roles that arms play."""
    rule = card.decision_rule or registration.decision_rule
    if rule is None:
        return ["no decision rule; the card states none, so register one"]
    problems = []
    if card.decision_rule is not None and registration.decision_rule is not None:
        problems.append("the card states its decision rule; don't register another")
    stated = [*rule.criteria, *registration.supporting]
    problems += [f"criterion {name!r} is named twice" for name in _twice(c.id for c in stated)]
    problems += combine_problems(rule)
    roles = {arm.role for arm in registration.arms}
    if BASE in roles:
        problems.append(f"role {BASE!r} is the untrained base model's; give the arm another")
    for criterion in stated:
        problems += criterion_problems(criterion, roles | {BASE})
    return problems


def unread_problems(experiment: Experiment) -> list[str]:
    """Whatever a rule states beside its criteria is read by a method that one of them names."""
    rule = experiment.card.decision_rule or experiment.registration.decision_rule
    if rule is None:
        return []
    stated = [*rule.criteria, *experiment.registration.supporting]
    methods = sorted({criterion.method or rule.method for criterion in stated})
    if set(methods) & experiment.components.named("decision method").keys():
        return []  # one of the author's own may read any of it
    return [
        f"decision_rule.{name} is registered, but {' and '.join(methods)} does not read it; remove "
        f"it, or register {reader}"
        for name, reader in READ_BY.items()
        if getattr(rule, name) is not None and reader not in methods
    ]


def combine_problems(rule: DecisionRule) -> list[str]:
    """Each criterion that makes the verdict has what the rule combines: a p value, a refutation."""
    problems = []
    if all(criterion.premise for criterion in rule.criteria):
        problems.append("every criterion is a premise, so nothing is claimed; register a claim")
    for criterion in rule.criteria:
        method = criterion.method or rule.method
        if criterion.premise:
            continue
        if method in BY_ESTIMATE and rule.combine not in ("all_must_pass", "all_must_agree"):
            problems.append(
                f"criterion {criterion.id}: {method} has no p value, which {rule.combine} needs "
                "for Holm; register all_must_pass"
            )
        irrefutable = method == POINT_THRESHOLDS and criterion.refuted is None
        if irrefutable and rule.combine == "all_must_agree":
            problems.append(
                f"criterion {criterion.id}: nothing refutes it, and all criteria must agree, so "
                "the experiment can't be refuted; register what refutes"
            )
    return problems


def criterion_problems(criterion: CriterionSpec, roles: Collection[str]) -> list[str]:
    """A criterion contrasts roles that there are, within bounds that hold something."""
    where, problems = f"criterion {criterion.id}: ", []
    low, high = criterion.bounds
    if low >= high:
        problems.append(f"{where}bounds [{low}, {high}] hold no interval")
    if not any(criterion.weights.values()):
        problems.append(f"{where}every weight is 0, so it contrasts nothing")
    if criterion.next_step is not None and not criterion.premise:
        problems.append(
            f"{where}next_step is what to do when a premise is not shown, and this is no premise; "
            "remove it"
        )
    if not set(criterion.weights) - {BASE}:
        problems.append(f"{where}weighs no arm; weigh one")
    unknown = sorted(set(criterion.weights) - set(roles))
    if unknown:
        problems.append(f"{where}weighs {unknown}, but the arms play {sorted(roles)}; weigh these")
    return problems


def seed_problems(experiment: Experiment) -> list[str]:
    """Arms of a role differ in their seed alone, and every weighed role has the rule's seeds."""
    problems, rule = [], experiment.rule
    for role in dict.fromkeys(arm.role for arm in experiment.arms):
        arms = [arm for arm in experiment.arms if arm.role == role]
        alike = {repr(replace(arm, name="", seed=0, look=1)) for arm in arms}
        if len(alike) > 1 or len({arm.seed for arm in arms}) < len(arms):
            problems.append(
                f"role {role}: {', '.join(arm.name for arm in arms)} must differ in their seed, "
                "and in nothing else; correct them or give them roles of their own"
            )
    for role in experiment.weighed_roles:
        seeds = [arm.seed for arm in experiment.role(role)]
        if sorted(seeds) != sorted(rule.seeds):
            problems.append(
                f"role {role}: its arms have the seeds {sorted(seeds)}, the rule says "
                f"{sorted(rule.seeds)}; register an arm for each"
            )
    return problems


def contrast_problems(experiment: Experiment) -> list[str]:
    """Weighed roles differ in something, and in what the registration says if it says it."""
    declared, found = experiment.registration.contrast, experiment.contrast
    said = [
        f"{name} ({', '.join(f'{role} {value}' for role, value in of.items())})"
        for name, of in found.items()
    ]
    if declared is not None:
        if sorted(declared) == sorted(found):
            return []
        return [
            f"contrast: registered is {sorted(declared)}, but the weighed roles differ in "
            f"{'; '.join(said) or 'nothing'}; correct the arms or the contrast"
        ]
    roles = experiment.weighed_roles
    alike = [
        f"{a} and {b}"
        for a, b in itertools.combinations(roles, 2)
        if all(of[a] == of[b] for of in found.values())
    ]
    problems = [
        f"roles {pair} do not differ in any field of their arms, so there is no treatment; correct "
        "one, or register an A/A with an empty contrast"
        for pair in alike
    ]
    silent = [line for name, line in zip(found, said, strict=True) if name in NEVER_SILENT]
    return problems + [
        f"the weighed roles differ in {line}, which no contrast declares; make them equal, or "
        f"register contrast {sorted(found)}"
        for line in silent
    ]


def look_problems(experiment: Experiment) -> list[str]:
    """A second look has a criterion, a range, and arms of every weighed role with equal seeds."""
    look, weighed = experiment.rule.second_look, set(experiment.weighed_roles)
    later = experiment.look(2)
    if look is None:
        return [f"arm {a.name}: look 2, but the rule has no second look" for a in later]
    problems = []
    if look.criterion not in {c.id for c in experiment.rule.criteria if not c.premise}:
        problems.append(f"second look: {look.criterion!r} is no criterion that is not a premise")
    if look.low >= look.high:
        problems.append(f"second look: [{look.low}, {look.high}] holds no interval")
    problems += [
        f"second look: criterion {c.id} has the unit seeds, whose seeds are taken up front; "
        "register them"
        for c in experiment.rule.criteria
        if (c.unit or experiment.rule.unit) == "seeds"
    ]
    seeds = {tuple(sorted(a.seed for a in experiment.role(role, 2))) for role in weighed}
    if len(seeds) != 1 or () in seeds:
        problems.append(
            f"second look: the roles {sorted(weighed)} need arms of look 2 with equal seeds, they "
            f"have {sorted(seeds)}"
        )
    problems += [
        f"arm {a.name}: look 2, but no criterion weighs the role {a.role}"
        for a in later
        if a.role not in weighed
    ]
    return problems


def tuning_problems(experiment: Experiment) -> list[str]:
    """The grid ascends, and trials leave the held-out slice of the train split alone."""
    tuning = experiment.registration.tuning
    if tuning is None:
        return []
    rates, n = tuning.learning_rates, experiment.card.dataset.n_examples
    problems = []
    if min(rates) <= 0.0 or rates != sorted(set(rates)):
        problems.append(f"tuning: learning_rates {rates} must ascend from above 0")
    draws = tuning.steps * max(arm.groups_per_batch for arm in experiment.arms)
    held = tuning.heldout + experiment.probe_prompts
    if draws + held > n:
        problems.append(
            f"tuning: a trial takes {draws} prompts and {held} are held out, but the "
            f"train split has {n}; make trials shorter or the slice smaller"
        )
    return problems


def pilot_problems(card: Card, registration: Registration) -> list[str]:
    """The pilot is shorter than the run."""
    pilot = registration.training.pilot_steps
    if pilot < card.steps:
        return []
    return [f"training.pilot_steps is {pilot}, but the run has {card.steps} steps; make it shorter"]


def kernel_problems(card: Card, registration: Registration) -> list[str]:
    """A TF-IDF kernel has a temperature exactly if its weights are a softmax."""
    stated = {arm.name: arm for arm in card.arms or ()}
    problems = []
    for spec in registration.arms:
        if not isinstance(spec.kernel, Kernel):
            continue
        arm = stated.get(spec.name)
        taus = [spec.kernel.tau, None if arm is None else arm.tau]
        if spec.kernel.weighting == "softmax" and taus == [None, None]:
            problems.append(f"arm {spec.name}: no tau in card or registration; give one")
        if spec.kernel.weighting == "cosine" and taus != [None, None]:
            problems.append(f"arm {spec.name}: cosine weights have no tau; remove it")
    return problems


def drop_problems(card: Card, registration: Registration) -> list[str]:
    """Where groups of equal rewards are dropped, no arm has groups that are always dropped."""
    if not registration.training.drop_zero_variance_groups:
        return []
    stated = {arm.name: arm for arm in card.arms or ()}
    schedules = {
        spec.name: spec.schedule if (arm := stated.get(spec.name)) is None else arm.schedule()
        for spec in registration.arms
    }
    return [
        f"arm {name}: group_size is 1, and drop_zero_variance_groups would drop every group; "
        "sample 2 rollouts a prompt, or drop none"
        for name, schedule in schedules.items()
        if schedule is not None and schedule.group_size < 2
    ]


def estimator_problems(experiment: Experiment) -> list[str]:
    """Every estimator and kernel is declared, and has the settings, the peers and the rewards."""
    card, registration = experiment.card, experiment.registration
    stated = {arm.name: arm.schedule() for arm in card.arms or ()}
    problems = []
    for spec in registration.arms:
        found = component_problems(experiment.components, spec)
        if not found:
            schedule = stated.get(spec.name, spec.schedule)
            coefficient = registration.training.format_coefficient
            declared = experiment.components.find(Estimator, spec.estimator)
            found = need_problems(declared, spec, schedule, coefficient)
        problems += [f"arm {spec.name}: {line}" for line in found]
    return problems


def preflight_problems(experiment: Experiment) -> list[str]:
    """A preflight that is named is declared, and one that is declared is named: it has to run."""
    named, declared = experiment.registration.preflights, experiment.components.named("preflight")
    problems = [f"preflight {name!r} is named twice; name it once" for name in _twice(named)]
    problems += [
        f"preflight {name!r} is declared in none of components{nearest(name, declared)}; name the "
        "file that declares it"
        for name in named
        if name not in declared
    ]
    return problems + [
        f"preflight {name!r} of {file} is not among preflights, so it would not run; add it there"
        for name, file in declared.items()
        if name not in named
    ]


def component_problems(components: Components, spec: ArmSpec) -> list[str]:
    """What an arm names is declared, and has the settings that it declares."""
    problems = []
    try:
        declared = components.find(Estimator, spec.estimator)
        found = settings_problems(declared.settings, spec.estimator_config)
        problems += [f"estimator_config of {spec.estimator}: {line}" for line in found]
        if isinstance(spec.kernel, OwnKernel):
            kernel = components.find(DeclaredKernel, spec.kernel.name)
            found = settings_problems(kernel.settings, spec.kernel.settings)
            problems += [f"settings of kernel {spec.kernel.name}: {line}" for line in found]
    except CardError as error:
        problems.append(str(error))
    return problems


def need_problems(
    declared: Estimator, spec: ArmSpec, schedule: Schedule | None, format_coefficient: float
) -> list[str]:
    """An estimator gets the kernel, group size, prompts and rewards that it declares."""
    problems, name = [], declared.name
    if declared.kernel == "registered" and spec.kernel is None:
        problems.append(f"estimator {name} needs a kernel in the registration")
    if declared.binary_rewards and format_coefficient != 0.0:
        problems.append(
            f"{name} takes rewards of 0 and 1, but format_coefficient is {format_coefficient:g}; "
            "set it to 0"
        )
    if schedule is None:
        return problems
    size, least, most = schedule.group_size, declared.min_group_size, declared.max_group_size
    if size < least or (most is not None and size > most):
        problems.append(
            f"estimator {name} takes {declared.takes} a prompt, group_size is {size}; correct it"
        )
    if schedule.groups_per_batch < declared.min_prompts:
        problems.append(
            f"{name} needs at least {declared.min_prompts} prompts a step, not "
            f"{schedule.groups_per_batch}"
        )
    return problems


def loss_problems(registration: Registration) -> list[str]:
    """Every loss has its settings."""
    return [
        f"arm {spec.name}: loss_config of {spec.loss} has {sorted(spec.loss_config)}, it takes "
        f"{sorted(wanted)}; give exactly these"
        for spec in registration.arms
        if set(spec.loss_config) != (wanted := LOSS_SETTINGS.get(spec.loss, frozenset()))
    ]


def tolerance_problems(card: Card, registration: Registration) -> list[str]:
    """Tolerances are stated once: by the card, or else by the registration."""
    stated = card.correctness_preflight
    if registration.correctness_tolerances and stated and stated.required and stated.paths:
        return ["the card states its correctness tolerances; don't register others"]
    return []


def restoration_problems(experiment: Experiment) -> list[str]:
    """Groups that must start equal are the arms of one seed, all of them."""
    groups = experiment.registration.restoration
    stated = experiment.card.restoration_preflight
    if not groups or groups == "by_seed":
        return []
    if stated is not None and stated.applicable and stated.groups:
        return ["the card states which arms must start equal; don't register others"]
    wanted = sorted(sorted(names) for names in experiment.arms_by_seed)
    if sorted(map(sorted, groups)) == wanted:
        return []
    return [
        f"restoration has the groups {groups}, but the arms of one seed start equal, and no "
        f"others: {wanted}; register these"
    ]


def lag_problems(registration: Registration) -> list[str]:
    """The pilot is longer than every ramp, so that gates see the lag that is registered."""
    longest, pilot = max(spec.lag for spec in registration.arms), registration.training.pilot_steps
    if longest == 0 or pilot > longest:
        return []
    return [
        f"training.pilot_steps is {pilot}, but a lag of {longest} is reached at step {longest} "
        f"only; make the pilot at least {longest + 1} steps long"
    ]


def measured_problems(card: Card, registration: Registration) -> list[str]:
    """Criteria average steps that the run has, past every ramp, and samples that are drawn."""
    rule, evaluation = card.decision_rule or registration.decision_rule, registration.evaluation
    stated = [*(rule.criteria if rule else ()), *registration.supporting]
    ramp = max(spec.lag for spec in registration.arms)
    problems = []
    for criterion in stated:
        if criterion.steps is not None:
            first, last = criterion.steps
            if not ramp <= first <= last < card.steps:
                problems.append(
                    f"criterion {criterion.id}: averages steps {first} to {last}; they must lie in "
                    f"{ramp} (past the ramp) to {card.steps - 1}"
                )
        _, pass_at, wanted = criterion.metric.partition("pass@")
        if pass_at and not (wanted.isdigit() and int(wanted) <= evaluation.samples):
            problems.append(
                f"criterion {criterion.id}: {criterion.metric} of {evaluation.samples} samples an "
                f"item is not identified; set evaluation.samples to at least that k"
            )
    if evaluation.samples > 1 and evaluation.temperature == 0.0:
        problems.append(
            f"evaluation: {evaluation.samples} samples at temperature 0 are all the same; "
            "draw 1, or raise the temperature"
        )
    return problems


def power_problems(card: Card, registration: Registration) -> list[str]:
    """Effects are expected of criteria that there are, and no larger than the contrast can be."""
    rule, power = card.decision_rule or registration.decision_rule, registration.power
    criteria = {criterion.id: criterion for criterion in (rule.criteria if rule else ())}
    problems = [
        f"power.expected_effects names {name!r}, the criteria are {list(criteria)}; name these"
        for name in power.expected_effects
        if name not in criteria
    ]
    for criterion in criteria.values():
        effect = power.expected_effects.get(criterion.id, power.expected_effect)
        ends = [[w * bound for bound in criterion.bounds] for w in criterion.weights.values()]
        low, high = sum(min(end) for end in ends), sum(max(end) for end in ends)
        if not low <= effect <= high:
            problems.append(
                f"criterion {criterion.id}: an effect of {effect:g} is expected, the contrast lies "
                f"in [{low:g}, {high:g}]; give it as a fraction, 3 points are 0.03"
            )
    return problems


def task_problems(experiment: Experiment) -> list[str]:
    """The task has its settings, and its data come from where the scale says."""
    registration, data = experiment.registration, experiment.scale.data
    search, answer = registration.search, registration.evaluation.answer
    if (registration.task == "sec_search") != (search is not None):
        return [f"task {registration.task}: `search` belongs to sec_search, and to it alone"]
    problems = []
    if (answer == "curated_set") != (search is not None):
        problems.append(
            f"evaluation.answer is {answer}: a curated set is the answer of sec_search, and its "
            "only one"
        )
    if search is not None and (search.world is not None) != (data == "embedded"):
        problems.append(
            f"scale {experiment.scale.name} has data {data!r} and "
            f"{'a' if search.world else 'no'} search.world: a world is generated exactly where the "
            "scale says embedded; correct one of them"
        )
    return problems


def scale_problems(
    before: JsonValue, after: JsonValue, changes: Iterable[Change], *, inherited: bool = False
) -> list[str]:
    """Every change that a scale makes is listed with a reason, and every listed change is made.

    The scale of an inherited default may list what this card has already.
    """
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
        if not inherited and not any(_under(pointer, parent) for pointer in made)
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
