import errno
import logging
import os
import resource
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from harness.errors import StoreError, StoreFullError
from harness.store import files
from harness.store.codec import encode
from harness.store.files import make_folder, read_record, storage_errors, sweep, write_atomic

UNSHARE = ("unshare", "--map-root-user", "--mount")
CAN_MOUNT = (
    shutil.which("unshare") is not None
    and subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
    ).returncode
    == 0
)

READERS_AND_WRITERS = """
role, root, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
import hashlib, logging
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)

def noisy(length):
    noise = os.urandom(length).hex()
    return {"noise": noise, "digest": hashlib.sha256(noise.encode()).hexdigest()}

def is_whole(record):
    return hashlib.sha256(record["noise"].encode()).hexdigest() == record["digest"]

entry = RunStore(root).entry("arm/shared", {"a": 1})
(root / f"{role}-{os.getpid()}").touch()
wait_for(lambda: len(list(root.glob("*er-*"))) == 16, "eight readers and eight writers")
if role == "writer":
    for i in range(rounds):
        entry.publish("rollouts", noisy(40_000))
        entry.publish_step(i, noisy(10_000))
        entry.progress(noisy(10_000))
else:
    wait_for(lambda: entry.read("rollouts") and entry.steps() and entry.read_progress(), "writers")
    seen, stopped = 0, False
    while not stopped:
        stopped = (root / "stop").exists()
        step = entry.steps()[-1]
        for record in entry.read("rollouts"), entry.read_step(step), entry.read_progress():
            assert is_whole(record), "half a record, or two halves"
            seen += 1
        time.sleep(0.01)
    print("read", seen)
"""

FULL_DISK = """
root = Path(sys.argv[1])
from harness.errors import StoreFullError, StoreError
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(root)], check=True)
entry = RunStore(root).entry("arm/a", {"a": 1})
entry.publish("metrics", {"old": True})
noise = lambda n: os.urandom(n).hex()
caught = []
for write in (
    lambda: entry.publish("metrics", noise(400_000)),
    lambda: entry.publish_step(0, noise(400_000)),
    lambda: entry.progress(noise(400_000)),
    lambda: entry.finish(noise(400_000)),
):
    try:
        write()
    except StoreFullError as error:
        caught.append(str(error))
for line in caught:
    print(line)
print(entry.read("metrics"), entry.steps(), entry.is_complete, entry.read_progress())
print([p.name for p in root.rglob(".tmp-*")])
(root / "ballast").write_bytes(b"x" * os.statvfs(root).f_bavail * os.statvfs(root).f_bsize)
try:
    with RunStore(root).entry("arm/b", {"a": 1}).attempt("run"):
        raise AssertionError("there was room")
except StoreFullError as error:
    print(error)
(root / "ballast").unlink()
entry.publish("metrics", {"old": False})
print(entry.read("metrics"))
subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
for use in lambda: RunStore(root), lambda: entry.publish("metrics", 1):
    try:
        use()
    except StoreError as error:
        print(type(error).__name__, error)
"""


