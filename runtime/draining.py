"""What an agent does when its workers shall leave: it marks them, and lets each go when nobody needs it any more.

Who asks: a signal to this agent (all its workers), a signal to a worker, or an order in the store (`reknit drain`).
The planner then gives them no place at the next step boundary; when a worker may end, `rendezvous.draining` decides.
A worker that is still needed when its time is up is ended all the same, and is a loss.
"""

from __future__ import annotations

import logging
import signal
import time
from dataclasses import replace

from reknit.rendezvous.draining import DrainOrder, may_end
from reknit.rendezvous.session.events import JobRead
from reknit.runtime.attending import Attending
from reknit.runtime.fleet import Drain, Worker
from reknit.runtime.ipc.server import Peer
from reknit.runtime.keeper import OVERDUE
from reknit.runtime.station import Station

log = logging.getLogger("reknit.agent")

LOOK = 0.2  # seconds between two looks at the job while somebody may be about to be let go
SPARE = 0.5  # a worker without a place ends so long after the leader could read that it must get none
PATIENT = 1.0  # seconds for the others who lost their place to leave, so that this end costs no generation
ECHO = 1.0  # seconds within which a second SIGTERM is the same one
EXPLAIN = 2.0  # seconds after which it is said why a worker still stays


def drain_signals(name: str | None) -> frozenset[int]:
    """The signals upon which workers leave: SIGTERM, and one that was chosen (`USR1`, say)."""
    return frozenset({signal.SIGTERM} | ({signal.Signals[f"SIG{name}"]} if name is not None else set()))


