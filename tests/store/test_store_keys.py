import math
import re

import numpy as np
import pytest

from harness.errors import StoreError
from harness.store.keys import check_name, content_key, flatten, merge_parts, plain_parts


class TestMergedParts:
    def test_are_all_there(self) -> None:
        """Parts of different names are one mapping."""
        assert merge_parts({"a": 1}, {}, {"b": 2, "c": 3}) == {"a": 1, "b": 2, "c": 3}

    @pytest.mark.parametrize("value", [1, 2])
    def test_never_replace_each_other(self, value: int) -> None:
        """A name that two hold is refused, even with the same value."""
        with pytest.raises(StoreError, match="key parts hold a more than once"):
            merge_parts({"a": 1}, {"b": 2}, {"a": value})


class TestContentKey:
    def test_order_of_keys_does_not_matter(self) -> None:
        """Two mappings with the same content have one key, whatever order they were written in."""
        one = content_key({"card": {"a": 1, "b": [1, 2]}, "scale": "full"})
        other = content_key({"scale": "full", "card": {"b": [1, 2], "a": 1}})

        assert one == other
        assert re.fullmatch(r"[0-9a-f]{64}", one)

    def test_is_the_same_in_every_release(self) -> None:
        """The key of a given content is pinned: changing it would forget every run."""
        assert (
            content_key({"b": 4e-05, "a": [True, None, "é"]})
            == "9be26c7edc4a0f83fcb49fd21b1cd46feb08be2ffb0ee2c69f43b469ee9f6e6f"
        )

    @pytest.mark.parametrize(
        "other",
        [
            {"rate": math.nextafter(4e-05, 1)},
            {"rate": 4e-05, "more": None},
            {"rate": "4e-05"},
            {"rates": 4e-05},
            {},
        ],
    )
    def test_any_difference_changes_it(self, other: dict[str, object]) -> None:
        """A last bit, a type, a name or an extra null gives another key."""
        assert content_key({"rate": 4e-05}) != content_key(other)

    def test_tuples_and_numpy_scalars_are_what_they_hold(self) -> None:
        """A tuple is a list and a numpy scalar is a number, as they will be when read back."""
        plain = {"seeds": [0, 1], "rate": 0.5}

        assert content_key({"seeds": (0, np.int64(1)), "rate": np.float64(0.5)}) == content_key(
            plain
        )
        assert plain_parts({"seeds": (0, 1), "rate": np.float64(0.5)}) == plain

    @pytest.mark.parametrize("bad", [math.nan, math.inf, object(), {1: 2}, 2**70, "\ud800"])
    def test_what_is_not_json_is_refused(self, bad: object) -> None:
        """NaN, infinity, objects, keys that are no strings and huge integers raise in one line."""
        with pytest.raises(StoreError) as caught:
            content_key({"part": bad})

        assert "\n" not in str(caught.value)
        assert "key parts" in str(caught.value)


class TestSecrets:
    @pytest.mark.parametrize(
        "name",
        [
            *("api_key", "API-KEY", "apiKey", "tinker_api_key", "TINKER_API_KEY", "token"),
            *("hf_token", "auth_token", "secret", "client_secret", "secret_key", "db_password"),
            "Authorization",
        ],
    )
    def test_a_key_named_like_a_secret_is_refused(self, name: str) -> None:
        """The error names the key and never shows the value, however deep it sits."""
        with pytest.raises(StoreError, match="named like a secret") as caught:
            content_key({"service": [{"url": "x", name: "tml-hunter2"}]})

        assert name in str(caught.value)
        assert "hunter2" not in str(caught.value)

    def test_ordinary_words_of_the_field_pass(self) -> None:
        """Tokens are what a language model is made of; settings about them are no secrets."""
        names = ["max_tokens", "stop_token", "eos_token_id", "tokenizer", "tokens_per_s", "key"]

        assert content_key(dict.fromkeys(names, 1))


class TestCheckName:
    @pytest.mark.parametrize("name", ["arm", "arm/gs1_seed0", "a.b/c-d/0", "x" * 200])
    def test_safe_names_pass(self, name: str) -> None:
        """Letters, digits, dots, dashes and underscores in segments make a name."""
        assert check_name(name) == name

    @pytest.mark.parametrize(
        "name",
        [
            *("", "..", "a/../b", "/etc", "a//b", "a/", ".hidden", "-rf", "a b", "a\nb", "é"),
            *("a\\b", "a/@0123456789abcdef", "~", "a\0", "x" * 201),
        ],
    )
    def test_unsafe_names_are_refused(self, name: str) -> None:
        """Whatever could leave the folder, hide in it or puzzle a shell raises in one line."""
        with pytest.raises(StoreError, match="not safe as a path") as caught:
            check_name(name)

        assert "\n" not in str(caught.value)


class TestFlatten:
    def test_leaves_have_dotted_paths(self) -> None:
        """{} and [] are leaves, so that nothing of a document goes unseen."""
        assert flatten({"a": {}, "b": [], "c": [{"d": 1}]}) == {"a": {}, "b": [], "c[0].d": 1}
