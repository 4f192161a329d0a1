"""The registered card: a JSON file that states an experiment before it is run.

The models follow the cards' own vocabulary key for key. Unknown keys and wrong types are
errors, because a misspelt key is a rule that silently does not apply.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""Of an arm or a criterion: it becomes part of item ids, of paths and of the service's names."""

Reason = Annotated[str, Field(min_length=1)]
"""Words that a reader is owed."""


class Frozen(BaseModel):
    """Base of every model read from a file: immutable, no unknown keys, no coercion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Budget(Frozen):
    """What the run may cost."""

    gpu_hours: float = Field(gt=0)
    max_wall_minutes: float = Field(gt=0)


class Dataset(Frozen):
    """Where the training prompts come from."""

    name: str
    hf_path: str
    n_examples: int = Field(gt=0)
    split: str


class Evaluation(Frozen):
    """What is evaluated, and on how many items."""

    benchmark: str
    metric: str
    n_examples: int = Field(gt=0)
    aggregation: str | None = None


class Optimizer(Frozen):
    """The optimizer that the card names."""

    name: Literal["adam"]
    lr: float = Field(gt=0)


class Schedule(Frozen):
    """The size and length of one arm's training."""

    seed: int
    group_size: int = Field(gt=0)
    groups_per_batch: int = Field(gt=0)
    steps: int = Field(gt=0)
    learning_rate: float = Field(gt=0)


class CardArm(Frozen):
    """One training arm as the card states it."""

    name: Name
    advantage_mode: str
    group_size: int = Field(gt=0)
    groups_per_batch: int = Field(gt=0)
    lr: float = Field(gt=0)
    seed: int
    steps: int = Field(gt=0)
    similarity: str | None = None
    tau: float | None = Field(default=None, gt=0)

    def schedule(self) -> Schedule:
        """What the card says of the arm's size and length."""
        return Schedule(
            seed=self.seed,
            group_size=self.group_size,
            groups_per_batch=self.groups_per_batch,
            steps=self.steps,
            learning_rate=self.lr,
        )


class GateCheck(Frozen):
    """One activation gate: a metric measured on the pilot, and the values that it may take.

    `roles` are those whose arms are looked at; all of them if not given.
    """

    metric: str
    measures: str
    min: float | None = None
    max: float | None = None
    one_of: list[str] | None = None
    roles: list[str] | None = Field(default=None, min_length=1)


class ActivationGate(Frozen):
    """The gates that show that the treatment really happens."""

    applicable: bool
    checks: list[GateCheck]
    reason: str


class Threshold(Frozen):
    """The contrast that refutes a criterion where it lies below `margin` and not below `least`.

    Without `least` all that lies below the margin refutes.
    """

    weights: dict[str, float]
    margin: float
    least: float | None = None


class SeedRange(Frozen):
    """A gap is shown above `validated` times the larger seed range, refuted up to `refuted` times.

    The range of a role is its largest minus its smallest seed; the gap is the contrast of the
    means over seeds.
    """

    validated: float = Field(gt=0)
    refuted: float = Field(ge=0)


class CriterionSpec(Frozen):
    """One contrast of a metric between roles, and the margin that it has to clear.

    The role `base` is the untrained base model. A `premise` that is not shown makes the comparison
    not count: INCONCLUSIVE, whatever the others say, and the sentence names its `next_step`. An
    estimate above `win` is reported as a win and changes no verdict.
    Where a criterion names its own method, unit or seeds, they replace the rule's. `steps`, first
    and last included and counted from 0, say of which steps a metric is averaged to one number a
    seed. `refuted` and `seed_range` belong to the methods that compare the estimate itself.
    """

    id: Name
    metric: str
    weights: dict[str, float]
    bounds: tuple[float, float]
    margin: float
    premise: bool = False
    next_step: str | None = None
    win: float | None = None
    method: str | None = None
    unit: str | None = None
    seeds: list[int] | None = None
    steps: tuple[int, int] | None = None
    refuted: Threshold | None = None
    seed_range: SeedRange | None = None


class ClusterFile(Frozen):
    """A JSON file beside the card that maps each item id to its cluster, pinned by its sha256."""

    path: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class SecondLook(Frozen):
    """When a second set of seeds is trained: the first estimate of `criterion` in [low, high].

    Each look is decided by the rule on its own. With two looks both have to say the same, or the
    verdict is INCONCLUSIVE.
    """

    criterion: str
    low: float
    high: float


class DecisionRule(Frozen):
    """The registered rule: method, unit, level, criteria.

    `seeds` are those of the arms that are trained in any case. What follows the criteria has a
    default that the oldest cards mean: two sides, all criteria must pass, one look. `order_key`
    belongs to the betting method, `log_events` to empirical Bernstein, `clusters` to clustered_t.
    """

    version: int
    method: str
    unit: str
    alpha: float = Field(gt=0, lt=1)
    estimand: str
    seeds: list[int]
    criteria: list[CriterionSpec] = Field(min_length=1)
    sides: Literal[1, 2] = 2
    order_key: str | None = None
    log_events: int | None = None
    clusters: ClusterFile | None = None
    combine: Literal[
        "all_must_pass", "all_must_pass_holm_refuted", "any_may_pass", "all_must_agree"
    ] = "all_must_pass"
    second_look: SecondLook | None = None


class Tolerance(Frozen):
    """How far two computations of one quantity may differ."""

    atol: float = Field(ge=0)
    rtol: float = Field(ge=0)
    min_cosine: float | None = Field(default=None, le=1)


class CorrectnessPath(Frozen):
    """One computation that must agree with a reference before anything is trained."""

    id: str
    kind: str
    baseline_revision: str
    reference_revision: str
    tolerances: dict[str, Tolerance]


class CorrectnessPreflight(Frozen):
    """The card's demand that the code computes what the card says."""

    required: bool
    status: str
    paths: list[CorrectnessPath]


class RestorationArm(Frozen):
    """What a fresh client of one arm must look like."""

    name: str
    optimizer: str
    optimizer_config: dict[str, float]


class RestorationGroup(Frozen):
    """Arms that must start from the same state."""

    arms: list[RestorationArm]


class RestorationPreflight(Frozen):
    """The card's demand that arms start equal."""

    applicable: bool
    fixed_batch_required: bool
    groups: list[RestorationGroup]
    reason: str


class GenerationAudit(Frozen):
    """The card's demand on the data."""

    answer_comparison: str
    max_eval_overlaps: int = Field(ge=0)
    max_label_errors: int = Field(ge=0)
    min_sample_size: int = Field(ge=0)
    required: bool


class Card(Frozen):
    """A registered experiment card, whole."""

    title: str
    hypothesis: str
    method: str
    command: str
    baseline: str
    success_criterion: str
    training_type: Literal["rl"]
    base_model: str
    lora_rank: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    steps: int = Field(gt=0)
    max_seq_len: int = Field(gt=0)
    budget: Budget
    dataset: Dataset
    eval: Evaluation
    optimizer: Optimizer
    arms: list[CardArm] | None = None
    primary_endpoint: str | None = None
    decision_rule: DecisionRule | None = None
    activation_gate: ActivationGate | None = None
    correctness_preflight: CorrectnessPreflight | None = None
    restoration_preflight: RestorationPreflight | None = None
    generation_audit: GenerationAudit | None = None
    experiment_features: dict[str, bool] | None = None
    feasibility: JsonValue = None
    feasibility_check: JsonValue = None
    feasibility_required: bool | None = None
