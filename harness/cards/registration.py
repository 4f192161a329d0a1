"""The registration: a sidecar that makes a card's prose executable.

A card may leave a choice open or say it in prose. Its registration settles each such choice with
a reason, pins what the card leaves unresolved, and lists what the experiment assumes.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, JsonValue, Tag

from harness.cards.card import (
    CriterionSpec,
    DecisionRule,
    Frozen,
    GateCheck,
    Name,
    Reason,
    Schedule,
    Tolerance,
)
from harness.kernels.tfidf import Kernel

Loss = Literal["importance_sampling", "ppo"]
LossBackend = Literal["service", "custom"]
ToleranceName = Literal[
    "reference_loss", "reference_gradient", "baseline_loss", "baseline_gradient"
]

LOSS_SETTINGS = {"ppo": frozenset({"clip_low_threshold", "clip_high_threshold"})}
"""What the `loss_config` of a loss must hold; that of the other is empty."""


class Resolution(Frozen):
    """The value of something that the card leaves UNRESOLVED."""

    pointer: str = Field(pattern=r"^/")
    value: str
    reason: Reason


class Pins(Frozen):
    """The exact software that the claim speaks of.

    `manifests` maps a package to a file in sha256sum format that lists its every source file;
    `manifest_sha256` pins that file. `references` maps an independent implementation, as a path
    in the project, to its sha256. `base_weights_sha256` is checked where the weights can be seen,
    which is on the embedded engine only.
    """

    packages: dict[str, str]
    manifests: dict[str, str]
    manifest_sha256: dict[str, str]
    references: dict[str, str]
    base_weights_sha256: str | None = None
    resolutions: list[Resolution]


class OwnKernel(Frozen):
    """A kernel that some component file declares, by name, with its settings."""

    name: Name
    settings: dict[str, JsonValue] = Field(default_factory=dict)


def _kernel_tag(value: object) -> str:
    named = isinstance(value, OwnKernel) or (isinstance(value, dict) and "name" in value)
    return "(own)" if named else "(tfidf)"


AnyKernel = Annotated[
    Annotated[Kernel, Tag("(tfidf)")] | Annotated[OwnKernel, Tag("(own)")],
    Discriminator(_kernel_tag),
]
"""TF-IDF, unless it has a name."""

SettingValue = Annotated[float | JsonValue, Field(union_mode="left_to_right")]
"""A setting of a component: a number is a float, anything else is as it stands."""


class ArmSpec(Frozen):
    """How one arm is executed.

    `role` is what criteria weigh: treatment and baseline, or a cell of a larger design; arms of one
    role differ in their seed alone. A role that no criterion weighs is an ablation: trained,
    evaluated and reported beside the verdict. `schedule` is given exactly if the card does not
    state the arm. An arm of look 2 is trained only if the rule's second look calls for it.
    `estimator_config` has the settings that the estimator declares.
    `loss_backends` says who computes the loss, in the order of preference: the service, or this
    client by forward_backward_custom. One that the server_loss preflight finds wanting is passed
    over for the next; without a next there is no fallback.
    """

    name: Name
    role: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    estimator: str
    estimator_config: dict[str, SettingValue] = Field(default_factory=dict)
    kernel: AnyKernel | None = None
    schedule: Schedule | None = None
    loss: Loss = "importance_sampling"
    loss_config: dict[str, float] = Field(default_factory=dict)
    loss_backends: tuple[LossBackend, ...] = Field(default=("service",), min_length=1)
    lag: int = Field(default=0, ge=0)
    look: Literal[1, 2] = 1


class AdamSpec(Frozen):
    """Adam as sent to the service with every optimizer step."""

    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    eps: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    grad_clip_norm: float = Field(ge=0)


class TrainingSpec(Frozen):
    """What every arm shares while it trains.

    `reuse_prompts` lets an arm that has consumed the train split draw it again, in a new order;
    without it the arm needs as many prompts as it consumes. `max_tokens` is of one reply.
    `drop_zero_variance_groups` leaves groups of equal rewards out of the update; a step of
    nothing but such groups updates nothing, and counts.
    """

    renderer: str
    few_shot: Literal["standard", "none"]
    max_tokens: int = Field(gt=0)
    temperature: float = Field(gt=0)
    format_coefficient: float = Field(ge=0)
    adam: AdamSpec
    train_mlp: bool
    train_attn: bool
    train_unembed: bool
    data_order_seed: int
    pilot_steps: int = Field(gt=0)
    checkpoint_every: int = Field(gt=0)
    reuse_prompts: bool = False
    drop_zero_variance_groups: bool = False


class EvaluationSpec(Frozen):
    """How the final policy is evaluated: `samples` responses an item, one if it is greedy.

    `answer` is what is graded: a number of the response, or the set that a search has curated.
    """

    max_tokens: int = Field(gt=0)
    temperature: float = Field(ge=0)
    answer: Literal["final_number", "boxed", "curated_set"]
    samples: int = Field(default=1, gt=0)


class SearchSession(Frozen):
    """Bounds of a search session's answers; see `harness.tasks.sec_search.SessionLimits`."""

    default_k: int = Field(gt=0)
    max_k: int = Field(gt=0)
    snippet_chars: int = Field(gt=0)
    read_chars: int = Field(gt=0)
    max_curated: int = Field(gt=0)


