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
import time
import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist

from reknit.runtime.communicator.collectives import Backend, Collectives, Finish, Launch
from reknit.runtime.communicator.gloo_build import BuildFailed, Cancellation, GlooBuild, GroupSpec
from reknit.runtime.communicator.gloo_group import GlooGroup
from reknit.runtime.communicator.sockets import Address, KeepAlive
from reknit.runtime.communicator.work import Work, follow
from reknit.runtime.errors import BackendRefused, CommunicatorError, Interrupted

OPERATION_TIMEOUT_S = 1800.0  # as torch: a peer may be in a long evaluation
"""How long gloo waits for a peer.  Also how long one of its threads may stay, with its buffers, after an interrupt: see
`GlooGroup.at_rest`."""

GIVE_UP_POLL_S = 0.002
GIVE_UP_WITHIN_S = 0.5


def check_data_backend(name: str, *, rebuilt: bool = True) -> None:
    """Refuse a backend that the data axis cannot use: BackendRefused.  Touches nothing, whatever the size.

    `rebuilt` says that the groups are to be built anew in running processes, as in an elastic job at each membership
    change: only gloo can do that.  Groups that stand until their processes end may use nccl, too.
    """
    kind = name.lower()
    if kind == "gloo" or (kind == "nccl" and not rebuilt):
        return
    if kind != "nccl":
        raise BackendRefused(f"{name!r} is no backend that the data axis knows; use gloo")
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
        host: int | None = None,
    ) -> Communicator:
        """Build the group together with the other `size - 1` ranks; opens sockets and threads, unless size is 1.

        `address` is that of a `MeetingPoint`, `host` the rank that serves it (None: it is nobody's).  `prefix` names
        this group and no other, ever (it carries the generation); `hostname` is a numeric address of this machine that
        the others reach.
        Interrupted, with everything given back: when not all have come after `timeout_s` seconds, within milliseconds
        of `cancelled.is_set()`, or when a member leaves meanwhile.
        """
        if size < 1 or not 0 <= rank < size:
            raise CommunicatorError(f"group {prefix}: rank {rank} of {size} does not exist")
        name = name if name is not None else prefix
        if size == 1:
            return cls(None, name=name, rank=rank, size=size)
        spec = GroupSpec(
            address, prefix, rank, size, hostname, timeout_s, operation_timeout_s, keepalive or KeepAlive(), host
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
                absent=error.absent,
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

    def traffic(self) -> int | None:
        """How many bytes have gone to and come from the peers so far; None if that is not known.  Never blocks."""
        return self._group.traffic() if self._group is not None else 0

    def interrupt(self, reason: str = "it was interrupted") -> None:
        """End the group: every wait that is blocked in it fails within milliseconds.  Idempotent, from any thread."""
        with self._lock:
            first = self._broken is None
            if self._broken is None:
                self._broken = reason
        if self._group is None or not first:
            return
        self._group.interrupt()
        if self._unfinished_works():
            threading.Thread(target=self._give_up_unfinished, name="reknit-gloo-give-up", daemon=True).start()

    def follow(self, works: Sequence[Work]) -> None:
        """Get ready to wait for these messages, of this group, in this order: cheaper than one by one."""
        follow([work for work in works if not work.is_completed()])

    def close(self) -> None:
        """Interrupt, and give back all sockets, threads and memory of the group.  Idempotent, from any thread."""
        self.interrupt("it was closed")
        if self._group is not None:
            self._give_up_unfinished()
            with self._lock:
                never_waited_for = list(self._unfinished)
            for work in never_waited_for:
                # gloo is done with it, but as long as it is not told so it holds the group.
                work._wait_a_slice()
            self._group.close()

    def _failed(self, operation: str, error: BaseException | None = None) -> Interrupted:
        """Take note that an operation failed: ends the group for everybody, and returns the exception to raise."""
        gone = tuple(self.peers_gone())
        reason = self._broken if self._broken is not None else f"{operation} failed ({_first_words(error)})"
        self.interrupt(reason)
        if error is not None:
            # Their frames hold torch's Work, which holds the group: its sockets, threads and buffers.  torch's binding
            # raises one exception in the context of another.
            error.__traceback__ = error.__context__ = None
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
        """Start a sum over all ranks in place; a future of `[tensor]`, for a gradient reducer to chain on.

        If the group breaks it completes with Interrupted, and never not at all.  Chain with `.then` and ask `value()`
        there; a blocking wait inside a hook or a callback stops the overlap with backward, or hangs.  Interrupted at
        once if the group is over already.
        """
        return self.all_reduce(tensor, asynchronous=True).future([tensor])

    def _has_left(self, peer: int | None) -> bool:
        """Whether this peer, or any if None, has closed its end."""
        gone = self.peers_gone()
        return bool(gone) if peer is None else peer in gone

    def _unfinished_works(self) -> list[Work]:
        with self._lock:
            return [work for work in self._unfinished if not work.is_completed()]

    def _give_up_unfinished(self) -> None:
        """After an interrupt: fail what gloo leaves waiting, as soon as it is certain that gloo is done with it."""
        assert self._group is not None
        seen_asleep: set[str] = set()
        deadline = time.monotonic() + GIVE_UP_WITHIN_S
        while self._unfinished_works():
            if self._group.at_rest(seen_asleep) or time.monotonic() > deadline:
                for work in self._unfinished_works():
                    work._complete(TimeoutError("gloo was still waiting for its own message to be sent"))
                return
            time.sleep(GIVE_UP_POLL_S)

    def _living_backend(self, operation: str) -> Backend:
        if self._broken is not None:
            raise self._failed(operation)
        backend = self.backend
        if backend is None:
            raise self._failed(operation)
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
        pending: dist.Work | None = None
        if self._group is not None:
            pending = self._launch(operation, launch)
        elif self._broken is not None:
            raise self._failed(operation)
        elif alone is not None:
            alone()
        work = Work(self, operation, pending, finish, peer)
        if pending is not None:
            with self._lock:
                self._unfinished.add(work)
            if self._broken is not None:
                # It may have started too late to be seen by the interrupt.
                threading.Thread(target=self._give_up_unfinished, name="reknit-gloo-give-up", daemon=True).start()
        # In an exception's traceback this frame must not hold the group.
        del pending
        if not asynchronous:
            work.wait()
        return work

    def _launch(self, operation: str, launch: Launch) -> dist.Work:
        backend = self._living_backend(operation)
        try:
            return launch(backend)
        except RuntimeError as error:
            failure = self._failed(operation, error)
        del backend
        raise failure

    def _forget(self, work: Work) -> None:
        with self._lock:
            self._unfinished.discard(work)


def _first_words(error: BaseException | None) -> str:
    """What an error says, without gloo's source position and advice."""
    text = str(error).rpartition("] ")[2] if str(error).startswith("[") else str(error)
    return text.partition(". ")[0][:200] if error is not None else "it was over before"
