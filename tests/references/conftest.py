"""Puts the references on the path: they are files to be pinned, not a package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
