"""What is gathered before anything is judged.  None means that it could not be found out."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Software:
    """Versions.  `packages`: of what an agent needs, None for one that is missing."""

    python: tuple[int, int, int]
    packages: dict[str, str | None]
    executable: str = ""


@dataclass(frozen=True)
class Training:
    """What a process with torch says of itself; `error` if it could not say anything.

    `reduced`: two processes built a group, and their sum was right.  `interrupted`: seconds from an interrupt to the
    end of a wait that was blocked.
    """

    torch: str | None = None
    numpy: str | None = None
    gloo: bool = False
    gpus: int = 0
    reduced: bool = False
    interrupted: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Kernel:
    """What the kernel lets a process of ours do."""

    system: str
    pidfd: bool
    user_timeout: bool
    private_table: bool


@dataclass(frozen=True)
class Limits:
    """Open files that a process may have (soft, hard), and bytes of shared memory: free, and in all."""

    files: tuple[int, int]
    shared_free: int | None
    shared_size: int | None


@dataclass(frozen=True)
class Network:
    """This host as others see it.

    `address`: the one that others are told; `error`: why there is none.  `names`: what the host's name resolves to.
    `bound`: whether a port could be opened there.  `ports`: from which to which the kernel gives out free ones.
    """

    host: str
    address: str | None
    interface: str | None = None
    error: str = ""
    names: tuple[str, ...] = ()
    bound: str = ""
    ports: tuple[int, int] | None = None
    etcd_is_here: bool = True


@dataclass(frozen=True)
class Clock:
    """The wall clock's time, and how far it ran from the monotonic one in a short while (seconds)."""

    wall: float
    drift: float


@dataclass(frozen=True)
class SocketFolder:
    """Where an agent's socket would lie, and what came of opening one there: its mode, and who the kernel says asks."""

    folder: str
    mode: int | None = None
    peer_known: bool = False
    error: str = ""


@dataclass(frozen=True)
class Member:
    """One endpoint of etcd.  `skew`: seconds that its clock is ahead of ours, to a second.  Certificates: days left."""

    address: str
    error: str = ""
    version: str | None = None
    healthy: bool | None = None
    alarms: tuple[str, ...] = ()
    leads: bool | None = None
    size: int | None = None
    skew: float | None = None
    certificate_days: float | None = None


@dataclass(frozen=True)
class Cluster:
    """The etcd that was named.  `put_seconds`: of several writes, the median and the worst."""

    members: tuple[Member, ...]
    put_seconds: tuple[float, float] | None = None
    error: str = ""
    client_certificate_days: float | None = None
    ca_days: float | None = None


@dataclass(frozen=True)
class Standalone:
    """No etcd was named: the program that a standalone job would run, or why there is none."""

    program: str | None
    error: str = ""


@dataclass(frozen=True)
class Facts:
    """Everything."""

    software: Software
    training: Training
    kernel: Kernel
    limits: Limits
    network: Network
    clock: Clock
    socket: SocketFolder
    etcd: Cluster | Standalone = field(default_factory=lambda: Standalone(None))
