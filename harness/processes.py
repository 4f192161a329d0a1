"""Whether processes run, and who still needs a shared one: leases as files named by pid."""

import os
from contextlib import suppress
from pathlib import Path


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but is not yet reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return status != "Z"
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not Path("/proc").is_dir()


def take_lease(folder: Path, pid: int) -> None:
    """Say that the process `pid` needs what the folder stands for, until it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(pid)).touch()


def lease_holders(folder: Path) -> set[int]:
    """The living processes that hold a lease; the leases of dead ones are removed."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    pids = {int(name) for name in names if name.isdigit()}
    living = {pid for pid in pids if alive(pid)}
    for pid in pids - living:
        with suppress(FileNotFoundError):
            (folder / str(pid)).unlink()
    return living
