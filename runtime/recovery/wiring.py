"""How a worker's groups are built, out of what the agent told it: addresses, time-outs, keepalive."""

from __future__ import annotations

import datetime
import threading

import torch
import torch.distributed as dist

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.records import Axes
from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.communicator.sockets import KeepAlive
from reknit.runtime.recovery.control import ReplicaRounds
from reknit.runtime.settings import WorkerSettings


class Wiring:
    """Builds groups for one worker; `configure` comes with the worker's coordinate."""

    def __init__(self) -> None:
        self.pipe_backend = "gloo"
        self.device = torch.device("cpu")
        self.axes = Axes()
        self.connect_timeout = 10.0
        self._settings: WorkerSettings | None = None

    def configure(self, settings: WorkerSettings, pipe_backend: str, device: torch.device) -> None:
        """Take over what the agent said."""
        self._settings, self.pipe_backend, self.device = settings, pipe_backend, device
        self.axes = settings.axes
        self.connect_timeout = settings.connect

    def connect(
        self, address: tuple[str, int], prefix: str, rank: int, size: int, cancelled: threading.Event
    ) -> Communicator:
        """Build an interruptible gloo group.  Raises Interrupted."""
        settings = self._settings
        if settings is None:
            raise ReknitError("this worker has no coordinate yet: call reknit.join() first")
        keepalive = KeepAlive(
            settings.keepalive_idle, settings.keepalive_interval, settings.keepalive_probes, settings.user_timeout
        )
        return Communicator.connect(
            address,
            f"{settings.job}/{prefix}",
            rank,
            size,
            timeout_s=settings.connect,
            hostname=settings.address,
            cancelled=cancelled,
            keepalive=keepalive,
            name=prefix,
            host=0,  # as `Builder` chooses the address
        )

    def nccl_store(self, host: str, rounds: ReplicaRounds, rank: int) -> dist.Store:
        """A TCPStore for one NCCL formation: its first member serves it, and a round tells the others the port."""
        timeout = datetime.timedelta(seconds=self.connect_timeout)
        if rank == 0:
            server = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timeout)
            rounds.say((server.port,))
            return server
        port = rounds.say()[0][0]
        return dist.TCPStore(host, port, is_master=False, timeout=timeout)
