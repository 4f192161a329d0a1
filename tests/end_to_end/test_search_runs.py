"""The search experiment from preflight to verdict: recomputed, killed, shared, sabotaged."""

import shutil

import numpy as np
import pytest
import stored
from search_mini import (
    ARMS,
    CARD,
    DR,
    DR_STALE,
    EVERY,
    EXPERIMENT,
    GROUP,
    GROUPS,
    ITEMS,
    LAG,
    STEPS,
    TAIL,
    TAIL_STALE,
)
from sessions import Session, start_and_stop_at

LOW, HIGH = 0.8, 1.2
AT = STEPS - 1
POLICIES = (*ARMS, "base")
DRAWS = 2


@pytest.fixture(scope="module", name="ready")
def _ready(search_preflighted):
    return search_preflighted


@pytest.fixture(scope="module", name="whole")
def _whole(search_undisturbed) -> Session:
    return search_undisturbed


def steps_of(session: Session) -> dict:
    """Every arm's step records, without durations."""
    return {name: stored.steps(stored.arm(session.runs, name)) for name in ARMS}


def rows_of(session: Session) -> dict:
    """Every policy's rows."""
    return {n: stored.entry(session.runs, f"evaluation/{n}").read("rows") for n in POLICIES}


def tokens(groups: list) -> dict:
    """Action tokens as arrays, with turn and rollout, read from the stored groups alone."""
    columns = {"p": [], "q": [], "a": [], "turn": [], "rollout": []}
    rollout = 0
    for group in groups:
        for each in group["rollouts"]:
            for k, turn in enumerate(each["turns"]):
                n = len(turn["tokens_T"])
                columns["p"] += turn["learner_logprobs_T"]
                columns["q"] += turn["logprobs_T"]
                columns["a"] += [np.float64(np.float32(each["advantage"]))] * n
                columns["turn"] += [k] * n
                columns["rollout"] += [rollout] * n
            rollout += 1
    return {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}


def figures(t: dict, prefix: str) -> dict[str, float]:
    """KL, clipping, mass and figures by turn, with code of this test's own."""

    def of(chosen):
        log_r = (t["p"] - t["q"])[chosen]
        r = np.exp(log_r)
        return {
            "kl_k1": -log_r.mean(),
            "kl_k2": (log_r**2).mean() / 2,
            "kl_k3": (r - 1 - log_r).mean(),
            "clip_raw": ((r < LOW) | (r > HIGH)).mean(),
            **{f"ratio_p{p}": np.percentile(r, p) for p in (1, 5, 95, 99)},
        }

    r, mass = np.exp(t["p"] - t["q"]), np.abs(t["a"])
    lost = np.where(t["a"] > 0, r > HIGH, (t["a"] < 0) & (r < LOW))
    found = of(mass >= 0) | {"mass_total": mass.sum(), "mass_clipped": mass[lost].sum()}
    found["mass_fraction"] = mass[lost].sum() / mass.sum() if mass.sum() else 0.0
    for turn in np.unique(t["turn"]):
        here = t["turn"] == turn
        by_turn = of(here) | {"tokens": here.sum(), "trajectories": len(set(t["rollout"][here]))}
        if here.sum() < 200:
            del by_turn["ratio_p1"], by_turn["ratio_p99"]
        found |= {f"turn={turn:.0f}/{name}": value for name, value in by_turn.items()}
    return {f"{prefix}{name}": float(value) for name, value in found.items()}


def level(group: dict) -> bool:
    """Whether all rewards of a group are equal."""
    return len({rollout["reward"] for rollout in group["rollouts"]}) == 1


