"""Alignment: tokens, masks, log-probs, turns and advantages, over random sessions."""

import asyncio

import numpy as np
import pytest
import tinker
from hypothesis import given, settings
from hypothesis import strategies as st
from sec_policies import (
    BROKEN_REPLIES,
    Scripted,
    call,
    compact_renderer,
    ids,
    oracle,
    play,
    qwen_renderer,
)
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.data_processing import assemble_training_data, trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition

from harness.errors import RunError
from harness.tasks.sec_search.env import search_env
from harness.tasks.sec_search.limits import EpisodeLimits
from harness.training.datums import NO_TURN, laid_out, step_data

# exact in single precision, which datums are sent in
ADVANTAGE = st.integers(-16, 16).map(lambda eighths: eighths / 8)
WORDS = st.sampled_from(
    ["term", "loan", "amount", "chairman", "plant", "é", "世", "<think>", "</tool_response>"]
)
TEXT = st.lists(WORDS, min_size=1, max_size=5).map(" ".join)
JSON_CALL = st.one_of(
    st.builds(lambda q, k: call("bm25_search", query=q, k=k), TEXT, st.integers(1, 6)),
    st.builds(lambda p: call("grep_corpus", pattern=p), TEXT),
    st.builds(lambda i: call("read_document", document_id=i), TEXT),
    st.builds(lambda t: call("curate", thought=f"{t}\n", document_ids=ids(["x"])), TEXT),
)
COMPACT_CALL = st.sampled_from(
    ["s1", "s12", "s1a", "g2", "ra", "cab", "da", "s2", "s3", "s9", "rZ"]
)
SCRAMBLED = st.lists(st.integers(5, 395), max_size=30).map(lambda tokens: [*tokens, 2])
JSON_END = SCRAMBLED | st.sampled_from([call("finish"), "plain</think>\n\nanswer", *BROKEN_REPLIES])
COMPACT_END = SCRAMBLED | st.sampled_from(["f", "", "what?", "s"])


ENDINGS = {"max_tokens", "context_overflow", "parse_error", "tool_stopped", "max_turns"}


def scripts(calls: st.SearchStrategy, end: st.SearchStrategy) -> st.SearchStrategy:
    """Twelve replies and the number of one that is cut off; or with an ending; or neither."""
    twelve = st.lists(calls, min_size=12, max_size=12)
    place = st.integers(0, 6)
    ended = st.builds(lambda r, at, e: ([*r[:at], e, *r[at + 1 :]], None), twelve, place, end)
    return st.tuples(twelve, place) | ended | st.tuples(twelve, st.none())


def check_alignment(trajectory: Trajectory, policy: Scripted, advantage: float) -> None:
    """The cookbook's datum, the turns of its targets, and what the policy saw and said, are one."""
    whole, turn_T = laid_out(trajectory)
    (datum,) = trajectory_to_data(trajectory, advantage)
    inputs = {name: data.to_numpy() for name, data in datum.loss_fn_inputs.items()}
    # each turn's tokens stand behind the very prompt that the policy was given
    for turn, (prompt, logprobs) in enumerate(zip(policy.prompts, policy.logprobs, strict=True)):
        said = trajectory.transitions[turn].ac.tokens
        assert whole[: len(prompt) + len(said)] == [*prompt, *said]
        places = np.arange(len(prompt) - 1, len(prompt) - 1 + len(said))
        assert np.flatnonzero(turn_T == turn).tolist() == places.tolist()
        assert inputs["target_tokens"][places].tolist() == said
        np.testing.assert_allclose(inputs["logprobs"][places], logprobs, rtol=1e-6)
    acted_T = turn_T != NO_TURN
    assert acted_T.sum() == sum(map(len, policy.logprobs))
    assert not inputs["logprobs"][~acted_T].any()

    assert datum.model_input.to_ints() == whole[:-1]
    assert inputs["target_tokens"].tolist() == whole[1:]
    assert inputs["mask"].tolist() == acted_T.tolist()
    np.testing.assert_allclose(inputs["advantages"], advantage * acted_T, rtol=1e-6)


