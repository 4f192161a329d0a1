import asyncio

import pytest
from service_doubles import ScriptedSampler, problems

from harness.errors import BudgetExceeded, RunError
from harness.training.evaluate import UNDER_WAY, evaluate
from harness.training.word_problems import grade


@pytest.fixture
def decode(service, renderer, small, words):
    """Evaluate items with the scripted service."""

    def decoded(items=words.test, after_item=lambda _row: None, **spec):
        chosen = small.registration.evaluation.model_copy(update=spec)
        sampler = ScriptedSampler(service, 0.0, "final")
        return asyncio.run(evaluate(sampler, renderer, chosen, items, after_item))

    return decoded


def test_every_item_is_decoded_once_and_in_order(decode, service, words):
    """One request for one sample an item; rows stand in the order of the items."""
    rows = decode()

    assert [row["item_id"] for row in rows] == [item.id for item in words.test]
    assert len(service.requests) == len(words.test)
    assert {request.num_samples for request in service.requests} == {1}
    assert len({request.prompt for request in service.requests}) == len(words.test)


def test_decoding_is_greedy_as_registered(decode, service, small, renderer):
    """Temperature, length and stop are the registration's."""
    decode()
    spec = small.registration.evaluation

    for request in service.requests:
        assert request.params.temperature == spec.temperature == 0.0
        assert request.params.max_tokens == spec.max_tokens
        assert request.params.stop == renderer.stop
        assert (request.params.top_p, request.params.top_k) == (1.0, -1)


def test_above_temperature_0_items_do_not_share_their_noise(decode, service, words):
    """Every item has a seed of its own, the same each time it is evaluated."""
    decode(temperature=0.7)
    decode(temperature=0.7)

    seeds = [request.params.seed for request in service.requests]
    n = len(words.test)
    assert len(set(seeds[:n])) == n
    assert seeds[:n] == seeds[n:]


def test_requests_under_way_are_bounded(decode, service):
    """A service's queue is filled, not flooded."""
    items = problems("train", 60) * 10
    decode(items)

    assert service.most_under_way == UNDER_WAY < len(items)


def test_each_row_is_told_as_it_is_done(decode):
    """Live lines and clocks hear of every item once."""
    reported = []

    rows = decode(after_item=reported.append)

    assert sorted(row["item_id"] for row in reported) == [row["item_id"] for row in rows]


def test_what_after_item_raises_ends_the_evaluation(decode, service):
    """A reached cap stops the decoding of items that wait."""
    items = problems("train", 60) * 10

    def stop(_row):
        raise BudgetExceeded("the cap is reached")

    with pytest.raises(BudgetExceeded, match="the cap"):
        decode(items, after_item=stop)
    assert len(service.requests) < len(items)


def test_an_item_without_a_response_is_an_error(decode, service):
    """It is not counted as wrong, and not left out: the item is named."""
    service.reply = lambda request: [] if "5 nails" in request.prompt else ["\\boxed{1}"]

    with pytest.raises(RunError, match="item test/00003 got no response"):
        decode(problems("test", 20))


def test_rows_hold_the_response_and_its_length(decode, service, words):
    """The stored text has no special tokens; the length counts the stop token."""
    service.reply = lambda _request: ["so \\boxed{3}"]

    row = decode(words.test[:1])[0]

    n_tokens = len(service.scored("so \\boxed{3}").tokens)
    assert row == {
        "item_id": "test/00000",
        "correct": True,
        "answer": "3",
        "gold": "3",
        "response": "so \\boxed{3}",
        "n_tokens": n_tokens,
        "stop": "stop",
    }


@pytest.mark.parametrize(
    ("text", "rule", "answer", "correct"),
    [
        ("it is \\boxed{3}", "final_number", "3", True),
        ("it is 3", "final_number", "3", True),
        ("it is 3", "boxed", None, False),
        ("it is \\boxed{3.0}", "boxed", "3", True),
        ("\\boxed{4}", "final_number", "4", False),
        ("I do not know", "final_number", None, False),
    ],
)
def test_an_item_is_graded_by_the_registered_rule(small, words, text, rule, answer, correct):
    """Exact as numbers; no answer is wrong, and is told apart from a wrong answer."""
    spec = small.registration.evaluation.model_copy(update={"answer": rule})

    row = grade(words.test[0], text, spec, 5, "stop")

    assert (row["answer"], row["correct"], row["gold"]) == (answer, correct, "3")


def test_several_samples_make_one_row_an_item(decode, service, words):
    """One request for all samples; every one is graded, and the tokens are counted together."""
    rows = decode(words.test[:5], samples=8, temperature=1.0)

    assert [request.num_samples for request in service.requests] == [8] * 5
    assert len({request.params.seed for request in service.requests}) == 5
    for row in rows:
        assert len(row["correct_S"]) == 8
        assert row["correct"] is row["correct_S"][0]
        assert row["n_tokens"] > 8
    assert {flag for row in rows for flag in row["correct_S"]} == {True, False}


def test_a_single_response_leaves_rows_as_they_were(decode, words):
    """Greedy rows have no samples, so stored evaluations read the same."""
    (row,) = decode(words.test[:1])

    assert "correct_S" not in row
