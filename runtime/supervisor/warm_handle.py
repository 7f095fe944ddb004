"""The supervisor's hold on its warm process: starts it, asks it for workers, knows whether it can be asked."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reknit.runtime.supervisor.bootstrap import command
from reknit.runtime.supervisor.packets import receive_packet, send_packet
from reknit.runtime.supervisor.warm import IMPORT_ENVIRONMENT

OUTPUT_NAME = "warm"
_ANSWER_SECONDS = 5.0


class WarmHandle:
    """One warm process after another: at most one at a time."""

    def __init__(self, modules: Sequence[str], attach: Callable[[str, str, int], None]) -> None:
        self.ready = False
        self.channel: socket.socket | None = None
        self.deaths_before_ready = 0  # in a row
        self._modules = modules
        self._attach = attach
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process id, if it is running."""
        return self._process.pid if self._process is not None else None

    def start(self) -> socket.socket:
        """Exec a warm process; its first word will be `ready` or `failed`.  Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        reader, writer = os.pipe()
        arguments = ["--channel", str(theirs.fileno())]
        for module in self._modules:
            arguments += ["--preload", module]
        try:
            self._process = subprocess.Popen(
                command(sys.executable, "warm", arguments),
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                env={**os.environ, **IMPORT_ENVIRONMENT},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that an interrupt typed at the terminal is the supervisor's to handle
            )
        except OSError:
            ours.close()
            os.close(reader)
            raise
        finally:
            theirs.close()
            os.close(writer)
        self._attach(OUTPUT_NAME, "stderr", reader)
        # It answers within milliseconds once it is ready; one that does not is stopped or broken.
        ours.settimeout(_ANSWER_SECONDS)
        self.channel = ours
        self.ready = False
        return ours

    def request(
        self,
        worker_id: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        folder: str,
        descriptors: Sequence[int],
    ) -> None:
        """Ask for a worker.  Raises OSError if the warm process is gone or does not answer."""
        assert self.channel is not None
        message = {"worker_id": worker_id, "argv": list(argv), "environment": dict(environment), "folder": folder}
        send_packet(self.channel, message, descriptors)

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """What it says next; None if it is gone or broken."""
        assert self.channel is not None
        try:
            packet = receive_packet(self.channel)
        except OSError:
            return None
        if packet is not None and packet[0]["event"] == "ready":
            self.ready = True
            self.deaths_before_ready = 0
        return packet

    def bury(self) -> int:
        """After its channel ended: make sure that it is dead; its return code."""
        assert self._process is not None
        assert self.channel is not None
        if not self.ready:
            self.deaths_before_ready += 1
        self.ready = False
        self.channel.close()
        self.channel = None
        try:
            returncode = self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            returncode = self._process.wait()
        self._process = None
        return returncode
