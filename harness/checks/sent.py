"""What an arm really asks a service for, request by request, against card and registration."""

from collections.abc import Iterable, Mapping, Sequence

from harness.cards import Arm, Experiment
from harness.checks.evidence import Evidence

Settings = dict[str, float | str | None]
"""One request's settings by the SDK's names; whole numbers and flags as floats."""

SHOWN = 2

CUSTOM = "custom"
"""The loss of a gradient that this client computes; what the datums carry is then not sent."""


class SentStep(Evidence):
    """The requests of one step, in the order in which they were made.

    `samples` are sampling requests, each with the `version` of its sampler: the updates behind its
    weights. `losses` are gradients asked for, `optimizer` the updates. `faults` says where datums,
    prompts or rewards are not those of the responses that came back. `replies` counts the turns
    of its rollouts, `updates` is 0 where all of its groups were dropped and nothing was to update,
    else 1.
    """

    samples: list[Settings]
    losses: list[Settings]
    optimizer: list[Settings]
    faults: list[str]
    replies: int
    updates: int


class SentArm(Evidence):
    """All that one arm asked for in its first steps.

    `created` are the training clients that it opened. `unregistered` is what
    `harness.checks.executed` finds in the records of these steps. `by_turns` says whether each turn
    of a rollout takes a request of its own; else one request serves a whole group.
    """

    arm: str
    by_turns: bool
    created: list[Settings]
    steps: list[SentStep]
    unregistered: list[str]


class SentEvaluation(Evidence):
    """The requests of a slice of the evaluation; the rest as in `SentStep` and `SentArm`."""

    by_turns: bool
    samples: list[Settings]
    faults: list[str]
    replies: int


def arm_problems(sent: SentArm | None, arm: Arm, experiment: Experiment) -> list[str]:
    """Where an arm's requests are not the registered ones, the first of a kind in each step."""
    if sent is None or not sent.steps:
        return [f"arm {arm.name}: no request was witnessed; take its steps on a witnessed service"]
    problems = [
        f"arm {arm.name}: {line}"
        for line in setting_problems("created a client", sent.created, created(arm, experiment), 1)
    ]
    updated = [step.updates for step in sent.steps]
    for number, step in enumerate(sent.steps):
        where = f"arm {arm.name}: step {number}"
        settings = sampled(arm, experiment, sent.by_turns)
        # a gradient probe samples from the learner in the same step
        if experiment.registration.gradient_probe is None or arm.lag == 0:
            settings["version"] = float(sum(updated[: max(0, number - arm.lag)]))
        lines = [
            *setting_problems(
                "sampled", step.samples, settings, requests(arm, number, experiment, sent)
            ),
            *seed_problems(step.samples),
            *loss_problems(step.losses, arm, step.updates),
            *setting_problems("updated", step.optimizer, adam(arm, experiment), step.updates),
            *step.faults[:SHOWN],
        ]
        problems += [f"{where} {line}" for line in lines]
    return [*problems, *sent.unregistered]


def evaluation_problems(sent: SentEvaluation, experiment: Experiment) -> list[str]:
    """Where the requests of an evaluation are not the registered ones."""
    spec = experiment.registration.evaluation
    expected: Settings = {
        "num_samples": 1.0 if sent.by_turns else float(spec.samples),
        "max_tokens": float(spec.max_tokens),
        "temperature": spec.temperature,
        "top_p": 1.0,
        "top_k": -1.0,
    }
    if not sent.samples:
        return ["evaluation: no request was witnessed; evaluate at least 1 item"]
    lines = setting_problems("sampled", sent.samples, expected, sent.replies)
    if spec.temperature > 0:
        lines += seed_problems(sent.samples)
    return [f"evaluation {line}" for line in [*lines, *sent.faults[:SHOWN]]]


def setting_problems(
    did: str, found: Sequence[Settings], expected: Settings, count: int | None
) -> list[str]:
    """Requests that are too many or too few, or that have another setting than expected."""
    problems = []
    if count is not None and len(found) != count:
        problems.append(f"{did} {len(found)} times, {count} expected; make each request once")
    for key, wanted in expected.items():
        other = [settings.get(key) for settings in found if settings.get(key) != wanted]
        if other:
            problems.append(
                f"{did} with {key} {_shown(other[0])} in {len(other)} of {len(found)} requests, "
                f"{_shown(wanted)} registered; send what is registered"
            )
    return problems


