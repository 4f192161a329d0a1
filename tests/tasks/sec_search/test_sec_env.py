"""The environment: scripted policies through the real renderer pin protocol and reward."""

import asyncio
import pickle
import subprocess
import sys

import pytest
from sec_policies import (
    BROKEN_REPLIES,
    ROOMY,
    Scripted,
    call,
    compact_renderer,
    ids,
    oracle,
    play,
    qwen_renderer,
    reward,
    tokenizer,
)
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_group_rollout

from harness.errors import DataError, RunError
from harness.tasks.sec_search import SearchSession, score
from harness.tasks.sec_search.env import SearchGroupBuilder, following_tokens, search_env
from harness.tasks.sec_search.limits import EpisodeLimits

SEARCH = call("bm25_search", query="term loan amount", k=3)


@pytest.fixture(scope="module")
def renderer():
    """The Qwen3.5 renderer, once."""
    return qwen_renderer()


@pytest.fixture(params=[0, 3, 7], scope="module")
def query(request, task):
    """Questions of the test split."""
    return task.test[request.param]


def last(trajectory):
    """The metrics of the final turn."""
    return trajectory.transitions[-1].metrics


def test_the_oracle_scores_one(task, query, renderer):
    """Whoever finds and curates a chunk of each fact has F4 = 1 and the reward 1."""
    trajectory, env, _ = play(task, query, oracle(task, query), renderer=renderer)
    assert reward(trajectory) == 1.0
    assert trajectory.stop_reason == "tool_stopped"
    metrics = last(trajectory)
    assert (metrics["f4"], metrics["precision"], metrics["recall"]) == (1.0, 1.0, 1.0)
    assert metrics["curated"] == len(query.facts) == len(env.session.curated)
    assert metrics["calls/search"] == len(query.facts)
    assert metrics["errors"] == metrics["turn/off_format"] == 0.0


def test_finishing_at_once_costs_a_fifth(task, query, renderer):
    """Nothing curated is worth -0.2; F4 is reported as 0 apart from it."""
    trajectory, _, _ = play(task, query, [call("finish")], renderer=renderer)
    assert reward(trajectory) == -0.2
    assert (last(trajectory)["f4"], last(trajectory)["empty"]) == (0.0, 1.0)


def test_curating_thirty_is_worth_less_than_the_oracle(task, query, renderer):
    """Filling the set to its cap keeps recall but pays in precision."""
    gold = [fact.chunk_ids[0] for fact in query.facts]
    found = SearchSession(task.retriever)
    for words in ("term loan amount", "flagship product platform"):
        found.search(words, 25)
    strangers = [chunk for chunk in found.encountered if chunk not in query.gold]
    looks = oracle(task, query)[: len(gold)]
    looks += [
        call("bm25_search", query=words, k=25)
        for words in ("term loan amount", "flagship product platform")
    ]
    everything = call("curate", document_ids=ids([*gold, *strangers][:35]))
    trajectory, env, _ = play(task, query, [*looks, everything, call("finish")], renderer=renderer)
    assert len(env.session.curated) == 30
    assert last(trajectory)["at_cap"] == 1.0
    assert last(trajectory)["recall"] == 1.0
    assert 0 < reward(trajectory) < 1


def test_one_shot_bm25_gets_what_its_hits_are_worth(task, query, renderer):
    """Searching with the question and curating all hits is graded by the reward's own formula."""
    session = SearchSession(task.retriever)
    session.search(query.text, 10)
    hits = list(session.encountered)
    replies = [
        call("bm25_search", query=query.text, k=10),
        call("curate", document_ids=ids(hits)),
        call("finish"),
    ]
    trajectory, _, _ = play(task, query, replies, renderer=renderer)
    assert reward(trajectory) == score(hits, query.facts).reward


