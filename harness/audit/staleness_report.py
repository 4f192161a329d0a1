"""Staleness in words, for readers: the ramp apart, and which groups the clip takes mass from."""

import math
from collections.abc import Mapping, Sequence

from harness.audit.recomputed import BUCKETS, PREFIX
from harness.cards import Arm
from harness.records import StepFigures, StepRecord


def ramp_lines(arm: Arm, pilot: Mapping[str, Sequence[StepRecord]]) -> list[str]:
    """How stale the pilot was while the lag ramped up, and after: one line an arm."""
    records = pilot[arm.name]
    ramp = [record for record in records if record["step"] < arm.lag]
    steady = [record for record in records if record["step"] >= arm.lag]
    parts = [
        f"{name} (steps {part[0]['step']}-{part[-1]['step']}): KL {_over(part, 'kl_k3'):.3g}, "
        f"ratio p95 {_over(part, 'ratio_p95'):.3f}, clipped {_over(part, 'clip_raw'):.2%}"
        for name, part in (("ramp", ramp), (f"lag {arm.lag}", steady))
        if part
    ]
    return [f"staleness of {arm.name} in the pilot: {'; '.join(parts)}"]


def _over(records: Sequence[StepRecord | StepFigures], name: str) -> float:
    return _sum(records, name) / len(records)


def staleness_lines(arm: Arm, records: Sequence[StepFigures]) -> list[str]:
    """An arm past its ramp, over all its steps: one line of figures, one of clipped mass by k.

    A bucket's rate is what the clip takes of its own |A| mass, its share what it contributes to all
    that is taken; both come from sums over the steps.
    """
    steady = [record for record in records if record["step"] >= arm.lag]
    if not steady:
        return []
    where = f"{arm.name}, steps {steady[0]['step']}-{steady[-1]['step']}"
    cosines = [r["metrics"]["probe/cosine"] for r in steady if "probe/cosine" in r["metrics"]]
    cosine = f", gradient cosine {_mean(cosines):.3f} ({len(cosines)} probes)" if cosines else ""
    lines = [
        f"{where}: KL {_over(steady, 'kl_k3'):.3g}, ratio mean {_over(steady, 'ratio_mean'):.4f} "
        f"p95 {_over(steady, 'ratio_p95'):.3f}, clipped {_over(steady, 'clip_raw'):.2%} raw and "
        f"{_over(steady, 'clip_active'):.2%} active, |A| mass clipped "
        f"{_over(steady, 'mass_fraction'):.2%}{cosine}"
    ]
    if all(f"{PREFIX}mass/k=1/total" in record["metrics"] for record in steady):
        lost = {k: _sum(steady, f"mass/k={k}/clipped") for k in BUCKETS}
        parts = [
            f"k={k} rate {_ratio(lost[k], _sum(steady, f'mass/k={k}/total'))}, share "
            f"{_ratio(lost[k], math.fsum(lost.values()))}"
            for k in BUCKETS
        ]
        lines.append(f"{where}, clipped mass by successes: {'; '.join(parts)}")
    return lines


def _sum(records: Sequence[StepRecord | StepFigures], name: str) -> float:
    return math.fsum(record["metrics"][f"{PREFIX}{name}"] for record in records)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _ratio(part: float, whole: float) -> str:
    return f"{part / whole:.2%}" if whole > 0.0 else "-"
