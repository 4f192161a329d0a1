"""The compact syntax: its grammar, its answers, its tokens, and what can be learned in it."""

import random
import re
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sec_policies import compact_renderer, play, reward, tokenizer

from harness.tasks.sec_search import SearchSession, SessionLimits, score
from harness.tasks.sec_search.compact import (
    CHUNK_LETTERS,
    CompactCall,
    CompactDesk,
    matched_slots,
    parse_call,
)
from harness.tasks.sec_search.limits import EpisodeLimits

HIT = re.compile(r"([a-zA-Z])([a-zA-Z])([1-9]*)")
NANO = EpisodeLimits(max_tokens=256, max_generation_tokens=8, session=SessionLimits(default_k=3))


def desk_of(task, query, k: int = 4) -> CompactDesk:
    """A desk on a fresh session."""
    session = SearchSession(task.retriever, SessionLimits(default_k=k))
    return CompactDesk(session, task.retriever, query.text)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("s1", CompactCall("s", (1,), "")),
        (" s 1 2 1 ", CompactCall("s", (1, 2), "")),
        ("s3a", CompactCall("s", (3,), "a")),
        ("sa", CompactCall("s", (), "a")),
        ("g9", CompactCall("g", (9,), "")),
        ("rZ", CompactCall("r", (), "Z")),
        ("cabca", CompactCall("c", (), "abc")),
        ("df", CompactCall("d", (), "f")),
        ("f", CompactCall("f", (), "")),
    ],
)
def test_calls_are_read(text, call):
    """A verb, then digits for slots and letters for chunks, repeats and spaces passed over."""
    assert parse_call(text) == call


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x1",
        "s",
        "s0",
        "sab",
        "g",
        "g12",
        "g1a",
        "r",
        "rab",
        "r1",
        "c",
        "c1a",
        "d",
        "f1",
        "fa",
        "s1!",
        "s¹",
        "sé",
        "12",
    ],
)
def test_other_texts_are_no_calls(text):
    """What does not fit its verb comes back as a reason."""
    assert isinstance(parse_call(text), str)


@given(st.text(max_size=30))
def test_any_text_is_a_call_or_a_reason(text):
    """The reader never raises, and names only slots and letters that exist."""
    call = parse_call(text)
    if isinstance(call, CompactCall):
        assert set(call.slots) <= set(range(1, 10))
        assert set(call.letters) <= set(CHUNK_LETTERS)


def test_a_slot_is_a_sentence_in_its_rarest_words(task):
    """Each sentence is one slot of at most 3 telling words that the corpus holds."""
    for query in task.test:
        desk = desk_of(task, query)
        assert len(desk.slots) == len(query.facts)
        for words in desk.slots:
            counts = [task.retriever.document_count(word) for word in words]
            assert len(words) <= 3
            assert counts == sorted(counts)
            assert all(0 < 8 * count <= task.retriever.size for count in counts)
        assert len(desk.prompt.split()) <= 40


def test_answers_show_letters_companies_and_matches(task):
    """Each chunk has its own letter, its company's first letter, and the slots that it matches."""
    query = task.train[0]
    desk = desk_of(task, query)
    answer = desk.run(CompactCall("s", (1,), ""))
    hits = HIT.findall(answer)
    assert "".join(map("".join, hits)) == answer
    met = list(desk.session.encountered.items())
    assert [letter for letter, _, _ in hits] == list(CHUNK_LETTERS[: len(met)])
    for (letter, company, slots), (chunk_id, title) in zip(hits, met, strict=True):
        first = next(
            i
            for i, t in enumerate(desk.session.encountered.values())
            if t.split(" · ")[0] == title.split(" · ")[0]
        )
        assert company == CHUNK_LETTERS[first]
        assert desk.letter(chunk_id) == letter
        assert set(slots) <= set("123456789")


def test_a_search_by_company_finds_its_chunks(task):
    """`s1a` searches with the name of chunk a's company, which titles weigh double."""
    desk = desk_of(task, task.train[0])
    desk.run(CompactCall("s", (1,), ""))
    answer = HIT.findall(desk.run(CompactCall("s", (), "a")))
    assert answer
    assert {company for _, company, _ in answer} == {"a"}


def test_calls_reach_the_session(task):
    """Each verb is the session's own call, with letters as ids."""
    desk = desk_of(task, task.train[0])
    desk.run(CompactCall("s", (1,), ""))
    met = list(desk.session.encountered)
    assert desk.run(CompactCall("c", (), "ab")) == "=2"
    assert desk.run(CompactCall("d", (), "a")) == "=1"
    assert desk.session.curated == [met[1]]
    assert HIT.fullmatch(desk.run(CompactCall("r", (), "a")))
    assert desk.run(CompactCall("g", (1,), "")) != "?"
    assert desk.run(CompactCall("f", (), "")) == "=1"
    assert desk.session.finished
    counts = {name: n for name, n in desk.session.counts.items() if n}
    assert counts == {"search": 1, "curate": 1, "drop": 1, "read": 1, "grep": 1, "finish": 1}


@pytest.mark.parametrize("text", ["ra", "cZ", "s9", "s1Z", "g9", "dA"])
def test_symbols_that_name_nothing_are_errors(task, text):
    """A slot or letter that does not exist is answered with a question mark, and counted."""
    desk = desk_of(task, task.train[0])
    call = parse_call(text)
    assert isinstance(call, CompactCall)
    assert desk.run(call) == "?"
    assert desk.session.counts["errors"] == 1
    assert not desk.session.encountered


def test_a_slot_matches_by_two_words():
    """Two words of a slot, or all of a smaller one, must stand in the text; an empty one never."""
    slots = (("delta", "eclipse", "components"), ("auditor",), (), ("plant", "site"))
    assert matched_slots(slots, "Delta sold Components; the plant, its AUDITOR") == "12"
    assert matched_slots(slots, "site plant") == "4"


