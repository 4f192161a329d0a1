"""Episodes of several turns: their requests, and that they stay aligned down to the datums."""

import asyncio
import dataclasses

import numpy as np
import pytest
import tinker
from hypothesis import given, settings
from hypothesis import strategies as st
from search_doubles import SessionSampler, compact_adapter, scripted, search_experiment, seed_of
from service_doubles import sequence
from tinker_cookbook.completers import TokensWithLogprobs

from harness.errors import RunError
from harness.records import Rollout, Turn, logprobs_of, rewards_of
from harness.tasks.sec_search.limits import EpisodeLimits
from harness.training import datums
from harness.training.completers import Sampling
from harness.training.datums import NO_TURN, step_batch, tokens_of
from harness.training.estimators import Estimate
from harness.training.evaluate import evaluate
from harness.training.rollouts import SampledGroup, sample_episodes, sample_step
from harness.training.step_records import group_records, learner_logprobs, turn_record
from harness.training.streams import stream_seed

ARM = "tailrl_lag8_seed0"
CALLS = st.sampled_from(["s1", "s12", "s1a", "g2", "ra", "cab", "da", "s2", "rZ", "s3", "cabc"])
SCRAMBLED = st.lists(st.integers(5, 200), min_size=1, max_size=16).map(tuple)
BROKEN = st.sampled_from(["what?", "s", "", "zz9", "f1"]) | SCRAMBLED
TURNS = 6
SESSION = st.builds(
    lambda calls, at, end: calls if end is None else [*calls[:at], end, *calls[at + 1 :]],
    st.lists(CALLS, min_size=TURNS, max_size=TURNS),
    st.integers(0, TURNS - 1),
    st.one_of(st.none(), st.none(), st.just("f"), BROKEN),
)


@pytest.fixture(scope="module", name="experiment")
def _experiment():
    return search_experiment()


@pytest.fixture(scope="module", name="adapter")
def _adapter(experiment, task):
    return compact_adapter(experiment, task)


@pytest.fixture(name="sample")
def _sample(adapter, experiment, task):
    """Sample one step of the arm on the train questions with these indices."""

    def sampled(sampler, step=3, indices=(0, 4), size=3, adapter=adapter):
        arm = dataclasses.replace(experiment.arm(ARM), group_size=size)
        prompts = [(index, task.train[index]) for index in indices]
        return asyncio.run(sample_step(sampler, adapter, arm, step, prompts))

    return sampled


def group_seed(step, index):
    """The registered seed of a group of the arm."""
    return stream_seed(0, "rollout", ARM, step, index)


class TestRequests:
    def test_one_a_step_query_rollout_and_turn(self, sample, adapter):
        """Each turn of each rollout is one request for one sample, with a seed of its own."""
        sampler = SessionSampler(adapter, otherwise="s1")
        groups = sample(sampler)
        turns = [len(t.transitions) for g in groups for t in g.rollouts.trajectories_G]
        expected = {
            seed_of(group_seed(3, index), rollout, turn)
            for index in (0, 4)
            for rollout in range(3)
            for turn in range(adapter.limits.max_turns)
        }

        assert [n for _, _, n in sampler.asked] == [1] * sum(turns)
        seeds = [seed for seed, _, _ in sampler.asked]
        assert len(set(seeds)) == len(seeds)
        assert set(seeds) <= expected
        assert [(g.prompt, g.requested) for g in groups] == [(0, 3), (4, 3)]

    def test_what_was_asked_for_is_no_count_of_what_came(self, sample, adapter):
        """Of environments that are too few it is still the registered group size."""

        class OneShort(type(adapter)):
            def group(self, item, size):
                return super().group(item, size - 1)

        fields = {f.name: getattr(adapter, f.name) for f in dataclasses.fields(adapter)}
        groups = sample(SessionSampler(adapter, otherwise="s1"), adapter=OneShort(**fields))

        assert [(g.requested, len(g.rollouts.trajectories_G)) for g in groups] == [(3, 2)] * 2

    def test_all_rollouts_of_a_step_are_under_way_at_once(self, sample, adapter):
        """16 questions of 8 rollouts wait for the service together, not for each other."""
        sampler = SessionSampler(adapter)
        sample(sampler, indices=range(16), size=8)

        assert sampler.most_under_way == 128

    def test_what_the_policy_sees_is_what_it_said(self, sample, adapter):
        """The prompt of a turn starts with the prompt before, and the very tokens of the reply."""
        seeds = group_seed(3, 0)
        script = ["s1", "s12", "ra", "cab", "f"]
        sampler = SessionSampler(adapter, scripted({seeds: [script]}))
        sample(sampler, indices=(0,), size=1)
        for turn in range(4):
            before, now = seed_of(seeds, 0, turn), seed_of(seeds, 0, turn + 1)
            whole = [*sampler.prompts[before], *sampler.said[before][0]]
            assert sampler.prompts[now][: len(whole)] == whole
            assert len(sampler.prompts[now]) > len(whole)

    def test_other_steps_and_questions_have_other_seeds(self, sample, adapter):
        """No seed of one step comes again in another."""
        seeds = []
        for step, indices in ((3, (0, 4)), (4, (0, 4)), (3, (1, 5))):
            sampler = SessionSampler(adapter)
            sample(sampler, step=step, indices=indices)
            seeds += [seed for seed, _, _ in sampler.asked]
        assert len(set(seeds)) == len(seeds)

    def test_a_prompt_that_leaves_no_room_is_an_error(self, sample, adapter):
        """An episode without a turn can't be trained on; question and cure are named."""
        narrow = dataclasses.replace(
            adapter, limits=EpisodeLimits(max_tokens=20, max_generation_tokens=16)
        )
        with pytest.raises(RunError, match=f"{ARM}: step 3, train item 0: 3 .* raise max_seq_len"):
            sample(SessionSampler(adapter), indices=(0,), adapter=narrow)

    def test_a_turn_without_logprobs_is_an_error(self, sample):
        """Arm, step, item, rollout and turn are named."""

        class Silent:
            async def sample_async(self, **_):
                return tinker.SampleResponse(sequences=[sequence([5, 2], None)])

        named = r"step 3, train item \d, rollout \d, turn 0: .*0 finite"
        with pytest.raises(RunError, match=named):
            sample(Silent())

    def test_the_first_failure_ends_the_other_rollouts(self, sample):
        """A refused request leaves no rollout running behind it."""
        asked = []

        class Failing:
            async def sample_async(self, **_):
                asked.append(1)
                if len(asked) == 1:
                    raise ValueError("refused")
                await asyncio.sleep(60)

        with pytest.raises(ValueError, match="refused"):
            sample(Failing())


