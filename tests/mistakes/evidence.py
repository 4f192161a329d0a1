"""Mistakes in stored evidence of preflights: each is an edit of one place in sound evidence."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from mistakes.mistake import Edit, Mistake, Where

OTHER = "3" * 64
CLIENT, TRACES, RESUMED = "restoration groups 0", "capability traces", "capability resumed"
PATTERN = "reference_correctness computations 1 patterns random"
A_DEGREE = math.cos(math.pi / 180)
LABEL = ["test/00003", "gold 4, but the solution concludes with 6"]
FLAT = {"tau": 1e6, "contributors_median": 63.0, "gaps": [0.0]}


def at(path: str, change: Callable[[Any], object] | None = None, **values: object) -> Edit:
    """What stands at a path of keys and places is changed, or some of its keys are set."""

    def edit(evidence: Any) -> None:
        *way, last = (int(key) if key.isdigit() else key for key in path.split())
        place = evidence
        for key in way:
            place = place[key]
        place[last] = {**place[last], **values} if change is None else change(place[last])

    return edit


def to(value: object) -> Callable[[object], object]:
    """Another value."""
    return lambda _: value


def without_last(values: Any) -> Any:
    """The last entry is missing."""
    kept: Iterable[Any] = list(values)[:-1]
    return {key: values[key] for key in kept} if isinstance(values, dict) else kept


def moves(**factors: float) -> Edit:
    """The service moves log-probs otherwise than one that sums over tokens and datums."""

    def changed(moves_T: dict[str, list[float]]) -> dict[str, list[float]]:
        return {
            name: [factors.get(name, 1.0) * value for value in row] for name, row in moves_T.items()
        }

    return at("server_loss moves_T", changed)


def step_without_effect(evidence: Any) -> None:
    """Log-probs after the throw-away step are those before it."""
    for client in evidence["restoration"]["groups"][0]:
        client["after_T"] = client["before_T"]


def slow_service(evidence: Any) -> None:
    """A step takes a minute and a half."""
    for arm in evidence["feasibility"]["arms"]:
        arm["seconds"] = [{"sample": 60.0, "train": 30.0, "snapshot": 5.0}] * 2


def cold_sampling(evidence: Any) -> None:
    """One arm samples at another temperature."""
    for request in evidence["capability"]["traces"][1]["steps"][0]["samples"]:
        request["temperature"] = 0.7


_ROWS: dict[str, list[tuple[str, Where, str, Edit]]] = {
    "pins": [
        ("changed_cookbook_file", "packages", "tinker-cookbook: 1 file(s) changed, bound 0: a/b.py",
            at("pins packages tinker-cookbook installed", **{"a/b.py": "3" * 64})),
        ("missing_cookbook_file", "packages", "tinker-cookbook: 1 file(s) missing, bound 0: a/b.py",
            at("pins packages tinker-cookbook installed", without_last)),
        ("file_dropped_into_the_sdk", "packages", "1 file(s) not in the manifest, bound 0: a/patch",
            at("pins packages tinker installed", **{"a/patch.py": "3" * 64})),
        ("other_cookbook_release", "packages", "tinker-cookbook 0.5.8 is installed, pinned is",
            at("pins packages tinker-cookbook", version="0.5.8")),
        ("edited_manifest", "packages", "tinker: the manifest has sha256 333333333333",
            at("pins packages tinker manifest_sha256", to(OTHER))),
        ("edited_reference", "kernel", "gs1_float64.py has sha256 333333333333, pinned is",
            at("pins references", lambda known: dict.fromkeys(known, OTHER))),
        ("other_weights", "service", "weights of harness/nano-qwen3 has sha256 333333333333",
            at("pins base_weights_sha256", to(OTHER))),
    ],
    "baseline_correctness": [
        ("shifted_datum", "loop", "1 of 64 datums differ from the stock cookbook's, bound 0",
            at("baseline_correctness unequal", to(["datum 3: logprobs"]))),
        ("advantages_divided_by_std", "estimator", "advantages: differs by 0.3 where the reference",
            at("baseline_correctness path advantages", worst=[[0.5, 0.3]])),
        ("gradient_turned_by_a_degree", "service", "gradient by parameters: cosine 0.999847695",
            at("baseline_correctness path parameter_gradient", cosine=A_DEGREE)),
    ],
    "reference_correctness": [
        ("self_in_the_baseline", "kernel", "advantages: differs by 0.016 where the reference",
            at(f"{PATTERN} advantages", worst=[[0.5, 0.016]])),
        ("nothing_compared", "kernel", "no reward pattern was compared",
            at("reference_correctness computations 0 patterns", to({}))),
        ("nan_gradient", "kernel", "gradient by log-probs: differs by nan",
            at(f"{PATTERN} logprob_gradient", worst=[["nan", "nan"]], cosine="nan")),
    ],
    "server_loss": [
        ("server_means_over_tokens", "service", "this fits mean over tokens, of a batch",
            moves(two_copies=0.5, longer=0.5, halves=0.5)),
        ("server_means_over_sequences", "service", "this fits mean over the tokens of a sequence",
            moves(longer=0.5)),
        ("server_means_over_datums", "service", "this fits mean over the datums of a batch",
            moves(two_copies=0.5, halves=0.5)),
        ("server_turns_the_ratio_round", "service", "with the ratio the wrong way round",
            moves(doubled_ratio=0.25)),
        ("server_reports_another_loss", "service", "it equals the mean over tokens",
            at("server_loss values 0 reported", lambda value: 0.2 * value)),
        ("server_reports_no_loss", "service", "the service reports no loss:sum",
            at("server_loss values 0", reported=None)),
        ("server_reports_nan", "service", "the service reports nan",
            at("server_loss values 0", reported="nan")),
    ],
    "restoration": [
        ("other_lora_a", "service", "differ by 0.0001 after an identical step, bound 0; the init",
            at(f"{CLIENT} 1", after_T=[-0.9, -2.2001])),
        ("other_start", "service", "differ by 1e-05 before an identical step",
            at(f"{CLIENT} 1", before_T=[-1.0, -2.00001])),
        ("other_learning_rate", "loop", "gs1_seed0: learning_rate was sent as 0.001, 0.0003",
            at(f"{CLIENT} 1 sent", learning_rate=1e-3)),
        ("other_init_seed", "loop", "arm gs1_seed0: init_seed was sent as 1, 0 is stated",
            at(f"{CLIENT} 1 sent", init_seed=1.0)),
        ("other_rank", "service", "arm grpo_gs8_seed0: the service reports rank 16",
            at(f"{CLIENT} 0", reported_rank=16)),
        ("step_without_effect", "service", "the throw-away step moved log-probs by 0",
            step_without_effect),
        ("nan_logprob", "service", "log-probs differ by nan after an identical step",
            at(f"{CLIENT} 0 after_T 0", to("nan"))),
        ("arm_not_probed", "loop", "arm gs1_seed0: no client was probed",
            at(CLIENT, without_last)),
    ],
    "capability": [
        ("other_model_served", "service", "the service trains 'Qwen/Qwen3.5-4B'",
            at("capability arms 0", model="Qwen/Qwen3.5-4B")),
        ("rollouts_lost", "service", "a step gave 63 rollouts, 64 expected",
            at("capability arms 1", rollouts=63)),
        ("nothing_stops", "service", "0 of 64 responses end with the stop token",
            at("capability arms 1", stopped=0)),
        ("nothing_parses", "task", "0 of 64 responses could be parsed",
            at("capability arms 0", parsed=0)),
        ("tokenizer_of_another_model", "task", "1 of 128 prompts come back as other tokens",
            at("capability round_trip", broken=["train/00001"])),
        ("prompt_too_long", "task", "test: prompt test/00001 has 500 tokens",
            at("capability lengths test", longest=500)),
        ("cold_sampling", "loop", "step 0 sampled with temperature 0.7 in 64 of 64 requests",
            cold_sampling),
        ("decayed_rate", "loop", "step 1 updated with learning_rate 0.0002925",
            at(f"{TRACES} 0 steps 1 optimizer 0 learning_rate", lambda rate: rate * 39 / 40)),
        ("clipped_gradient_in_one_arm", "loop", "gs1_seed0: step 0 updated with grad_clip_norm 1",
            at(f"{TRACES} 1 steps 0 optimizer 0", grad_clip_norm=1.0)),
        ("datum_out_of_line", "loop", "step 0 sent a datum ...",
            at(f"{TRACES} 0 steps 0", faults=["sent a datum ..."])),
        ("arm_not_recorded", "loop", "arm gs1_seed0: no request was recorded",
            at(TRACES, without_last)),
        ("evaluation_sampled", "evaluation", "evaluation sampled with temperature 1 in 1 of 128",
            at("capability evaluation_trace samples 5", temperature=1.0)),
        ("moments_lost_on_resume", "service", "after one more step differ by 0.0001",
            at(f"{RESUMED} stepped 1 0", lambda value: value + 1e-4)),
        ("step_repeated_on_resume", "loop", "resumed after 2 updates, it goes on at 1",
            at(RESUMED, resumed_version=1)),
    ],
    "feasibility": [
        ("slow_service", "service", "wall time: 127 minutes predicted, budget 30",
            slow_service),
        ("untimed_step", "loop", "1 steps were timed, 2 registered",
            at("feasibility arms 0 seconds", without_last)),
        ("nothing_evaluated", "evaluation", "evaluation: 0 items in 1 s",
            at("feasibility", evaluated=0)),
    ],
    "audit": [
        ("overlapping_item", "data", "1 test questions are train questions, bound 0: test/00017",
            at("audit", overlaps=[["test/00017", "train/00100"]])),
        ("wrong_sampled_label", "data", "test: 1 label errors in a sample of 100",
            at("audit label_errors", lambda found: [*found, LABEL])),
        ("small_label_sample", "data", "test: 99 labels were sampled",
            at("audit sampled test", without_last)),
        ("other_data_file", "data", "test: sha256 333333333333, pinned is",
            at("audit sha256s", test=OTHER)),
        ("truncated_data", "data", "test: 1318 items, the card says 1319",
            at("audit n_test", lambda n: n - 1)),
    ],
    "forecast": [
        ("huge_tau_registered", "scale", "is certain to fail at tau 1e+06: 63 on the 192 prompts",
            at("forecast arms 0 registered", **FLAT)),
        ("kernel_not_forecast", "kernel", "arms [] were forecast",
            at("forecast", arms=[])),
    ],
}  # fmt: skip

MISTAKES = tuple(
    Mistake(name, where, "preflight", frozenset({item}), words, edit, "evidence")
    for item, rows in _ROWS.items()
    for name, where, words, edit in rows
)
