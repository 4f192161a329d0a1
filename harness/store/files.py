"""Files that appear whole or not at all. The only place where the store touches the disk."""

import contextlib
import errno
import logging
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.errors import StoreError, StoreFullError
from harness.store.codec import CorruptRecord, decode

log = logging.getLogger(__name__)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TEMPORARY = ".tmp-"
_STALE_S = 3600.0  # a publish takes far less; older temporary files were left by a killed process


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Put `data` at `path`, whole or not at all, under a temporary name of its own until then.

    durable: flush file and folder to the disk first, so that a power cut can't undo it.
    Raises StoreFullError or StoreError; the temporary file is gone and old content intact.
    """
    temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{uuid.uuid4().hex}")
    with storage_errors("write", path):
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            sync_folder(path.parent)


def read_record(path: Path) -> Any:  # whatever JSON was published there
    """Return the record at `path`, or None if there is none or if it had to be set aside."""
    with storage_errors("read", path):
        try:
            with path.open("rb") as file:
                data, inode = file.read(), os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            return None
        try:
            return decode(data)
        except CorruptRecord as error:
            _set_aside(path, inode, str(error))
            return None


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents, each made durable in the one above."""
    if folder.is_dir():
        return
    with storage_errors("create", folder):
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_names(folder: Path) -> set[str]:
    """Return the names in `folder`, none if it does not exist."""
    with storage_errors("list", folder):
        try:
            return set(os.listdir(folder))  # noqa: PTH208  names are wanted, not paths
        except FileNotFoundError:
            return set()


def sweep(folder: Path) -> None:
    """Remove temporary files that a killed process left in `folder` over an hour ago."""
    for name in list_names(folder):
        path = folder / name
        if name.startswith(_TEMPORARY):
            with contextlib.suppress(FileNotFoundError), storage_errors("remove", path):
                if time.time() - path.stat().st_mtime > _STALE_S:
                    path.unlink()


@contextlib.contextmanager
def storage_errors(verb: str, path: Path) -> Iterator[None]:
    """Turn an OSError into one line of the harness's own: StoreFullError or StoreError."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise StoreFullError(
                f"can't {verb} {path}: {reason}; nothing half-written was left. "
                "Free some space or choose another --runs-dir, then run again: it resumes"
            ) from error
        raise StoreError(
            f"can't {verb} {path}: {reason}. Check the path and its permissions, "
            "or choose another --runs-dir"
        ) from error


def _set_aside(path: Path, inode: int, reason: str) -> None:
    """Keep a corrupt file for the curious, unless it has been republished in the meantime."""
    aside = path.with_name(f"{path.name}.corrupt-{uuid.uuid4().hex[:8]}")
    try:
        if path.stat().st_ino == inode:
            path.rename(aside)
            log.warning(
                "%s is corrupt (%s): kept as %s, treated as absent", path, reason, aside.name
            )
    except FileNotFoundError:
        pass  # another reader was first
