"""What is behind the accessors, and the plain one of the two: a world of torch.distributed whose members stay.

The other is an elastic job (`elastic`).  Both answer the same few questions, so the accessors know no difference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from reknit.rendezvous.layout import Group, Layout
from reknit.runtime.mpu.errors import NotInitialized

log = logging.getLogger(__name__)

NON_MEMBER: Any = dist.GroupMember.NON_GROUP_MEMBER
"""What torch has for a group that one is not in: its functions do nothing with it, and say rank and size -1."""

NewGroup = Callable[..., Any]


class Backing(Protocol):
    """Where this process is, and the groups that it is in."""

    elastic: bool

    @property
    def layout(self) -> Layout:
        """The numbering of all ranks at present."""

    @property
    def rank(self) -> int:
        """This process's rank in `layout`."""

    def seen_along(self, axis: str) -> tuple[Layout, int]:
        """A numbering that holds all of this process's group along an axis, and its own rank in that."""

    def group(self, axis: str) -> Any:
        """The process group along an axis, or `io`; NON_MEMBER for one that this process is not in."""

    def source_rank(self, axis: str) -> int:
        """The first rank of the group along an axis, in the numbering that torch's functions take with that group."""

    def close(self) -> None:
        """Let go of all groups that this has made.  Idempotent."""


class StaticWorld:
    """Groups over torch's default group, made once.  The constructor makes them, on every rank in the same order.

    All or nothing: if one cannot be made, those before it are destroyed and the error is raised.  `backends` names a
    backend for an axis (the default group's where it names none).
    """

    elastic = False

    def __init__(self, layout: Layout, backends: dict[str, str], timeout: timedelta | None = None) -> None:
        self.layout = layout
        self.rank = dist.get_rank()
        self._groups: dict[str, Any] = {}
        self._made: list[Any] = []
        self._timeout = timeout
        try:
            for kind, groups in in_creation_order(layout):
                self._make(kind, groups, backends.get(kind))
        except BaseException:
            self.close()
            raise
        self._share()

    def seen_along(self, axis: str) -> tuple[Layout, int]:
        """See `Backing`."""
        return self.layout, self.rank

    def group(self, axis: str) -> Any:
        """See `Backing`.  NotInitialized for an axis that the shape has not."""
        if axis not in self._groups:
            raise NotInitialized(
                f"this world has no {axis} groups: give initialize_model_parallel a topology with them"
            )
        return self._groups[axis]

    def source_rank(self, axis: str) -> int:
        """See `Backing`."""
        return self.layout.source_rank(self.rank, axis)

    def rebuild(self, axis: str, backend: str) -> None:
        """Make the groups of one axis anew, on every rank; the old ones are closed first, the others left alone."""
        old = self._groups.get(axis, NON_MEMBER)
        if old is not NON_MEMBER:
            for kind in [kind for kind, group in self._groups.items() if group is old]:
                del self._groups[kind]
            self._made.remove(old)
            _destroy(old)
        self._make(axis, self.layout.groups(axis), backend)
        self._share()

    def close(self) -> None:
        """See `Backing`."""
        while self._made:
            _destroy(self._made.pop())
        self._groups.clear()

    def _share(self) -> None:
        """Without stages of its own the IO group is the data group."""
        if "pipe" not in self.layout.names or self.layout.size("pipe") == 1:
            self._groups["io"] = self._groups["data"]

    def _make(self, kind: str, groups: tuple[Group, ...], backend: str | None) -> None:
        own: Any = NON_MEMBER
        for ranks in groups:
            made = dist.new_group(list(ranks), timeout=self._timeout, backend=backend)
            if self.rank in ranks:
                own = made
                self._made.append(made)
        self._groups[kind] = own


def in_creation_order(layout: Layout) -> list[tuple[str, tuple[Group, ...]]]:
    """The kinds of groups, as the reference makes them; `io` only where it is not the data groups."""
    kinds = [("data", layout.groups("data"))]
    if "pipe" in layout.names:
        kinds.append(("pipe", layout.groups("pipe")))
        if layout.size("pipe") > 1:
            kinds.append(("io", layout.io_groups()))
    if "model" in layout.names:
        kinds.append(("model", layout.groups("model")))
    return kinds


def _destroy(group: Any) -> None:
    if not dist.is_initialized():
        return  # torch's default group has gone, and all others with it
    try:
        dist.destroy_process_group(group)
    except (RuntimeError, ValueError) as error:
        log.warning("a process group could not be destroyed: %s", error)
