"""A lag experiment from preflight to verdict: recomputed, killed, sabotaged."""

import shutil

import numpy as np
import pytest
import stored
from lag_mini import ARMS, CARD, EVERY, EXPERIMENT, FRESH, ITEMS, STALE, STEPS
from sessions import Session, start_and_stop_at

LOW, HIGH = 0.8, 1.2
BUCKETS = {"1": (1, 1), "2": (2, 2), "3-5": (3, 5), "6-7": (6, 7)}
AT = STEPS - 1


@pytest.fixture(scope="module", name="ready")
def _ready(lag_preflighted):
    return lag_preflighted


@pytest.fixture(scope="module", name="whole")
def _whole(lag_undisturbed) -> Session:
    return lag_undisturbed


def steps_of(session: Session) -> dict:
    """Every arm's step records, without durations."""
    return {name: stored.steps(stored.arm(session.runs, name)) for name in ARMS}


def rows_of(session: Session) -> dict:
    """Every policy's rows."""
    names = (*ARMS, "base")
    return {n: stored.entry(session.runs, f"evaluation/{n}").read("rows") for n in names}


def tokens(record: dict) -> dict:
    """The step's action tokens as arrays, read from the stored rollouts alone."""
    columns = {"p": [], "q": [], "a": [], "k": [], "rank": [], "spread": []}
    for group in record["groups"]:
        rewards = np.asarray([rollout["reward"] for rollout in group["rollouts"]])
        for rollout in group["rollouts"]:
            reward, (turn,) = rollout["reward"], rollout["turns"]
            n = len(turn["tokens_T"])
            columns["p"] += turn["learner_logprobs_T"]
            columns["q"] += turn["logprobs_T"]
            columns["a"] += [np.float64(np.float32(rollout["advantage"]))] * n
            columns["k"] += [rewards.sum()] * n
            columns["rank"] += [(rewards > reward).sum()] * n
            columns["spread"] += [(rewards == reward).sum()] * n
    return {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}


def recomputed(record: dict) -> dict[str, float]:
    """Every staleness figure of a step, with code of this test's own."""
    t = tokens(record)
    log_r = t["p"] - t["q"]
    r, mass = np.exp(log_r), np.abs(t["a"])
    lost = np.where(t["a"] > 0, r > HIGH, (t["a"] < 0) & (r < LOW))
    figures = {
        "ratio_mean": r.mean(),
        **{f"ratio_p{p}": np.percentile(r, p) for p in (1, 5, 95, 99)},
        "ratio_max": r.max(),
        "kl_k1": -log_r.mean(),
        "kl_k2": (log_r**2).mean() / 2,
        "kl_k3": (r - 1 - log_r).mean(),
        "max_abs_log_ratio": np.abs(log_r).max(),
        "clip_raw": ((r < LOW) | (r > HIGH)).mean(),
        "clip_active": lost.mean(),
        "entropy_behaviour": -t["q"].mean(),
        "cross_entropy": -t["p"].mean(),
        "mass_total": mass.sum(),
        "mass_clipped": mass[lost].sum(),
        "mass_fraction": mass[lost].sum() / mass.sum() if mass.sum() else 0.0,
    }
    # a reply is an episode of one turn; first and last percentiles are of 200 tokens at least
    tails = () if r.size < 200 else ("ratio_p1", "ratio_p99")
    of_turn = ("kl_k1", "kl_k2", "kl_k3", "clip_raw", "ratio_p5", "ratio_p95", *tails)
    figures |= {f"turn=0/{name}": figures[name] for name in of_turn}
    figures["turn=0/tokens"] = r.size
    figures["turn=0/trajectories"] = sum(len(group["rollouts"]) for group in record["groups"])
    inside = {name: (t["k"] >= a) & (t["k"] <= b) for name, (a, b) in BUCKETS.items()}
    inside["other"] = ~np.logical_or.reduce(list(inside.values()))
    for name, chosen in inside.items():
        figures[f"mass/k={name}/total"] = mass[chosen].sum()
        figures[f"mass/k={name}/clipped"] = mass[chosen & lost].sum()
    low = figures["mass/k=1/clipped"] + figures["mass/k=2/clipped"]
    rest = figures["mass_clipped"] - low
    figures["mass_low_minus_high"] = (low - rest) / mass.sum() if mass.sum() else 0.0
    for rank in range(8):
        here = (t["rank"] <= rank) & (rank < t["rank"] + t["spread"])
        for sign, chosen in (("+", t["a"] > 0), ("-", t["a"] < 0)):
            weight = np.where(here & chosen, mass / t["spread"], 0.0)
            figures[f"mass/rank={rank + 1}{sign}/total"] = weight.sum()
            figures[f"mass/rank={rank + 1}{sign}/clipped"] = weight[lost].sum()
    return {f"staleness/{name}": float(value) for name, value in figures.items()}


