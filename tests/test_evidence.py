import math
import subprocess
import sys

import pytest
from pydantic import ValidationError

from harness.evidence import Evidence, Measured


class Sample(Evidence):
    """A value, and rows of values."""

    value: Measured
    rows: dict[str, list[Measured]]
    pair: tuple[str, int]


def test_evidence_survives_json_with_nan_and_infinity():
    """What was measured comes back bit for bit, NaN and infinities included."""
    sample = Sample(value=math.nan, rows={"a": [0.1, -math.inf, math.inf]}, pair=("x", 1))
    again = Sample.of(sample.plain())

    assert math.isnan(again.value)
    assert [0.1, -math.inf, math.inf] == again.rows["a"]
    assert ("x", 1) == again.pair


def test_plain_evidence_holds_only_finite_numbers():
    """The run store refuses NaN, so a value that is not finite is stored as text."""
    document = Sample(value=math.nan, rows={"a": [math.inf]}, pair=("x", 1)).plain()

    assert {"value": "nan", "rows": {"a": ["inf"]}, "pair": ["x", 1]} == document


@pytest.mark.parametrize("spoiled", [{"value": "1.5"}, {"extra": 1}, {"value": None}])
def test_another_document_is_refused(spoiled):
    """Evidence of another shape is an error, not a default."""
    document = {"value": 1.0, "rows": {}, "pair": ["x", 1], **spoiled}

    with pytest.raises(ValidationError):
        Sample.of(document)


def test_checks_import_without_heavy_packages():
    """Checks are read from the store without torch, tinker, transformers or scikit-learn."""
    code = (
        "import sys, importlib, harness.audit as c\n"
        "names = [*c.PREFLIGHTS, 'gates', 'pilot', 'throw_away']\n"
        "[importlib.import_module(f'harness.audit.{n}') for n in names]\n"
        "heavy = {'torch', 'tinker', 'tinker_cookbook', 'transformers', 'sklearn'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert "[]" == result.stdout.strip(), result.stderr
