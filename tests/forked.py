"""Python processes that are forked from one which has imported torch, the SDK and scikit-learn.

Those imports take most of a short run's time. `Popen` is `subprocess.Popen` for a command of this
interpreter; a process forked so starts its own Python processes in the same way. Where a variable
that acts as Python or torch starts differs from this process's, the command is executed as usual.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import types
import uuid
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

SERVER = "FORK_SERVER"
"""The variable with the server's abstract socket."""
MARK = "HARNESS_TEST_MARK"
"""The variable that finds a session's processes; a forked one bears its start as its name."""
NAME_BYTES = 15
EARLY = ("PYTHON", "LD_", "OMP_", "OPENBLAS_", "ATEN_", "ONEDNN_", "MKL_")
IMPORTED = (
    "torch", "tinker", "tinker_cookbook.rl.rollouts", "tinker_cookbook.rl.data_processing",
    "tinker_cookbook.renderers", "tinker_cookbook.recipes.math_rl.math_env", "transformers",
    "sklearn.feature_extraction.text", "scipy.stats", "scipy.optimize", "pydantic", "aiohttp.web",
)  # fmt: skip
MESSAGE = 1 << 17
LISTENER, LIVES = 100, 101
"""Descriptors of the server, above all that its user has open by chance."""


class Request(NamedTuple):
    """What to run: arguments after the interpreter, where, with what, as a leader or not."""

    arguments: list[str]
    cwd: str
    environ: dict[str, str]
    leads: bool


class Popen(subprocess.Popen[Any]):
    """A process of this interpreter, forked from the server where that makes no difference."""

    _connection: socket.socket | None = None

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        # the order of subprocess.Popen's own call, by which the standard library hands pipes on
        (_exe, preexec_fn, _close, pass_fds, cwd, env, _info, _flags, _shell, *pipes, _restore,
         _gid, _gids, _uid, _umask, leads, _group) = rest  # fmt: skip
        environ = dict(os.environ if env is None else env)
        if not _forkable(args, environ) or pass_fds or preexec_fn:
            super()._execute_child(args, *rest)
            return
        read, _, _, write, _, errors = pipes
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(_server())
        request = Request(list(args[1:]), str(cwd or Path.cwd()), environ, bool(leads))
        descriptors = [fd if fd != -1 else own for own, fd in enumerate((read, write, errors))]
        socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
        self.pid = int(connection.recv(MESSAGE))
        self._child_created = True
        self._connection = connection
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._connection is None:
            return super()._try_wait(wait_flags)
        flags = socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0
        try:
            status = self._connection.recv(MESSAGE, flags)
        except BlockingIOError:
            return 0, 0
        self._connection.close()
        return self.pid, int(status or signal.SIGKILL)  # a server that is gone tells nothing

    def _internal_poll(self, *arguments: Any, **options: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(*arguments, **options)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG) if self.returncode is None else (0, 0)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def _forkable(args: Sequence[str], environ: dict[str, str]) -> bool:
    """Whether the command is one of this interpreter that would start as the server did."""
    known = list(map(str, args[:2])) in ([sys.executable, "-m"], [sys.executable, "-u"])
    early = {
        name
        for name in environ.keys() | os.environ.keys()
        if name.startswith(EARLY) and name != "PYTHONPATH"
    }
    return (
        known
        and "SESSION_CORES" not in environ  # acted on as Python starts, by a session's own path
        and environ.get("OMP_NUM_THREADS") == "1"
        and all(environ.get(name) == os.environ.get(name) for name in early)
        and "noisy_kernels" not in environ.get("PYTHONPATH", "")
    )


def _server() -> str:
    """The address of this process's server, which is started on the first call."""
    if SERVER not in os.environ:
        address = f"fork-{uuid.uuid4().hex}"
        # this process's end closes when it ends, however it does
        lives, _ = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{address}")
            listener.listen()  # who connects before the server serves waits for it
            given = [(os.POSIX_SPAWN_DUP2, listener.fileno(), LISTENER)]
            given += [(os.POSIX_SPAWN_DUP2, lives, LIVES)]
            command = [sys.executable, __file__]
            os.posix_spawn(sys.executable, command, os.environ, file_actions=given)
        os.close(lives)
        os.environ[SERVER] = address
    return f"\0{os.environ[SERVER]}"


def main() -> None:
    """Fork until the pipe from its first user is closed; a child becomes its command."""
    for name in IMPORTED:
        import_module(name)
    # pytest warns of plugins' packages that were imported before it could rewrite their asserts
    anyio = import_module("anyio")
    anyio.__doc__ = f"{anyio.__doc__} PYTEST_DONT_REWRITE"
    gc.freeze()  # children look for garbage among their own objects only
    request = _serve(socket.socket(fileno=LISTENER))
    if request is not None:
        _become(request)


def _serve(listener: socket.socket) -> Request | None:
    """A request, in the child that is to be it; None at the end of the server itself."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, woken, LIVES], [], [])
        if LIVES in ready:
            return None
        if woken in ready:
            os.read(woken, MESSAGE)
            _reap(children)
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE, 3)
        pid = os.fork()
        if pid:
            children[pid] = connection
            connection.send(str(pid).encode())
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for own in (listener, connection, *children.values()):
            own.close()
        for standard, descriptor in enumerate(descriptors):
            os.dup2(descriptor, standard)
        for descriptor in (*descriptors, woken, wake, LIVES):
            os.close(descriptor)
        return Request(*json.loads(message))


def _reap(children: dict[int, socket.socket]) -> None:
    """Tell whoever started them of all children that have ended."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with children.pop(pid) as connection:
            try:
                connection.send(str(status).encode())
            except OSError:
                continue  # whoever started it is gone


def _become(request: Request) -> None:
    """Run the command as the interpreter itself would; what it raises ends this process."""
    if request.leads:
        os.setsid()
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.environ)
    sys.stdout.reconfigure(line_buffering=True)
    if mark := request.environ.get(MARK):
        Path("/proc/self/comm").write_text(mark[:NAME_BYTES])
    sys.path[:1] = [request.cwd, *filter(None, request.environ.get("PYTHONPATH", "").split(":"))]
    subprocess.Popen = Popen
    flag, what, *arguments = [each for each in request.arguments if each != "-u"]
    if flag == "-m":
        sys.argv = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *arguments]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))


if __name__ == "__main__":
    main()
