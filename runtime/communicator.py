"""The interruptible communicator: gloo's collectives, any of which can be ended at any moment.

A gloo operation in flight heeds neither `abort` nor `shutdown`; when a member dies only its neighbours notice, and one
that stops without dying frees nobody.  `Communicator.interrupt` ends them all within milliseconds, here and at every
peer, by shutting down the group's connections underneath.  A native way to rebuild a gloo group is expected in a later
torch: everything outside `gloo_group` stays as it is then.

Two things no check here can catch.  Tensors of different sizes at different ranks in one operation abort the process
from within gloo; different operations at different ranks wait for each other until somebody interrupts them.
"""

from __future__ import annotations

import threading
import weakref

import torch
import torch.distributed as dist

from reknit.runtime.collectives import Backend, Collectives, Finish, Launch
from reknit.runtime.errors import BackendRefused, CommunicatorError, Interrupted
from reknit.runtime.gloo_group import BuildFailed, Cancellation, GlooBuild, GlooGroup, GroupSpec
from reknit.runtime.sockets import Address, KeepAlive

OPERATION_TIMEOUT_S = 1800.0


def check_data_backend(name: str) -> None:
    """Accept `gloo`; BackendRefused for any other backend on the data axis.  Touches nothing, whatever the size."""
    if name.lower() == "gloo":
        return
    raise BackendRefused(
        f"{name} cannot be rebuilt in place: a data-parallel group has to be taken down and set up again in a running "
        f"process, in milliseconds, each time a replica comes or goes. Use gloo on the data axis; {name} serves within "
        "a replica (--pipe-backend)."
    )


class Communicator(Collectives):
    """One group of ranks that can be interrupted.  Made by `connect`; a group of one is the identity.

    Every operation blocks, or with `asynchronous=True` returns a `Work`.  Whatever fails raises `Interrupted`, and the
    group is over: it is interrupted for everybody and each later call raises `Interrupted` at once.  Wrong arguments
    raise `CommunicatorError` before anything is sent, and leave the group as it is.  Operations are started in the same
    order by all ranks, as ever; `interrupt`, `close` and `peers_gone` may be called from any thread at any time.
    """

    def __init__(self, group: GlooGroup | None, *, name: str, rank: int, size: int) -> None:
        self.name = name
        self.rank = rank
        self.size = size
        self._group = group
        self._broken: str | None = None
        self._lock = threading.Lock()
        self._unfinished: weakref.WeakSet[Work] = weakref.WeakSet()

    @classmethod
    def connect(
        cls,
        address: Address,
        prefix: str,
        rank: int,
        size: int,
        *,
        timeout_s: float,
        hostname: str,
        cancelled: Cancellation | None = None,
        keepalive: KeepAlive | None = None,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
        name: str | None = None,
    ) -> Communicator:
        """Build the group together with the other `size - 1` ranks; opens sockets and starts threads, unless size is 1.

        `address` is that of a `MeetingPoint` which one of the members serves.  `prefix` names this group and no other,
        ever (it carries the generation); `hostname` is a numeric address of this machine that the others reach.
        Interrupted, with everything given back: when not all have come after `timeout_s` seconds, within milliseconds
        of `cancelled.is_set()`, or when a member leaves meanwhile.
        """
        if size < 1 or not 0 <= rank < size:
            raise CommunicatorError(f"group {prefix}: rank {rank} of {size} does not exist")
        name = name if name is not None else prefix
        if size == 1:
            return cls(None, name=name, rank=rank, size=size)
        spec = GroupSpec(
            address, prefix, rank, size, hostname, timeout_s, operation_timeout_s, keepalive or KeepAlive()
        )
        try:
            group = GlooBuild(spec).wait(cancelled)
        except BuildFailed as error:
            peers = () if error.peer is None else (error.peer,)
            who = "" if error.peer is None else f" (rank {error.peer})"
            raise Interrupted(
                f"group {name}, rank {rank} of {size}: not built: {error}{who}. Wait for the next plan.",
                group=name,
                rank=rank,
                peers=peers,
            ) from error.__cause__
        return cls(group, name=name, rank=rank, size=size)

    @property
    def backend(self) -> dist.ProcessGroupGloo | None:
        """torch's own group object, to register under a `dist.ProcessGroup`; None in a group of one and once closed."""
        return self._group.backend if self._group is not None else None

    @property
    def broken(self) -> bool:
        """Whether the group is over."""
        return self._broken is not None

    def peers_gone(self) -> list[int]:
        """Ranks that closed their end: died, or left the group.  Never blocks.

        Once the group was interrupted the answer stays what it was just before.  Ranks that failed leave too, so ask
        early: at the first failure only the dead are gone.  A rank that is merely stopped is not.
        """
        return self._group.peers_gone() if self._group is not None else []

    def interrupt(self, reason: str = "it was interrupted") -> None:
        """End the group: every wait that is blocked in it fails at once.  Idempotent, from any thread."""
        with self._lock:
            if self._broken is None:
                self._broken = reason
        if self._group is not None:
            self._group.interrupt()

    def close(self) -> None:
        """Interrupt, and give back all sockets, threads and memory of the group.  Idempotent, from any thread."""
        self.interrupt("it was closed")
        for work in list(self._unfinished):
            work._let_go()
        if self._group is not None:
            self._group.close()

    def failed(self, operation: str, error: BaseException | None = None) -> Interrupted:
        """Take note that an operation failed: ends the group for everybody, and returns the exception to raise.

        For callers that chain on `all_reduce_future`; all other operations do it themselves.
        """
        gone = tuple(self.peers_gone())
        reason = self._broken if self._broken is not None else f"{operation} failed"
        self.interrupt(reason)
        if error is not None:
            # Its frames hold torch's Work, which holds the group: its sockets, threads and buffers.
            error.__traceback__ = None
        who = f"; gone: rank {', '.join(map(str, gone))}" if gone else ""
        interrupted = Interrupted(
            f"group {self.name}, rank {self.rank} of {self.size}: {operation}: {reason}{who}. Leave this generation.",
            group=self.name,
            rank=self.rank,
            peers=gone,
        )
        interrupted.__cause__ = error
        return interrupted

    def all_reduce_future(self, tensor: torch.Tensor) -> torch.futures.Future[list[torch.Tensor]]:
        """Start a sum over all ranks in place and return torch's own future of it, for a gradient reducer to chain on.

        The tensor is contiguous.  The future's value is `[tensor]`; if the group breaks it holds gloo's bare exception:
        pass it to `failed`.  Chain with `.then` and ask `value()` there; a blocking wait inside a hook or a callback
        stops the overlap with backward, or hangs.  Interrupted at once if the group is over already.
        """
        if self._group is None:
            done: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
            done.set_result([tensor])
            return done
        try:
            future: torch.futures.Future[list[torch.Tensor]] = (
                self._living_backend("all_reduce").allreduce([tensor]).get_future()
            )
            return future
        except RuntimeError as error:
            failure = self.failed("all_reduce", error)
        raise failure

    def _living_backend(self, operation: str) -> Backend:
        backend = self.backend
        if self._broken is not None or backend is None:
            raise self.failed(operation)
        return backend

    def _start(
        self,
        operation: str,
        launch: Launch,
        *,
        finish: Finish | None = None,
        alone: Finish | None = None,
        asynchronous: bool = False,
        peer: int | None = None,
    ) -> Work:
        if self._group is None:
            if self._broken is not None:
                raise self.failed(operation)
            if alone is not None:
                alone()
            work = Work(self, operation, None, finish)
        else:
            where = operation if peer is None else f"{operation} with rank {peer}"
            work = self._launch(where, launch, finish)
        if asynchronous:
            self._unfinished.add(work)
        else:
            work.wait()
        return work

    def _launch(self, operation: str, launch: Launch, finish: Finish | None) -> Work:
        backend = self._living_backend(operation)
        try:
            return Work(self, operation, launch(backend), finish)
        except RuntimeError as error:
            failure = self.failed(operation, error)
        # Nothing that the exception's traceback holds may hold the group.
        del backend
        raise failure