def test_letters_end_with_the_alphabet(task):
    """Chunks beyond 52 are met but have no letter, and answers pass them over."""
    desk = desk_of(task, task.train[0], k=25)
    for slot in range(1, 4):
        desk.run(CompactCall("s", (slot,), ""))
    assert len(desk.session.encountered) > len(CHUNK_LETTERS)
    assert desk.letter(list(desk.session.encountered)[52]) is None


def test_symbols_are_single_tokens_wherever_they_stand():
    """Letters, digits and signs of answers are one token each, the same in every answer."""
    renderer = compact_renderer()
    message = {"role": "tool", "content": "aa12bb=?-Z", "name": "s"}
    tokens = renderer.build_generation_prompt([message]).to_ints()
    assert len(tokens) == len("aa12bb=?-Z\n")
    assert tokens[0] == tokens[1]
    assert tokenizer().decode(tokens) == "aa12bb=?-Z\n"


def test_an_episode_fits_the_nano_model(task):
    """A whole episode of searches, curating and finishing stays within 256 positions."""
    renderer = compact_renderer()
    for query in task.test:
        # the nano vocabulary lacks these words; one that holds them spends one token on each
        words = len(desk_of(task, query).prompt.split())
        replies = ["s1", "s2", "s3", "s1a", "s2a", "s3a", "cab", "f"]
        trajectory, _, policy = play(
            task,
            query,
            replies,
            renderer=renderer,
            limits=EpisodeLimits(max_tokens=2_000, max_generation_tokens=8, session=NANO.session),
        )
        assert trajectory.stop_reason == "tool_stopped"
        turns = len(policy.prompts[-1]) - len(policy.prompts[0])
        assert words + turns + NANO.max_generation_tokens <= NANO.max_tokens


def test_the_oracle_of_the_compact_syntax_is_graded_alike(task):
    """Reward and metrics are the session's own, whatever the syntax."""
    renderer = compact_renderer()
    query = task.test[0]
    trajectory, env, _ = play(task, query, ["s1", "s2", "cab", "f"], renderer=renderer)
    expected = score(env.session.curated, query.facts)
    assert reward(trajectory) == expected.reward
    assert trajectory.transitions[-1].metrics["f4"] == expected.f_beta
    empty, _, _ = play(task, query, ["f"], renderer=renderer)
    assert reward(empty) == -0.2
    broken, _, _ = play(task, query, ["s1", "ca", "what?"], renderer=renderer)
    assert broken.stop_reason == "parse_error"
    assert broken.transitions[-1].metrics["turn/off_format"] == 1.0


def at_random(desk: CompactDesk, rng: random.Random) -> None:
    """Searches and curations without a plan."""
    for _ in range(rng.randint(1, 8)):
        met = min(len(desk.session.encountered), len(CHUNK_LETTERS))
        if met and rng.random() < 0.4:
            letters = rng.sample(CHUNK_LETTERS[:met], min(met, rng.randint(1, 3)))
            desk.run(CompactCall("c", (), "".join(letters)))
        else:
            desk.run(CompactCall("s", (rng.randint(1, len(desk.slots)),), ""))


def one_shot(desk: CompactDesk, _: random.Random) -> None:
    """One search with all slots; all hits are curated."""
    desk.run(CompactCall("s", tuple(range(1, len(desk.slots) + 1)), ""))
    desk.run(CompactCall("c", (), CHUNK_LETTERS[: len(desk.session.encountered)]))


def by_slot(desk: CompactDesk, _: random.Random) -> None:
    """One search a slot; all hits are curated."""
    for slot in range(1, len(desk.slots) + 1):
        desk.run(CompactCall("s", (slot,), ""))
    desk.run(CompactCall("c", (), CHUNK_LETTERS[: len(desk.session.encountered)]))


def by_company(desk: CompactDesk, _: random.Random) -> None:
    """By slot, then each slot again with the company that matches most; matches are curated."""
    found = []
    for slot in range(1, len(desk.slots) + 1):
        found += HIT.findall(desk.run(CompactCall("s", (slot,), "")))
    matched: dict[str, set[str]] = {}
    for _letter, company, slots in found:
        matched.setdefault(company, set()).update(slots)
    best = max(matched, key=lambda company: (len(matched[company]), company))
    for slot in range(1, len(desk.slots) + 1):
        found += HIT.findall(desk.run(CompactCall("s", (slot,), best)))
    letters = dict.fromkeys(letter for letter, _, slots in found if slots)
    desk.run(CompactCall("c", (), "".join(letters)))


def test_better_plans_earn_more(task):
    """From random calls over one search to one a slot and to following the company, F4 rises."""
    means = []
    for policy in (at_random, one_shot, by_slot, by_company):
        rng, rewards = random.Random(0), []
        for query in (*task.test, *task.train):
            desk = desk_of(task, query)
            policy(desk, rng)
            rewards.append(score(desk.session.curated, query.facts).reward)
        means.append(statistics.fmean(rewards))
    assert means == sorted(means)
    assert means[-1] > means[0] + 0.3


def test_groups_of_a_mixed_policy_differ_in_reward(task):
    """In at least 6 of 10 groups of 8 not all rewards are equal, so that there is a gradient."""
    rng, varied = random.Random(1), 0
    queries = (*task.test, *task.train)
    for query in queries:
        rewards = set()
        for _ in range(8):
            desk = desk_of(task, query)
            rng.choice((at_random, one_shot, by_slot))(desk, rng)
            rewards.add(score(desk.session.curated, query.facts).reward)
        varied += len(rewards) > 1
    assert varied >= 0.6 * len(queries)
