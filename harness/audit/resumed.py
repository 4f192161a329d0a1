"""An arm that is interrupted goes on as if nothing had happened: weights, moments, samplers."""

from pydantic import Field

from harness.cards import Experiment
from harness.evidence import Evidence, Measured
from harness.fingerprints import CLEARANCE, distance, noise_floor, service_tolerance

Row = list[Measured]


class ResumedArm(Evidence):
    """One arm after its first steps, live and opened again from its checkpoint.

    Each row has log-probs of fixed texts (T), of the live arm and of the resumed one: by the
    learner, by the learner after one identical step, which shows the optimizer's moments, and by
    the sampler of the next step (`samplers`, empty without lag). `repeated` has two readings each
    of one client, which differ by the service's floor; `exact` says that it promises to have none.
    Versions count updates.
    """

    arm: str
    version: int
    resumed_version: int
    learner: tuple[Row, Row]
    stepped: tuple[Row, Row]
    samplers: list[Row]
    repeated: list[tuple[Row, Row]] = Field(default_factory=list)
    exact: bool = False


def resumed_problems(evidence: ResumedArm, experiment: Experiment) -> list[str]:
    """Where the resumed arm is not the live one."""
    bound = service_tolerance(noise_floor(evidence.repeated), exact=evidence.exact)
    where = f"arm {evidence.arm}: resumed after {evidence.version} updates"
    if evidence.resumed_version != evidence.version:
        return [f"{where}, it goes on at {evidence.resumed_version}; count every step once"]
    rows = [
        (*evidence.learner, "log-probs", "restore the weights of the checkpoint"),
        (*evidence.stepped, "log-probs after one more step", "restore the optimizer's moments too"),
    ]
    if evidence.samplers or experiment.arm(evidence.arm).lag:
        live, resumed = evidence.samplers
        advice = "restore the snapshots that the lag needs"
        rows.append((live, resumed, "the sampler's log-probs", advice))
    for live, resumed, what, advice in rows:
        if not live or len(live) != len(resumed):
            return [f"{where}, {what} are {len(resumed)} for {len(live)}; probe the same texts"]
        difference = distance(live, resumed)
        if not difference <= bound:
            return [f"{where}, {what} differ by {difference:.3g}, bound {bound:.3g}; {advice}"]
    move = distance(evidence.stepped[0], evidence.learner[0])
    if not move > CLEARANCE * bound:
        return [
            f"{where}, a step moved log-probs by {move:.3g}, must be above "
            f"{CLEARANCE * bound:.3g}, so it shows nothing of the moments; check that optim_step "
            "is applied, or use a service that repeats itself"
        ]
    return []
