"""Found by Python at its start: processes of a session see as many cores as `make test-cpus` says.

The engine has a worker for each.
"""

import os

if cores := os.environ.get("SESSION_CORES"):
    os.cpu_count = lambda: int(cores)
