"""What the engine finds out about kernels at its start, and how it says so."""

from pathlib import Path

import planted_kernels
import pytest
import torch

from harness.engine.arrangement import FREE, Arrangement
from harness.engine.base_model import read_config, read_weights
from harness.engine.kernel_probe import arrangement_of


def _found(folder: Path) -> Arrangement:
    config = read_config(folder)
    return arrangement_of(config, read_weights(folder, config))


@pytest.mark.parametrize("kind", ["model_folder", "hybrid_folder"])
def test_this_processor_keeps_bits(request: pytest.FixtureRequest, kind: str) -> None:
    """Tests that compare two runs rest on this: where it fails they do, and this is why."""
    found = _found(request.getfixturevalue(kind))
    assert found.exact, str(found)


@pytest.mark.parametrize("kind", ["model_folder", "hybrid_folder"])
@pytest.mark.parametrize(
    ("plant", "step_rows", "shared"),
    [
        (planted_kernels.lengths_matter, 64, True),
        (planted_kernels.rows_matter, 8, False),
        (planted_kernels.places_matter, 1, False),
    ],
)
def test_the_largest_arrangement_that_holds_is_taken(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    plant: planted_kernels.Plant,
    step_rows: int,
    shared: bool,
) -> None:
    """Kernels that go by the number of rows, or by a row's place, are given fewer rows."""
    plant(monkeypatch)
    assert _found(request.getfixturevalue(kind)) == Arrangement(step_rows, shared)


@pytest.mark.parametrize("kind", ["model_folder", "hybrid_folder"])
def test_kernels_that_keep_nothing_are_told_with_their_noise(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Where no arrangement helps, rows stay together, and the noise is what was measured."""
    planted_kernels.nothing_is_kept(monkeypatch)
    found = _found(request.getfixturevalue(kind))
    assert not found.exact
    assert (found.step_rows, found.shared_passes) == (FREE.step_rows, FREE.shared_passes)
    assert 1e-7 < found.noise < 1e-3
    assert "\n" not in str(found)
    assert f"{found.noise:.2g} nats" in str(found)


@pytest.mark.parametrize("step_rows", [64, 8, 1])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 65])
def test_parts_are_of_the_size_that_is_asked_for(step_rows: int, rows: int) -> None:
    """A function of rows sees parts of exactly 8 rows, of one, or a multiple of 8 up to 64."""
    seen: list[int] = []
    x = torch.randn(rows, 3)

    def doubled(part: torch.Tensor) -> torch.Tensor:
        seen.append(len(part))
        return 2 * part

    assert torch.equal(Arrangement(step_rows).in_parts(doubled, x), 2 * x)
    assert all(n % min(step_rows, 8) == 0 and n <= step_rows for n in seen)
    assert step_rows == 64 or set(seen) == {step_rows}