class TestEvaluation:
    def test_a_row_a_question_and_draw(self, adapter, experiment, task):
        """Draws of a question differ in their seed; scores and ending are the episode's own."""
        spec = experiment.registration.evaluation
        sampler = SessionSampler(adapter, otherwise="f")
        seen = []
        rows = asyncio.run(evaluate(sampler, adapter, spec, task.test[:3], seen.append))

        assert [(r["item_id"], r["draw"]) for r in rows] == [
            (query.id, draw) for query in task.test[:3] for draw in range(2)
        ]
        assert sorted(map(repr, seen)) == sorted(map(repr, rows))
        assert len({seed for seed, _, _ in sampler.asked}) == 6
        for row in rows:
            assert (row["stop"], row["n_tokens"]) == ("tool_stopped", 2)
            assert row["scores"]["reward"] == -0.2
            assert row["scores"]["f4"] == 0.0
            assert row["scores"]["empty"] == row["scores"]["turns"] == 1.0
            assert row["scores"]["stop=tool_stopped"] == 1.0
            assert "correct" not in row

    def test_the_seed_of_a_draw_is_the_items_and_no_arms(self, adapter, experiment, task):
        """Every policy is evaluated under the same noise."""
        spec = experiment.registration.evaluation
        sampler = SessionSampler(adapter)
        query = task.test[0]
        asyncio.run(evaluate(sampler, adapter, spec, [query], lambda _: None))
        base = stream_seed(0, "evaluation", query.id)

        assert {seed for seed, _, _ in sampler.asked} == {seed_of(base, d, 0) for d in range(2)}


def test_random_sessions_stay_aligned_down_to_datums_and_records(adapter, task):
    """Tokens, both log-probs, turns and advantages are one, through results, cuts and overflow.

    What was sampled, what the datums carry, what the learner answers and what is stored are
    compared token by token; zero-variance groups are left out of the update whole.
    """
    endings, kinds = set(), set()
    group_sessions = st.lists(SESSION, min_size=2, max_size=2)
    sixteenths = st.integers(-16, 16).map(lambda n: n / 16)

    @given(
        st.lists(group_sessions, min_size=2, max_size=2),
        st.sampled_from([56, 80, 256]),
        st.lists(st.lists(sixteenths, min_size=2, max_size=2), min_size=2, max_size=2),
    )
    @settings(max_examples=60)
    def check(sessions_P_G, max_tokens, advantages):
        limits = EpisodeLimits(TURNS, max_tokens, 16, session=adapter.limits.session)
        narrow = dataclasses.replace(adapter, limits=limits)
        sampler = SessionSampler(adapter, scripted(dict(enumerate(sessions_P_G))))
        groups = [
            asyncio.run(
                sample_episodes(narrow.group(task.train[p], 2), sampling(sampler, adapter), p, "x")
            )
            for p in range(2)
        ]
        sampled = [SampledGroup(p, 2, group) for p, group in enumerate(groups)]
        advantages_P_G = [np.asarray(row) for row in advantages]
        batch = step_batch(groups, advantages_P_G, drop_zero_variance=True)
        # a learner whose log-probs say where in which datum they stand, exactly in float32
        learner = [
            np.arange(d.model_input.length) / 64 - 8.0 * i for i, d in enumerate(batch.data_D)
        ]
        done, unsent = answers(batch, learner)
        records = group_records(
            narrow, sampled, Estimate(advantages_P_G, None), batch,
            learner_logprobs("x", batch, done, unsent),
        )  # fmt: skip

        for p, record in enumerate(records):
            constant = len(set(rewards_of(record))) == 1
            assert record["dropped"] is constant
            kinds.add(constant)
            for g in range(2):
                d = 2 * p + g
                assert batch.dropped_D[d] is constant
                trajectory = groups[p].trajectories_G[g]
                endings.add(str(trajectory.stop_reason))
                check_rollout(
                    sampler, record["rollouts"][g], p, g, batch, d, learner[d], advantages[p][g]
                )
        assert len(batch.trained) == 2 * sum(not r["dropped"] for r in records)

    check()
    # the examples are the same on every machine
    assert endings >= {"tool_stopped", "max_turns", "max_tokens", "context_overflow", "parse_error"}
    assert kinds == {True, False}