@pytest.mark.parametrize("broken", BROKEN_REPLIES)
@pytest.mark.parametrize(("rule", "empty"), [("graded", False), ("floor", False), ("graded", True)])
def test_a_malformed_call_ends_the_episode(task, renderer, broken, rule, empty):
    """It is a parse error, off format; the set is graded, or -0.2 where the rule says so."""
    query = task.test[0]
    limits = EpisodeLimits(max_tokens=60_000, broken_reply=rule)
    before = [] if empty else oracle(task, query)[:-1]
    trajectory, _, _ = play(task, query, [*before, broken], renderer=renderer, limits=limits)
    assert trajectory.stop_reason == "parse_error"
    assert reward(trajectory) == (1.0 if rule == "graded" and not empty else -0.2)
    assert last(trajectory)["turn/off_format"] == 1.0
    assert last(trajectory)["f4"] == (0.0 if empty else 1.0)


def test_a_reply_without_a_call_ends_the_episode(task, renderer):
    """A plain answer is an ending like another: the set is graded."""
    query = task.test[0]
    replies = [*oracle(task, query)[:-1], "done</think>\n\nI am done."]
    trajectory, _, _ = play(task, query, replies, renderer=renderer)
    assert (trajectory.stop_reason, reward(trajectory)) == ("completed", 1.0)


@pytest.mark.parametrize(("rule", "expected"), [("graded", 1.0), ("floor", -0.2)])
def test_a_reply_that_was_cut_off_ends_the_episode(task, renderer, rule, expected):
    """A generation that ran into its limit is a broken reply, even if it reads like a call."""
    query = task.test[0]
    limits = EpisodeLimits(max_tokens=60_000, broken_reply=rule)
    before = oracle(task, query)[:-1]
    replies = [*before, call("finish")]
    trajectory, env, _ = play(
        task, query, replies, renderer=renderer, limits=limits, cut=len(before)
    )
    assert trajectory.stop_reason == "max_tokens"
    assert reward(trajectory) == expected
    assert not env.session.finished


def test_overflow_is_graded_and_never_passes_the_bound(task, renderer):
    """When no further reply fits, the episode ends with what was curated by then."""
    query = task.test[0]
    replies = [*oracle(task, query)[:-1], *[SEARCH] * 50]
    limits = EpisodeLimits(max_turns=99, max_tokens=30_000, max_generation_tokens=1_200)
    trajectory, _, policy = play(task, query, replies, renderer=renderer, limits=limits)
    assert (trajectory.stop_reason, reward(trajectory)) == ("context_overflow", 1.0)
    assert 5 < len(trajectory.transitions) < 50
    assert all(len(prompt) + 1_200 <= 30_000 for prompt in policy.prompts)


def test_the_twelfth_turn_is_the_last(task, renderer):
    """An agent that never finishes is stopped and graded after 12 turns."""
    query = task.test[0]
    replies = [*oracle(task, query)[:-1], *[SEARCH] * 20]
    trajectory, _, _ = play(task, query, replies, renderer=renderer)
    assert (trajectory.stop_reason, len(trajectory.transitions)) == ("max_turns", 12)
    assert (reward(trajectory), last(trajectory)["turns"]) == (1.0, 12.0)


def test_a_question_that_does_not_fit_is_no_datum(task, renderer):
    """Without room for one reply the episode is worth -0.2 and trains on nothing."""
    limits = EpisodeLimits(max_tokens=2_000)
    trajectory, _, policy = play(task, task.test[0], [], renderer=renderer, limits=limits)
    assert (trajectory.stop_reason, reward(trajectory)) == ("max_tokens", -0.2)
    assert policy.prompts == []
    assert trajectory_to_data(trajectory, 1.0) == []


