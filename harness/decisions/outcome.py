"""The verdict on one criterion, with everything that it takes to recompute it by hand."""

from enum import StrEnum

from pydantic.dataclasses import dataclass

from harness.statistics.paired import PairedCounts


class Verdict(StrEnum):
    """What a decision rule can say."""

    VALIDATED = "VALIDATED"
    REFUTED = "REFUTED"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One criterion decided, in the units of the scores.

    ``n`` counts the independent units that were scored (clusters and seeds included), and
    ``n_registered`` the registered items. Estimate, limits and p values are None when INVALID;
    p values also where thresholds on the estimate decide, and limits where these are of seeds.
    ``p_validated`` and ``p_refuted`` are the smallest alphas at which the data would have said so.
    ``counts`` is the 2x2 table of two arms with 0/1 scores. ``problems`` say why it is INVALID,
    ``notes`` how a near tie was resolved.
    """

    id: str
    metric: str
    verdict: Verdict
    estimate: float | None
    lower: float | None
    upper: float | None
    margin: float
    half_width: float | None
    n: int
    n_registered: int
    range: float
    alpha: float
    sides: int
    method: str
    unit: str
    p_validated: float | None
    p_refuted: float | None
    counts: PairedCounts | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    sentence: str

    @property
    def validated(self) -> bool:
        """The contrast was shown to lie above the margin."""
        return self.verdict is Verdict.VALIDATED

    @property
    def refuted(self) -> bool:
        """The contrast was shown to lie below the margin."""
        return self.verdict is Verdict.REFUTED

    @property
    def inconclusive(self) -> bool:
        """The interval reaches the margin: neither was shown."""
        return self.verdict is Verdict.INCONCLUSIVE

    @property
    def invalid(self) -> bool:
        """The data do not fit the registration, so nothing was decided."""
        return self.verdict is Verdict.INVALID
