"""The session's calls: what they answer and change, and that nothing hostile gets through."""

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tasks.sec_search import SearchSession, SessionLimits
from harness.tasks.sec_search.grep import (
    CANDIDATES,
    WORK,
    PatternRefused,
    compiled,
    literal_words,
    matches,
)
from harness.tasks.sec_search.index import Retriever, build_index
from harness.tasks.sec_search.records import Chunk


@pytest.fixture
def session(task):
    """A session of its own on the tiny corpus."""
    return SearchSession(task.retriever)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Five chunks with known words."""
    texts = {
        "x-1_0": "The plant in Tacoma opened. " + "filler " * 60 + "bond 2021-04-05 call",
        "x-1_1": "Plant closures; see 10-K (Tacoma) [a+b]",
        "x-2_0": "tacoma TACOMA",
        "x-2_1": "a" * 3_000 + " repeat",
        "x-3_0": "nothing here",
    }
    path = tmp_path_factory.mktemp("small") / "i"
    rowids = {i: n for n, i in enumerate(sorted(texts), start=1)}
    build_index(path, [Chunk(i, f"Acme · {i}", t) for i, t in texts.items()], rowids)
    return Retriever(path)


def found(reply) -> list[str]:
    """The ids of a reply's results."""
    return [each["document_id"] for each in reply["results"]]


def test_search_shows_the_default_number_and_remembers_them(session):
    """Results are met, in order; a k above the maximum is taken as the maximum."""
    assert found(session.search("term loan amount")) == list(session.encountered)
    assert len(session.encountered) == session.limits.default_k
    assert session.search("term loan amount", 1_000)["count"] == session.limits.max_k


def test_snippets_surround_the_most_telling_word(small):
    """A snippet has at most its width, and starts before the longest word of the query found."""
    session = SearchSession(small, SessionLimits(snippet_chars=60))
    reply = session.search("the bond 2021", 1)
    assert "bond" in reply["results"][0]["snippet"]
    assert all(len(each["snippet"]) <= 60 for each in reply["results"])


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("words", 0), "bad_k"),
        (("words", -5), "bad_k"),
        (("", None), "empty_query"),
        (("--- !!! \x00", None), "empty_query"),
        (("w" * 1_001, None), "long_query"),
    ],
)
def test_a_search_that_can_not_be_served_is_answered(session, arguments, code):
    """Errors are answers: they are counted, and change nothing else."""
    assert session.search(*arguments)["error"] == code
    assert (session.counts["search"], session.counts["errors"]) == (1, 1)
    assert not session.encountered


def test_grep_finds_by_pattern_and_shows_the_match(small):
    """Only chunks that match are results, best match of the literal words first."""
    session = SearchSession(small)
    assert set(found(session.grep(r"Tacoma"))) == {"x-1_0", "x-1_1", "x-2_0"}
    assert found(session.grep(r"bond \d{4}-\d\d-\d\d")) == ["x-1_0"]
    assert found(session.grep(r"tacoma TACOMA", case_sensitive=True)) == ["x-2_0"]
    assert found(session.grep(r"\(Tacoma\) \[a\+b\]")) == ["x-1_1"]
    assert session.grep("tacoma", k=1)["count"] == 1
    assert "2021-04-05" in session.grep(r"bond \S+ call")["results"][0]["snippet"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"\d{4}-\d\d", []),
        (r"loan\s+of\s+\$\d+ million", ["million", "loan", "of"]),
        (r"[Tt]acoma", []),
        (r"colou?r bonds{1,2} plants*", []),
        (r"plant.*site", ["plant", "site"]),
        (r"(?i:plant)\b \(gulf\)", ["plant", "gulf"]),
        (r"(?P<year>20\d\d) (?:plant|mine)", ["plant", "mine"]),
        (r"\p{Lu}\w+ Corp\b", ["corp"]),
        ("", []),
    ],
)
def test_only_literal_words_select_candidates(pattern, words):
    """Escapes, classes, counts and group names are no words of the text."""
    assert literal_words(pattern) == words


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "plant[",
        "x" * 161,
        "",
        r"\d+",
        "plant(?P<a>b)(?P<a",
        "*plant",
        r"plant\L<x>",
        "plant(?",
    ],
)
def test_a_pattern_that_can_not_be_used_is_answered(small, pattern):
    """What is no pattern, too long, or has no literal word is an error and not an exception."""
    assert SearchSession(small).grep(pattern)["error"] == "bad_pattern"