def test_json_sessions_are_aligned(task):
    """Through tool results, thoughts, truncation and overflow everything stays aligned."""
    renderer, endings = qwen_renderer(), set()

    @given(
        scripts(JSON_CALL, JSON_END),
        st.sampled_from([6_000, 10_000, 60_000]),
        ADVANTAGE,
    )
    @settings(max_examples=50)
    def check(script, max_tokens, advantage):
        replies, cut = script
        limits = EpisodeLimits(max_tokens=max_tokens, max_generation_tokens=400)
        trajectory, _, policy = play(
            task, task.test[0], replies, renderer=renderer, limits=limits, cut=cut
        )
        endings.add(trajectory.stop_reason)
        check_alignment(trajectory, policy, advantage)

    check()
    # the examples are the same on every machine
    assert endings >= ENDINGS


def test_compact_sessions_are_aligned(task):
    """The same holds in the compact syntax, within few tokens."""
    renderer, endings = compact_renderer(), set()

    @given(
        scripts(COMPACT_CALL, COMPACT_END),
        st.sampled_from([600, 160, 96]),
        ADVANTAGE,
    )
    def check(script, max_tokens, advantage):
        replies, cut = script
        limits = EpisodeLimits(max_tokens=max_tokens, max_generation_tokens=8)
        trajectory, _, policy = play(
            task, task.train[0], replies, renderer=renderer, limits=limits, cut=cut
        )
        endings.add(trajectory.stop_reason)
        check_alignment(trajectory, policy, advantage)

    check()
    assert endings >= ENDINGS


def test_a_group_becomes_one_datum_a_trajectory_with_its_own_advantage(task):
    """Group-major datums as they are sent keep each trajectory's advantage and no mask."""
    renderer = qwen_renderer()
    query = task.test[0]
    scripts = [oracle(task, query), [call("finish")], [call("curate"), BROKEN_REPLIES[0]]]
    played = [play(task, query, script, renderer=renderer)[0] for script in scripts]
    group = TrajectoryGroup(played, [0.0] * 3, [{}] * 3)
    advantages_G = np.array([0.5, -1.0, 0.25])
    data_D = step_data([group], [advantages_G])
    assert len(data_D) == 3
    for datum, trajectory, advantage in zip(data_D, played, advantages_G, strict=True):
        _, turn_T = laid_out(trajectory)
        assert set(datum.loss_fn_inputs) == {"target_tokens", "logprobs", "advantages"}
        sent = datum.loss_fn_inputs["advantages"].to_numpy()
        assert sent.tolist() == (advantage * (turn_T != NO_TURN)).tolist()


def test_turns_come_from_transitions(task):
    """Turn t of a trajectory is its t-th transition, whatever the number of calls in it."""
    renderer = qwen_renderer()
    replies = [call("bm25_search", query="loan"), call("nothing"), call("finish")]
    trajectory, _, _ = play(task, task.test[0], replies, renderer=renderer)
    _, turn_T = laid_out(trajectory)
    for turn, transition in enumerate(trajectory.transitions):
        assert (turn_T == turn).sum() == len(transition.ac.tokens)


def made(*turns: tuple[list[int], list[int], list[float]]) -> Trajectory:
    """A trajectory of (prompt, tokens, log-probs)."""
    return Trajectory(
        [
            Transition(tinker.ModelInput.from_ints(p), TokensWithLogprobs(t, q), 0.0, False)
            for p, t, q in turns
        ],
        tinker.ModelInput.empty(),
    )


@pytest.mark.parametrize(
    "turns",
    [
        [([1, 2], [3], [-1.0]), ([1, 2, 4, 5], [6], [-1.0])],
        [([1, 2], [3, 4], [-1.0])],
    ],
)
def test_what_is_not_one_sequence_is_refused(turns):
    """A prompt that was rendered anew, or a missing log-prob, is an error."""
    with pytest.raises(RunError, match="does not extend the turn before, or"):
        laid_out(made(*turns))


def test_an_episode_that_never_began_has_no_targets(task):
    """No token sampled: nothing to align, and no datum."""
    renderer = qwen_renderer()
    limits = EpisodeLimits(max_tokens=100)
    env = search_env(task.test[0], task.retriever, renderer, limits, "json")
    trajectory = asyncio.run(do_single_rollout(Scripted(renderer, []), env))
    assert laid_out(trajectory)[1].size == 0
    group = TrajectoryGroup([trajectory], [0.0], [{}])
    assert assemble_training_data([group], [np.zeros(1)])[0] == []
