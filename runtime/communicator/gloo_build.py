"""Building one gloo group such that it can be given up at any moment.

gloo connects inside a constructor that neither returns early nor takes orders, so it runs on a thread of its own and
the caller waits beside it.  Whoever gives up is free within milliseconds.  The thread is then freed as well, since what
it can wait for is ours to end: the connection to the meeting point, and the connections of peers that will not come (it
is handed others in their stead, which are closed at once).
"""

from __future__ import annotations

import datetime
import errno
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Protocol

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from reknit.runtime.communicator.gloo_group import GlooGroup, packed, unpacked
from reknit.runtime.communicator.meeting_client import MeetingClient, MemberLeft
from reknit.runtime.communicator.probe import Probes
from reknit.runtime.communicator.sockets import (
    Address,
    KeepAlive,
    duplicate_connections,
    listening_address,
    socket_descriptors,
)

CANCELLATION_POLL_S = 0.004
ADDRESS_KEY = "address/"
DEVICE_ATTEMPTS = 20
NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT)
_device_lock = threading.Lock()


class Cancellation(Protocol):
    """What `cancelled` must offer; a `threading.Event` does."""

    def is_set(self) -> bool:
        """Whether to give up."""
        ...


class BuildFailed(Exception):
    """A group could not be built; `__cause__` says why.

    `peer` names the rank that left meanwhile, if one did; `absent` those that were waited for in vain.
    """

    def __init__(self, message: str, peer: int | None = None, absent: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.peer = peer
        self.absent = absent


@dataclass(frozen=True)
class GroupSpec:
    """Who meets where, as whom.

    `meeting` is a `MeetingPoint`'s address, `host` the rank whose it is (None: it is no member's), `hostname` a numeric
    address of this machine.
    """

    meeting: Address
    prefix: str
    rank: int
    size: int
    hostname: str
    timeout_s: float
    operation_timeout_s: float
    keepalive: KeepAlive
    host: int | None = None


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
        self._store: _GlooStore | None = None
        self._probes: Probes | None = None
        self._group: GlooGroup | None = None
        self._error: BaseException | None = None
        # Not a daemon: the interpreter must not end under a thread that is inside gloo.
        self._thread = threading.Thread(target=self._run, name=f"reknit-gloo-build-{spec.rank}")
        self._thread.start()

    def wait(self, cancelled: Cancellation | None) -> GlooGroup:
        """The group, or BuildFailed: when the build failed, at the deadline, or soon after `cancelled` is set."""
        try:
            while not self._ended.wait(CANCELLATION_POLL_S):
                if cancelled is not None and cancelled.is_set():
                    raise BuildFailed("it was told to give up", absent=self._absent())
                if self._waited_s() >= self._spec.timeout_s:
                    raise self._in_vain()
                self._look_around()
            if self._group is None:
                raise self._reason(self._error) from self._error
            return self._group
        except BaseException:
            self._abandon()
            raise
        finally:
            if self._probes is not None:
                self._probes.close()

    def _waited_s(self) -> float:
        return time.monotonic() - self._deadline + self._spec.timeout_s

    def _look_around(self) -> None:
        """While gloo connects, which hears of nobody's end: are all still at the meeting, and can they be reached?"""
        store = self._store
        if store is None or not store.complete:
            return
        try:
            self._client.look()
        except (OSError, ValueError) as error:
            raise self._reason(error) from error
        if self._probes is None and self._waited_s() > self._spec.timeout_s / 2:
            others = {rank: address for rank, address in enumerate(store.addresses()) if rank != self._spec.rank}
            self._probes = Probes(others)

    def _reason(self, error: BaseException | None) -> BuildFailed:
        host = self._spec.host
        if isinstance(error, MemberLeft):
            rank = _rank_of(error.key)
            return BuildFailed("a member left while it was being built", rank, absent=self._absent())
        if isinstance(error, TimeoutError) and error.errno is None:
            return self._in_vain()
        if isinstance(error, ConnectionError):  # the host's process is no more, though its machine answers
            return BuildFailed(f"{type(error).__name__}: {error}", host)
        if isinstance(error, OSError) and error.errno in NO_WAY and host is not None:
            return BuildFailed(f"{type(error).__name__}: {error}", absent=(host,))
        return BuildFailed(f"{type(error).__name__}: {error}")

    def _in_vain(self) -> BuildFailed:
        absent = self._absent()
        who = f": rank {', '.join(map(str, absent))} did not" if absent else ""
        return BuildFailed(f"not everybody came within {self._spec.timeout_s:g} s{who}", absent=absent)

    def _absent(self) -> tuple[int, ...]:
        """Whom this build has waited for in vain, as far as that can be said without waiting any more.

        Nobody before half of the time has passed: who is a little later than others is not absent.
        """
        timeout, host = self._spec.timeout_s, self._spec.host
        if self._waited_s() < timeout / 2:
            return ()
        if self._store is not None and self._store.complete:
            found = self._probes.unanswered() if self._probes is not None else set()
        elif self._client.unanswered_s > timeout / 4:
            found = {host} if host is not None else set()
        else:
            found = {rank for key in self._client.missing if (rank := _rank_of(key)) is not None}
        return tuple(sorted(found - {self._spec.rank}))

    def _abandon(self) -> None:
        with self._lock:
            self._abandoned = True
            group, self._group = self._group, None
        if group is not None:
            group.close()
        if self._ended.is_set():
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
        self._store = store
        store.set(addresses[spec.rank], packed(self._listening))
        backend = dist.ProcessGroupGloo(store, spec.rank, spec.size, options)
        self._client.let_go()
        backend.set_timeout(datetime.timedelta(seconds=spec.operation_timeout_s))
        listening = store.addresses()
        others = {address for address in listening if address != self._listening}
        connections = duplicate_connections(lambda local, peer: local == self._listening or peer in others)
        for connection in connections:
            spec.keepalive.apply(connection.socket)
        return GlooGroup(spec.rank, backend, store, connections, listening)


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

    @property
    def complete(self) -> bool:
        """Whether all members have come and told their addresses: from then on nothing is asked for any more."""
        return all(key in self._known for key in self._together)

    def addresses(self) -> list[Address]:
        """Where the members listen, by rank."""
        return [unpacked(self.get(key)) for key in self._together]

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


def _rank_of(key: str) -> int | None:
    rank = key.rpartition("/")[2]
    return int(rank) if rank.isdigit() else None


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