class TestUndisturbedRun:
    def test_every_reported_figure_follows_from_the_stored_rollouts(self, whole):
        """All staleness metrics of every step of every arm, and the loss and its surrogate."""
        for name, records in steps_of(whole).items():
            assert len(records) == STEPS, name
            for record in records:
                logged = record["metrics"]
                expected = recomputed(record)
                found = {key: logged[key] for key in logged if key.startswith("staleness/")}
                assert found == pytest.approx(expected, rel=1e-6, abs=1e-9), name
                t = tokens(record)
                r = np.exp(t["p"] - t["q"])
                gain, kept = r * t["a"], np.clip(r, LOW, HIGH) * t["a"]
                loss = -np.minimum(gain, kept)
                assert record["loss_backend"] == "custom"
                assert logged["custom/loss"] == pytest.approx(loss.sum(), rel=1e-4, abs=1e-4)
                rewards = [r["reward"] for group in record["groups"] for r in group["rollouts"]]
                assert logged["reward"] == pytest.approx(np.mean(rewards))

    def test_fresh_arms_are_on_policy_and_lagged_ones_are_stale(self, whole):
        """At lag 0 KL is 0 within float32 noise at every step; past the ramp lag 4 is not."""
        records = steps_of(whole)
        for name in ARMS:
            divergence = [record["metrics"]["staleness/kl_k3"] for record in records[name]]
            if "lag0" in name:
                assert max(divergence) < 1e-9
            else:
                assert divergence[0] < 1e-9  # nothing has been updated yet
                assert min(divergence[4:]) > 1e-5

    def test_each_step_sampled_from_the_registered_weights(self, whole):
        """The sampler's fingerprint is the learner's of update max(0, t - lag), at every step."""
        for name, records in steps_of(whole).items():
            lag = 4 if "lag4" in name else 0
            learner = [np.asarray(record["fingerprints"]["learner_T"]) for record in records]
            for step, record in enumerate(records):
                sampler = np.asarray(record["fingerprints"]["sampler_T"])
                gaps = [np.abs(sampler - each).max() for each in learner]
                assert gaps[max(0, step - lag)] < 1e-5, (name, step)
                assert record["sampled_version"] == max(0, step - lag)

    def test_the_gradient_probe_tells_fresh_from_stale(self, whole):
        """A cosine in [-1, 1] at every fourth step, wherever both gradients are there."""
        for records in steps_of(whole).values():
            for record in records:
                probed = {k: v for k, v in record["metrics"].items() if k.startswith("probe/")}
                assert bool(probed) is (record["step"] % 4 == 0)
                assert -1.0 <= probed.get("probe/cosine", 0.0) <= 1.0

    def test_the_verdict_is_what_the_stored_data_imply(self, whole):
        """Both criteria, worked out anew from rows and steps, and their combination."""
        rows, records = rows_of(whole), steps_of(whole)
        right = {name: sum(row["correct"] for row in rows[name]) for name in ARMS}
        drops = right[ARMS[2]] - right[ARMS[3]] - right[ARMS[0]] + right[ARMS[1]]
        clip = {
            name: np.mean([recomputed(r)["staleness/clip_raw"] for r in records[name][4:]])
            for name in ARMS
        }
        accuracy = "VALIDATED" if drops >= 3 else "REFUTED" if drops < 1 else "INCONCLUSIVE"
        ratio = "VALIDATED" if clip[ARMS[3]] >= 1.5 * clip[ARMS[1]] else "INCONCLUSIVE"
        both = {accuracy, ratio}
        expected = next(w for w in ("REFUTED", "INCONCLUSIVE", "VALIDATED") if w in both)

        one, other = whole.verdict["criteria"]

        assert ITEMS == 100
        assert (one["outcome"], other["outcome"]) == (accuracy, ratio)
        assert one["estimate"] == pytest.approx(drops / ITEMS)
        assert other["estimate"] == pytest.approx(clip[ARMS[3]] - 1.5 * clip[ARMS[1]])
        assert whole.verdict["verdict"] == expected
        assert whole.verdict["experiment"] == CARD

    def test_the_ramp_is_reported_apart(self, whole):
        """A line an arm says how stale its first steps were and how stale the rest."""
        assert f"staleness of {STALE} in the pilot: ramp (steps 0-3)" in whole.output
        assert f"staleness of {FRESH} in the pilot: lag 0 (steps 0-5)" in whole.output


class TestInterruptedRun:
    def test_a_killed_lagged_arm_ends_as_if_nothing_had_happened(self, ready, whole, tmp_path):
        """SIGKILL after the last update and before its record; snapshots and queue are restored."""
        runs = ready.copy(tmp_path)
        killed = start_and_stop_at(
            tmp_path / "killed", f"{STALE}:{AT}",
            scale=ready.scale, runs=runs, experiment=EXPERIMENT,
        )  # fmt: skip
        killed.kill(group=True)
        killed.end_of_processes()
        before = stored.step_files(runs, STALE)

        resumed = ready.run(tmp_path / "resumed", runs=runs)

        after = stored.step_files(runs, STALE)
        assert {s for s in before if after[s] == before[s]} == set(range(AT - AT % EVERY))
        assert steps_of(resumed) == steps_of(whole)
        assert rows_of(resumed) == rows_of(whole)
        assert resumed.verdict["sentence"] == whole.verdict["sentence"]


def test_swapped_clip_bounds_are_caught_before_training(ready, tmp_path):
    """The preflight compares this client's loss with the reference and with the service's."""
    session = ready.run(
        tmp_path / "session", "-p", "planted", "-k", "server_loss", runs=tmp_path / "runs",
        environ={"HARNESS_TEST_PLANT": "clip_swapped"},
    )  # fmt: skip

    assert session.exit == 1
    assert "custom client: loss ppo" in session.verdict["sentence"]


def test_an_unchanged_rerun_trains_nothing(whole, ready, tmp_path):
    """Everything is read from the store: no engine, no attempt, the same verdict."""
    runs = tmp_path / "runs"
    shutil.copytree(whole.runs, runs, ignore=shutil.ignore_patterns("engine"))
    session = ready.run(tmp_path / "session", runs=runs)

    assert not (runs / "engine").exists()
    assert session.verdict == whole.verdict
