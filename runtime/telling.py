"""What a worker tells its agent: reports for its record, events, and its pulse.

What belongs into the record is also repeated in the greeting, so that an agent that was restarted, or a new one, knows
it as soon as the worker is attached again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from reknit.rendezvous.records import Name, Version
from reknit.runtime.ipc.link import Link
from reknit.runtime.ipc.messages import MessageError
from reknit.runtime.recovery.phase import Stuck
from reknit.runtime.recovery.state import Update

log = logging.getLogger(__name__)

KEPT_OF_LEFT = ("incomplete", "torn", "committed", "prepared", "pristine", "gone", "absent")


class Where(Protocol):
    """Where the worker is: what `Recovery` knows."""

    @property
    def present(self) -> int:
        """The generation that it is in, or the newest that it knows."""

    @property
    def step(self) -> int:
        """Committed steps."""


class Telling:
    """One worker's words to its agent.  Every method may be called from any thread, and none waits for the agent."""

    def __init__(self, name: Name) -> None:
        self._hello: dict[str, Any] = {
            "type": "hello",
            "worker_id": name.worker_id,
            "incarnation": name.incarnation,
            "pid": os.getpid(),
        }
        self._link: Link | None = None
        self._where: Where | None = None
        self.everything = False  # whether anybody reads what each step consumed

    def attach(
        self,
        socket: str,
        address: str,
        where: Where,
        on_message: Callable[[dict[str, Any]], None],
        on_gone: Callable[[], None],
        lease_seconds: float,
    ) -> None:
        """Connect to the agent at `socket`; `address` is where the others meet this worker.  Raises IpcError."""
        self._hello["address"], self._where = address, where
        self._link = Link(socket, self._hello, on_message, on_gone, lease_seconds=lease_seconds)
        self._link.start()

    @property
    def attached(self) -> bool:
        """Whether the agent is there now."""
        return self._link is not None and self._link.attached

    def close(self) -> None:
        """End the connection: to the agent this worker is dead."""
        if self._link is not None:
            self._link.close()

    def keep(self, **standing: Any) -> None:
        """What every greeting says from now on."""
        assert self._link is not None
        self._hello.update(standing)
        self._link.set_hello(self._hello)

    def report(self, kind: str, **fields: Any) -> None:
        """Tell the agent what belongs into this worker's record, now and whenever the agent comes back."""
        match kind:
            case "built":
                self.keep(built=True, restorable=fields["restorable"], keeps=fields["keeps"])
            case "checkpoints":
                self.keep(restorable=fields["steps"])
            case "finished":
                self.keep(finished=True)
            case "closed":
                self.keep(closed=fields["generation"])
            case "drain":
                self.keep(draining=True)
            case "ready":
                self.keep(ready=fields["generation"], committed=fields["committed"], prepared=None)
            case "left":
                self.keep(left=fields["generation"], **{key: fields[key] for key in KEPT_OF_LEFT})
            case "gone":
                self.keep(over=True)
        assert self._link is not None
        self._link.report({"type": kind, **fields}, important=True)

    def event(self, event: str, **fields: Any) -> None:
        """A line for `--events`; what only a reader of that file wants is not sent without one.  Never raises."""
        if not self.everything:
            if event == "contributed":
                return
            fields.pop("samples", None)
        assert self._where is not None
        line = {**fields, "event": event, "t": time.monotonic(), "generation": self._where.present}
        self._say("event", line, important=True)

    def committed(self, version: Version, update: Update, **more: Any) -> None:
        """The event of a committed step, with what the script logged."""
        ours = {"step": version.step, "samples": list(update.samples), "version": list(version), **more}
        self.event("committed", **{**update.numbers, **ours})

    def pulse(self, stuck: Stuck) -> None:
        """What the training thread is at.  Never raises; of no use to an agent that is not there."""
        assert self._where is not None
        line = {**stuck._asdict(), "generation": self._where.present, "step": self._where.step}
        self._say("pulse", line, important=False)

    def _say(self, kind: str, fields: Mapping[str, Any], important: bool) -> None:
        assert self._link is not None
        try:
            self._link.report({**fields, "type": kind}, important=important)
        except MessageError as error:
            log.warning("the %s %s cannot be told: %s", kind, fields.get("event", ""), error)
