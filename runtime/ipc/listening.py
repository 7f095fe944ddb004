"""Opens the agent's Unix socket so that no other user can ever reach it, not even for a moment."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

from reknit.runtime.ipc.messages import IpcError


def listen(path: Path) -> socket.socket:
    """Open a listening socket that only its owner (and root) can reach.  Raises IpcError.

    A socket file that a dead agent left behind is replaced; one that still answers is another agent's, and an error.
    """
    if len(os.fsencode(path)) > 107:
        raise IpcError(
            f"the socket path {path} is longer than the 107 bytes that the system allows; choose a shorter one"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _private_folder(path.parent)
        os.fchmod(sock.fileno(), 0o600)  # on Linux the file takes its mode from the unbound socket: no open moment
        _remove_stale(path)
        sock.bind(str(path))
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise IpcError(f"cannot open the agent's socket {path}: {error.strerror or error}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def _private_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid not in (0, os.geteuid()) or stat.S_IMODE(found.st_mode) & 0o077:
        raise IpcError(
            f"the folder {folder} of the agent's socket is open to other users "
            f"(owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}); "
            "give the socket a folder of its own, mode 700"
        )


def _remove_stale(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_socket():
        raise IpcError(f"{path} exists and is not a socket; remove it or choose another path for the agent's socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise IpcError(f"another agent is already listening on {path}; stop it or choose another path")
    path.unlink(missing_ok=True)
