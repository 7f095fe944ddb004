"""What an agent does with what comes from its workers: they attach, report, tell of events, and die.

What a report makes of a member's record is decided by pure functions (`fleet`, `stalls`); here it is done.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.parts import View
from reknit.rendezvous.records import Member
from reknit.runtime.fleet import Worker, after_report, new_member, read_event, why_not
from reknit.runtime.ipc.server import Peer, PeerEvent
from reknit.runtime.known import Known
from reknit.runtime.plans import Plans
from reknit.runtime.stalls import Watch, after_event, after_pulse, after_words, read_pulse
from reknit.runtime.station import Station
from reknit.runtime.supervisor.supervisor import Exited, Failed, Started

log = logging.getLogger("reknit.agent")

LINGERS = 10  # times the hang time: so long a script that gave up by an exception may take to save what it has, and end
RETURN_SECONDS = 2.0  # an agent that is back hears of its living workers within milliseconds


class Attending:
    """Takes in what workers, and their processes, do."""

    def __init__(self, station: Station, plans: Plans) -> None:
        self._station, self._plans = station, plans

    # ---------------------------------------------------------------- workers of an earlier life of this agent

    def expect(self, members: Sequence[Member], now: float) -> None:
        """This agent is back, and its records stand: whoever lives attaches again by itself, and soon."""
        for member in members:
            if not member.dead:
                worker = Worker(member.worker_id, len(self._station.workers), member=member)
                worker.expected, worker.finished = now + RETURN_SECONDS, member.finished
                self._station.workers[member.worker_id] = worker

    def next_timer(self) -> float | None:
        """When to give up the next worker that does not come, or does not go (monotonic)."""
        due = (moment for w in self._station.workers.values() for moment in (w.expected, w.ends_by))
        return min((moment for moment in due if moment is not None), default=None)

    def run_timers(self, now: float) -> None:
        """Who has not come back died while this agent was away; who has given up, and stays, hangs in its end."""
        for worker in self._station.workers.values():
            if worker.ends_by is not None and worker.ends_by <= now:
                worker.ends_by = None
                if self._station.keeper is not None and worker.peer is not None:
                    log.warning("%s has given up, but its process does not end: it is ended", worker.worker_id)
                    self._station.keeper.kill(worker, self._station.config.ladder.kill_delay)
            if worker.expected is not None and worker.expected <= now:
                worker.expected, worker.lost_at = None, now
                self._station.session.bury(worker.worker_id)
                pid = worker.member.pid if worker.member is not None else None
                cause = f"it did not come back within {RETURN_SECONDS:g} s of its agent"
                self._station.event("worker_died", worker.worker_id, pid=pid, cause=cause)
                log.warning("%s is gone: %s", worker.worker_id, cause)

    # ---------------------------------------------------------------- a worker's life

    def attach(self, item: PeerEvent) -> None:
        """A process has connected."""
        peer, station = item.peer, self._station
        worker = station.workers.get(peer.worker_id)
        if station.keeper is None and worker is None:  # whoever comes to the socket is a worker of ours
            worker = Worker(peer.worker_id, len(station.workers))
        try:
            before = None if worker is None else worker.member
            config, kept = station.config, station.keeper is not None
            team = config.workers if kept else 0
            member = new_member(peer, config.agent, socket.gethostname(), config.address, team, before)
            why = "this agent has no such worker" if worker is None else why_not(worker, peer, kept)
        except RecordError as error:
            why = str(error)
            station.server.counters["malformed"] += 1
        if worker is None or why:
            self._refuse(peer, why)
            return
        station.workers[peer.worker_id] = worker
        if station.keeper is None:
            worker.forget_process()
            worker.pid = peer.pid
        now = time.monotonic()
        worker.peer, worker.member, worker.attached_once, worker.finished = peer, member, True, member.finished
        worker.watch, worker.known, worker.left_at = Watch(now), Known(now), now
        if member.dead:
            self._note_gone(worker, now)
        trains = member.ready > member.left
        station.recording.attached(worker.worker_id, peer.pid, trains, now)
        station.event("attached", worker.worker_id, pid=peer.pid, incarnation=peer.incarnation)
        if station.finished and station.head is not None:  # it came too late: as a member it would begin the job anew
            self._plans.send_view(worker, View(station.head))
            return
        station.session.set_member(member)
        if member.coordinate is not None and station.head is not None:  # it was here before, and has missed something
            self._plans.ask_view(worker, station.head)

    def _refuse(self, peer: Peer, why: str) -> None:
        log.error("%s (process %d) is refused: %s", peer.worker_id, peer.pid, why)
        self._station.server.send(peer, {"type": "refused", "reason": why})
        self._station.server.drop(peer, why)

    def hear(self, item: PeerEvent) -> None:
        """A worker has said something."""
        station = self._station
        worker = station.workers.get(item.peer.worker_id)
        if worker is None or worker.peer != item.peer or worker.member is None:
            return  # it was dropped, and this was on its way
        kind = str(item.message.get("type"))
        worker.watch.heard = time.monotonic()
        if kind == "gone":  # it will exit; the others need not wait until it has
            self._note_gone(worker, worker.watch.heard)
            station.session.bury(worker.worker_id)
        try:
            member = self._after(worker, worker.member, kind, item.message)
        except RecordError as error:
            log.error("%s is dropped: %s", worker.worker_id, error)
            station.server.counters["malformed"] += 1
            station.server.drop(item.peer, str(error))
            return
        if not worker.gone:
            worker.finished = member.finished
            self.declare(worker, member)

    def _note_gone(self, worker: Worker, now: float) -> None:
        """It takes no part any more, and will soon exit."""
        worker.gone, worker.ends_by = True, now + LINGERS * self._station.config.ladder.hang

    def _after(self, worker: Worker, member: Member, kind: str, message: Mapping[str, Any]) -> Member:
        """The record after a message."""
        now, recording = worker.watch.heard, self._station.recording
        member = after_words(member, kind)
        if kind == "event":
            told = self._hear_event(worker, message)
            return member if told is None else after_event(member, told, worker.watch)
        if kind == "pulse":
            pulse = read_pulse(message, worker.worker_id)
            worker.known.see_pulse(pulse, now)
            recording.pulse(worker.worker_id, pulse.phase, pulse.kind, pulse.seconds, now)
            return after_pulse(member, pulse, worker.watch, now)
        if kind == "left":
            worker.left_at = now
        elif kind == "built":
            recording.built(worker.worker_id, now)
        return after_report(member, message)

    def declare(self, worker: Worker, member: Member) -> None:
        """Put a worker's record right."""
        if member != worker.member:
            worker.member = member
            self._station.session.set_member(member)

    def _hear_event(self, worker: Worker, message: Mapping[str, Any]) -> str | None:
        """Pass an event on; its name, or None if it is none."""
        told, station = read_event(message), self._station
        if told is None:
            log.warning("%s told of an event that is none: %.200r", worker.worker_id, message)
            return None
        station.events.write(told.event, worker.worker_id, told.generation, told.fields, told.moment)
        station.recording.told(told.event, worker.worker_id, told.generation, told.fields, told.moment)
        worker.known.see_event(told.event, told.fields, worker.watch.heard)
        step = told.fields.get("step")
        if told.event == "checkpoint" and told.fields.get("complete") is True:
            log.info("the checkpoint of step %s is complete", step)
        elif told.event == "restored":
            log.info("%s is back at step %s, from the checkpoint", worker.worker_id, step)
        if told.event == "committed" and isinstance(step, int):
            # What the workers of several hosts logged is not all here: no sums of it then.
            own = {k: v for k, v in told.fields.items() if isinstance(v, float)} if station.config.standalone else {}
            station.progress.committed(step, own)
            for generation, seconds in station.gaps.committed(told.fields, told.moment):
                station.session.note_gap(generation, seconds, self._has_the_first(generation))
        return told.event

    def _has_the_first(self, generation: int) -> bool:
        """Whether the first worker of the first stage that was there before is here: some agent has it."""
        here = [w for w in self._station.workers.values() if w.member is not None and w.member.coordinate == 0]
        for worker in here:
            peers = worker.view.peers if worker.view is not None else ()
            stayed = (peer.place.name for peer in peers if peer.place.since < generation)
            if next(stayed, None) == worker.name:
                return True
        return False

    def lose(self, item: PeerEvent) -> None:
        """The kernel says that the worker is gone: first of all the others must hear of it."""
        station = self._station
        worker = station.workers.get(item.peer.worker_id)
        if worker is None or worker.peer != item.peer:
            return
        if station.finished:
            station.session.remove_member(worker.worker_id)
        else:  # also one that said that it has finished: it would have waited for the others
            station.session.bury(worker.worker_id)
        worker.lost_at = now = time.monotonic()
        station.recording.detached(worker.worker_id, now)
        worker.peer = None
        drain = worker.drain
        if station.keeper is not None:
            if worker.exited is not None:
                station.keeper.handle(worker.exited, station.finished)
            else:
                ends_well = worker.finished or (drain is not None and drain.allowed)
                station.keeper.kill(worker, station.config.ladder.kill_delay if ends_well else 0)
        elif drain is not None and drain.allowed:
            station.event("drained", worker.worker_id, pid=item.peer.pid, seconds=now - drain.since)
            log.info("%s has drained, in %.1f s", worker.worker_id, now - drain.since)
        elif not worker.finished and not station.finished:
            station.event("worker_died", worker.worker_id, pid=item.peer.pid, cause="its connection closed")
            log.warning("%s is gone: its connection closed", worker.worker_id)
        if station.keeper is None:
            worker.drain = None

    def handle_process(self, item: Started | Exited | Failed) -> None:
        """The supervisor has something to say of a process."""
        assert self._station.keeper is not None
        worker = self._station.workers[item.worker_id]
        if isinstance(item, Exited) and worker.peer is not None:
            worker.exited = item  # what it said before it died is still on its way, and comes before its "closed"
            return
        self._station.keeper.handle(item, self._station.finished)
