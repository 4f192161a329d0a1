"""What authors of cards get wrong, and the one line that each mistake gets."""

import pytest

from harness.errors import CardError

SUFFIXES = ("", ".registration", ".embedded")


def said(card, scale="embedded"):
    """The lines that a load ends in."""
    with pytest.raises(CardError) as caught:
        card.load(scale)
    return str(caught.value).splitlines()


def part(card, suffix):
    """One of the three files."""
    return card.path.with_name(f"{card.path.stem}{suffix}.json")


class TestFile:
    @pytest.mark.parametrize("suffix", SUFFIXES)
    @pytest.mark.parametrize(
        ("change", "line"),
        [
            (lambda _: b"", "not valid JSON: Input is a zero-length, empty document"),
            (lambda data: b"\xef\xbb\xbf" + data, "byte order mark (BOM) is not supported"),
            (lambda data: data.decode().encode("utf-16"), "byte 0 is not UTF-8; save the file as"),
            (lambda _: b"[" * 100_000, "depth limit exceeded"),
            (lambda _: b"[]", "the document is []: input should be an object"),
            (lambda data: data.replace(b"{", b'{"a": NaN,', 1), """which is '{"a": NaN,'"""),
            (lambda data: data.replace(b"{", b'{"a": 1e999,', 1), "number is infinity"),
            (lambda data: data.replace(b"{", b'{"a": 1, "a": 2,', 1), "key 'a' stands 2 times"),
        ],
        ids=["empty", "bom", "utf16", "deep", "list", "nan", "infinity", "twice"],
    )
    def test_that_is_no_document_is_one_line(self, suffix, change, line, card):
        """The file, the place and what to do; a key that stands twice is never the last one."""
        path = part(card, suffix)
        path.write_bytes(change(path.read_bytes()))

        (reported,) = said(card)

        assert reported.startswith(f"{path.name}: ")
        assert line in reported

    def test_key_that_stands_twice_deep_inside_is_found(self, card):
        """Any object of the document, not the outermost alone."""
        path = part(card, ".registration")
        path.write_text(path.read_text().replace('"few_shot"', '"few_shot": "none", "few_shot"', 1))

        assert ["key 'few_shot' stands 2 times in one object"] == [
            line.partition(": ")[2].partition(";")[0] for line in said(card)
        ]

    def test_that_is_a_folder_is_one_line(self, card):
        """A folder of the file's name, with the place."""
        card.path.unlink()
        card.path.mkdir()

        assert [f"looked at {card.path}" in line for line in said(card)] == [True]

    def test_of_other_line_ends_is_another_card(self, card):
        """The hash is of bytes; the line has the one to register, whole."""
        card.path.write_bytes(card.path.read_bytes().replace(b"\n", b"\r\n"))
        (line,) = said(card)
        sha256 = line.partition("sha256 ")[2][:64]
        card.edit(".registration", lambda r: r.update(card_sha256=sha256))

        assert sha256 == card.load("embedded").card_sha256

    def test_of_a_misspelt_scale_is_one_line(self, card):
        """A scale is one of two words, or a file."""
        where = card.folder / "embeded"

        assert [f"scale embeded is neither embedded, full nor a file at {where}; name one"] == said(
            card, str(where)
        )

    def test_that_is_missing_hides_no_problem_of_another(self, card):
        """Card, registration and scale are read, each with its problems, before any is told."""
        card.path.unlink()
        card.edit(".registration", lambda r: r["training"].update(rendrer="x", max_tokens=0))
        card.edit(".embedded", lambda s: s.update(chnges=[]))

        reported = [line.partition(": ")[0] for line in said(card)]

        assert [
            f"{card.path.stem}{s}.json" for s in ("", *SUFFIXES[1:2] * 2, ".embedded")
        ] == reported