def seed_problems(samples: Iterable[Settings]) -> list[str]:
    """Requests of one step that share a seed, or have none."""
    seeds = [settings.get("seed") for settings in samples]
    if None not in seeds and len(set(seeds)) == len(seeds):
        return []
    return [
        f"sampled {len(seeds)} requests with {len(set(seeds) - {None})} different seeds; give each "
        "a seed of its own, or rollouts share their noise"
    ]


def not_held(evidence: Sequence[SentArm], experiment: Experiment) -> list[str]:
    """What of these requests nothing is known to hold against, a line each."""
    lines = []
    custom = [
        sent.arm
        for sent in evidence
        if any(settings.get("loss") == CUSTOM for step in sent.steps for settings in step.losses)
    ]
    if custom:
        lines.append(
            f"not held against what was sampled: log-probs and advantages of {', '.join(custom)}, "
            "since this client computes their loss and sends tokens alone; "
            f"{_looked_at_by('reported_loss_error', experiment)}"
        )
    probe = experiment.registration.gradient_probe is not None
    if probe and any(sent.by_turns for sent in evidence):
        lines.append("not counted: requests of steps in which a gradient probe samples turns too")
    if probe and experiment.lagged:
        lines.append(
            "not held against the registration: the version that lagged arms sample from, since "
            "their gradient probe samples from another; "
            f"{_looked_at_by('executed_lag_error', experiment)}"
        )
    return lines


def loss_problems(losses: Sequence[Settings], arm: Arm, count: int) -> list[str]:
    """Gradients that are not of the arm's loss, or not `count` of them, by a client it allows."""
    custom = [settings for settings in losses if settings.get("loss") == CUSTOM]
    if custom and CUSTOM in arm.loss_clients:
        return setting_problems("asked for a gradient", losses, {"loss": CUSTOM}, count)
    expected: Settings = {"loss": arm.loss, **{f"loss.{k}": v for k, v in arm.loss_config.items()}}
    extra = {key for settings in losses for key in settings} - set(expected)
    expected |= dict.fromkeys(sorted(extra))
    return setting_problems("asked for a gradient", losses, expected, count)


def created(arm: Arm, experiment: Experiment) -> Settings:
    """With what an arm opens its training client."""
    training = experiment.registration.training
    return {
        "base_model": experiment.card.base_model,
        "rank": float(experiment.card.lora_rank),
        "seed": float(arm.seed),
        "train_mlp": float(training.train_mlp),
        "train_attn": float(training.train_attn),
        "train_unembed": float(training.train_unembed),
    }


def sampled(arm: Arm, experiment: Experiment, by_turns: bool) -> Settings:
    """With what a step samples: the untruncated policy, all of a group or one turn at a time."""
    training = experiment.registration.training
    return {
        "num_samples": 1.0 if by_turns else float(arm.group_size),
        "max_tokens": float(training.max_tokens),
        "temperature": training.temperature,
        "top_p": 1.0,
        "top_k": -1.0,
    }


def requests(arm: Arm, step: int, experiment: Experiment, sent: SentArm) -> int | None:
    """How many sampling requests a step makes: one a prompt or turn, and those of a gradient probe.

    None where a probe samples turns, of which nothing says how many there are.
    """
    probe = experiment.registration.gradient_probe
    own = sent.steps[step].replies if sent.by_turns else arm.groups_per_batch
    if probe is None or step % probe.every:
        return own
    return None if sent.by_turns else own + probe.groups


def adam(arm: Arm, experiment: Experiment) -> Settings:
    """With what a step updates."""
    return {
        "learning_rate": arm.learning_rate,
        **experiment.registration.training.adam.model_dump(),
    }


def as_settings(values: Mapping[str, object]) -> Settings:
    """Settings as the SDK takes them, in plain values."""
    return {
        key: None
        if value is None
        else float(value)
        if isinstance(value, (int, float))
        else str(value)
        for key, value in values.items()
    }


def _looked_at_by(gate: str, experiment: Experiment) -> str:
    registered = any(check.metric == gate for check in experiment.gates)
    return f"the gate {gate} looks at it" if registered else f"register the gate {gate}"


def _shown(value: float | str | None) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)