HOSTILE = {
    "brackets": call("bm25_search", query="[" * 5_000),
    "digits": call("bm25_search", query="x", k="1" * 5_000),
    "huge_json": "</think>\n\n<tool_call>\n" + "[" * 5_000 + "\n</tool_call>",
    "unknown": call("rm_rf", path="/"),
    "no_arguments": call("curate"),
    "wrong_type": call("curate", document_ids='{"a": 1}'),
    "many_wrong": call("curate", document_ids="[" + ", ".join(["1"] * 500) + "]"),
    "path": call("read_document", document_id="../../../etc/passwd"),
    "sql": call("bm25_search", query='" OR 1=1; DROP TABLE documents; --'),
    "bomb": call("grep_corpus", pattern="amount|(a+)+$|(.*.*)*x"),
    "bytes": [*range(5, 200), 2],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_replies_are_answered_or_end_the_episode(task, renderer, name):
    """No reply raises, the corpus stays as it is, and the set that was curated is graded."""
    query = task.test[0]
    before = task.retriever.path.stat()
    replies = [*oracle(task, query)[:-1], HOSTILE[name], call("finish")]
    limits = EpisodeLimits(max_tokens=90_000, max_generation_tokens=9_000)
    trajectory, _, policy = play(task, query, replies, renderer=renderer, limits=limits)
    assert reward(trajectory) == 1.0
    assert task.retriever.path.stat().st_mtime_ns == before.st_mtime_ns
    # whatever was asked, the answer is short
    assert len(policy.prompts[-1]) < 45_000


@pytest.mark.parametrize("name", ["brackets", "digits", "huge_json"])
def test_json_that_breaks_a_parser_is_a_parse_error(task, renderer, name):
    """What the renderer itself fails on ends the episode like any malformed call."""
    limits = EpisodeLimits(max_tokens=90_000, max_generation_tokens=9_000)
    replies = [HOSTILE[name]]
    trajectory, _, _ = play(task, task.test[0], replies, renderer=renderer, limits=limits)
    assert trajectory.stop_reason == "parse_error"
    assert reward(trajectory) == -0.2


def test_a_fault_of_the_harness_is_not_taken_for_a_malformed_call(task, renderer, monkeypatch):
    """An error of our own in a tool stops the run; it is no reward."""

    def fail(*_: object, **__: object) -> None:
        raise DataError("the corpus is gone")

    monkeypatch.setattr(SearchSession, "search", fail)
    with pytest.raises(DataError, match="the corpus is gone"):
        play(task, task.test[0], [SEARCH], renderer=renderer)


def test_what_a_policy_spells_out_is_not_a_control_token(task, renderer):
    """A query that spells an end-of-turn marker in bytes comes back as text, not as the marker."""
    spelled = [t for c in "<|im_end|><think>" for t in tokenizer().encode(c)]
    before, after = (
        tokenizer().encode(part) for part in call("bm25_search", query="loan X").split("X")
    )
    reply = [*before, *spelled, *after, 2]
    assert reply.count(2) == 1
    trajectory, _, policy = play(task, task.test[0], [reply, call("finish")], renderer=renderer)
    answer = policy.prompts[1][len(policy.prompts[0]) + len(reply) :]
    # one end of the answer's turn and one <think> of the next reply's header, none from the query
    assert (answer.count(2), answer.count(3)) == (1, 1)
    assert trajectory.stop_reason == "tool_stopped"


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_disable_thinking"])
def test_prompts_equal_the_stock_ones_where_replies_are_canonical(task, name):
    """For replies as the template writes them, token-in token-out is the stock rendering."""
    renderer = get_renderer(name, tokenizer())
    replies = [SEARCH, call("read_document", document_id="x"), call("finish")]
    if name == "qwen3_5_disable_thinking":
        # the prompt holds the end of the thought already
        replies = [reply.partition("</think>\n\n")[2] for reply in replies]
    trajectory, env, _ = play(task, task.test[0], replies, renderer=renderer)
    history = env.message_env.history
    turns = [n for n, message in enumerate(history) if message["role"] == "assistant"]
    assert len(turns) == len(trajectory.transitions) == 3
    for turn, transition in zip(turns, trajectory.transitions, strict=True):
        stock = renderer.build_generation_prompt(history[:turn]).to_ints()
        assert transition.ob.to_ints() == stock


def test_sampled_tokens_stay_in_the_prompt_as_they_were(task, renderer):
    """Thoughts and odd spellings are kept, where a stock prompt would render them anew."""
    odd = call("bm25_search", thought="why? \n ", query="  loan   amount ")
    trajectory, _, policy = play(task, task.test[0], [odd, call("finish")], renderer=renderer)
    first, second = trajectory.transitions
    sampled = [*first.ob.to_ints(), *first.ac.tokens]
    assert second.ob.to_ints()[: len(sampled)] == sampled
    assert policy.prompts[1] == second.ob.to_ints()


def test_a_renderer_that_does_not_sample_its_end_is_refused():
    """Token-in, token-out needs replies that end with a stop token."""
    answers = [{"role": "tool", "content": "{}", "name": "x"}]
    with pytest.raises(RunError, match="does not end with one of the stop tokens"):
        following_tokens(get_renderer("role_colon", tokenizer()), answers)


def test_a_reply_without_its_stop_token_is_an_error(task, renderer):
    """A service that goes on behind the stop token can't be trained from."""
    replies = [[*tokenizer().encode(SEARCH), 2, 7], call("finish")]
    with pytest.raises(RunError, match="ends with token 7"):
        play(task, task.test[0], replies, renderer=renderer)


def test_calls_of_one_reply_run_in_order(task, renderer):
    """A chunk that a reply finds can be curated by the same reply."""
    query = task.test[0]
    look = oracle(task, query)[0]
    curate = call("curate", document_ids=ids([query.facts[0].chunk_ids[0]]))
    both = look + "\n" + curate.partition("</think>\n\n")[2]
    trajectory, env, _ = play(task, query, [both, call("finish")], renderer=renderer)
    assert env.session.curated == [query.facts[0].chunk_ids[0]]
    assert trajectory.transitions[0].metrics["turn/curate"] == 1.0


def test_turn_metrics_add_up_to_those_of_the_episode(task, renderer):
    """Per-turn counts sum to the episode's, whatever ends it."""
    query = task.test[0]
    replies = [SEARCH, call("nothing"), SEARCH, call("curate"), BROKEN_REPLIES[0]]
    trajectory, env, _ = play(task, query, replies, renderer=renderer)
    turns = [transition.metrics for transition in trajectory.transitions]
    for name in ("search", "curate", "read", "finish"):
        assert sum(t[f"turn/{name}"] for t in turns) == last(trajectory)[f"calls/{name}"]
    assert sum(t["turn/errors"] for t in turns) == last(trajectory)["errors"] == 3.0
    assert sum(t["turn/encountered"] for t in turns) == len(env.session.encountered) == 3.0
    assert [t["turn/off_format"] for t in turns] == [0.0, 0.0, 0.0, 0.0, 1.0]


def test_a_group_has_independent_sessions(task, renderer):
    """The environments of a group run at once, each on its own session."""
    query = task.test[0]
    scripts = [oracle(task, query), [call("finish")], [SEARCH, call("finish")]] * 3
    builder = SearchGroupBuilder(query, task.retriever, renderer, ROOMY, "json", len(scripts))
    players = {}

    class Players(Scripted):
        """Plays the next free script to whoever asks with a first prompt."""

        def __init__(self) -> None:
            self.waiting = [Scripted(renderer, script) for script in scripts]

        async def __call__(self, model_input, stop, *, max_tokens=None):
            task_ = asyncio.current_task()
            player = players.get(task_) or players.setdefault(task_, self.waiting.pop(0))
            return await player(model_input, stop, max_tokens=max_tokens)

    group = asyncio.run(do_group_rollout(builder, Players()))
    assert sorted(group.get_total_rewards()) == [-0.2] * 6 + [1.0] * 3


def test_a_compact_builder_travels_between_processes(task):
    """The builder is picklable, its index by path and its renderer by tokenizer."""
    builder = SearchGroupBuilder(
        task.test[0], task.retriever, compact_renderer(), ROOMY, "compact", 2
    )
    copy = pickle.loads(pickle.dumps(builder))
    (env, _) = asyncio.run(copy.make_envs())
    original = search_env(task.test[0], task.retriever, builder.renderer, ROOMY, "compact")
    prompts = [asyncio.run(each.initial_observation())[0].to_ints() for each in (env, original)]
    assert prompts[0] == prompts[1]


def test_the_task_needs_neither_torch_nor_tinker():
    """Corpus, index, session and reward import nothing heavy."""
    code = (
        "import sys, harness.tasks.sec_search, harness.tasks.sec_search.compact, "
        "harness.tasks.sec_search.limits, harness.tasks.sec_search.metrics;"
        "heavy = {'torch', 'tinker', 'transformers', 'pyarrow', 'tinker_cookbook'};"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
