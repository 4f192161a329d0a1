"""What an arm really asks a service for, request by request, against card and registration."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydantic import JsonValue

from harness.cards import Arm, Experiment
from harness.cards.registration import LossBackend
from harness.evidence import Evidence
from harness.records import Row, StepRecord, logprobs_of, tokens_of
from harness.tasks.task import Item
from harness.traces import (
    CUSTOM,
    Carried,
    EvaluationTrace,
    Settings,
    StepTrace,
    asked_digest,
    digest,
    rows_digest,
)

SHOWN = 2

Summary = Mapping[str, JsonValue]
"""What was noted of an arm's training or of an evaluation when it was done."""

OTHER_ROWS = "the stored rows are not those that were graded; run again with --retrain"


class ArmTrace(Evidence):
    """All that one arm asked for in its first steps.

    `unregistered` is what `harness.audit.executed` finds in the records of these steps.
    `multi_turn` says whether each turn of a rollout takes a request of its own; else one request
    serves a whole group. `loss_backend` is the one that was chosen for the arm.
    """

    arm: str
    multi_turn: bool
    loss_backend: LossBackend
    steps: list[StepTrace]
    unregistered: list[str]


def arm_problems(sent: ArmTrace | None, arm: Arm, experiment: Experiment) -> list[str]:
    """Where an arm's requests are not the registered ones."""
    if sent is None or not sent.steps:
        return [f"arm {arm.name}: no request was recorded; take its steps on a recorded service"]
    problems = step_problems(sent.steps, arm, experiment, sent.multi_turn, sent.loss_backend)
    return [*problems, *sent.unregistered]


def record_problems(
    records: Sequence[StepRecord],
    arm: Arm,
    experiment: Experiment,
    train: Sequence[Item],
    backend: LossBackend,
) -> list[str]:
    """Where what was sent for stored steps, from the first on, is not registered or not stored.

    Args:
        records: the steps.
        arm: the arm that took them.
        experiment: the card and its registration.
        train: the train split.
        backend: who computes the arm's loss, as it was chosen for it.
    """
    traces = [record["trace"] for record in records if "trace" in record]
    if len(traces) != len(records):
        return [
            f"arm {arm.name}: {len(records) - len(traces)} of {len(records)} steps have no "
            "request trace; run again with --retrain, which keeps one"
        ]
    steps = [StepTrace.of(trace) for trace in traces]
    multi_turn = experiment.registration.search is not None
    problems = step_problems(steps, arm, experiment, multi_turn, backend)
    by_another = [r["step"] for r in records if r.get("loss_backend", "service") != backend]
    if by_another:
        problems.append(
            f"arm {arm.name}: step {by_another[0]} is not recorded with the {backend} loss, which "
            f"was chosen{_also(len(by_another) - 1)}; run again with --retrain"
        )
    other = [
        record["step"]
        for record, step in zip(records, steps, strict=True)
        if not step.faults and step.datums_sha256 != digest(_recorded(record, step))
    ]
    if other:
        problems.append(
            f"arm {arm.name}: step {other[0]} sent datums of other tokens, log-probs or advantages "
            f"than its record has{_also(len(other) - 1)}; store what is sent"
        )
    asked = [
        record["step"]
        for record, step in zip(records, steps, strict=True)
        if step.questions_sha256
        != asked_digest([train[group["prompt"]] for group in record["groups"]])
    ]
    if asked:
        problems.append(
            f"arm {arm.name}: step {asked[0]} asked other questions than the registered items of "
            f"its record hold{_also(len(asked) - 1)}; keep the train split as it was read"
        )
    return problems


def step_problems(
    steps: Sequence[StepTrace],
    arm: Arm,
    experiment: Experiment,
    multi_turn: bool,
    backend: LossBackend,
) -> list[str]:
    """What is wrong with the requests of the first step that has something wrong."""
    if backend not in arm.loss_backends:
        return [
            f"arm {arm.name}: the {backend} loss was chosen, {' or '.join(arm.loss_backends)} is "
            "registered; choose one of these"
        ]
    updated = [step.updates for step in steps]
    found = {
        number: lines
        for number, step in enumerate(steps)
        if (lines := _step_lines(step, number, updated, arm, experiment, multi_turn, backend))
    }
    if not found:
        return []
    first = min(found)
    also = _also(len(found) - 1)
    return [f"arm {arm.name}: step {first} {line}{also}" for line in found[first]]


