"""One mistake at a time, planted in sound evidence: exactly the checks that are named notice."""

import copy
import importlib
import math
from collections.abc import Callable
from typing import Any

import pytest

from harness.audit import PREFLIGHTS
from harness.audit.gates import check_gate

Plain = dict[str, Any]


def test_sound_evidence_passes_every_check(experiment, sound, pilot):
    """Without a mistake no preflight and no gate complains."""
    assert set() == failing(experiment, _plain(sound), pilot)


@pytest.fixture(name="spoiled")
def _spoiled(experiment, sound, pilot) -> Callable[[Callable[..., None]], set[str]]:
    def spoil(mistake: Callable[..., None]) -> set[str]:
        evidence, records = _plain(sound), copy.deepcopy(pilot)
        if mistake.__code__.co_varnames[0] == "pilot":
            mistake(records)
        else:
            mistake(evidence)
        return failing(experiment, evidence, records)

    return spoil


def _plain(sound) -> Plain:
    return {id: copy.deepcopy(evidence.plain()) for id, evidence in sound.items()}


def failing(experiment, evidence: Plain, pilot) -> set[str]:
    """Every preflight and gate that does not pass, from evidence as it is stored."""
    failed = set()
    for id in PREFLIGHTS:
        module = importlib.import_module(f"harness.audit.{id}")
        kind = _type_of(id).of(evidence[id])
        if not module.check(kind, experiment).ok:
            failed.add(id)
    for finding in (check_gate(check, pilot, experiment) for check in experiment.gates):
        if not finding.ok:
            failed.add(finding.check.metric)
    return failed


def _type_of(id: str):
    from harness.audit import (
        audit,
        baseline_correctness,
        forecast,
        pins,
        reference_correctness,
        restoration,
        server_loss,
        throw_away,
    )

    return {
        "pins": pins.PinsEvidence,
        "baseline_correctness": baseline_correctness.BaselineEvidence,
        "reference_correctness": reference_correctness.ReferenceEvidence,
        "server_loss": server_loss.LossEvidence,
        "restoration": restoration.RestorationEvidence,
        "capability": throw_away.ThrowAwayEvidence,
        "feasibility": throw_away.ThrowAwayEvidence,
        "audit": audit.AuditEvidence,
        "forecast": forecast.ForecastEvidence,
    }[id]


def _changed_cookbook_file(e: Plain) -> None:
    e["pins"]["packages"]["tinker-cookbook"]["installed"]["a/b.py"] = "3" * 64


def _missing_cookbook_file(e: Plain) -> None:
    del e["pins"]["packages"]["tinker-cookbook"]["installed"]["a/b.py"]


def _file_dropped_into_the_sdk(e: Plain) -> None:
    e["pins"]["packages"]["tinker"]["installed"]["a/patch.py"] = "3" * 64


def _other_cookbook_release(e: Plain) -> None:
    e["pins"]["packages"]["tinker-cookbook"]["version"] = "0.5.8"


def _edited_manifest(e: Plain) -> None:
    e["pins"]["packages"]["tinker"]["manifest_sha256"] = "3" * 64


def _edited_reference(e: Plain) -> None:
    name = next(iter(e["pins"]["references"]))
    e["pins"]["references"][name] = "3" * 64


def _other_weights(e: Plain) -> None:
    e["pins"]["base_weights_sha256"] = "3" * 64


def _shifted_datum(e: Plain) -> None:
    e["baseline_correctness"]["unequal"] = ["datum 3: logprobs"]


def _advantages_divided_by_std(e: Plain) -> None:
    e["baseline_correctness"]["path"]["advantages"]["worst"] = [[0.5, 0.3]]


def _gradient_turned_by_a_degree(e: Plain) -> None:
    e["baseline_correctness"]["path"]["parameter_gradient"]["cosine"] = math.cos(math.pi / 180)


def _self_in_the_baseline(e: Plain) -> None:
    path = e["reference_correctness"]["computations"][1]["patterns"]["random"]
    path["advantages"]["worst"] = [[0.5, 0.016]]


def _nothing_compared(e: Plain) -> None:
    e["reference_correctness"]["computations"][0]["patterns"] = {}


def _nan_gradient(e: Plain) -> None:
    part = e["reference_correctness"]["computations"][1]["patterns"]["random"]["logprob_gradient"]
    part.update(worst=[["nan", "nan"]], cosine="nan")


def _moves(e: Plain, **factors: float) -> None:
    for name, factor in factors.items():
        row = e["server_loss"]["moves_T"][name]
        e["server_loss"]["moves_T"][name] = [factor * value for value in row]


def _server_means_over_tokens(e: Plain) -> None:
    _moves(e, two_copies=0.5, longer=0.5, halves=0.5)


def _server_means_over_sequences(e: Plain) -> None:
    _moves(e, longer=0.5)


def _server_means_over_datums(e: Plain) -> None:
    _moves(e, two_copies=0.5, halves=0.5)


def _server_turns_the_ratio_round(e: Plain) -> None:
    _moves(e, doubled_ratio=0.25)


def _server_reports_another_loss(e: Plain) -> None:
    e["server_loss"]["values"][0]["reported"] *= 0.2


