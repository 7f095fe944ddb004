"""The events file: one JSON object a line for all that happens to the job on this host (`--events FILE`).

Every line has `t` (CLOCK_MONOTONIC seconds, comparable across the processes of a host), `event`, `worker` (or null) and
`generation`.  The other fields by event, kept stable:

    agent_started    pid, http, agent, job, pipe, model, max_replicas
    worker_started   pid, incarnation (null: the worker tells it when it attaches)
    attached         pid, incarnation
    plan             reason, state, urgent, replicas, spares
    placed           replica, coordinate, formation
    reinit_begin     -
    reinit_done      seconds, formation, group, replica, replicas, step, fds, threads
    healed           source, bytes, seconds, step
    contributed      step, samples, version (before its last gradients go out: others may commit them if it dies then)
    committed        step, samples, version, rolled_forward (if so), and what the script logged
    retried          step, reason
    worker_died      pid, cause
    restart          delay, reason
    finished         step, coordinate, state_sha256, fds, threads
    agent_ended      code, reason
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import IO, Any

from reknit.rendezvous.errors import ReknitError


class EventsError(ReknitError):
    """The events file cannot be written."""


class EventLog:
    """Appends events to a file, whole lines only; without a path it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        if path is not None:
            try:
                self._file = path.open("ab", buffering=0)
            except OSError as error:
                raise EventsError(f"--events {path} cannot be written: {error.strerror}") from None

    def write(self, event: str, worker: str | None, generation: int, t: float | None = None, **fields: Any) -> None:
        """Append one line; `t` defaults to now."""
        if self._file is None:
            return
        moment = time.monotonic() if t is None else t
        line = {"t": round(moment, 6), "event": event, "worker": worker, "generation": generation, **fields}
        with self._lock:
            self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
