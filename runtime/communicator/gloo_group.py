"""A connected gloo group that can be ended at any moment, and let go of without a trace.

gloo hands out none of its sockets and heeds no order to stop, so everything here goes by a second descriptor of
each connection.  How a group is built is `gloo_build`'s business.
"""

from __future__ import annotations

import atexit
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist

from reknit.runtime.communicator.collectives import Backend
from reknit.runtime.communicator.sockets import (
    Address,
    Connection,
    bytes_moved,
    bytes_under_way,
    discard_received,
    hung_up,
    only_ours,
    shut_down,
)

STEP_LIMIT_S = 0.005
QUIET_S = 0.0005
POLL_S = 0.0003
WORKER_THREAD_NAME = "pt_gloo_runloop"
ADDRESS_BYTES = 18


class Leavable(Protocol):
    """The connection to the meeting point, which lasts as long as the group."""

    def close(self) -> None:
        """Leave."""


class GlooGroup:
    """A connected gloo group of two or more ranks, and a second descriptor of each of its connections."""

    def __init__(
        self,
        rank: int,
        backend: Backend,
        store: Leavable,
        connections: list[Connection],
        listening: list[Address],
    ) -> None:
        self._backend: Backend | None = backend
        self._store: Leavable | None = store
        self._connections = connections
        self._rank_of_listener = {address: rank for rank, address in enumerate(listening)}
        self._lock = threading.Lock()
        self._interrupted = False
        self._gone: list[int] | None = None
        self._everyones_calls = torch.zeros(len(listening), len(listening), ADDRESS_BYTES, dtype=torch.uint8)
        self._own_calls = torch.zeros(len(listening), ADDRESS_BYTES, dtype=torch.uint8)
        self._rank = rank
        self._exchange: dist.Work | None = self._exchange_calls(backend)

    @property
    def backend(self) -> Backend | None:
        """torch's own group object, None once closed."""
        return self._backend

    def _exchange_calls(self, backend: Backend) -> dist.Work:
        """Start telling each other which connection is whose; nobody waits for it.

        The side that called knows whom.  The side that was called sees only the passing port number that the caller's
        kernel chose, so every rank publishes from which address it called each other one.
        """
        for connection in self._connections:
            rank = self._rank_of_listener.get(connection.peer)
            if rank is not None:
                self._own_calls[rank] = torch.frombuffer(bytearray(packed(connection.local)), dtype=torch.uint8)
        exchange: dist.Work = backend._allgather_base(self._everyones_calls.flatten(), self._own_calls.flatten())
        return exchange

    def peers_gone(self) -> list[int]:
        """Ranks whose end of the connection is closed: they died, or have left the group.  Never blocks.

        From `interrupt` on the answer stays what it was just before, since then all connections are closed.
        """
        with self._lock:
            return list(self._gone) if self._gone is not None else self._peers_gone_now()

    def _peers_gone_now(self) -> list[int]:
        rank_of_call = {}
        if self._exchange is not None and self._exchange.is_completed():
            for rank, row in enumerate(self._everyones_calls[:, self._rank].tolist()):
                rank_of_call[bytes(row)] = rank
        gone = set()
        closed_ends = hung_up([connection.socket for connection in self._connections])
        for connection, closed in zip(self._connections, closed_ends, strict=True):
            peer = self._rank_of_listener.get(connection.peer, rank_of_call.get(packed(connection.peer)))
            if closed and peer is not None:
                gone.add(peer)
        return sorted(gone)

    def traffic(self) -> int | None:
        """How many bytes have gone to and come from the peers so far; None if that is not known.  Never blocks."""
        with self._lock:
            moved = [bytes_moved(connection.socket) for connection in self._connections]
        counted = [number for number in moved if number is not None]
        return sum(counted) if len(counted) == len(moved) else None

    def interrupt(self) -> None:
        """End every operation in flight, at once, here and at the peers.  Idempotent, from any thread."""
        with self._lock:
            if self._interrupted:
                return
            self._interrupted = True
            self._gone = self._peers_gone_now()
            self._end_connections([connection.socket for connection in self._connections])

    def _end_connections(self, sockets: list[socket.socket]) -> None:
        """End all connections such that gloo, here and at living peers, has nothing half sent: see `at_rest`.

        First let go out what gloo has begun to send; then end the reading half alone, so that gloo sees the end and
        closes, while what it still writes is taken; then take in what the peers have begun to send; and only
        then let them see the end.  A peer that is stopped or gone takes part in none of this: hence the limits.
        """
        _until(lambda: not any(bytes_under_way(one) for one in sockets))
        for one in sockets:
            shut_down(one, socket.SHUT_RD)
        _until(lambda: only_ours(self._connections))
        quiet_since = time.monotonic()

        def quiet() -> bool:
            nonlocal quiet_since
            if sum([discard_received(one) for one in sockets]):
                quiet_since = time.monotonic()
            return time.monotonic() - quiet_since > QUIET_S

        _until(quiet)
        for one in sockets:
            shut_down(one)

    def at_rest(self, seen_asleep: set[str]) -> bool:
        """Whether gloo will never touch a tensor again, although operations of this group have not ended.

        After an interrupt, all of gloo's waits end but one kind: it forgets to tell an operation whose message was
        still being written when the connection ended, which then waits for its timeout.  Once gloo has closed
        the connections and its threads have been seen asleep, nothing can follow but that.  Ask again and again with
        the same `seen_asleep`; False as long as the group is not interrupted.
        """
        with self._lock:
            if not self._interrupted or not only_ours(self._connections):
                return False
        workers = _gloo_threads()
        seen_asleep.update(thread for thread, asleep in workers.items() if asleep)
        return bool(workers) and seen_asleep.issuperset(workers)

    def close(self) -> None:
        """Interrupt, and let go of everything.  Idempotent, from any thread.

        gloo's destructor waits for its event loop's next tick, up to 10 ms without work: on a thread of its own, since
        the next group need not wait for it.
        """
        self.interrupt()
        with self._lock:
            connections, self._connections = self._connections, []
            store, self._store = self._store, None
            last_references: list[object] = [self._exchange, self._backend, store]
            self._exchange = self._backend = None
        for connection in connections:
            connection.socket.close()
        if store is not None:
            store.close()
            _drop_aside(last_references)


