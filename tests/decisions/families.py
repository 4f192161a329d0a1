"""Rules of several criteria, outcomes by letter, and what a rule's docstring makes of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.cards import CriterionSpec, DecisionRule
from harness.cards.card import SecondLook
from harness.decisions import Outcome, Verdict

V, R, I, X = Verdict.VALIDATED, Verdict.REFUTED, Verdict.INCONCLUSIVE, Verdict.INVALID  # noqa: E741
ALPHA = 0.05
RANGE = (-0.1, 0.1)
NEXT = "rerun at lag 16"


@dataclass(frozen=True)
class Said:
    """What one criterion says alone: its word and the p values of both directions."""

    word: Verdict
    p_validated: float | None = None
    p_refuted: float | None = None


# a small letter holds alone and not after Holm over two
LETTERS = {
    "V": Said(V, p_validated=0.001),
    "v": Said(V, p_validated=0.03),
    "R": Said(R, p_refuted=0.001),
    "r": Said(R, p_refuted=0.03),
    "I": Said(I),
    "X": Said(X),
}

Looks = Sequence[Said]
"""What a criterion says on the first look, and on the second if there is one."""


def rule_of(
    combine: str, claims: Sequence[str], premises: Mapping[str, str | None], second_look: bool
) -> DecisionRule:
    """A rule whose premises, each with its next step, stand before its claims.

    A second look is called for by the first claim.
    """
    stated = {"metric": "m", "weights": {"a": 1.0, "b": -1.0}, "bounds": (0.0, 1.0), "margin": 0.0}
    return DecisionRule(
        version=1,
        method="paired_tango",
        unit="fixed_checkpoint_items",
        alpha=ALPHA,
        estimand="gap",
        seeds=[0],
        criteria=[
            *(
                CriterionSpec(id=id, premise=True, next_step=s, **stated)
                for id, s in premises.items()
            ),
            *(CriterionSpec(id=id, **stated) for id in claims),
        ],
        combine=combine,
        second_look=SecondLook(criterion=claims[0], low=RANGE[0], high=RANGE[1])
        if second_look
        else None,
    )


def outcome_of(id: str, said: Said, estimate: float = 0.02) -> Outcome:
    """A criterion decided by itself; an INVALID one has no figures."""
    outcome = Outcome(
        id=id, metric="m", verdict=said.word, estimate=estimate, lower=estimate - 0.1,
        upper=estimate + 0.1, margin=0.0, half_width=0.1, n=200, n_registered=200, range=2.0,
        alpha=ALPHA, sides=2, method="paired_tango", unit="fixed_checkpoint_items",
        p_validated=said.p_validated, p_refuted=said.p_refuted, counts=None, problems=(),
        notes=(), sentence=f"{said.word}: {id} at {estimate}",
    )  # fmt: skip
    return replace(outcome, estimate=None, lower=None, upper=None) if said.word is X else outcome


def documented(combine: str, premises: Sequence[Looks], claims: Sequence[Looks]) -> Verdict:
    """The experiment's verdict as the docstrings of `CombineRule` and of the second look have it.

    Whatever is said must be said on every look.
    """
    words = {said.word for looks in (*premises, *claims) for said in looks}
    if X in words:
        return X
    if any(said.word is not V for looks in premises for said in looks):
        return I
    validated = [all(said.word is V for said in looks) for looks in claims]
    refuted = [all(said.word is R for said in looks) for looks in claims]
    if combine == "any_may_pass":
        kept = [all(survives) for survives in zip(*holm_by_look(claims, V), strict=True)]
        one = any(says and survives for says, survives in zip(validated, kept, strict=True))
        return V if one else R if all(refuted) else I
    if combine == "all_must_agree":
        return V if all(validated) else R if all(refuted) else I
    if combine == "all_must_pass_holm_refuted":
        kept = [all(survives) for survives in zip(*holm_by_look(claims, R), strict=True)]
        refuted = [says and survives for says, survives in zip(refuted, kept, strict=True)]
    return R if any(refuted) else V if all(validated) else I


def calls(combine: str, premises: Sequence[Looks], claims: Sequence[Looks], near: bool) -> bool:
    """Whether the first look's outcome of the first claim calls for a second one.

    It must lie in the range, and its verdict must stand among the others.
    """
    word, *others = (looks[0].word for looks in claims)
    if not near or any(looks[0].word is not V for looks in premises):
        return False
    if word is V:
        return combine != "any_may_pass" or next(holm_by_look(claims, V))[0]
    if word is not R:
        return False
    if combine == "all_must_pass_holm_refuted":
        return next(holm_by_look(claims, R))[0]
    return combine == "all_must_pass" or set(others) <= {R}


def holm_by_look(claims: Sequence[Looks], word: Verdict) -> Iterator[list[bool]]:
    """For each look, which claims Holm 1979 lets say `word`: step down while p (m - k) < alpha."""
    for look in zip(*claims, strict=True):
        found = [said.p_validated if word is V else said.p_refuted for said in look]
        p_values = [1.0 if p is None else p for p in found]
        kept = [False] * len(p_values)
        for k, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
            if p_values[i] * (len(p_values) - k) >= ALPHA:
                break
            kept[i] = True
        yield kept
