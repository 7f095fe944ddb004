"""Writes checkpoints behind the training's back: from a copy, on a thread of its own, one at a time."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from reknit.runtime.checkpoint.files import CheckpointError, Part, prune, write_part

log = logging.getLogger(__name__)

Tell = Callable[..., None]  # tell(event, **fields)


class Writer:
    """Writes this worker's parts into `folder` and keeps the newest `keep` checkpoints there.

    A write that fails is logged and told as `checkpoint_failed`; training goes on, and older checkpoints stay.
    """

    def __init__(self, folder: Path, keep: int, tell: Tell) -> None:
        self.folder, self._keep, self._tell = folder, keep, tell
        self._thread: threading.Thread | None = None

    def write(self, part: Part, token: str, content: Mapping[str, Any]) -> None:
        """Copy `content` now, and write it in the background; while the last one is still being written, do nothing."""
        if self._thread is not None and self._thread.is_alive():
            why = "the last one is still being written: the folder is slower than the checkpoints come"
            self._failed(part, why)
            return
        begun = time.monotonic()
        copied = detached(content)
        arguments = (part, token, copied, time.monotonic() - begun)
        self._thread = threading.Thread(target=self._write, args=arguments, name="reknit-checkpoint", daemon=True)
        self._thread.start()

    def finish(self, timeout: float | None = None) -> None:
        """Wait for the write under way."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _write(self, part: Part, token: str, content: Mapping[str, Any], paused: float) -> None:
        begun = time.monotonic()
        try:
            write_part(self.folder, token, part, content)
            prune(self.folder, self._keep)
        except CheckpointError as error:
            self._failed(part, str(error))
        except Exception as error:  # whatever a script's own state_dict makes of torch.save
            self._failed(part, f"{type(error).__name__}: {error}")
        else:
            self._tell("checkpoint", step=part.step, paused=paused, seconds=time.monotonic() - begun)

    def _failed(self, part: Part, why: str) -> None:
        log.error("no checkpoint of step %d: %s", part.step, why)
        self._tell("checkpoint_failed", step=part.step, reason=why)


def detached(content: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in host memory that nothing shares with the original."""

    def leaf(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().to("cpu", copy=True)
        return copy.deepcopy(value)

    copied: dict[str, Any] = _pytree.tree_map(leaf, dict(content))
    return copied
