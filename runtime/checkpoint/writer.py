"""Writes checkpoints behind the training's back: from a copy, on a thread of its own, one at a time."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from reknit.runtime.checkpoint.files import CheckpointError, Part, prune, write_part

log = logging.getLogger(__name__)

Tell = Callable[..., None]  # tell(event, **fields)


@dataclass(frozen=True)
class _Order:
    part: Part
    token: str
    content: Mapping[str, Any]
    paused: float


class Writer:
    """Writes this worker's parts into `folder` and keeps the newest `keep` checkpoints there.

    A write that fails is logged and told as `checkpoint_failed`; training goes on, and older checkpoints stay.
    `completed` is called, on the thread, when a part of this worker's was the last one missing.
    """

    def __init__(self, folder: Path, keep: int, tell: Tell, completed: Callable[[], None] = lambda: None) -> None:
        self.folder, self._keep, self._tell, self._completed = folder, keep, tell, completed
        self._idle = threading.Condition()
        self._now: _Order | None = None
        self._next: _Order | None = None
        self.written: tuple[str, int] | None = None  # token and step of the last part that was written

    @property
    def idle(self) -> bool:
        """Whether nothing is being written."""
        return self._now is None

    def write(self, part: Part, token: str, take: Callable[[], Mapping[str, Any]]) -> None:
        """Copy what `take` gives now, and write it in the background.  Never raises.

        While another step's part is still being written, do nothing; the same step's comes after it.
        """
        now = self._now
        if now is not None and now.part.step != part.step:
            self._failed(part, "the last one is still being written: the folder is slower than checkpoints come")
            return
        begun = time.monotonic()
        try:
            content = detached(take())
        except Exception as error:  # no memory for a copy, or a script's own state_dict
            self._failed(part, f"its state cannot be copied: {type(error).__name__}: {error}")
            return
        order = _Order(part, token, content, time.monotonic() - begun)
        with self._idle:
            if self._now is not None:
                self._next = order
                return
            self._now = order
        threading.Thread(target=self._run, name="reknit-checkpoint", daemon=True).start()

    def finish(self, timeout: float | None = None) -> bool:
        """Wait until nothing is being written any more; whether that is so."""
        with self._idle:
            return self._idle.wait_for(lambda: self._now is None, timeout)

    def _run(self) -> None:
        order = self._now
        while order is not None:
            self._write(order)
            with self._idle:
                self._now, self._next = self._next, None
                order = self._now
                self._idle.notify_all()

    def _write(self, order: _Order) -> None:
        begun, part = time.monotonic(), order.part
        try:
            complete = write_part(self.folder, order.token, part, order.content)
            self.written = order.token, part.step
            if complete:
                prune(self.folder, self._keep, part.step)
                self._completed()
        except CheckpointError as error:
            self._failed(part, str(error))
        except Exception as error:  # whatever a script's own objects make of torch.save
            self._failed(part, f"{type(error).__name__}: {error}")
        else:
            seconds = time.monotonic() - begun
            if complete:
                log.info("checkpoint of step %d is complete in %s", part.step, self.folder)
            self._tell("checkpoint", step=part.step, complete=complete, paused=order.paused, seconds=seconds)

    def _failed(self, part: Part, why: str) -> None:
        log.error("no checkpoint of step %d: %s; training goes on", part.step, why)
        self._tell("checkpoint_failed", step=part.step, reason=why)


def detached(content: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in host memory that nothing shares with the original."""

    def leaf(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().to("cpu", copy=True)
        return copy.deepcopy(value)

    copied: dict[str, Any] = _pytree.tree_map(leaf, dict(content))
    return copied