def _server_reports_no_loss(e: Plain) -> None:
    e["server_loss"]["values"][0]["reported"] = None


def _server_reports_nan(e: Plain) -> None:
    e["server_loss"]["values"][0]["reported"] = "nan"


def _other_lora_a(e: Plain) -> None:
    e["restoration"]["groups"][0][1]["after_T"] = [-0.9, -2.2001]


def _other_start(e: Plain) -> None:
    client = e["restoration"]["groups"][0][1]
    client["before_T"] = [-1.0, -2.00001]


def _other_learning_rate(e: Plain) -> None:
    e["restoration"]["groups"][0][1]["trace"]["learning_rate"] = 1e-3


def _other_init_seed(e: Plain) -> None:
    e["restoration"]["groups"][0][1]["trace"]["init_seed"] = 1.0


def _other_rank(e: Plain) -> None:
    e["restoration"]["groups"][0][0]["reported_rank"] = 16


def _step_without_effect(e: Plain) -> None:
    for client in e["restoration"]["groups"][0]:
        client["after_T"] = client["before_T"]


def _nan_logprob(e: Plain) -> None:
    e["restoration"]["groups"][0][0]["after_T"][0] = "nan"


def _arm_not_probed(e: Plain) -> None:
    e["restoration"]["groups"][0].pop()


def _other_model_served(e: Plain) -> None:
    e["capability"]["arms"][0]["model"] = "Qwen/Qwen3.5-4B"


def _rollouts_lost(e: Plain) -> None:
    e["capability"]["arms"][1]["rollouts"] = 63


def _nothing_stops(e: Plain) -> None:
    e["capability"]["arms"][1]["stopped"] = 0


def _nothing_parses(e: Plain) -> None:
    e["capability"]["arms"][0]["parsed"] = 0


def _tokenizer_of_another_model(e: Plain) -> None:
    e["capability"]["round_trip"]["broken"] = ["train/00001"]


def _prompt_too_long(e: Plain) -> None:
    e["capability"]["lengths"]["test"]["longest"] = 500


def _cold_sampling(e: Plain) -> None:
    for request in e["capability"]["trace"][1]["steps"][0]["samples"]:
        request["temperature"] = 0.7


def _decayed_rate(e: Plain) -> None:
    e["capability"]["trace"][0]["steps"][1]["optimizer"][0]["learning_rate"] *= 39 / 40


def _clipped_gradient_in_one_arm(e: Plain) -> None:
    e["capability"]["trace"][1]["steps"][0]["optimizer"][0]["grad_clip_norm"] = 1.0


def _datum_out_of_line(e: Plain) -> None:
    e["capability"]["trace"][0]["steps"][0]["faults"] = ["sent a datum ..."]


def _arm_not_witnessed(e: Plain) -> None:
    e["capability"]["trace"].pop()


def _evaluation_sampled(e: Plain) -> None:
    e["capability"]["trace_evaluation"]["samples"][5]["temperature"] = 1.0


def _moments_lost_on_resume(e: Plain) -> None:
    e["capability"]["resumed"]["stepped"][1][0] += 1e-4


def _step_repeated_on_resume(e: Plain) -> None:
    e["capability"]["resumed"]["resumed_version"] = 1


def _slow_service(e: Plain) -> None:
    for arm in e["feasibility"]["arms"]:
        arm["seconds"] = [{"sample": 60.0, "train": 30.0, "snapshot": 5.0}] * 2


def _untimed_step(e: Plain) -> None:
    e["feasibility"]["arms"][0]["seconds"].pop()


def _nothing_evaluated(e: Plain) -> None:
    e["feasibility"]["evaluated"] = 0


def _overlapping_item(e: Plain) -> None:
    e["audit"]["overlaps"] = [["test/00017", "train/00100"]]


def _wrong_sampled_label(e: Plain) -> None:
    e["audit"]["label_errors"].append(["test/00003", "gold 4, but the solution concludes with 6"])


def _small_label_sample(e: Plain) -> None:
    e["audit"]["sampled"]["test"].pop()


def _other_data_file(e: Plain) -> None:
    e["audit"]["sha256s"]["test"] = "3" * 64


def _truncated_data(e: Plain) -> None:
    e["audit"]["n_test"] -= 1


def _huge_tau_registered(e: Plain) -> None:
    e["forecast"]["arms"][0]["registered"].update(tau=1e6, contributors_median=63.0, gaps=[0.0])


def _kernel_not_forecast(e: Plain) -> None:
    e["forecast"]["arms"] = []


def _huge_tau_executed(pilot: Plain) -> None:
    from harness.methods import uniform_loo

    for record in pilot["gs1_seed0"]:
        rewards = [group["rewards_G"][0] for group in record["groups"]]
        for group, advantage in zip(record["groups"], uniform_loo(rewards), strict=True):
            group["advantages_G"] = [float(advantage)]
        record["kernel"]["contributors_P"] = [63.0] * 64


def _one_neighbour(pilot: Plain) -> None:
    for record in pilot["gs1_seed0"]:
        record["kernel"]["contributors_P"] = [1.2] * 64