def packed(address: Address) -> bytes:
    """An address in 18 bytes: 16 of the host (IPv4 in IPv6 form), 2 of the port."""
    host, port = address
    return ipaddress.ip_address(f"::ffff:{host}" if "." in host else host).packed + port.to_bytes(2, "big")


def unpacked(data: bytes) -> Address:
    """The address that `packed` put into these bytes."""
    host = ipaddress.IPv6Address(data[:16])
    return str(host.ipv4_mapped or host), int.from_bytes(data[16:18], "big")


_dropping: set[threading.Thread] = set()


def _drop_aside(last_references: list[object]) -> None:
    """Let go of a group on a thread of its own, which an operation that waits for its timeout holds as long."""

    def drop() -> None:
        last_references.clear()
        _dropping.discard(threading.current_thread())

    thread = threading.Thread(target=drop, name="reknit-gloo-drop", daemon=True)
    _dropping.add(thread)
    thread.start()


@atexit.register
def _finish_dropping() -> None:
    """The interpreter must not end while a thread is about to come back from gloo; one that is stuck there may stay."""
    deadline = time.monotonic() + 0.5
    for thread in list(_dropping):
        thread.join(max(0.0, deadline - time.monotonic()))


def _until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, but not for long."""
    give_up = time.monotonic() + STEP_LIMIT_S
    while not condition() and time.monotonic() < give_up:
        time.sleep(POLL_S)


def _gloo_threads() -> dict[str, bool]:
    """The threads on which gloo runs operations, of all groups in this process: id → whether it is asleep now."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/stat", encoding="ascii", errors="replace") as stat:
                # "id (name) state …"; the name may contain anything.
                name, _, rest = stat.read().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if name == WORKER_THREAD_NAME:
            found[thread] = rest.split()[0] == "S"
    return found