class TestUndisturbedRun:
    def test_every_figure_follows_from_the_stored_rollouts(self, whole):
        """Overall and by turn, of all that was sampled and of what the update was sent."""
        for name, records in steps_of(whole).items():
            assert len(records) == STEPS, name
            for record in records:
                logged, groups = record["metrics"], record["groups"]
                kept = [group for group in groups if not level(group)]
                expected = figures(tokens(groups), "staleness/")
                expected |= figures(tokens(kept), "kept/") if kept else {}
                expected["kept/rollouts"] = float(GROUP * len(kept))
                assert {key: logged.get(key) for key in expected} == pytest.approx(
                    expected, rel=1e-6, abs=1e-9
                ), name
                reported = {key.partition("/kl")[0] for key in logged if "/turn=" in key}
                assert len(reported & {f"staleness/turn={k}" for k in range(12)}) > 1

    def test_turns_add_up(self, whole):
        """Each token has both log-probs, and each episode the turns that its task counted."""
        for records in steps_of(whole).values():
            for group in (group for record in records for group in record["groups"]):
                for rollout in group["rollouts"]:
                    assert rollout["scores"]["turns"] == len(rollout["turns"])
                    for turn in rollout["turns"]:
                        rows = ("tokens_T", "logprobs_T", "learner_logprobs_T")
                        assert len({len(turn[row]) for row in rows}) == 1

    def test_groups_of_equal_rewards_are_dropped_in_every_arm_and_counted(self, whole):
        """What is dropped has no advantage and no part in the update; the counts are both told."""
        dropped = dict.fromkeys(ARMS, 0)
        for name, records in steps_of(whole).items():
            for record in records:
                constant = [level(group) for group in record["groups"]]
                assert [g["dropped"] for g in record["groups"]] == constant
                assert record["metrics"]["dropped_groups"] == sum(constant)
                assert record["metrics"]["rollouts"] == GROUP * GROUPS
                assert record["metrics"]["updated"] == float(not all(constant))
                dropped[name] += sum(constant)
                for group in (g for g in record["groups"] if g["dropped"]):
                    assert max(abs(each["advantage"]) for each in group["rollouts"]) < 1e-12
        assert sum(dropped.values()) > 0

    def test_each_step_sampled_from_the_registered_weights(self, whole):
        """The sampler's fingerprint is the learner's of update max(0, t - lag), at every step."""
        for name, records in steps_of(whole).items():
            lag = LAG if "lag8" in name else 0
            learner = [np.asarray(record["fingerprints"]["learner_T"]) for record in records]
            for step, record in enumerate(records):
                sampler = np.asarray(record["fingerprints"]["sampler_T"])
                assert np.abs(sampler - learner[max(0, step - lag)]).max() < 1e-5, (name, step)
                assert record["sampled_version"] == max(0, step - lag)

    def test_every_query_is_drawn_twice_at_both_ends(self, whole):
        """A row a query and draw of each arm and of the base model, with its own F4."""
        for policy, rows in rows_of(whole).items():
            ids = [row["item_id"] for row in rows]
            assert [row["draw"] for row in rows] == [0, 1] * ITEMS, policy
            assert ids[::DRAWS] == ids[1::DRAWS]
            assert len(set(ids)) == ITEMS
            for scores in (row["scores"] for row in rows):
                p, r = scores["precision"], scores["recall"]
                f4 = 17 * p * r / (16 * p + r) if p else 0.0
                assert scores["f4"] == pytest.approx(f4)
                assert scores["reward"] == (-0.2 if scores["empty"] else scores["f4"])
            assert any(
                a["scores"] != b["scores"] for a, b in zip(rows[::2], rows[1::2], strict=True)
            )

    def test_each_evaluation_was_of_the_weights_that_were_trained(self, whole):
        """The sampler's fingerprint of each evaluation is the learner's after training."""
        for name in ARMS:
            trained = stored.arm(whole.runs, name).summary()["fingerprint"]
            scored = stored.entry(whole.runs, f"evaluation/{name}").summary()["fingerprint"]
            assert np.abs(np.subtract(trained, scored)).max() < 1e-5

    def test_the_verdict_is_of_the_stored_data(self, whole):
        """Estimates worked out anew from rows and steps, and where the data come from."""
        rows, records = rows_of(whole), steps_of(whole)
        f4 = {name: np.mean([row["scores"]["f4"] for row in rows[name]]) for name in POLICIES}
        fraction = {
            name: np.mean([r["metrics"]["staleness/mass_fraction"] for r in records[name][LAG:]])
            for name in ARMS
        }
        found = {each["id"]: each for each in whole.verdict["criteria"]}

        drop = f4[TAIL] - f4[TAIL_STALE] - f4[DR] + f4[DR_STALE]
        assert found["f4_drop_difference"]["estimate"] == pytest.approx(drop)
        ratio = fraction[TAIL_STALE] - 1.5 * fraction[DR_STALE]
        assert found["clip_mass_ratio"]["estimate"] == pytest.approx(ratio)
        assert whole.verdict["base"]["accuracy"] == pytest.approx(f4["base"])
        assert whole.verdict["experiment"] == CARD
        assert whole.verdict["data"].startswith("generated by the project: chunks_per_company 60")
        assert "audit: data: synthetic (chunks_per_company 60, companies 24" in whole.output


class TestInterruptedRun:
    def test_a_killed_arm_ends_as_if_nothing_had_happened(self, ready, whole, tmp_path):
        """SIGKILL after the last update and before its record.

        One process, killed and resumed, equals two workers that nothing disturbed: every token,
        log-prob, figure and row.
        """
        runs = ready.copy(tmp_path)
        killed = start_and_stop_at(
            tmp_path / "killed", f"{TAIL_STALE}:{AT}",
            scale=ready.scale, runs=runs, experiment=EXPERIMENT,
        )  # fmt: skip
        killed.kill(group=True)
        killed.end_of_processes()
        before = stored.step_files(runs, TAIL_STALE)

        resumed = ready.run(tmp_path / "resumed", runs=runs)

        after = stored.step_files(runs, TAIL_STALE)
        assert {s for s in before if after[s] == before[s]} == set(range(AT - AT % EVERY))
        assert steps_of(resumed) == steps_of(whole)
        assert rows_of(resumed) == rows_of(whole)
        assert resumed.exit == whole.exit
        for key in ("verdict", "sentence", "criteria", "gates", "base"):
            assert resumed.verdict[key] == whole.verdict[key]
        assert (whole.verdict["attempts"], resumed.verdict["attempts"]) == (1, 2)


def test_an_unchanged_rerun_trains_nothing(whole, ready, tmp_path):
    """Everything is read from the store: no engine, no attempt, the same verdict."""
    runs = tmp_path / "runs"
    shutil.copytree(whole.runs, runs, ignore=shutil.ignore_patterns("engine*"))
    session = ready.run(tmp_path / "session", runs=runs)

    assert not list(runs.glob("engine*"))
    # two workers end their items in any order
    found, first = (
        {**v, "items": sorted(v["items"], key=lambda item: item["item"])}
        for v in (session.verdict, whole.verdict)
    )
    assert found == first


def test_an_edited_row_ends_in_no_verdict(whole, ready, tmp_path):
    """A reward that the episode's own figures do not make is named with arm, item and draw."""
    runs = tmp_path / "runs"
    shutil.copytree(whole.runs, runs, ignore=shutil.ignore_patterns("engine*"))
    entry = stored.entry(runs, f"evaluation/{TAIL}")
    rows = entry.read("rows")
    rows[1]["scores"]["reward"] += 0.01
    entry.publish("rows", rows)
    session = ready.run(tmp_path / "session", runs=runs)

    assert session.verdict["verdict"] == "INVALID"
    line = f"evaluation of {TAIL}: 1 of {DRAWS * ITEMS} rows contradict their items"
    assert f"{line}: item {rows[1]['item_id']} draw 1 has the reward" in session.output
