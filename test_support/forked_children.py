"""Letting Python processes that a test starts be forked from one that has imported torch, rather than started anew."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

PR_SET_CHILD_SUBREAPER = 36  # of prctl(2)


def start_by(server: socket.socket) -> Callable[[], None]:
    """Let each `Popen` of this process that runs a script, a module or code in this Python ask a server for it.

    What it starts are children of this process all the same, since that adopts what a descendant leaves behind: signals
    and exit statuses are as of a process that was started anew.

    Args:
        server: The socket of a process that serves requests, itself a descendant of this one; see forked_ranks.py.

    Returns:
        What undoes it.
    """
    owner = os.getpid()
    start_anew = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def start(self: Any, args: Any, *options: Any) -> None:
        executable, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *pipes = options[:15]
        is_plain = not (executable or preexec_fn or pass_fds or shell or isinstance(args, str | bytes | os.PathLike))
        if not is_plain or script_of(args) is None or os.getpid() != owner:
            return start_anew(self, args, *options)
        request = {
            "command": list(map(os.fsdecode, args)),
            "environment": dict(os.environ if env is None else env),
            "directory": os.path.abspath(cwd or "."),
            "has_session": options[-2],
            "parent": owner,
        }
        streams = [number if end == -1 else end for number, end in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid = int(ask(server, request, streams).recv(16))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def undo() -> None:
        subprocess.Popen._execute_child = start_anew  # type: ignore[attr-defined]
        adopt_orphans(False)

    adopt_orphans(True)
    subprocess.Popen._execute_child = start  # type: ignore[attr-defined]
    return undo


def adopt_orphans(does: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(does), 0, 0, 0)


def ask(server: socket.socket, request: dict[str, Any], streams: Sequence[int]) -> socket.socket:
    """Send a request with the descriptors of stdout and stderr, or stdin too; return the socket of its status."""
    status, theirs = socket.socketpair()
    with theirs, tempfile.TemporaryFile() as file:
        file.write(json.dumps(request).encode())
        file.seek(0)
        socket.send_fds(server, [b"start"], [file.fileno(), theirs.fileno(), *streams])
    return status


def script_of(command: Sequence[Any]) -> list[str] | None:
    """Return the script, or -m and a module, or -c and code, and the arguments of a command in this Python.

    None for any other command, and for one with other options than -u.
    """
    python, *arguments = map(os.fsdecode, command)
    position = 1 if arguments[:1] == ["-u"] else 0
    script = arguments[position : position + 1]
    if python != sys.executable or not script or (script[0].startswith("-") and script[0] not in ("-m", "-c")):
        return None
    return arguments[position:]