def _batch_mean_under_a_kernels_name(pilot: Plain) -> None:
    from harness.methods import uniform_loo

    for record in pilot["gs1_seed0"]:
        rewards = [group["rewards_G"][0] for group in record["groups"]]
        for group, advantage in zip(record["groups"], uniform_loo(rewards), strict=True):
            group["advantages_G"] = [float(advantage)]


def _prompt_drawn_twice(pilot: Plain) -> None:
    groups = pilot["gs1_seed0"][2]["groups"]
    groups[1]["prompt"] = groups[0]["prompt"]


def _half_the_rollouts(pilot: Plain) -> None:
    pilot["grpo_gs8_seed0"][1]["groups"] = pilot["grpo_gs8_seed0"][1]["groups"][:4]


def _twice_the_rollouts(pilot: Plain) -> None:
    extra = copy.deepcopy(pilot["grpo_gs8_seed0"][1]["groups"])
    pilot["grpo_gs8_seed0"][1]["groups"] += extra


def _everything_right_in_one_arm(pilot: Plain) -> None:
    for record in pilot["grpo_gs8_seed0"]:
        for group in record["groups"]:
            group["rewards_G"] = [1.0] * 8


def _other_model_trained(pilot: Plain) -> None:
    pilot["gs1_seed0"][2]["model"] = "Qwen/Qwen3.5-4B"


MISTAKES: dict[Callable[..., None], set[str]] = {
    _changed_cookbook_file: {"pins"},
    _missing_cookbook_file: {"pins"},
    _file_dropped_into_the_sdk: {"pins"},
    _other_cookbook_release: {"pins"},
    _edited_manifest: {"pins"},
    _edited_reference: {"pins"},
    _other_weights: {"pins"},
    _shifted_datum: {"baseline_correctness"},
    _advantages_divided_by_std: {"baseline_correctness"},
    _gradient_turned_by_a_degree: {"baseline_correctness"},
    _self_in_the_baseline: {"reference_correctness"},
    _nothing_compared: {"reference_correctness"},
    _nan_gradient: {"reference_correctness"},
    _server_means_over_tokens: {"server_loss"},
    _server_means_over_sequences: {"server_loss"},
    _server_means_over_datums: {"server_loss"},
    _server_turns_the_ratio_round: {"server_loss"},
    _server_reports_another_loss: {"server_loss"},
    _server_reports_no_loss: {"server_loss"},
    _server_reports_nan: {"server_loss"},
    _other_lora_a: {"restoration"},
    _other_start: {"restoration"},
    _other_learning_rate: {"restoration"},
    _other_init_seed: {"restoration"},
    _other_rank: {"restoration"},
    _step_without_effect: {"restoration"},
    _nan_logprob: {"restoration"},
    _arm_not_probed: {"restoration"},
    _other_model_served: {"capability"},
    _rollouts_lost: {"capability"},
    _nothing_stops: {"capability"},
    _nothing_parses: {"capability"},
    _tokenizer_of_another_model: {"capability"},
    _prompt_too_long: {"capability"},
    _cold_sampling: {"capability"},
    _decayed_rate: {"capability"},
    _clipped_gradient_in_one_arm: {"capability"},
    _datum_out_of_line: {"capability"},
    _arm_not_witnessed: {"capability"},
    _evaluation_sampled: {"capability"},
    _moments_lost_on_resume: {"capability"},
    _step_repeated_on_resume: {"capability"},
    _slow_service: {"feasibility"},
    _untimed_step: {"feasibility"},
    _nothing_evaluated: {"feasibility"},
    _overlapping_item: {"audit"},
    _wrong_sampled_label: {"audit"},
    _small_label_sample: {"audit"},
    _other_data_file: {"audit"},
    _truncated_data: {"audit"},
    _huge_tau_registered: {"forecast"},
    _kernel_not_forecast: {"forecast"},
    _huge_tau_executed: {
        "gs1_effective_contributors_median",
        "gs1_mean_abs_baseline_minus_uniform_loo",
    },
    _one_neighbour: {"gs1_effective_contributors_median"},
    _batch_mean_under_a_kernels_name: {"gs1_mean_abs_baseline_minus_uniform_loo"},
    _prompt_drawn_twice: {"gs1_executed_group_size"},
    _half_the_rollouts: {"rollouts_per_step_both_arms"},
    # 16 rollouts a prompt are no concern of the GS1 gate: it looks at the GS1 arm
    _twice_the_rollouts: {"rollouts_per_step_both_arms"},
    _everything_right_in_one_arm: {"batch_mean_reward_pilot"},
    _other_model_trained: {"executed_base_model"},
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__.lstrip("_"))
def test_a_planted_mistake_fails_exactly_its_check(spoiled, mistake):
    """Each mistake is noticed, and by nothing else than the check that is named for it."""
    assert MISTAKES[mistake] == spoiled(mistake)


def test_every_check_has_a_planted_mistake(experiment):
    """No preflight and no gate goes through without one mistake that it alone must notice."""
    named = set().union(*(names for names in MISTAKES.values() if len(names) == 1))

    assert {*PREFLIGHTS, *(check.metric for check in experiment.gates)} == named