class Draining:
    """The workers here that were asked to leave."""

    def __init__(self, station: Station, attending: Attending) -> None:
        self._station, self._attending = station, attending
        self._deadline: float | None = None  # of all of them
        self.asked_at = 0.0  # when a signal first asked this agent (monotonic)
        self._look_at = 0.0

    # ---------------------------------------------------------------- who asks

    def ask_all(self, number: int) -> None:
        """A signal asks this agent's workers to leave; a second SIGTERM asks no longer.

        Wrappers and process groups deliver one word twice (`timeout`, a shell, a batch system): that is no second one.
        """
        station, name = self._station, signal.Signals(number).name
        if station.config.standalone and not self._can_be_kept():
            if number == signal.SIGTERM:
                station.end(128 + number, f"stopped by {name}")
            else:
                log.warning(
                    "%s is ignored: in a standalone job there is nobody to go on without these workers, and the script "
                    "keeps no checkpoints (job.checkpoint)",
                    name,
                )
        elif station.draining is None:
            seconds = station.config.drain_deadline
            station.recording.notice(name)
            self.asked_at = time.monotonic()
            station.draining, self._deadline = f"{name} to this agent", self.asked_at + seconds
            log.info("draining: %s; SIGTERM again stops at once", station.draining)
            if station.keeper is not None:
                station.keeper.drain_all()
            for worker in station.workers.values():
                self._begin(worker, station.draining, seconds)
        elif number == signal.SIGTERM and time.monotonic() > self.asked_at + ECHO:
            station.end(128 + number, f"stopped by {name}, while its workers were draining")

    def _can_be_kept(self) -> bool:
        """Whether the job's state can go into a last checkpoint, so that all of its workers may leave."""
        members = [w.member for w in self._station.workers.values() if w.member is not None and not w.member.dead]
        trains = self._station.head is not None and self._station.head.replicas > 0
        return trains and any(m.ready for m in members) and all(m.keeps for m in members if m.ready)

    def ask(self, order: DrainOrder) -> None:
        """An order lies in the store."""
        worker = self._station.workers.get(order.name.worker_id)
        if worker is not None and worker.name == order.name:
            self._begin(worker, order.by or "an order", order.seconds)

    def asked_by_worker(self, peer: Peer, name: str) -> None:
        """A worker was sent a signal."""
        worker = self._station.workers.get(peer.worker_id)
        if worker is None or worker.peer != peer:
            return
        self._station.recording.notice(name)
        if self._station.ending is not None:
            self._station.tell_to_exit(worker, self._station.ending[1])
        else:
            self._begin(worker, f"{name} to it", self._station.config.drain_deadline)

    def attached(self, peer: Peer) -> None:
        """A worker has come, or is back: perhaps to an agent that was asked to drain, or to another than it was."""
        worker = self._station.workers.get(peer.worker_id)
        if worker is None or worker.peer != peer or worker.member is None:
            return
        if self._deadline is not None and self._station.draining is not None:
            self._begin(worker, self._station.draining, max(0.0, self._deadline - time.monotonic()))
        elif worker.member.draining:
            self._begin(worker, "as before this agent's start", self._station.config.drain_deadline)

    def _begin(self, worker: Worker, by: str, seconds: float) -> None:
        """Mark a worker; who asks a second time can only shorten the time."""
        now = time.monotonic()
        if worker.over or self._station.finished:
            return
        if worker.drain is None:
            worker.drain = Drain(by, now, now + seconds)
            self._station.event("draining", worker.worker_id, pid=worker.pid, by=by, seconds=seconds)
            log.info("%s drains (%s): it leaves at a step boundary, within %.0f s", worker.worker_id, by, seconds)
        worker.drain.deadline = min(worker.drain.deadline, now + seconds)
        if worker.member is not None and not worker.gone:
            self._attending.declare(worker, replace(worker.member, draining=True))

    # ---------------------------------------------------------------- as time passes

    def next_timer(self) -> float | None:
        """When something will be due (monotonic)."""
        drains = [w.drain for w in self._station.workers.values() if w.drain is not None and not w.over]
        due = [drain.deadline for drain in drains if not drain.overdue]
        due += [self._look_at] * any(drain.open for drain in drains)
        return min(due, default=None)

    def run_timers(self, now: float) -> None:
        """Look whether somebody may go, and end those whose time is up."""
        workers = [w for w in self._station.workers.values() if w.drain is not None and not w.over]
        for worker in workers:
            self._expire(worker, now)
        if now < self._look_at:
            return
        self._look_at = now + LOOK
        waiting = [w for w in workers if w.drain is not None and w.drain.open and w.peer is not None]
        if any(not self._is_placed(w) for w in waiting):
            self._station.session.request_job()
        for worker in waiting:
            self._explain(worker, now)

    def _is_placed(self, worker: Worker) -> bool:
        return worker.view is not None and worker.view.replica is not None

    def see(self, read: JobRead) -> None:
        """The job as it stands: let those go whom nobody needs any more."""
        now = time.monotonic()
        if (read.plan.generation if read.plan is not None else 0) < self._station.generation:
            return  # the store has lost its data: by what stands there now a last holder would look like nobody
        for worker in self._station.workers.values():
            drain = worker.drain
            if drain is None or not drain.open or worker.name is None or worker.peer is None:
                continue
            if worker.member is not None and worker.member.ready == 0 and not self._knows(now - drain.since):
                continue
            if not may_end(read.plan, read.members, worker.name, patient=False):
                drain.free_since = None
                continue
            drain.free_since = now if drain.free_since is None else drain.free_since
            if now - drain.free_since > PATIENT or may_end(read.plan, read.members, worker.name):
                self._let_go(worker, drain)

    def _knows(self, seconds: float) -> bool:
        """Whether the leader has surely read that this worker gets no place any more."""
        return seconds > SPARE and self._station.session.written

    def _let_go(self, worker: Worker, drain: Drain) -> None:
        drain.allowed = worker.gone = True
        log.info("%s is not needed any more, and may end", worker.worker_id)
        self._station.session.dismiss(worker.worker_id)
        if worker.peer is not None:
            self._station.server.send(worker.peer, {"type": "drained", "by": drain.by})

    def _explain(self, worker: Worker, now: float) -> None:
        drain, view = worker.drain, worker.view
        if drain is None or drain.explained or now - drain.since < EXPLAIN or view is None or view.replica is None:
            return
        drain.explained = True
        if view.head.closing:
            why = "the job's last checkpoint is not complete yet"
        elif len(view.peers) < 2:
            why = "nobody else holds the state of its coordinate"
        else:
            why = "the job needs it until others can go on"
        left = max(0.0, drain.deadline - now)
        log.warning("%s stays for now, at most %.0f s more: %s", worker.worker_id, left, why)

    def _expire(self, worker: Worker, now: float) -> None:
        drain, station = worker.drain, self._station
        if drain is None or drain.overdue or now < drain.deadline:
            return
        drain.overdue = True
        log.warning("%s is ended: %s", worker.worker_id, OVERDUE)
        if station.keeper is not None:
            station.keeper.kill(worker, 0)
        elif worker.peer is not None:
            peer = worker.peer
            station.tell_to_exit(worker, OVERDUE, forced=True)
            station.session.bury(worker.worker_id)
            worker.gone, worker.peer = True, None
            if not drain.allowed:
                station.event("worker_died", worker.worker_id, pid=peer.pid, cause=OVERDUE)
        if station.draining is not None and not drain.allowed:
            station.end(128 + signal.SIGTERM, f"{OVERDUE}: not all workers could leave in time")
