"""One operation under way, and how its end reaches whoever waits for it.

torch's own handle would do but for two things: gloo forgets some operations when a group ends (`GlooGroup.at_rest`), so
a wait must be able to end without it; and whatever keeps torch's handle keeps the group, so it must be let go of early.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from reknit.runtime.communicator.collectives import Finish
from reknit.runtime.errors import CommunicatorError, Interrupted

if TYPE_CHECKING:
    from reknit.runtime.communicator.communicator import Communicator

WAIT_SLICE = datetime.timedelta(milliseconds=50)


class Work:
    """An operation under way."""

    def __init__(
        self,
        communicator: Communicator,
        operation: str,
        pending: dist.Work | None,
        finish: Finish | None,
        peer: int | None,
    ) -> None:
        self._communicator = communicator
        self._operation = operation if peer is None else f"{operation} with rank {peer}"
        self._pending = pending
        self._peer = peer
        self._finish = finish
        self._failure: Interrupted | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._futures: list[tuple[torch.futures.Future[Any], Any]] = []
        self._followed = False  # whether some thread is already in torch's wait for it
        if pending is None:
            self._complete(None)

    def wait(self) -> None:
        """Block until the operation has completed and its results are in the tensors.  Interrupted if it failed."""
        if not self._over.is_set():
            if self._peer is not None and not self._followed:
                follow([self])
            self._wait_in_slices()
        if self._failure is not None:
            raise self._failure.renewed()

    def is_completed(self) -> bool:
        """Whether `wait` would return or raise at once.  Of `isend` and `irecv` gloo tells only after the wait."""
        pending = self._pending
        return self._over.is_set() or (pending is not None and pending.is_completed())

    def future(self, value: Any = None) -> torch.futures.Future[Any]:
        """A future that completes with `value` after the results are in the tensors, or with Interrupted.

        Not for `isend` and `irecv`, of which gloo has none: CommunicatorError.
        """
        result: torch.futures.Future[Any] = torch.futures.Future()
        with self._lock:
            pending = self._pending
            if pending is not None and self._peer is not None:
                raise CommunicatorError(f"{self._operation} has no future; wait for it")
            if pending is not None:
                self._futures.append((result, value))
        if pending is None:
            self._settle([(result, value)])
        else:
            pending.get_future().add_done_callback(self._gloo_is_done)
        return result

    def _wait_in_slices(self) -> None:
        """Wait, and look up from time to time, since gloo may never come back: see `GlooGroup.at_rest`."""
        left_before = False
        while not self._wait_a_slice():
            # What a peer had sent before it left may still be on its way through gloo: hence twice.
            left = self._communicator._has_left(self._peer)
            if left and left_before:
                self._communicator.interrupt(f"{self._operation} failed: a peer left while it was under way")
            left_before = left

    def _wait_a_slice(self) -> bool:
        """Wait a little; whether the operation is over."""
        pending = self._pending
        if pending is None or self._peer is not None:
            return self._over.wait(WAIT_SLICE.total_seconds())
        try:
            # In gloo: nothing is faster.
            pending.wait(WAIT_SLICE)
        except RuntimeError:
            # The slice is over, or the operation is, or both: it may complete between the two lines.
            if pending.is_completed():
                self._ask(pending)
        else:
            self._complete(None)
        return self._over.is_set()

    def _ask(self, pending: dist.Work) -> None:
        """Learn how an operation that has completed ended."""
        try:
            pending.wait()
        except RuntimeError as error:
            self._complete(error)
        else:
            self._complete(None)

    def _gloo_is_done(self, completed: torch.futures.Future[Any]) -> None:
        # Not by `wait`: torch's Work is marked as completed only after its future's callbacks have run.
        try:
            completed.value()
        except RuntimeError as error:
            self._complete(error)
        else:
            self._complete(None)

    def _complete(self, error: Exception | None) -> None:
        """The operation has ended; only the first call counts.  All that holds torch's group is let go."""
        failure = self._communicator._failed(self._operation, error) if error is not None else None
        with self._lock:
            if self._over.is_set():
                return
            finish, self._finish = self._finish, None
            if failure is None and finish is not None:
                finish()
            self._failure, self._pending = failure, None
            futures, self._futures = self._futures, []
            self._over.set()
        self._communicator._forget(self)
        self._settle(futures)

    def _settle(self, futures: list[tuple[torch.futures.Future[Any], Any]]) -> None:
        for future, value in futures:
            if self._failure is not None:
                future.set_exception(self._failure.renewed())
            else:
                future.set_result(value)


def follow(works: Sequence[Work]) -> None:
    """Let one thread wait for messages under way, in this order: cheaper than a thread for each as it is waited for.

    torch's wait for a message can be neither ended nor limited: so it is never the caller who is in it.
    """

    def wait() -> None:
        for work in works:
            pending = work._pending
            if pending is not None:
                work._ask(pending)

    for work in works:
        work._followed = True
    threading.Thread(target=wait, name="reknit-gloo-message", daemon=True).start()
