"""Building one gloo group so that it can be given up at any moment, and ended at any moment.

gloo connects inside a constructor that neither returns early nor takes orders, so it runs on a thread of its own and
the caller waits beside it.  Whoever gives up is free within milliseconds.  The thread is then freed as well, since what
it can wait for is ours to end: the connection to the meeting point, and the connections of peers that will not come (it
is handed others in their stead, which are closed at once).
"""

from __future__ import annotations

import atexit
import datetime
import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from reknit.runtime.collectives import Backend
from reknit.runtime.meeting import MeetingClient, MemberLeft
from reknit.runtime.sockets import (
    Address,
    Connection,
    KeepAlive,
    bytes_under_way,
    discard_received,
    duplicate_connections,
    hung_up,
    listening_address,
    only_ours,
    shut_down,
    socket_descriptors,
)

CANCELLATION_POLL_S = 0.004
STEP_LIMIT_S = 0.005
QUIET_S = 0.0005
POLL_S = 0.0003
WORKER_THREAD_NAME = "pt_gloo_runloop"
ADDRESS_BYTES = 18
ADDRESS_KEY = "address/"
DEVICE_ATTEMPTS = 20
_device_lock = threading.Lock()


class Cancellation(Protocol):
    """What `cancelled` must offer; a `threading.Event` does."""

    def is_set(self) -> bool:
        """Whether to give up."""
        ...


class BuildFailed(Exception):
    """A group could not be built; `__cause__` says why, `peer` names the rank that left meanwhile, if one did."""

    def __init__(self, message: str, peer: int | None = None) -> None:
        super().__init__(message)
        self.peer = peer


@dataclass(frozen=True)
class GroupSpec:
    """Who meets where, as whom.  `meeting` is a `MeetingPoint`'s address, `hostname` a numeric one of this machine."""

    meeting: Address
    prefix: str
    rank: int
    size: int
    hostname: str
    timeout_s: float
    operation_timeout_s: float
    keepalive: KeepAlive


class GlooGroup:
    """A connected gloo group of two or more ranks, and a second descriptor of each of its connections."""

    def __init__(
        self,
        spec: GroupSpec,
        backend: Backend,
        store: _GlooStore,
        connections: list[Connection],
        listening: list[Address],
    ) -> None:
        self._backend: Backend | None = backend
        self._store: _GlooStore | None = store
        self._connections = connections
        self._rank_of_listener = {address: rank for rank, address in enumerate(listening)}
        self._lock = threading.Lock()
        self._interrupted = False
        self._gone: list[int] | None = None
        self._everyones_calls = torch.zeros(spec.size, spec.size, ADDRESS_BYTES, dtype=torch.uint8)
        self._own_calls = torch.zeros(spec.size, ADDRESS_BYTES, dtype=torch.uint8)
        self._rank = spec.rank
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
                self._own_calls[rank] = torch.frombuffer(bytearray(_packed(connection.local)), dtype=torch.uint8)
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
            peer = self._rank_of_listener.get(connection.peer, rank_of_call.get(_packed(connection.peer)))
            if closed and peer is not None:
                gone.add(peer)
        return sorted(gone)

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


