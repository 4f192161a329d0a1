"""The pages of docs/ and the README lead where they say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    """Every relative link of a page names a file of the project."""
    targets = LINK.findall(page.read_text("utf-8"))
    assert [t for t in targets if not (page.parent / t).exists()] == []
