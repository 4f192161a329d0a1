import pytest
from golden_keys import FOLDER, NAMES, document


def test_the_seven_registered_experiments_have_a_golden_file():
    """A card that is added or removed has its file written or deleted."""
    assert len(NAMES) == 7
    assert sorted(path.stem for path in FOLDER.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_those_of_the_golden_file(name):
    """No edit changes a stored result's key, or a part of it, unless the golden file says so."""
    assert document(name) == (FOLDER / f"{name}.json").read_text()