class GlooBuild:
    """One attempt to build a group, on a thread of its own."""

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._deadline = time.monotonic() + spec.timeout_s
        self._client = MeetingClient(spec.prefix, self._deadline)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._abandoned = False
        self._listening: Address | None = None
        self._group: GlooGroup | None = None
        self._error: BaseException | None = None
        # Not a daemon: the interpreter must not end under a thread that is inside gloo.
        self._thread = threading.Thread(target=self._run, name=f"reknit-gloo-build-{spec.rank}")
        self._thread.start()

    def wait(self, cancelled: Cancellation | None) -> GlooGroup:
        """The group, or BuildFailed: when the build failed, at the deadline, or soon after `cancelled` is set."""
        try:
            while not self._ended.wait(CANCELLATION_POLL_S if cancelled is not None else self._remaining_s()):
                if cancelled is not None and cancelled.is_set():
                    raise BuildFailed("it was told to give up")
                if self._remaining_s() <= 0:
                    raise BuildFailed(f"not everybody came within {self._spec.timeout_s:g} s")
        except BaseException:
            self._abandon()
            raise
        if self._group is None:
            raise self._reason() from self._error
        return self._group

    def _remaining_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _reason(self) -> BuildFailed:
        error = self._error
        if isinstance(error, MemberLeft):
            rank = error.key.rpartition("/")[2]
            return BuildFailed("a member left while it was being built", int(rank) if rank.isdigit() else None)
        if isinstance(error, TimeoutError):
            return BuildFailed(f"not everybody came within {self._spec.timeout_s:g} s")
        return BuildFailed(f"{type(error).__name__}: {error}")

    def _abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            group, self._group = self._group, None
        if group is not None:
            group.close()
            return
        self._client.shut()
        if self._listening is not None:
            _stand_in_for_absent_peers(self._listening, self._spec.size)

    def _run(self) -> None:
        group: GlooGroup | None = None
        try:
            group = self._build()
        except BaseException as error:
            self._client.close()
            # Its frames would keep the half-built group.
            self._error = error.with_traceback(None)
        with self._lock:
            if not self._abandoned:
                self._group, group = group, None
        self._ended.set()
        if group is not None:
            group.close()

    def _build(self) -> GlooGroup:
        spec = self._spec
        self._client.connect(spec.meeting)
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # not in torch's stub
        options._timeout = datetime.timedelta(seconds=spec.timeout_s)
        device, self._listening = _listening_device(spec.hostname)
        options._devices = [device]
        addresses = [f"{ADDRESS_KEY}{rank}" for rank in range(spec.size)]
        store = _GlooStore(self._client, spec.size, addresses)
        store.set(addresses[spec.rank], _packed(self._listening))
        backend = dist.ProcessGroupGloo(store, spec.rank, spec.size, options)
        backend.set_timeout(datetime.timedelta(seconds=spec.operation_timeout_s))
        listening = [_unpacked(store.get(key)) for key in addresses]
        others = {address for address in listening if address != self._listening}
        connections = duplicate_connections(lambda local, peer: local == self._listening or peer in others)
        for connection in connections:
            spec.keepalive.apply(connection.socket)
        return GlooGroup(spec, backend, store, connections, listening)


class _GlooStore(Store):
    """What gloo's constructor reads and writes, on a `MeetingClient`.

    gloo asks for one rank's key after the other.  The first question fetches them all, and the addresses with them, in
    one round trip.
    """

    def __init__(self, client: MeetingClient, size: int, together: list[str]) -> None:
        super().__init__()
        self._client = client
        self._size = size
        self._together = together
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: bytes | str) -> None:
        """Announce a value to the other members."""
        assert isinstance(value, bytes)
        self._client.set(key, value)

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        """Wait until the keys are there.  `timeout` is not used: the build has one deadline for all of them."""
        unknown = [key for key in keys if key not in self._known]
        if not unknown:
            return
        stem, _, rank = unknown[0].rpartition("/")
        if rank.isdigit():
            unknown = list({*unknown, *(f"{stem}/{one}" for one in range(self._size))})
        unknown += [key for key in self._together if key not in self._known]
        self._known.update(zip(unknown, self._client.get(unknown), strict=True))

    def close(self) -> None:
        """Leave the meeting point."""
        self._client.close()

    def get(self, key: str) -> bytes:
        """A key's value, waited for if it is not there yet."""
        self.wait([key])
        return self._known[key]


def _listening_device(hostname: str) -> tuple[dist.ProcessGroupGloo.Device, Address]:
    """A gloo device of its own and the address that it listens on, which it does not tell.

    Only one is made at a time, and another listening socket that the user's own threads open in the same millisecond is
    noticed: then the answer would be a guess, so it is done again.
    """
    with _device_lock:
        for _ in range(DEVICE_ATTEMPTS):
            before = socket_descriptors()
            device = dist.ProcessGroupGloo.create_device(hostname=hostname, lazy_init=False)
            opened = [(name, numbers[0]) for name, numbers in socket_descriptors().items() if name not in before]
            addresses = [address for item in opened if (address := listening_address(*item)) is not None]
            if len(addresses) == 1:
                return device, addresses[0]
    raise BuildFailed("other threads of this process open listening sockets all the time: cannot tell gloo's own")


def _stand_in_for_absent_peers(listening: Address, size: int) -> None:
    """Free a constructor that waits, uninterruptibly, for connections of peers that will not come.

    A caller introduces itself to gloo by the number of the pair that it is meant for, eight bytes; each pair that still
    waits gets a connection that is closed at once.  Should gloo change this, the thread ends at its deadline instead.
    """
    try:
        for pair in range(size):
            with socket.create_connection(listening, timeout=0.1) as connection:
                connection.sendall(struct.pack("=q", pair))
    except OSError:
        # The listener is gone, and with it what waited.
        pass


def _packed(address: Address) -> bytes:
    """An address in 18 bytes: 16 of the host (IPv4 in IPv6 form), 2 of the port."""
    host, port = address
    return ipaddress.ip_address(f"::ffff:{host}" if "." in host else host).packed + port.to_bytes(2, "big")


def _unpacked(data: bytes) -> Address:
    host = ipaddress.IPv6Address(data[:16])
    return str(host.ipv4_mapped or host), int.from_bytes(data[16:18], "big")
