"""Evidence of both capability and feasibility: real steps of each arm on throw-away clients."""

from harness.audit.requests import ArmTrace
from harness.audit.resumed import ResumedArm
from harness.evidence import Evidence, Measured
from harness.traces import EvaluationTrace


class ThrowAwaySteps(Evidence):
    """Steps of one arm's exact configuration, on a client that is not kept.

    Of the first step: `rollouts`, of which `stopped` end with the stop token and `parsed` were
    understood by the environment, their action `tokens`, and their mean `reward`. `seconds` has
    one mapping a step: phases sample, train and snapshot.
    """

    arm: str
    model: str
    rollouts: int
    stopped: int
    parsed: int
    tokens: int
    reward: Measured
    seconds: list[dict[str, float]]


class RoundTrip(Evidence):
    """Prompts as tokens, decoded and encoded again.

    `prompts` is how many were tried, `broken` names those that came back different.
    """

    prompts: int
    broken: list[str]


class PromptLengths(Evidence):
    """The longest prompt of a split, in tokens, and the item that it belongs to."""

    prompts: int
    longest: int
    item: str


class ThrowAwayEvidence(Evidence):
    """What the service and the tokenizer did for every arm before anything was trained.

    `evaluated` greedy evaluation items took `evaluation_seconds`. `prompt_logprobs` says whether
    a sampler returns the log-probs of a prompt, by which weights are distinguished. `lengths` has
    the splits `train` and `test`. `traces` and `evaluation_trace` are what was asked meanwhile,
    `resumed` is one arm that was interrupted after these steps.
    """

    arms: list[ThrowAwaySteps]
    round_trip: RoundTrip
    lengths: dict[str, PromptLengths]
    evaluated: int
    evaluation_seconds: float
    prompt_logprobs: bool
    traces: list[ArmTrace]
    evaluation_trace: EvaluationTrace
    resumed: ResumedArm
