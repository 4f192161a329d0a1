import hashlib
import json

import pytest

from harness.cards import read_clusters
from harness.cards.card import ClusterFile
from harness.errors import CardError


@pytest.fixture(name="pinned")
def _pinned(tmp_path):
    """Writes a document beside the card and pins it."""

    def pin(document):
        data = json.dumps(document).encode()
        (tmp_path / "clusters.json").write_bytes(data)
        return ClusterFile(path="clusters.json", sha256=hashlib.sha256(data).hexdigest())

    return pin


def test_clusters_are_read_as_they_are_pinned(tmp_path, pinned):
    """Item ids map to texts or whole numbers."""
    document = {"test/00000": "a", "test/00001": 7}

    assert read_clusters(tmp_path, pinned(document)) == document


@pytest.mark.parametrize(
    ("document", "message"),
    [(["a"], "map each item id"), ({"a": 1.5}, "neither a text nor"), ({"a": None}, "'a' is nei")],
)
def test_what_is_no_clustering_is_refused(tmp_path, pinned, document, message):
    """A list, a fraction or nothing is no label."""
    with pytest.raises(CardError, match=message):
        read_clusters(tmp_path, pinned(document))


def test_changed_clusters_are_refused(tmp_path, pinned):
    """Regrouping the items after the data are in would change the verdict."""
    first = pinned({"a": 1})
    pinned({"a": 2})

    with pytest.raises(CardError, match="is not the registered"):
        read_clusters(tmp_path, first)
