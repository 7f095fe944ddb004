"""The agent: the sidecar that owns the lease and the records, watches plans, and speaks with this host's workers.

One loop takes everything that happens, one thing after the other: what workers say, what the supervisor sees of their
processes, what the session hears from the store, and the clock.  What to do is decided by pure functions (`fleet`,
`stalls`, `suspicion`, `restart`, and the leader's `plan`); it is done by the loop's parts: `attending`, `plans`,
`vigil` and `draining`, which share a `station`.  No torch, and no fork: this process holds gRPC's threads.
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from reknit.rendezvous.accusation import AgentRecord
from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.leader.leader import Leader
from reknit.rendezvous.plan import Patience
from reknit.rendezvous.session.candidacy import Timing
from reknit.rendezvous.session.events import (
    Accused,
    Assigned,
    Deposed,
    DrainAsked,
    Elected,
    HeadSeen,
    JobRead,
    LookedAt,
    ViewFetched,
)
from reknit.rendezvous.session.session import Session
from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.protocol import Store
from reknit.runtime import logs
from reknit.runtime.aftermath import Aftermath, ended
from reknit.runtime.attending import Attending
from reknit.runtime.config import EXIT_AGAIN, EXIT_FAILED, Config
from reknit.runtime.draining import Draining, drain_signals
from reknit.runtime.events import EventLog
from reknit.runtime.identity import look, node, why_twin
from reknit.runtime.ipc.server import PeerEvent
from reknit.runtime.judging import Judge, Judged
from reknit.runtime.keeper import OVERDUE
from reknit.runtime.measuring import Measuring
from reknit.runtime.operating.opening import connection
from reknit.runtime.plans import Plans, worker_settings
from reknit.runtime.probes import Probes
from reknit.runtime.serving import Serving
from reknit.runtime.station import Station
from reknit.runtime.status_source import StatusSource
from reknit.runtime.supervisor.supervisor import Exited, Failed, Started
from reknit.runtime.title import name_process
from reknit.runtime.vigil import Vigil

log = logging.getLogger("reknit.agent")

STOPS = (signal.SIGINT, signal.SIGHUP)
# Seconds for whom a report names to be shown to live, or not: after an outage of the store an agent is not asked before
# everybody has had a second to come back.
SHOWN_TO_LIVE = 2.0
HOLDERS = 60  # times `detect`: so long a leader waits for a silent host with which the job's state would be lost


class TwinError(ReknitError):
    """Another agent of this name runs here."""


class _Signal:
    """Somebody sent this agent a signal: it shall end, or let its workers leave."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Turn:
    """All that had come in before this was put in has been taken in: what is due may be done."""


def run(config: Config) -> int:
    """Run the job's part on this host to its end; returns the exit code.  Raises ReknitError if it can't begin."""
    name_process("reknit-agent")
    logs.set_up(config.log_json)
    events = EventLog(config.events)
    etcd = EmbeddedEtcd(config.data_folder, keep=True) if config.standalone else None
    folder = Path(tempfile.mkdtemp(prefix="reknit-"))
    try:
        if etcd is not None:
            etcd.start()
        endpoints, access = etcd.endpoint if etcd is not None else config.etcd or "", config.access
        with connection(endpoints, access) as store:
            path = config.socket or folder / "agent.sock"
            if config.once and (head := ended(store, config.job)) is not None:
                return Aftermath(config, head, store, path).run()
            return Agent(config, store, events, path).run()
    finally:
        if etcd is not None:
            etcd.stop()
        shutil.rmtree(folder, ignore_errors=True)
        events.close()