class TestWriteAtomic:
    def test_eight_writers_and_eight_readers_never_meet_half_a_record(
        self, tmp_path, spawn, lines_of
    ) -> None:
        """200 rounds of 8 writers to one place: every read is whole and of one writer alone."""
        readers = [spawn(READERS_AND_WRITERS, "reader", tmp_path, 0) for _ in range(8)]
        writers = [spawn(READERS_AND_WRITERS, "writer", tmp_path, 25) for _ in range(8)]
        assert [lines_of(writer) for writer in writers] == [[]] * 8
        (tmp_path / "stop").touch()

        for reader in readers:
            (line,) = lines_of(reader)  # a warning about a corrupt record would be another line
            assert int(line.split()[1]) >= 3
        assert list(tmp_path.rglob(".tmp-*")) == []

    def test_every_write_has_a_temporary_name_of_its_own(self, tmp_path, monkeypatch) -> None:
        """Eight writes to one path go through eight names, all in the folder of the target."""
        seen: list[Path] = []
        replace = Path.replace
        monkeypatch.setattr(
            Path, "replace", lambda p, target: (seen.append(p), replace(p, target))[1]
        )
        for i in range(8):
            write_atomic(tmp_path / "x", b"%d" % i)

        assert len(set(seen)) == 8
        assert {path.parent for path in seen} == {tmp_path}
        assert (tmp_path / "x").read_bytes() == b"7"

    def test_flushes_the_file_before_it_is_renamed_and_the_folder_after(
        self, tmp_path, monkeypatch
    ) -> None:
        """What was published is on the disk when the call returns; a live line need not be."""
        events: list[str] = []
        replace, fsync = Path.replace, os.fsync

        def record_fsync(descriptor: int) -> None:
            events.append(
                "folder" if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir() else "file"
            )
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", record_fsync)
        monkeypatch.setattr(
            Path, "replace", lambda p, t: (events.append("rename"), replace(p, t))[1]
        )
        write_atomic(tmp_path / "x", b"1")
        write_atomic(tmp_path / "x", b"2", durable=False)

        assert events == ["file", "rename", "folder", "rename"]

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_at_the_flush_leaves_the_old_content(
        self, tmp_path, monkeypatch, code
    ) -> None:
        """A disk or quota found full as late as the flush: one line, old content, no rest."""
        write_atomic(tmp_path / "x", b"old")

        def full(_descriptor: int) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreFullError, match="Free some space") as caught:
            write_atomic(tmp_path / "x", b"new")

        assert "\n" not in str(caught.value)
        assert [p.name for p in tmp_path.iterdir()] == ["x"]
        assert (tmp_path / "x").read_bytes() == b"old"

    def test_a_file_size_limit_leaves_the_old_content(self, tmp_path) -> None:
        """The system cuts a write short for real: one line, old content, no rest."""
        path = tmp_path / "x"
        write_atomic(path, b"old")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with pytest.raises(StoreFullError, match="File too large"):
                write_atomic(path, b"x" * 100_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert [p.name for p in tmp_path.iterdir()] == ["x"]
        assert path.read_bytes() == b"old"

    @pytest.mark.skipif(not CAN_MOUNT, reason="needs a mount namespace; the limits above stand in")
    def test_a_real_full_disk_and_a_read_only_one(self, tmp_path, spawn, lines_of) -> None:
        """On a file system of 256 KB every kind of write ends in one line, and space heals it."""
        disk = tmp_path / "disk"
        disk.mkdir()
        lines = lines_of(spawn(FULL_DISK, disk, prefix=UNSHARE))

        assert [line.split(":")[0].rsplit("/", 1)[1] for line in lines[:4]] == [
            "metrics.json.zst",
            "step-000000.json.zst",
            "progress.json",
            "complete.json.zst",
        ]
        assert all("No space left on device; nothing half-written" in line for line in lines[:4])
        assert lines[4:6] == ["{'old': True} [] False None", "[]"]
        assert "No space left on device" in lines[6]
        assert lines[7] == "{'old': False}"
        assert [line.split()[0] for line in lines[8:]] == ["StoreError", "StoreError"]


class TestReadRecord:
    def test_absent_is_none(self, tmp_path) -> None:
        """No file, no record."""
        assert read_record(tmp_path / "x") is None

    def test_a_torn_record_is_set_aside(self, tmp_path, caplog) -> None:
        """Half a record warns in one line, is kept under another name, and counts as absent."""
        path = tmp_path / "step-000003.json.zst"
        path.write_bytes(encode({"reward": 1.0}, "x")[:-5])
        with caplog.at_level(logging.WARNING):
            assert read_record(path) is None
            assert read_record(path) is None

        (message,) = [r.getMessage() for r in caplog.records if r.name.startswith("harness")]
        assert f"{path} is corrupt (the file is cut short)" in message
        assert [p.name.split(".corrupt-")[0] for p in tmp_path.iterdir()] == [path.name]

    def test_a_record_republished_meanwhile_is_left_alone(self, tmp_path, monkeypatch) -> None:
        """A good record that replaced the corrupt one just after it was read is not set aside."""
        path = tmp_path / "x"
        path.write_bytes(b"torn")
        decode = files.decode

        def republish_then_decode(data: bytes) -> object:
            write_atomic(path, encode("good", "x"))
            return decode(data)

        monkeypatch.setattr(files, "decode", republish_then_decode)
        assert read_record(path) is None
        monkeypatch.undo()
        assert read_record(path) == "good"

    def test_what_cannot_be_read_is_one_line(self, tmp_path) -> None:
        """A folder where a record should be raises with the path and the system's reason."""
        with pytest.raises(StoreError, match=r"can't read .*: Is a directory"):
            read_record(tmp_path)


def test_make_folder_makes_the_parents(tmp_path) -> None:
    """All missing folders are made, existing ones are kept, a file in the way is one line."""
    make_folder(tmp_path / "a/b/c")
    make_folder(tmp_path / "a/b/c")
    (tmp_path / "a/file").touch()

    assert (tmp_path / "a/b/c").is_dir()
    with pytest.raises(StoreError, match="can't create"):
        make_folder(tmp_path / "a/file/d")


def test_sweep_removes_only_what_a_dead_process_left(tmp_path) -> None:
    """Temporary files older than an hour go; younger ones may be being written this moment."""
    old, young, record = (
        tmp_path / name for name in (".tmp-1-a", ".tmp-2-b", "step-000001.json.zst")
    )
    for path in (old, young, record):
        path.touch()
    for path in (old, record):
        os.utime(path, (time.time() - 7200,) * 2)
    sweep(tmp_path)

    assert sorted(tmp_path.iterdir()) == [young, record]


def test_other_errors_pass() -> None:
    """Only trouble with the disk is the store's; a bug stays what it is."""
    with pytest.raises(KeyError), storage_errors("read", Path("x")):
        raise KeyError("bug")