def check_rollout(sampler, record: Rollout, p, g, batch, d, learner_T, advantage) -> None:
    """One rollout: from the requests through its datum to its record."""
    turns = record["turns"]
    assert record.keys() == Rollout.__annotations__.keys()
    assert all(turn.keys() == Turn.__annotations__.keys() for turn in turns)
    seeds = [seed_of(p, g, k) for k in range(len(turns))]
    said = [sampler.said[seed] for seed in seeds]
    tokens = [token for spoken, _ in said for token in spoken]
    assert [turn["seed"] for turn in turns] == seeds
    assert [(turn["tokens_T"], turn["logprobs_T"]) for turn in turns] == said
    assert record["scores"]["turns"] == len(turns)

    datum, turn_T = batch.data_D[d], batch.turns_D_T[d]
    inputs = {key: value.to_numpy() for key, value in datum.loss_fn_inputs.items()}
    whole, action_T = tokens_of(datum), turn_T != NO_TURN
    for k, (spoken, _) in enumerate(said):
        start = len(sampler.prompts[seed_of(p, g, k)])
        assert whole[:start] == sampler.prompts[seed_of(p, g, k)]
        assert whole[start : start + len(spoken)] == spoken
        places = np.flatnonzero(turn_T == k).tolist()
        assert places == list(range(start - 1, start - 1 + len(spoken)))
        assert turns[k]["learner_logprobs_T"] == learner_T[places].tolist()
    assert inputs["target_tokens"][action_T].tolist() == tokens
    assert inputs["logprobs"][action_T].tolist() == logprobs_of(record)
    assert set(inputs["advantages"][action_T].tolist()) == {advantage}
    for key in ("logprobs", "advantages"):
        assert not inputs[key][~action_T].any()
    assert record["advantage"] == advantage


def sampling(sampler, adapter):
    """How these sessions are sampled."""
    return Sampling(sampler, 16, 1.0, adapter.stop)


def answers(batch, learner):
    """What the service says of the update's datums, and of those that are left out."""
    from types import SimpleNamespace

    from harness.training.updates import Update

    pairs = list(zip(learner, batch.dropped_D, strict=True))
    outputs = [{"logprobs": row} for row, out in pairs if not out]
    forward = SimpleNamespace(loss_fn_outputs=outputs, metrics={})
    done = Update(forward, SimpleNamespace(metrics={}), {}) if outputs else None
    return done, [row for row, out in pairs if out]


def test_a_reply_that_was_not_sampled_is_refused():
    """A turn without the seed of its request can't be held against any."""
    with pytest.raises(RunError, match="a reply that was not sampled for it"):
        turn_record(TokensWithLogprobs([5, 2], [-1.0, -1.0]), [-1.0, -1.0])


def test_a_datum_of_other_tokens_is_refused(sample, adapter, monkeypatch):
    """One wrong token in a datum of the right length."""
    sampled = sample(SessionSampler(adapter, otherwise="s1"), indices=(0, 1), size=2)
    groups = [group.rollouts for group in sampled]
    advantages_P_G, honest = [np.zeros(2), np.zeros(2)], datums.step_data

    def misheard(*arguments):
        data_D = honest(*arguments)
        inputs = data_D[2].loss_fn_inputs
        targets_T = np.asarray(inputs["target_tokens"].tolist())
        targets_T[-1] += 1
        inputs["target_tokens"] = tinker.TensorData.from_numpy(targets_T)
        return data_D

    assert step_batch(groups, advantages_P_G, drop_zero_variance=False).data_D
    monkeypatch.setattr(datums, "step_data", misheard)

    with pytest.raises(RunError, match="4 rollouts became 4 datums of other tokens"):
        step_batch(groups, advantages_P_G, drop_zero_variance=False)
