import os
import subprocess

from harness.processes import alive, lease_holders, take_lease


def test_a_process_that_ended_is_not_alive_even_before_it_is_reaped():
    """A zombie needs nothing any more."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    assert not alive(process.pid)
    assert alive(os.getpid())

    process.wait()

    assert not alive(process.pid)


def test_leases_of_the_living_count_and_those_of_the_dead_are_removed(tmp_path):
    """A lease ends with its process, whatever file it left."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (os.getpid(), ended.pid):
        take_lease(tmp_path / "leases", pid)

    assert {os.getpid()} == lease_holders(tmp_path / "leases")
    assert [str(os.getpid())] == [path.name for path in (tmp_path / "leases").iterdir()]


def test_a_folder_without_leases_has_no_holders(tmp_path):
    """Neither a missing folder nor another file is a lease."""
    (tmp_path / "notes.txt").touch()

    assert set() == lease_holders(tmp_path)
    assert set() == lease_holders(tmp_path / "absent")