class Agent:
    """The loop and what it holds.  `run` opens everything and closes it again."""

    def __init__(self, config: Config, store: Store, events: EventLog, path: Path) -> None:
        self._config = config
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._awaits_its_turn = False
        ladder, put = config.ladder, self._inbox.put
        timing = Timing(ttl=ladder.lease, keepalive=ladder.keepalive, answer=ladder.answer)
        self._session = Session(store, config.job, config.agent, put, timing)
        patience = Patience(
            ladder.join_window, ladder.report_grace, answer=SHOWN_TO_LIVE, holders=HOLDERS * ladder.detect
        )
        self.station = station = Station(config, self._session, events, path, put)
        self._leader = Leader(
            store,
            config.job,
            self._session,
            patience=patience,
            detect=ladder.detect,
            judge=Judge(put),
            witness=station.standing.see,
        )
        Measuring(station, self._session, self._leader, store)
        self.plans = Plans(self.station)
        self.attending = Attending(self.station, self.plans)
        self.vigil = Vigil(self.station, self.attending)
        self._drain_signals = drain_signals(config.drain_signal)
        self.draining = Draining(self.station, self.attending)
        self.probes = Probes(self.station, self._session)
        self.serving = Serving(config, station.metrics, self.probes)
        self.serving.pages.status = self._status = StatusSource(store, config.job, config.agent)

    # ---------------------------------------------------------------- from start to end

    def run(self) -> int:
        """Open everything, take things one by one until this host's part has ended, close everything."""
        before = {number: signal.signal(number, self._on_signal) for number in {*STOPS, *self._drain_signals}}
        try:
            self._open()
            while not self._has_ended():
                self._take_one()
        finally:
            self._close()
            for number, handler in before.items():
                signal.signal(number, handler)
        code, reason = self.station.ending or self._ended_by_itself()
        self.station.event("agent_ended", None, code=code, reason=reason)
        if code:
            print(f"reknit: {reason}", file=sys.stderr)
        else:
            log.info("this agent ends: %s", reason)
        return code

    def _ended_by_itself(self) -> tuple[int, str]:
        drains = [worker.drain for worker in self.station.workers.values() if worker.drain is not None]
        if self.station.finished or not (drains or self.station.draining):
            return 0, "the script has finished everywhere"
        if any(drain.overdue and not drain.allowed for drain in drains):
            return 128 + signal.SIGTERM, f"{OVERDUE}: not all workers here could leave in time"
        if self.station.head is not None and self.station.head.stopped:
            return EXIT_AGAIN, f"{self.station.head.reason}; start the job again to go on"
        return 0, "all workers here have drained"

    def _open(self) -> None:
        config, station = self._config, self.station
        station.server.start()  # first: its socket is refused to a second agent, which must not touch the lease
        http = self.serving.start()
        self._take_over()
        self._leader.spec = self._session.propose_spec(config.spec)
        self.plans.settings = worker_settings(config, self._leader.spec)
        station.event(
            "agent_started",
            None,
            pid=os.getpid(),
            http=http,
            agent=config.agent,
            job=config.job,
            pipe=config.spec.axes.pipe,
            model=config.spec.axes.model,
            max_replicas=config.spec.max_replicas,
        )
        log.info("job %s: %d workers here, its page is at http://%s", config.job, len(station.workers), http)
        if config.standalone and config.spec.wanted == 1:
            log.warning("with one replica nobody else holds its state: a killed worker ends the job (--replicas 2)")
        self._session.set_agent(AgentRecord(config.agent, socket.gethostname(), os.getpid(), http, node()))
        if station.keeper is not None:
            station.keeper.open()  # its workers need seconds to come, which the look back may take as well
        self._leader.earlier = self.plans.earlier = self._session.look_back()
        self._session.start()
        self._leader.start()

    def _take_over(self) -> None:
        """An earlier life of this agent may have left its lease standing: its workers are still there, or orphans."""
        known, here = self._session.namesake(), node()
        why = why_twin(known, here, os.getpid(), self._config.job, look(known.pid) if known is not None else None)
        if why:
            raise TwinError(why)
        if self.station.keeper is None:
            self.attending.expect(self._session.adopt(here), time.monotonic())
        elif not self._config.standalone:
            self._session.revoke_earlier(here)

    def _close(self) -> None:
        station = self.station
        if station.keeper is not None:
            station.keeper.close()
        self._leader.close()
        self._status.close()
        self._session.close()
        station.server.close()
        self.serving.close()

    def _has_ended(self) -> bool:
        station = self.station
        if station.ending is not None and (station.deadline is None or station.keeper is None):
            return True
        workers = station.workers.values()
        if station.keeper is None:
            over = station.finished or station.draining is not None
            return over and not any(worker.peer or worker.expected for worker in workers)
        return all(worker.over for worker in workers)

    def _take_one(self) -> None:
        station = self.station
        parts = (station.keeper, self.attending, self.vigil, self.draining)
        due = [station.deadline, *(part.next_timer() for part in parts if part is not None)]
        now = time.monotonic()
        timeout = max(0.0, min([now + 1.0, *(moment for moment in due if moment is not None)]) - now)
        try:
            item = self._inbox.get(timeout=timeout)
        except queue.Empty:
            item = None
        now = time.monotonic()
        self.vigil.turn(now)
        self.probes.turn(now)
        if item is not None:
            self.take(item)
        self._say_how_it_goes(now)
        # What has come in may show that what seems due is not; on a busy host something comes in all the time.
        if isinstance(item, _Turn) or self._inbox.empty():
            self._awaits_its_turn = False
            for part in parts:
                if part is not None:
                    part.run_timers(now)
        elif not self._awaits_its_turn:
            self._awaits_its_turn = True
            self._inbox.put(_Turn())
        if station.deadline is not None and now >= station.deadline:
            station.deadline = None

    def _say_how_it_goes(self, now: float) -> None:
        station = self.station
        workers = [worker for worker in station.workers.values() if worker.peer is not None]
        running = station.head is not None and station.head.replicas > 0
        finished = sum(worker.finished for worker in workers)
        sentence = station.progress.sentence(now, running, len(workers), finished, self.vigil.held_up)
        if sentence is not None and station.ending is None:
            log.info("%s", sentence)

    def _on_signal(self, number: int, frame: object) -> None:
        self._inbox.put(_Signal(number))

    # ---------------------------------------------------------------- one thing

    def take(self, item: object) -> None:
        """Handle one thing that happened; whatever a worker says, or lies in the store, must not end this agent."""
        try:
            self._handle(item)
        except Exception as error:
            log.exception("%.300r could not be handled", item)
            if isinstance(item, PeerEvent):
                self.station.server.counters["malformed"] += 1
                self.station.server.drop(item.peer, f"what it said could not be handled: {error}")
            elif isinstance(item, Started | Exited | Failed):  # nobody else will ever answer it
                self.station.end(EXIT_FAILED, f"{item.worker_id} cannot be kept running: {error}")

    def _handle(self, item: object) -> None:
        match item:
            case PeerEvent(kind="opened"):
                self.attending.attach(item)
                self.draining.attached(item.peer)
            case PeerEvent(kind="message", message={"type": "drain"}):
                self.draining.asked_by_worker(item.peer, str(item.message.get("signal")))
            case PeerEvent(kind="message"):
                self.attending.hear(item)
            case PeerEvent(kind="closed"):
                self.attending.lose(item)
            case Started() | Exited() | Failed():
                self.attending.handle_process(item)
            case HeadSeen(head):
                self._leader.see(head)
                self.plans.see(head)
            case ViewFetched():
                self.plans.place(item)
            case Assigned():
                self.plans.assign(item)
            case Accused(accusation):
                self.vigil.answer(accusation)
            case LookedAt():
                self.vigil.show(time.monotonic())
            case Judged():
                self.vigil.tell(item)
            case Elected(revision):
                self._leader.lead(revision)
            case Deposed():
                self._leader.follow()
            case DrainAsked(order):
                self.draining.ask(order)
            case JobRead():
                self.draining.see(item)
            case _Signal(number=number) if number in self._drain_signals:
                self.draining.ask_all(number)
            case _Signal():
                self.station.end(128 + item.number, f"stopped by {signal.Signals(item.number).name}")
            case _:
                pass