def _step_lines(
    step: StepTrace,
    number: int,
    updated: Sequence[int],
    arm: Arm,
    experiment: Experiment,
    multi_turn: bool,
    backend: LossBackend,
) -> list[str]:
    settings = sampled(arm, experiment, multi_turn)
    stale = {**settings, "version": float(sum(updated[: max(0, number - arm.lag)]))}
    fresh = {**settings, "version": float(sum(updated[:number]))}
    probe = experiment.registration.gradient_probe
    probing = probe is not None and number % probe.every == 0
    # nothing says how many turns a probe's episodes have
    probes = 0 if probe is None or not probing else None if multi_turn else probe.groups
    asked = step.replies if multi_turn else arm.groups_per_batch
    return [
        *setting_problems(
            "created a client", step.created, created(arm, experiment), int(number == 0)
        ),
        *setting_problems("loaded a state", step.loaded, {}, 0),
        *setting_problems("sampled", step.samples, stale, asked),
        *setting_problems("sampled for a gradient probe", step.probed, fresh, probes),
        *seed_problems([*step.samples, *step.probed]),
        *loss_problems(step.losses, arm, backend, step.updates),
        *setting_problems("updated", step.optimizer, adam(arm, experiment), step.updates),
        *step.faults[:SHOWN],
    ]


def evaluation_problems(
    sent: EvaluationTrace,
    experiment: Experiment,
    where: str = "evaluation",
    updates: int | None = None,
) -> list[str]:
    """Where the requests of an evaluation are not the registered ones.

    Args:
        sent: the requests.
        experiment: the card and its registration.
        where: how a line begins.
        updates: how many are behind the weights to be evaluated; None where a path names them.
    """
    spec = experiment.registration.evaluation
    expected: Settings = {
        "num_samples": 1.0 if sent.multi_turn else float(spec.samples),
        "max_tokens": float(spec.max_tokens),
        "temperature": spec.temperature,
        "top_p": 1.0,
        "top_k": -1.0,
    }
    if updates is not None:
        expected["version"] = float(updates)
    if not sent.samples:
        return [f"{where}: no request was recorded; evaluate at least 1 item"]
    lines = setting_problems("sampled", sent.samples, expected, sent.replies)
    if spec.temperature > 0:
        lines += seed_problems(sent.samples)
    return [f"{where} {line}" for line in [*lines, *sent.faults[:SHOWN]]]


def scored_problems(
    policy: str,
    rows: Sequence[Row],
    scored: Summary,
    experiment: Experiment,
    trained: Summary | None = None,
) -> list[str]:
    """The same of a whole evaluation, and whether it sampled from what it is said to be of.

    Args:
        policy: its name.
        rows: its rows, as stored.
        scored: what was noted of the evaluation; its request trace is under `trace`.
        experiment: the card and its registration.
        trained: what was noted of the arm's training, None of the base model.
    """
    where = f"evaluation of {policy}:"
    if "trace" not in scored:
        return [f"{where} no request trace; run again with --retrain, which keeps one"]
    sent = EvaluationTrace.of(scored["trace"])
    expected: Settings = {"model_path": None, "base_model": experiment.card.base_model}
    if trained is not None:
        expected = {"model_path": str(trained["sampler_path"]), "base_model": None}
    other = [] if sent.rows_sha256 == rows_digest(rows) else [f"{where} {OTHER_ROWS}"]
    return [
        *other,
        *(f"{where} {x}" for x in setting_problems("made a sampler", sent.samplers, expected, 1)),
        *evaluation_problems(sent, experiment, where),
    ]


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


def not_held(evidence: Sequence[ArmTrace], experiment: Experiment) -> list[str]:
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
    return lines


def loss_problems(
    losses: Sequence[Settings], arm: Arm, backend: LossBackend, count: int
) -> list[str]:
    """Gradients that are not of the arm's loss by its backend, or not `count` of them."""
    expected: Settings = {"loss": arm.loss, **{f"loss.{k}": v for k, v in arm.loss_config.items()}}
    if backend == CUSTOM:
        expected = {"loss": CUSTOM}
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


def sampled(arm: Arm, experiment: Experiment, multi_turn: bool) -> Settings:
    """With what a step samples: the untruncated policy, all of a group or one turn at a time."""
    training = experiment.registration.training
    return {
        "num_samples": 1.0 if multi_turn else float(arm.group_size),
        "max_tokens": float(training.max_tokens),
        "temperature": training.temperature,
        "top_p": 1.0,
        "top_k": -1.0,
    }


def adam(arm: Arm, experiment: Experiment) -> Settings:
    """With what a step updates."""
    return {
        "learning_rate": arm.learning_rate,
        **experiment.registration.training.adam.model_dump(),
    }


def _recorded(record: StepRecord, step: StepTrace) -> Iterator[Carried]:
    """What the datums of a record's rollouts must have carried."""
    custom = any(settings.get("loss") == CUSTOM for settings in step.losses)
    for group in record["groups"]:
        for rollout in () if group["dropped"] else group["rollouts"]:
            tokens_T = tokens_of(rollout)
            if custom:
                yield Carried(tokens_T, [], [])
            else:
                yield Carried(
                    tokens_T, logprobs_of(rollout), [rollout["advantage"]] * len(tokens_T)
                )


def _also(others: int) -> str:
    return f" (and {others} more)" if others else ""


def _looked_at_by(gate: str, experiment: Experiment) -> str:
    registered = any(check.metric == gate for check in experiment.gates)
    return f"the gate {gate} looks at it" if registered else f"register the gate {gate}"


def _shown(value: float | str | None) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value)
