"""Golden files, and what makes them anew."""

import sys
from pathlib import Path

# the helper beside these tests is imported by name
sys.path.insert(0, str(Path(__file__).parent))