class SearchSelection(Frozen):
    """What is taken of a raw data set; see `harness.tasks.sec_search.Selection`.

    The card counts the questions. Without `background` all chunks are taken.
    """

    seed: int
    radius: int = Field(ge=0)
    background: int | None = Field(default=None, ge=0)


class SearchWorld(Frozen):
    """A generated corpus; see `harness.tasks.sec_search.World`."""

    seed: int
    companies: int = Field(ge=4)
    chunks_per_company: int = Field(ge=60)
    lexical_overlap: float = Field(ge=0, le=1)
    sentences: tuple[int, int]


class SearchSpec(Frozen):
    """The search agent's task: how calls are written, what an episode may use, and the corpus.

    A whole episode has `max_seq_len` tokens of the card, and a turn is sampled only if
    `max_tokens` of a reply still fit. A broken reply ends the episode: the curated set is graded,
    or the reward is the floor. `world` is given exactly if a scale generates its data.
    """

    syntax: Literal["json", "compact"]
    max_turns: int = Field(gt=0)
    broken_reply: Literal["graded", "floor"]
    session: SearchSession
    selection: SearchSelection
    world: SearchWorld | None = None


class GradientProbe(Frozen):
    """The cosine between the update's gradient and that of fresh rollouts, on a second client.

    A service returns no gradients, but the norm of what it accumulated. Three norms at the same
    weights give the dot product: |g + h|^2 = |g|^2 + |h|^2 + 2 gh. Taken before the update of
    every `every`-th step, on `groups` fresh groups.
    """

    groups: int = Field(gt=0)
    every: int = Field(gt=0)

    def prompts(self, steps: int) -> int:
        """Fresh prompts that it takes in so many steps."""
        return -(-steps // self.every) * self.groups


class Tuning(Frozen):
    """A learning rate for each role, chosen before the test split is read.

    Every role tries the same rates for the same number of steps and is scored on the last
    `heldout` prompts of the train split's fixed order, which no trial trains on. While the best
    rate of any role sits at an edge of the grid, the grid grows there by `factor`, for all roles,
    `max_extensions` times at most. The predicted time of the first grid must fit
    `max_wall_minutes`.
    """

    learning_rates: list[float] = Field(min_length=3)
    steps: int = Field(gt=0)
    heldout: int = Field(gt=0)
    factor: float = Field(gt=1)
    max_extensions: int = Field(ge=0)
    max_wall_minutes: float = Field(gt=0)


class DataPins(Frozen):
    """sha256 of the data: of both splits, and of the corpus of a task that searches one.

    null where the data could not be had when the experiment was registered: a run then refuses what
    it finds, and says which hashes a scale has to pin.
    """

    train_sha256: str | None
    test_sha256: str | None
    corpus_sha256: str | None = None


class PowerSpec(Frozen):
    """What the author expects, so that the rule can be examined before the run.

    `expected_effects` are of single criteria, by id, where they differ from `expected_effect`.
    `seed_sds` are assumed standard deviations of an arm's accuracy between training seeds.
    """

    expected_effect: float
    expected_discordance: float = Field(gt=0, le=1)
    discordances: list[float] = Field(min_length=1)
    expected_effects: dict[str, float] = Field(default_factory=dict)
    seed_sds: list[float] = Field(default_factory=list)


class Forecast(Frozen):
    """Simulated rewards for the gates that need no model: Bernoulli with a spread of difficulty.

    Each prompt's success rate is drawn from Beta(mean * concentration, (1 - mean) * concentration).
    """

    reward_mean: float = Field(gt=0, lt=1)
    reward_concentration: float = Field(gt=0)
    repeats: int = Field(gt=0)
    seed: int


class Feasibility(Frozen):
    """What turns measured seconds into the card's budget."""

    gpus: int = Field(ge=0)
    timed_steps: int = Field(gt=0)


class Settled(Frozen):
    """A question that the card leaves open, its answer, and why."""

    question: str
    answer: str
    reason: Reason


class Assumption(Frozen):
    """What the experiment takes for granted, riskiest first, and the item that checks it."""

    id: str
    statement: str
    checked_by: str


class Acceptance(Frozen):
    """An outcome other than a clean pass that the author accepts, with the reason.

    `preflight` is the preflight's name, or `sense` of the checks of evaluations.

    `given_for` is what it is about, as the preflight states it: the margin, method, n and expected
    effect of a criterion, the bounds of a gate, the losses of a probe. It lapses when they change.
    """

    preflight: str
    outcome: Literal[
        "unverifiable",
        "cannot_pass_at_expected_effect",
        "gate_certain_to_fail",
        "below_base",
        "not_learned",
        "cut",
        "unanswered",
        "one_answer",
        "other_split",
        "read_otherwise",
    ]
    reason: Reason
    given_for: dict[str, JsonValue] = Field(default_factory=dict)


class Amends(Frozen):
    """What a registration replaces: the sha256 that the record names, and what had been seen.

    `results_seen` are none of this experiment's, its gates, or its outcomes; the record is asked
    whether that can be.
    """

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    reason: Reason
    results_seen: Literal["none", "gates", "outcomes"]


class Sense(Frozen):
    """When an evaluation is in doubt, see `harness.audit.sense`.

    `below_base_p` and `learned_p` are of one-sided sign tests against the base model,
    `other_split_p` of its means on train and test. The others are shares of responses: cut at their
    length, without an answer, with the commonest answer, or graded otherwise by a second reader.
    """

    below_base_p: float = Field(default=1e-3, gt=0, lt=1)
    learned_p: float = Field(default=0.05, gt=0, le=1)
    other_split_p: float = Field(default=1e-4, gt=0, lt=1)
    max_cut: float = Field(default=0.5, ge=0, le=1)
    max_unanswered: float = Field(default=0.5, ge=0, le=1)
    max_commonest: float = Field(default=0.5, ge=0, le=1)
    max_read_otherwise: float = Field(default=0.05, ge=0, le=1)


class Registration(Frozen):
    """Everything that the card leaves to be said before the run.

    What it `inherits` is a named default, see `harness.cards.inherited`. `card` and `card_sha256`
    bind it to one card, where they are given. `contrast` lists the fields of arms in which the
    weighed roles differ; an empty list registers an A/A. `max_runs` says how often the experiment
    may be drawn, `amends` what it replaces.
    `components` names files beside the card, or beside the experiment's test file, that declare
    estimators, kernels and whatever else the card may name; a helper that one of them imports is
    listed too. `preflights` are those of the author's own, by name. `supporting` criteria are
    computed and shown; they never make a verdict. `search` belongs to the task sec_search.
    `correctness_tolerances` and `restoration`, groups of arms by name that must start equal or all
    arms of a seed, are what the preflights hold a run to where the card states none.
    """

    version: Literal[1]
    inherits: str | None = None
    card: str | None = None
    card_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    task: Literal["gsm8k", "sec_search"]
    pins: Pins
    data: DataPins
    arms: list[ArmSpec] = Field(min_length=2)
    training: TrainingSpec
    evaluation: EvaluationSpec
    power: PowerSpec
    forecast: Forecast
    feasibility: Feasibility
    settled: list[Settled]
    assumptions: list[Assumption]
    accepted: list[Acceptance]
    decision_rule: DecisionRule | None = None
    extra_gates: list[GateCheck] = Field(default_factory=list)
    tuning: Tuning | None = None
    gradient_probe: GradientProbe | None = None
    supporting: list[CriterionSpec] = Field(default_factory=list)
    search: SearchSpec | None = None
    components: list[str] = Field(default_factory=list)
    preflights: list[str] = Field(default_factory=list)
    correctness_tolerances: dict[ToleranceName, Tolerance] = Field(default_factory=dict)
    contrast: list[str] | None = None
    max_runs: int = Field(default=3, gt=0)
    amends: Amends | None = None
    sense: Sense = Field(default_factory=Sense)
    restoration: list[list[Name]] | Literal["by_seed"] = Field(default_factory=list)
