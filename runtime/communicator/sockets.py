"""Finding the sockets that gloo opened, and holding on to them.

gloo hands out none of its sockets, and nothing in its interface ends an operation in flight.  But a second descriptor
of the same socket can shut it down.  This module finds the sockets of one group among all those of the process by
their addresses, which name a TCP connection exactly: several groups may be built and dropped at the same time on
different threads, and descriptor numbers are reused by the kernel at once, so neither a number nor "new since just
before" tells whose a socket is.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass

Address = tuple[str, int]
"""Numeric host and port, as `plain_address` writes it."""

POLL_HANGUP = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


@dataclass(frozen=True)
class KeepAlive:
    """How soon the kernel gives up a silent peer.  Seconds, except `probes`, which counts.

    Keepalive finds a peer that vanished while nothing is on its way to it; `user_timeout_s` one that stopped
    acknowledging what was sent.  Neither finds a process that is merely stopped: its kernel still answers.
    """

    idle_s: int = 1
    interval_s: int = 1
    probes: int = 2
    user_timeout_s: float = 2.5

    def apply(self, connection: socket.socket) -> None:
        """Set the options on a connected TCP socket; one that is already broken is left as it is."""
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, self.idle_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, self.interval_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, self.probes)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self.user_timeout_s * 1000))
        except OSError:
            pass


def plain_address(raw: object) -> Address | None:
    """Host and port of what getsockname returns, IPv4 in IPv6 unwrapped; None for a socket that is not TCP/IP."""
    if not isinstance(raw, tuple) or len(raw) < 2:
        return None
    host, port = raw[0], raw[1]
    if not isinstance(host, str) or not isinstance(port, int):
        return None
    return host.removeprefix("::ffff:"), port


def local_address(connection: socket.socket) -> Address | None:
    """The near end's address, or None where there is none."""
    try:
        return plain_address(connection.getsockname())
    except OSError:
        return None


def peer_address(connection: socket.socket) -> Address | None:
    """The far end's address, or None for a socket that is not connected."""
    try:
        return plain_address(connection.getpeername())
    except OSError:
        return None


def socket_descriptors() -> dict[str, list[int]]:
    """All sockets of this process: the kernel's name of each (`socket:[inode]`) → its descriptors."""
    found: dict[str, list[int]] = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.setdefault(target, []).append(int(entry))
    return found


def _borrowed(descriptor: int) -> socket.socket | None:
    """A socket object on somebody else's descriptor: detach it before it goes out of scope."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        return None


def _ends(connection: socket.socket) -> tuple[Address, Address] | None:
    local, peer = local_address(connection), peer_address(connection)
    return (local, peer) if local is not None and peer is not None else None


@dataclass(frozen=True)
class Connection:
    """A descriptor of our own of a connected socket, and the addresses that it had when it was taken.

    The addresses are kept because the kernel forgets the far one as soon as the connection is reset.
    """

    socket: socket.socket
    local: Address
    peer: Address


def duplicate_connections(wanted: Callable[[Address, Address], bool]) -> list[Connection]:
    """A descriptor of our own, close-on-exec, of every connection whose (local, peer) addresses `wanted` accepts.

    The owner may close its descriptor, and the kernel give the number to another socket, at any moment: so what counts
    is asked again of the duplicate, which nobody else can close.
    """
    found = []
    for descriptor, *_ in socket_descriptors().values():
        borrowed = _borrowed(descriptor)
        if borrowed is None:
            continue
        ends = _ends(borrowed)
        borrowed.detach()
        if ends is None or not wanted(*ends):
            continue
        try:
            duplicate = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
        ends = _ends(duplicate)
        if ends is not None and wanted(*ends):
            found.append(Connection(duplicate, *ends))
        else:
            duplicate.close()
    return found


def listening_address(name: str, descriptor: int) -> Address | None:
    """The address that the socket of this name listens on, or None if it is no listening TCP socket, or gone."""
    borrowed = _borrowed(descriptor)
    if borrowed is None:
        return None
    try:
        if borrowed.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        if not borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return None
        address = local_address(borrowed)
        return address if os.readlink(f"/proc/self/fd/{descriptor}") == name else None
    except OSError:
        return None
    finally:
        borrowed.detach()


def hung_up(connections: list[socket.socket]) -> list[bool]:
    """For each connection, whether its far end has closed it or it has broken.  Reads nothing, never blocks."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLRDHUP)
    gone = {descriptor for descriptor, events in poll.poll(0) if events & POLL_HANGUP}
    return [connection.fileno() in gone for connection in connections]


def shut_down(connection: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """End the connection for every descriptor of it; one that is already broken is fine."""
    try:
        connection.shutdown(how)
    except OSError:
        pass


def bytes_under_way(connection: socket.socket) -> int:
    """How much of what was written the far kernel has not acknowledged yet."""
    try:
        return struct.unpack("=i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0]  # type: ignore[no-any-return]
    except OSError:
        return 0


_COUNTERS = struct.Struct("=Q64xQQ").unpack_from  # of the kernel's tcp_info, from _RECEIVED on: received, sent, again
_RECEIVED = 128
_NOT_SENT = 144


def bytes_moved(connection: socket.socket) -> int | None:
    """How much was written here or has come in since the connection was made; None if the kernel does not tell."""
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        received, sent, again = _COUNTERS(told, _RECEIVED)
        (waiting,) = struct.unpack_from("=I", told, _NOT_SENT)
    except (OSError, struct.error):  # before Linux 4.19 it tells less
        return None
    return int(received + sent - again + waiting)


def discard_received(connection: socket.socket) -> int:
    """Throw away up to 1 MiB of what has arrived; returns how many bytes.  Never blocks."""
    try:
        return len(connection.recv(1 << 20, socket.MSG_DONTWAIT))
    except OSError:
        return 0


def only_ours(connections: list[Connection]) -> bool:
    """Whether nobody but us has any of these sockets open any more."""
    descriptors = socket_descriptors()
    return all(
        descriptors.get(f"socket:[{os.fstat(connection.socket.fileno()).st_ino}]") == [connection.socket.fileno()]
        for connection in connections
    )
