import pytest

from harness.cards.consistency import unresolved
from harness.cards.merge import changed_pointers, merge_patch


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_follows_rfc_7396(target, patch, expected):
    """The examples of RFC 7396, appendix A."""
    assert expected == merge_patch(target, patch)


def test_merge_patch_leaves_its_arguments_alone():
    """Card bytes stay what they are: the patched document is a new one."""
    target = {"a": {"b": [1]}}
    merge_patch(target, {"a": {"b": [2]}})

    assert {"a": {"b": [1]}} == target


def test_changed_pointers_name_every_leaf():
    """Changed, added and removed leaves are all listed; 1 and 1.0 and True are different."""
    before = {"a": 1, "b": [1, 2], "c": {"d": True}, "e": 0}
    after = {"a": 1.0, "b": [1, 3], "c": {"d": 1}, "f": 0}

    assert ["/a", "/b/1", "/c/d", "/e", "/f"] == list(changed_pointers(before, after))


def test_unresolved_texts_are_found_anywhere():
    """UNRESOLVED is found in nested text, in any case, and not within a sentence."""
    document = {"a": [{"b": "UNRESOLVED: pin"}], "c": "unresolved", "d": "nothing unresolved"}

    assert ["/a/0/b", "/c"] == unresolved(document)


GATES = [{"metric": "kl", "max": 1.0, "measures": "x"}, {"metric": "clip", "max": 0.1}]


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ([{"metric": "kl", "max": 2.0}], [{**GATES[0], "max": 2.0}, GATES[1]]),
        ([{"metric": "kl", "max": None, "min": 0.1}],
         [{"metric": "kl", "measures": "x", "min": 0.1}, GATES[1]]),
        ([{"metric": "lag", "max": 0}], [*GATES, {"metric": "lag", "max": 0}]),
        ([{"metric": "clip", "remove": True}], [GATES[0]]),
        ([{"metric": "none", "remove": True}], GATES),
        ([], []),
        (["kl"], ["kl"]),
        ([{"max": 1}], [{"max": 1}]),
        # two of one name say nothing of which is meant: the list is replaced, and found wrong later
        ([GATES[0], GATES[0]], [GATES[0], GATES[0]]),
    ],
    ids=["bound", "null", "added", "removed", "not_there", "empty", "texts", "nameless", "twice"],
)  # fmt: skip
def test_lists_merge_by_name(patch, expected):
    """What a scale says of one gate leaves the others, and the rest of that gate, as registered."""
    assert merge_patch({"gates": GATES}, {"gates": patch}) == {"gates": expected}


def test_criteria_merge_by_their_ids():
    """Two criteria may be of one metric; an id comes before a metric."""
    criteria = [{"id": "a", "metric": "accuracy"}, {"id": "b", "metric": "accuracy"}]

    merged = merge_patch({"criteria": criteria}, {"criteria": [{"id": "b", "margin": 0.1}]})

    assert merged == {"criteria": [criteria[0], {**criteria[1], "margin": 0.1}]}