BOMBS = [
    r"repeat|(a+)+$",
    r"repeat|(a|aa)+$",
    r"repeat|(a|b)*a(a|b){60}$",
    r"repeat|(.*.*)*x",
    r"repeat|a.{1000}a.{900}b",
    r"repeat|((a{100}){10}){1}b",
    r"repeat|\p{L}{100}",
    r"repeat|(?:a*)*b(?R)?",
    r"(repeat).*\1",
    r"(?=repeat)(a+)+$",
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_an_exploding_pattern_is_answered_the_same_way_each_time(small, bomb):
    """Catastrophic patterns are served or refused in bounded work, whatever ran before them."""
    first, again = (SearchSession(small).grep(bomb) for _ in range(2))
    assert first == again
    assert first.get("error", "bad_pattern") == "bad_pattern"


def test_all_chunks_together_are_bounded():
    """The characters of the chunks that were looked at, times instructions, end at the bound."""
    expression = compiled("plant.*site", case_sensitive=True)
    texts = [(n, "plant site" if n == 3 else "plant " * 100) for n in range(10)]
    first_five = expression.instructions * sum(len(text) for _, text in texts[:5])
    found = matches(expression, texts, first_five)
    assert next(found) == (3, (0, 10))
    with pytest.raises(PatternRefused, match=f"take over {first_five} in all"):
        next(found)


def test_common_patterns_may_look_at_every_candidate():
    """A pattern of words, repeats and classes stays within the work of 5,000 chunks."""
    for pattern in (r"loan\s+of\s+\$\d+ million", r"plant.*site", r"\bbonds?\b[^.]*(call|put)"):
        assert 2_000 * CANDIDATES * compiled(pattern, False).instructions < WORK


def test_greps_do_not_depend_on_what_else_the_machine_does(small):
    """200 greps beside six busy threads answer as those on an idle machine, none refused."""
    words, ends = ("plant", "repeat|a+"), (r"\d", "[b-z]")
    patterns = [f"{word}.{{0,{n}}}{end}" for word in words for n in range(50) for end in ends]
    idle = [SearchSession(small).grep(pattern) for pattern in patterns]
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            sum(range(1_000))

    threads = [threading.Thread(target=busy) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        loaded = [SearchSession(small).grep(pattern) for pattern in patterns]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(loaded) == 200
    assert loaded == idle
    assert not any("error" in reply for reply in loaded)


def test_only_what_was_met_can_be_read(task, session):
    """An id of the corpus that no result has shown is not readable, and neither is a path."""
    gold = task.test[0].facts[0].chunk_ids[0]
    for wanted in (gold, "../../etc/passwd", "", "\x00", "\ud800", "x" * 100_000):
        reply = session.read(wanted)
        assert reply["error"] == "document_not_encountered"
        assert len(json.dumps(reply)) < 800
    session.search(task.retriever.get(gold).text, 25)
    assert session.read(gold)["document_id"] == gold


def test_reading_is_cut_and_says_so(small):
    """A long text is cut at its bound."""
    session = SearchSession(small, SessionLimits(read_chars=100))
    session.search("repeat tacoma")
    long, short = session.read("x-2_1"), session.read("x-2_0")
    assert (len(long["text"]), long["truncated"]) == (100, True)
    assert (short["text"], short["truncated"]) == ("tacoma TACOMA", False)


def test_curating_keeps_order_refuses_strangers_and_stops_at_the_cap(session):
    """Met chunks are added once, others named, and what is over the cap is dropped."""
    session.limits = SessionLimits(max_curated=3)
    met = found(session.search("term loan amount", 5))
    reply = session.curate([met[1], met[1], "stranger", met[0]])
    assert reply["added"] == [met[1], met[0]]
    assert reply["invalid_document_ids"] == ["stranger"]
    reply = session.curate(met)
    assert reply["added"] == [met[2]]
    assert reply["dropped_over_capacity"] == met[3:]
    assert session.curated == reply["curated_ids"] == [met[1], met[0], met[2]]
    assert session.counts["invalid_curations"] == 1


def test_dropping_takes_out_what_is_in(session):
    """What was curated is removed, what was not is named, and it can be curated again."""
    met = found(session.search("term loan amount"))
    session.curate(met[:2])
    reply = session.drop([met[0], "stranger"])
    assert (reply["removed"], reply["not_curated"]) == ([met[0]], ["stranger"])
    assert session.curated == [met[1]]
    session.curate(met[:1])
    assert session.curated == [met[1], met[0]]


def test_too_many_ids_are_refused(session):
    """A call with more ids than it may have changes nothing."""
    assert session.curate(["x"] * 65)["error"] == "many_ids"
    assert session.drop(["x"] * 65)["error"] == "many_ids"


def test_finish_says_how_much_is_curated(session):
    """Finishing marks the session and keeps the set."""
    session.curate(found(session.search("term loan amount")))
    assert session.finish() == {"accepted": True, "curated_count": 4}
    assert session.finished


def test_sessions_do_not_see_each_other(task):
    """What one session has met and curated is unknown to another."""
    one, other = SearchSession(task.retriever), SearchSession(task.retriever)
    met = found(one.search("term loan amount"))
    one.curate(met)
    assert other.read(met[0])["error"] == "document_not_encountered"
    assert other.curate(met)["curated_count"] == 0


TEXT = st.text(st.characters(codec=None), max_size=200)
CALLS = st.one_of(
    st.tuples(st.just("search"), TEXT, st.none() | st.integers()),
    st.tuples(st.just("grep"), TEXT, st.booleans(), st.none() | st.integers()),
    st.tuples(st.just("read"), TEXT),
    st.tuples(st.sampled_from(["curate", "drop"]), st.lists(TEXT, max_size=70)),
    st.tuples(st.just("finish")),
)


def test_no_sequence_of_calls_breaks_a_session(task):
    """Whatever is called with whatever text, the answer is short JSON and the invariants hold."""

    @given(st.lists(CALLS, max_size=12))
    def check(calls: list) -> None:
        session = SearchSession(task.retriever)
        for name, *arguments in calls:
            reply = getattr(session, name)(*arguments)
            assert len(json.dumps(reply, ensure_ascii=False).encode()) < 40_000
            assert set(session.curated) <= set(session.encountered)
            assert len(session.curated) == len(set(session.curated)) <= 30

    check()


def test_eight_sessions_at_once_do_what_they_do_alone(task):
    """Threads with a session each get the results of a lone run."""

    def run(number: int) -> list:
        session, replies = SearchSession(task.retriever), []
        for query in task.train[number::8]:
            replies.append(session.search(query.text))
            replies.append(session.grep("term loan amount"))
            replies.append(session.curate(found(replies[-2])))
        return replies

    alone = [run(number) for number in range(8)]
    together: dict[int, list] = {}
    threads = [
        threading.Thread(target=lambda n=n: together.__setitem__(n, run(n))) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[number] for number in range(8)] == alone