@pytest.mark.parametrize(
    ("suffix", "change", "line"),
    [
        (
            ".registration",
            lambda d: d["arms"][0].update(name="grpo/größe 8"),
            "/arms/0/name is 'grpo/größe 8'",
        ),
        (
            ".registration",
            lambda d: d["arms"][0].update(estimator="reinforce"),
            "arm grpo_gs8_seed0: estimator 'reinforce' is unknown; use one of group_mean",
        ),
        (
            "",
            lambda d: d["decision_rule"]["criteria"][0].update(id="not inferior"),
            "/decision_rule/criteria/0/id is 'not inferior'",
        ),
        ("", lambda d: d["arms"][0].pop("seed"), "/arms/0/seed is missing; add it"),
        ("", lambda d: d["decision_rule"].update(alpha=5), "/decision_rule/alpha is 5"),
        (
            ".registration",
            lambda d: d["power"].update(expected_effect=3.0),
            "an effect of 3 is expected, the contrast lies in [-1, 1]; give it as a fraction",
        ),
        (
            ".registration",
            lambda d: d["power"].update(expected_effects={"primary": 0.1}),
            "power.expected_effects names 'primary', the criteria are ['primary_noninferiority']",
        ),
        (".embedded", lambda d: d["changes"][0].update(reason=""), "/changes/0/reason is ''"),
        (".embedded", lambda d: d.update(claims=""), "/claims is ''"),
        (".embedded", lambda d: d.update(name="full"), "/name is 'full', which is the card as"),
        (".embedded", lambda d: d.update(service="gpu"), "should be 'embedded' or 'remote'"),
        (".embedded", lambda d: d["patch"].update(card=None), "the document is None"),
    ],
    ids=[
        "arm_name",
        "estimator",
        "criterion_id",
        "no_seed",
        "alpha_in_percent",
        "effect_in_points",
        "effect_of_no_criterion",
        "no_reason",
        "no_claims",
        "full",
        "service",
        "no_card",
    ],
)
def test_value_that_can_not_be_meant_is_one_line(suffix, change, line, card):
    """The place, the value and what may stand there; nothing falls back to a default."""
    card.edit(suffix, change)

    assert [True] == [line in reported for reported in said(card)]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda gates: gates.append(gates[3]), "is stated twice"),
        (lambda gates: gates[5].update(min=1), "one_of is of names, min and max of numbers"),
        (lambda gates: gates[1].update(min=65), "min 65.0 is above max 64.0, so nothing passes"),
    ],
    ids=["twice", "both_kinds", "min_above_max"],
)
def test_gate_says_one_thing(change, line, card):
    """A bound that would not be looked at is refused, as is one that nothing meets."""
    card.edit("", lambda stated: change(stated["activation_gate"]["checks"]))

    with pytest.raises(CardError) as caught:
        card.load("full")

    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_groups_of_one_are_never_dropped(card):
    """An arm with one rollout a prompt would train on nothing where equal rewards are dropped."""
    card.edit(".registration", lambda d: d["training"].update(drop_zero_variance_groups=True))

    (line,) = [line for line in said(card) if "drop_zero_variance_groups" in line]

    assert "arm gs1_seed0: group_size is 1" in line


@pytest.mark.parametrize(
    ("field", "value", "reader"),
    [
        ("order_key", "a key", "paired_betting_cs"),
        ("log_events", 3, "paired_empirical_bernstein"),
        ("clusters", {"path": "c.json", "sha256": "0" * 64}, "clustered_t"),
    ],
)
def test_what_no_method_reads_is_refused(card, field, value, reader):
    """Registered and unused it would look like a rule; the method that reads it takes it."""
    card.edit("", lambda stated: stated["decision_rule"].update({field: value}))

    with pytest.raises(CardError) as caught:
        card.load("full")
    assert f"decision_rule.{field} is registered, but paired_hoeffding does not read it" in str(
        caught.value
    )

    card.edit("", lambda stated: stated["decision_rule"].update(method=reader))
    card.load("full")


def test_roles_that_do_not_differ_are_no_experiment(card):
    """Two arms of one estimator, size and rate compare nothing, unless an A/A is registered."""

    def same(stated):
        stated["arms"][1].update(
            group_size=8, groups_per_batch=8, advantage_mode="grpo", similarity=None, tau=None
        )

    card.edit("", same)
    arm = {"estimator": "group_mean", "kernel": None}
    card.edit(".registration", lambda stated: stated["arms"][1].update(arm))

    with pytest.raises(CardError, match="roles baseline and treatment do not differ in any field"):
        card.load("full")

    card.edit(".registration", lambda stated: stated.update(contrast=[]))
    assert card.load("full").contrast == {}


def test_a_difference_that_nobody_declared_is_refused(card):
    """Another learning rate in one arm; declared with the rest of the contrast it is a design."""
    card.edit("", lambda stated: stated["arms"][1].update(lr=1e-3))

    with pytest.raises(CardError) as caught:
        card.load("full")
    assert "differ in learning_rate (baseline 4e-05, treatment 0.001), which no contrast" in str(
        caught.value
    )

    declared = ["group_size", "groups_per_batch", "estimator", "kernel", "learning_rate"]
    card.edit(".registration", lambda stated: stated.update(contrast=declared))
    assert "learning_rate" in card.load("full").contrast

    card.edit(".registration", lambda stated: stated.update(contrast=["estimator"]))
    with pytest.raises(CardError, match=r"contrast: registered is \['estimator'\], but"):
        card.load("full")
