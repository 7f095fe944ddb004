"""Asks this host: its Python, kernel, limits, network, clock, and the folder for an agent's socket.  Judges nothing."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import os
import platform
import resource
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from reknit.rendezvous.errors import ReknitError
from reknit.runtime.doctor.facts import Clock, Kernel, Limits, Network, SocketFolder, Software, Training
from reknit.runtime.ipc.lifeline import leave_descriptor_table
from reknit.runtime.ipc.listening import listen
from reknit.runtime.supervisor.bootstrap import COMMAND

PACKAGES = ("etcd3", "grpcio", "protobuf", "tenacity", "prometheus-client", "rich")
TRAINING_SECONDS = 180.0  # for two imports of torch on a busy host
CLOCK_SECONDS = 0.1
_SIOCGIFADDR = 0x8915


def software() -> Software:
    """Versions, without importing anything."""
    return Software(sys.version_info[:3], {name: _version(name) for name in PACKAGES}, sys.executable)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


class Probe:
    """torch in processes of its own; the constructor starts them, `result` waits for what they say."""

    def __init__(self) -> None:
        code = COMMAND.format(module="probe").replace("runtime.supervisor", "runtime.doctor")
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def result(self, seconds: float = TRAINING_SECONDS) -> Training:
        """What they said."""
        try:
            said, complaint = self._process.communicate(timeout=seconds)
            return Training(**json.loads(said))
        except subprocess.TimeoutExpired:
            return Training(error=f"torch said nothing for {seconds:g} s")
        except (ValueError, TypeError):
            return Training(error=(complaint.strip().splitlines() or ["its process said nothing"])[-1])
        finally:
            self.close()

    def close(self) -> None:
        """End them."""
        self._process.kill()
        self._process.wait()


def kernel() -> Kernel:
    """Tries the system calls."""
    pidfd = False
    with contextlib.suppress(OSError, AttributeError):
        os.close(os.pidfd_open(os.getpid()))
        pidfd = True
    user_timeout = False
    with contextlib.suppress(OSError, AttributeError), socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2500)
        user_timeout = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2500
    return Kernel(f"{platform.system()} {platform.release()}", pidfd, user_timeout, _private_table())


def _private_table() -> bool:
    """Whether a thread may have descriptors of its own; tried in a thread, which takes them along when it ends."""
    found: list[bool] = []
    reader, writer = os.pipe()

    def attempt() -> None:
        with contextlib.suppress(OSError):
            found.append(leave_descriptor_table(reader))

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    os.close(reader)
    os.close(writer)
    return found == [True]


def limits() -> Limits:
    """Open files and shared memory."""
    try:
        disk = os.statvfs("/dev/shm")
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    except OSError:
        return Limits(resource.getrlimit(resource.RLIMIT_NOFILE), None, None)
    return Limits(resource.getrlimit(resource.RLIMIT_NOFILE), free, size)


def network(address: str | None, error: str, etcd_is_here: bool) -> Network:
    """What lies behind this host's address and name; `error`: why there is no address."""
    host = socket.gethostname()
    try:
        names = tuple(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, None)))
    except OSError:
        names = ()
    refused = [why for place in ("", address or "") if address and (why := _why_unbound(place))]
    return Network(host, address, _interface(address), error, names, ", ".join(refused), _port_range(), etcd_is_here)


def _why_unbound(place: str) -> str:
    """Why no port can be opened at this address of ours, all of them for ""; empty if one can."""
    try:
        socket.create_server((place, 0), family=socket.AF_INET6 if ":" in place else socket.AF_INET).close()
    except (OSError, UnicodeError) as error:
        return f"no port can be opened ({error})"
    return ""


def _interface(address: str | None) -> str | None:
    """The name of the IPv4 interface with this address."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(sock, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def _port_range() -> tuple[int, int] | None:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return None


def clock() -> Clock:
    """Lets a moment pass by both clocks."""
    wall, monotonic = time.time(), time.monotonic()
    time.sleep(CLOCK_SECONDS)
    return Clock(wall, (time.time() - wall) - (time.monotonic() - monotonic))


def socket_folder(path: Path | None) -> SocketFolder:
    """Opens a socket where the agent's would lie, beside it, and takes it away again."""
    parent = path.parent if path is not None else None
    if parent is not None and not parent.is_dir():
        return SocketFolder(str(parent), error=f"there is no folder {parent}, yet")
    where = str(parent or tempfile.gettempdir())
    try:
        with tempfile.TemporaryDirectory(prefix="reknit-doctor-", dir=None if parent else where) as made:
            return _try_socket(where, (parent or Path(made)) / f"doctor-{os.getpid()}")
    except (ReknitError, OSError) as error:
        return SocketFolder(where, error=str(error))


def _try_socket(where: str, path: Path) -> SocketFolder:
    with listen(path) as listener:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                accepted, _ = listener.accept()
                with accepted:
                    pid, uid, _ = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return SocketFolder(where, mode, (pid, uid) == (os.getpid(), os.geteuid()))
        finally:
            path.unlink()
