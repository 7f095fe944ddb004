"""The events file: one JSON object a line for all that happens to the job on this host (`--events FILE`).

Every line has `t` (CLOCK_MONOTONIC seconds, comparable across the processes of a host), `event`, `worker` (or null) and
`generation`.  The other fields by event, kept stable:

    agent_started    pid, http, agent, job, pipe, model, max_replicas
    worker_started   pid, incarnation (null: the worker tells it when it attaches)
    attached         pid, incarnation
    plan             reason, state, urgent, replicas, spares
    script_started   pid, rank, world, port, restarts: of a script that knows nothing of reknit
    placed           replica, coordinate, formation
    reinit_begin     -
    reinit_done      seconds, phases (seconds by name, if it has left another generation), formation, group, replica,
                     replicas, step, fds, threads; remade, if the replica's own groups had to be made anew although it
                     stands, as an attempt had ended midway in its work there
    healed           sources, bytes (that came now), kept (bytes from generations that broke), damaged (who sent chunks
                     that had to be sent again), seconds, step
    heal_failed      step, reason: it broke off, and is repeated
    differs          step, coordinate, action (heal, evict; none where no majority says who is right): its state does
    contributed      step, samples, version (before its last gradients go out: others may commit them if it dies then)
    committed        step, samples, version, rolled_forward (if so), timing (own: seconds of its own work; wait: for the
                     others, in reduction and vote; every few steps slowdown: over its coordinate's median, and slowest:
                     of its groups, who, how slow, and seconds behind), and what the script logged
    retried          step, reason
    draining         pid, by, seconds (until the deadline): was asked to leave
    drained          pid, seconds: has left on request; nobody has lost anything
    worker_died      pid, cause
    restart          delay, reason
    checkpoint       step, complete (all of it, by this part), paused (seconds that the training took to copy), seconds
    checkpoint_failed  step, reason: not written, or not usable
    restored         step, bytes, seconds: from a checkpoint
    finished         step, coordinate, state_sha256, fds, threads
    verdict          verdict (slow or hung), reason: of a worker, by the leader's agent
    held_up          reason: of a worker that has no place, and has been busy or silent for longer than a start may take
    accuses          agent, reason: asks another agent whether it lives
    accused          by, reason: was asked whether it lives, and does
    agent_ended      code, reason
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reknit.rendezvous.errors import ReknitError

log = logging.getLogger("reknit.agent")


MODE = 0o640  # what a script logs is not everybody's to read, and perhaps a log collector's


class EventsError(ReknitError):
    """The events file cannot be opened."""


class EventLog:
    """Appends events to a file, whole lines only; without a path it does nothing.

    A disk that is full ends no training: what cannot be written is left out and counted in `lost`, logged once.
    """

    def __init__(self, path: Path | None) -> None:
        self.lost = 0
        self._lock = threading.Lock()
        self._path = path
        self._descriptor = -1
        self._torn = False  # whether the file may end within a line of ours
        if path is not None:
            try:
                self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, MODE)
            except OSError as error:
                raise EventsError(f"--events {path} cannot be written: {error.strerror}") from None

    def write(
        self,
        event: str,
        worker: str | None,
        generation: int,
        fields: Mapping[str, Any] | None = None,
        t: float | None = None,
    ) -> None:
        """Append one line; `t` defaults to now.  The line's own names win over those in `fields`."""
        if self._descriptor < 0:
            return
        moment = time.monotonic() if t is None else t
        own = {"t": round(moment, 6), "event": event, "worker": worker, "generation": generation}
        line = encode_line({**own, **(fields or {}), **own})
        with self._lock:
            try:
                self._append(line)
            except OSError as error:
                self.lost += 1
                if self.lost == 1:
                    log.error("--events %s cannot be written, events are lost: %s", self._path, error.strerror)

    def _append(self, line: bytes) -> None:
        """Write a whole line, or take back what was written of it."""
        data = b"\n" + line if self._torn else line
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
            self._torn = False
        except OSError:
            if written:
                self._torn = not self._take_back(written)
            raise

    def _take_back(self, count: int) -> bool:
        """Cut off the last `count` bytes, unless somebody else has written after them, or it is no file."""
        try:
            end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
            if os.fstat(self._descriptor).st_size != end:
                return False
            os.ftruncate(self._descriptor, end - count)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def encode_line(fields: Mapping[str, Any]) -> bytes:
    """One line of JSON; NaN and the infinities, which JSON lacks, become null."""
    try:
        text = json.dumps(fields, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(fields), separators=(",", ":"), allow_nan=False)
    return text.encode() + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(found) for key, found in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(found) for found in value]
    return value
