"""The overrides of the model axis, as tools that convert checkpoints use them: what a process says that it is."""

from __future__ import annotations

from collections.abc import Callable

from reknit.rendezvous.errors import LayoutError


class Override:
    """What a `set_` function returns: leave it alone, or use it in a `with`, to have the old value back after."""

    def __init__(self, restore: Callable[[], None]) -> None:
        self._restore = restore

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._restore()


class Overrides:
    """Rank and size of the model axis; None where nothing is overridden."""

    def __init__(self) -> None:
        self.rank: int | None = None
        self.world_size: int | None = None

    def clear(self) -> None:
        """Override nothing."""
        self.rank = self.world_size = None

    def set_rank(self, rank: int | None, size: Callable[[], int] | None) -> Override:
        """Override the rank.  LayoutError unless it is from 0 to the size, if there is one already, less 1."""
        if rank is not None:
            _check("rank", rank, 0, size() if size is not None else None)
        before, self.rank = self.rank, rank
        return Override(lambda: setattr(self, "rank", before))

    def set_world_size(self, world_size: int | None) -> Override:
        """Override the size.  LayoutError unless it is at least 1."""
        if world_size is not None:
            _check("world size", world_size, 1, None)
        before, self.world_size = self.world_size, world_size
        return Override(lambda: setattr(self, "world_size", before))

    def checked_rank(self, size: Callable[[], int] | None) -> int:
        """The rank, compared once more with the size: that may have been set since."""
        assert self.rank is not None
        _check("rank", self.rank, 0, size() if size is not None else None)
        return self.rank


def _check(what: str, value: int, least: int, below: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (below is not None and value >= below):
        bounds = f"at least {least}" if below is None else f"from {least} to {below - 1}"
        raise LayoutError(f"the model parallel {what} can be overridden by {bounds}, not by {value!r}; None ends it")