class Work:
    """An operation under way.  Used by one thread at a time."""

    def __init__(
        self, communicator: Communicator, operation: str, pending: dist.Work | None, finish: Finish | None
    ) -> None:
        self._communicator = communicator
        self._operation = operation
        self._pending = pending
        self._finish = finish
        self._failure: Interrupted | None = None
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Block until the operation has completed and its results are in the tensors.  Interrupted if it failed."""
        pending = self._pending
        error: RuntimeError | None = None
        if pending is not None:
            try:
                pending.wait()
            except RuntimeError as caught:
                error = caught
            del pending
        self._complete(error)
        if self._failure is not None:
            raise self._failure

    def is_completed(self) -> bool:
        """Whether `wait` would return or raise at once.  Of `isend` and `irecv` gloo tells only after the wait."""
        pending = self._pending
        return pending is None or pending.is_completed()

    def future(self) -> torch.futures.Future[None]:
        """A future that completes after the results are in the tensors, or with Interrupted.

        Not for `isend` and `irecv`, of which gloo has none: CommunicatorError.
        """
        result: torch.futures.Future[None] = torch.futures.Future()
        if self._pending is None:
            self._complete(None)
            self._settle(result)
            return result
        try:
            pending = self._pending.get_future()
        except RuntimeError:
            raise CommunicatorError(f"{self._operation} has no future; wait for it") from None

        def done(completed: torch.futures.Future[list[torch.Tensor]]) -> None:
            # Not by `wait`: torch's Work is marked as completed only after its future's callbacks have run.
            try:
                completed.value()
            except RuntimeError as error:
                self._complete(error)
            else:
                self._complete(None)
            self._settle(result)

        pending.add_done_callback(done)
        return result

    def _complete(self, error: RuntimeError | None) -> None:
        with self._lock:
            self._pending = None
            finish, self._finish = self._finish, None
            if error is not None and self._failure is None:
                self._failure = self._communicator.failed(self._operation, error)
            if finish is not None and self._failure is None:
                finish()

    def _settle(self, result: torch.futures.Future[None]) -> None:
        if self._failure is not None:
            result.set_exception(self._failure)  # type: ignore[arg-type]  # torch's stub says None
        else:
            result.set_result(None)

    def _let_go(self) -> None:
        """Drop what holds the group; for the communicator, which is closing."""
        if self._pending is not None:
            self._complete(RuntimeError("the communicator was closed"))
