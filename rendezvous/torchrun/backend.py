"""Where torch's dynamic rendezvous keeps its state: one key in the store, whose revision is the fencing token."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend

from reknit.rendezvous.errors import StoreError, StoreUnavailable
from reknit.rendezvous.store.protocol import Compare, Entry, Store, TransactionResult
from reknit.rendezvous.torchrun import BACKEND
from reknit.rendezvous.torchrun.leasing import Leasing

_log = logging.getLogger(__name__)

_HEADER = b"reknit torchrun state 1\n"


class StateBackend(RendezvousBackend):
    """The state of one rendezvous, at `key`; it vanishes when no agent has written it for about `ttl` seconds.

    `patience` is how many seconds an operation may wait for the store; it may be changed at any time.  A store that
    has lost the state (its disk, or to a time in which no agent reached it) gets it back from the first who knew it.
    So does one that holds something else in its place: `readable` says whether bytes are a state.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        ttl: float,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
        readable: Callable[[bytes], bool] = lambda _: True,
    ) -> None:
        self._store, self._key, self._clock, self._readable = store, key, clock, readable
        self._leasing = Leasing(store, ttl, clock)
        self._known: bytes | None = None  # the newest state that was seen
        self.patience = patience

    @property
    def name(self) -> str:
        """As torchrun is asked for it."""
        return BACKEND

    def get_state(self) -> tuple[bytes, int] | None:
        """The state and its token, None if there is none.

        Raises RendezvousConnectionError, or RendezvousStateError for a state that is none, where none was known before.
        """
        deadline = self._clock() + self.patience
        try:
            return self._read(deadline)
        except StoreError as error:
            raise RendezvousConnectionError(str(error)) from error

    def set_state(self, state: bytes, token: int | None = None) -> tuple[bytes, int, bool] | None:
        """Write the state if the stored one still has this token (None: if there is none).  Errors as `get_state`.

        Returns what is stored then, its token, and whether it is ours; None if there is no state to begin with.
        """
        deadline = self._clock() + self.patience
        try:
            revision = self._write(state, token or 0, deadline)
            if revision is not None:
                self._known = state
                return state, revision, True
            found = self._read(deadline)
        except StoreError as error:
            raise RendezvousConnectionError(str(error)) from error
        return None if found is None else (*found, False)

    def _decode(self, entry: Entry) -> bytes | None:
        """The state in `entry`, None if there is none."""
        state = entry.value.removeprefix(_HEADER)
        return state if entry.value.startswith(_HEADER) and self._readable(state) else None

    def _left(self, deadline: float) -> float:
        return max(0.001, deadline - self._clock())

    def _read(self, deadline: float) -> tuple[bytes, int] | None:
        entry = self._store.get(self._key, timeout=self._left(deadline))
        state = None if entry is None else self._decode(entry)
        if entry is not None and state is not None:
            self._known = state
            return state, entry.mod_revision
        if self._known is None:
            if entry is None:
                return None
            raise RendezvousStateError(
                f"what lies at {self._key} is no state of a rendezvous: delete that key, or use another --rdzv-id"
            )
        _log.warning("etcd has %s the rendezvous at %s: putting back what is known", _lost(entry), self._key)
        revision = self._write(self._known, entry.mod_revision if entry else 0, deadline)
        return self._read(deadline) if revision is None else (self._known, revision)

    def _write(self, state: bytes, revision: int, deadline: float) -> int | None:
        """Replace what was written at `revision` (0: nothing); returns the new revision, None if it has changed."""
        value = _HEADER + state
        while True:
            result = self._attempt(value, revision, deadline)
            if result is not None:
                return result.revision if result.succeeded else self._ours(value, deadline)

    def _attempt(self, value: bytes, revision: int, deadline: float) -> TransactionResult | None:
        """Write once; None if that has to be tried again."""
        try:
            compare = Compare.mod_revision(self._key, revision)
            return self._leasing.write([compare], {self._key: value}, self._left(deadline))
        except StoreUnavailable:
            if self._clock() >= deadline:
                raise
            self._store.get(self._key, timeout=self._left(deadline))  # waits until it answers again, or raises
            return None

    def _ours(self, value: bytes, deadline: float) -> int | None:
        """The revision at which a write whose answer was lost has been applied all the same, None if it was not.

        Another agent may have written the very same (two who close the rendezvous): then what we wanted is there too.
        """
        entry = self._store.get(self._key, timeout=self._left(deadline))
        return entry.mod_revision if entry is not None and entry.value == value else None


def _lost(entry: Entry | None) -> str:
    return "lost" if entry is None else "something else in the place of"
