"""torch's dynamic rendezvous, with what a host's death, an outage of etcd and clocks that differ need beside it.

It builds on the parts of `DynamicRendezvousHandler`, some of which torch calls private; each is named here, and in no
other module: `_sanitize`, `_mark_rendezvous_complete`, `_wrap_store`, `_get_store`, `_get_world`, and the
two attributes that keep a store across rounds.

Who is dead, and when our own heartbeat is due, goes by this host's monotonic clock.  How long a round waits for more
than `min_nodes` (last_call) still goes by the hosts' wall clocks: where they differ it ends sooner or later.  Once all
have met, an agent that dies before its first words to the others still makes them wait for the store's time limit.

The state is a pickle, as with torch's c10d: whoever may write below its key in etcd can run code on all hosts.
"""

from __future__ import annotations

import logging
import math
import pickle
import time
import uuid
from datetime import datetime, timedelta, timezone

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousInfo
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousSettings,
    _BackendRendezvousStateHolder,
    _DistributedRendezvousOpExecutor,
    _NodeDesc,
    _RendezvousState,
)

from reknit.rendezvous.store.protocol import Store
from reknit.rendezvous.torchrun.agent_store import AgentStore
from reknit.rendezvous.torchrun.backend import StateBackend
from reknit.rendezvous.torchrun.meeting import NotMetError, meet
from reknit.rendezvous.torchrun.observing import Observed
from reknit.rendezvous.torchrun.ranks import steady_ranks

_log = logging.getLogger(__name__)

POLL_SECONDS = 3.0  # for the store, while an agent only watches its workers: whose deaths it would notice later
_RANKS = "reknit_ranks"  # the newest round's ranks, carried along in torch's state
_ROUND = "reknit_round"  # beside it: a word that no other round of any job has


class Handler(DynamicRendezvousHandler):
    """One agent's part in the rendezvous; closes `store` at the end.

    `patience`: seconds that joining, and saying that the job has ended, wait for a store that is away.
    """

    def __init__(
        self,
        node: _NodeDesc,
        settings: RendezvousSettings,
        backend: StateBackend,
        agent_store: AgentStore,
        store: Store,
        patience: float,
    ) -> None:
        holder = _StateHolder(backend, settings, node)
        super().__init__(node, settings, backend.name, agent_store, holder)
        self._op_executor = _Executor(node, holder, settings)
        self._backend, self._base_store, self._patience = backend, store, patience
        self._away = False

    def next_rendezvous(self) -> RendezvousInfo:
        """See base class.  The workers of each round get a store of their own, served by the agent of rank 0."""
        self._backend.patience = self._patience
        # Kept across rounds, workers would read what those of earlier rounds have written, or look for a lost host.
        self._shared_tcp_store_server = None
        self._bootstrap_store_info = None
        try:
            while (found := self._attempt()) is None:
                pass
            return found
        finally:
            self._backend.patience = POLL_SECONDS

    def _attempt(self) -> RendezvousInfo | None:
        """Take part in one round; None if one of its agents was lost at its beginning."""
        try:
            return super().next_rendezvous()
        except NotMetError as error:
            _log.warning("rendezvous %s: %s", self.settings.run_id, error)
            return None

    def _get_world(self) -> tuple[int, int]:
        """This agent's rank and how many there are, as the round was completed: one may have left since."""
        ranks = _ranks(self._state_holder.state)
        return ranks[self._this_node], len(ranks)

    def _get_store(self) -> dist.Store:
        """The round's own part of the store, once all its agents are there; raises NotMetError."""
        store, word = super()._get_store(), _word(self._state_holder.state)
        rank, size = self._get_world()
        meet(store, rank, size, lambda: self._lost(word), self.settings.timeout.join.total_seconds())
        return store

    def _lost(self, word: str) -> bool:
        """Whether the round of this word lacks one of its agents by now, or is over."""
        with self._heartbeat_lock:
            self._state_holder.sync()
            state = self._state_holder.state
        return state.closed or _word(state) != word or not _ranks(state).keys() <= state.participants.keys()

    def _wrap_store(self, store: dist.Store) -> dist.Store:
        """The round's own part of `store`.

        torch's prefix has only the number of the round.  The state of a job that has ended vanishes long before what
        its agents wrote, and a new job under its id begins at round 0 again: it would read the old one's.
        """
        return dist.PrefixStore(_word(self._state_holder.state), super()._wrap_store(store))

    def num_nodes_waiting(self) -> int:
        """See base class.  While the store is away the membership stands still, and the workers go on."""
        try:
            waiting = super().num_nodes_waiting()
        except RendezvousConnectionError as error:
            if not self._away:
                _log.warning("the rendezvous stands still, the workers go on: %s", error)
            self._away = True
            return 0
        if self._away:
            _log.warning("the rendezvous goes on: etcd answers again")
        self._away = False
        return waiting

    def shutdown(self) -> bool:
        """See base class."""
        self._backend.patience = min(self._patience, self.settings.timeout.close.total_seconds())
        try:
            return super().shutdown()
        finally:
            self._base_store.close()


class _StateHolder(_BackendRendezvousStateHolder):
    """Judges by a monotonic clock whether an agent is dead, and whether `node`, its own, has to send a heartbeat."""

    def __init__(self, backend: StateBackend, settings: RendezvousSettings, node: _NodeDesc) -> None:
        super().__init__(backend, settings)
        self._node = node
        self._observed: Observed[_NodeDesc] = Observed(2 * settings.keep_alive_interval.total_seconds())
        self._own: Observed[_NodeDesc] = Observed(math.inf)  # its real age, whatever the others excuse

    def _sanitize(self) -> None:
        state = self._state
        written = dict(state.last_heartbeats)
        monotonic = time.monotonic()
        ages = self._observed.ages(written, monotonic)
        own = self._own.ages({node: beat for node, beat in written.items() if node == self._node}, monotonic)
        now = datetime.now(timezone.utc)
        state.last_heartbeats = {node: now - timedelta(seconds=age) for node, age in ages.items()}
        super()._sanitize()
        state.last_heartbeats = {node: written[node] for node in state.last_heartbeats}
        if self._node in state.last_heartbeats:
            # torch sends the next one when this wall time is old enough: after the clock was set back, for long not.
            state.last_heartbeats[self._node] = now - timedelta(seconds=own[self._node])


class _Executor(_DistributedRendezvousOpExecutor):
    """Lets hosts that stay keep their ranks, and names the round."""

    def _mark_rendezvous_complete(self) -> None:
        super()._mark_rendezvous_complete()
        state = self._state
        state.participants = steady_ranks(sorted(state.participants), _ranks(state))
        setattr(state, _RANKS, dict(state.participants))
        setattr(state, _ROUND, uuid.uuid4().hex)


def is_state(pickled: bytes) -> bool:
    """Whether torch can read this as the state of a rendezvous.  Runs what is in it: see the module's docstring."""
    try:
        return isinstance(pickle.loads(pickled), _RendezvousState)
    except Exception:  # pickle raises nearly anything for bytes that are cut off, or name what there is not
        return False


def _ranks(state: _RendezvousState) -> dict[_NodeDesc, int]:
    """The newest round's, as it was completed."""
    ranks: dict[_NodeDesc, int] = getattr(state, _RANKS, {})
    return ranks


def _word(state: _RendezvousState) -> str:
    """The newest round's."""
    return str(getattr(state, _ROUND, ""))
