"""Sessions of end_to_end serve here as well."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "end_to_end"):
    sys.path.insert(0, str(folder))  # importlib mode leaves test folders off the path
