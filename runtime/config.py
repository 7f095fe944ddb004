"""The agent's settings: one frozen value, read once from the command line, and a ladder of times that holds.

One time, `detect`, derives all the others.  Each can be set by itself; a ladder that cannot hold is refused with the
two that conflict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path

from reknit.health.addresses import parse_address
from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.records import Axes, Spec
from reknit.rendezvous.store.endpoints import TlsFiles

SILENCE = 2.5  # seconds: a worker that is in one phase for longer than a second says so once a second

DRAIN_SIGNALS = ("USR1", "USR2", "HUP", "PWR", "URG", "XCPU")  # what batch systems can be told to send

EXIT_FAILED, EXIT_USAGE, EXIT_STATE_LOST = 1, 2, 3  # what `reknit run` and `reknit agent` end with; 0: finished
EXIT_AGAIN = 75  # the whole job has drained, and can be started again: sysexits' EX_TEMPFAIL, "try again later"


class ConfigError(ReknitError, ValueError):
    """Settings that contradict each other or cannot be."""


@dataclass(frozen=True)
class Ladder:
    """How long things may take, in seconds.  Made by `derive`.

    `detect`: how soon a silent loss must be noticed.  `lease`: an agent's lease.  `keepalive`: between renewals.
    `user_timeout`: a data-plane peer that acknowledges nothing.  `connect`: building a group.  `join_window`: for a
    burst of arrivals.  `report_grace`: for the loss behind a broken connection.  `kill_delay`: from SIGTERM to SIGKILL.
    `hang`: others wait so long for a worker that does not wait itself, and it counts as hung (at least 10 steps).
    `accuse_after`: a worker waits so long for a plan, and its agent asks whether the agents of the lost ones live.
    `answer`: an agent that is asked has so long to say that it lives.
    """

    detect: float
    lease: float
    keepalive: float
    user_timeout: float
    connect: float
    join_window: float
    report_grace: float
    kill_delay: float
    hang: float = 30.0
    accuse_after: float = 0.1
    answer: float = 0.35

    @classmethod
    def derive(
        cls,
        detect: float = 5.0,
        *,
        lease: float | None = None,
        keepalive: float | None = None,
        user_timeout: float | None = None,
        connect: float | None = None,
        join_window: float = 0.5,
        report_grace: float = 0.05,
        kill_delay: float = 10.0,
        hang: float = 30.0,
        accuse_after: float = 0.1,
        answer: float = 0.35,
    ) -> Ladder:
        """The ladder that follows from `detect`, with some steps set.  Raises ConfigError if it cannot hold."""
        lease = detect if lease is None else lease
        ladder = cls(
            detect=detect,
            lease=lease,
            keepalive=lease / 3 if keepalive is None else keepalive,
            user_timeout=detect / 2 if user_timeout is None else user_timeout,
            connect=2 * detect if connect is None else connect,
            join_window=join_window,
            report_grace=report_grace,
            kill_delay=kill_delay,
            hang=hang,
            accuse_after=accuse_after,
            answer=answer,
        )
        ladder.check()
        return ladder

    def check(self) -> None:
        """Raise ConfigError naming the two times that conflict."""
        for name in (step.name for step in fields(self)):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"--{name.replace('_', '-')} must be a number of seconds from 0, not {value}")
        rules = (
            (self.detect >= 1, f"--detect {self.detect:g} is below 1 s: the kernel's keepalive cannot be that quick"),
            (
                self.lease >= 2,
                f"--lease {self.lease:g} (from --detect {self.detect:g}) is below the 2 s that etcd grants",
            ),
            (
                0 < self.keepalive <= self.lease / 2,
                f"--keepalive {self.keepalive:g} is not above 0 and at most half of --lease {self.lease:g}: one "
                "renewal that is late would end it",
            ),
            (
                0 < self.user_timeout <= self.detect,
                f"--user-timeout {self.user_timeout:g} is not above 0 and at most --detect {self.detect:g}: a silent "
                "peer would be noticed later than was asked for",
            ),
            (
                self.connect > self.user_timeout,
                f"--connect {self.connect:g} is not above --user-timeout {self.user_timeout:g} (from --detect "
                f"{self.detect:g}), after which a silent peer is given up: building a group would end first",
            ),
            (
                self.join_window < self.lease,
                f"--join-window {self.join_window:g} is not below --lease {self.lease:g}: members would vanish first",
            ),
            (
                self.hang >= SILENCE,
                f"--hang {self.hang:g} is below {SILENCE:g} s: a worker says once a second what it is at, so that "
                "nothing is known of it sooner",
            ),
            (
                self.accuse_after + self.answer < self.lease,
                f"the {self.accuse_after + self.answer:g} s in which an agent is asked whether it lives "
                f"(--accuse-after and --answer) are not below --lease {self.lease:g}: its lease would end first",
            ),
        )
        for holds, message in rules:
            if not holds:
                raise ConfigError(message)


@dataclass(frozen=True)
class EtcdAccess:
    """How to get into an etcd that does not let everybody in: TLS files, and a user with a password."""

    tls: TlsFiles | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Config:
    """Everything that `reknit run` or `reknit agent` was told.

    `script` None: a sidecar, whose workers are started by somebody else and come to `socket`.
    """

    script: str | None
    arguments: tuple[str, ...] = ()
    job: str = "job"
    etcd: str | None = None  # endpoints; None: standalone, with an embedded etcd
    access: EtcdAccess = field(default_factory=EtcdAccess)
    spec: Spec = field(default_factory=lambda: Spec(Axes()))
    workers: int = 1
    pipe_backend: str = "auto"
    address: str = "127.0.0.1"
    agent: str = "agent"
    ladder: Ladder = field(default_factory=Ladder.derive)
    verify_every: int = 0
    verify_policy: str = "heal"
    max_restarts: int = 3
    restart_window: float = 300.0
    backoff: float = 0.5
    warm: bool = True
    preload: tuple[str, ...] = ()
    events: Path | None = None
    log_json: bool = False
    data_folder: Path | None = None
    socket: Path | None = None
    once: bool = False  # a job of this name that has ended is not begun again
    drain_signal: str | None = None  # besides SIGTERM, without its SIG; see DRAIN_SIGNALS
    drain_deadline: float = 120.0  # seconds
    http: str = "127.0.0.1:0"  # where the agent serves its pages

    @property
    def standalone(self) -> bool:
        """Whether this agent brings its own etcd, so that the whole job runs on this host."""
        return self.etcd is None


def parse_drain_signal(text: str) -> str:
    """`USR1` or `SIGUSR1` → `USR1`.  Raises ConfigError for a signal that means something else."""
    name = text.upper().removeprefix("SIG")
    if name not in DRAIN_SIGNALS:
        raise ConfigError(
            f"--drain-signal must be one of {', '.join(DRAIN_SIGNALS)}, not {text!r:.80} (SIGTERM drains in any case)"
        )
    return name


def check_http(text: str) -> str:
    """`HOST:PORT` or `[IPv6]:PORT`, as it is.  Raises ConfigError."""
    try:
        parse_address(text)
    except ValueError as error:
        raise ConfigError(f"--http {text!r:.80}: {error}") from None
    return text


def parse_replicas(text: str) -> tuple[int, int]:
    """`N` (as many as N, at least one) or `MIN:MAX`.  Raises ConfigError."""
    low, colon, high = text.partition(":")
    try:
        numbers = (int(low), int(high)) if colon else (1, int(low))
    except ValueError:
        raise ConfigError(f"--replicas must be N or MIN:MAX, not {text!r}") from None
    if not 1 <= numbers[0] <= numbers[1]:
        raise ConfigError(f"--replicas {text}: it must hold that 1 <= MIN <= MAX")
    return numbers


def check_workers(workers: int, spec: Spec, standalone: bool) -> None:
    """Refuse a number of workers that can never form the smallest job.  Raises ConfigError."""
    if workers < 1:
        raise ConfigError(f"--workers must be at least 1, not {workers}")
    needed = spec.min_replicas * spec.axes.size
    if standalone and workers < needed:
        raise ConfigError(
            f"--workers {workers} can't form {spec.min_replicas} replica(s) of {spec.axes.pipe} x {spec.axes.model} "
            f"(pipe x model): at least {needed} are needed, as nobody else joins a standalone job"
        )
