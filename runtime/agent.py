"""The agent: the sidecar that owns the lease and the records, watches plans, and speaks with this host's workers.

One loop takes everything that happens, one thing after the other: what workers say, what the supervisor sees of their
processes, what the session hears from the store, and the clock.  What to do is decided by pure functions (`fleet`,
`restart`, and the leader's `plan`); here it is done.  No torch, and no fork: this process holds gRPC's threads.
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
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from reknit.health.metrics import Metrics
from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.leader.leader import Leader
from reknit.rendezvous.parts import Head, View, encode_view
from reknit.rendezvous.plan import Patience
from reknit.rendezvous.records import FINISHED, LOST, Spec
from reknit.rendezvous.session.candidacy import Timing
from reknit.rendezvous.session.events import Assigned, Deposed, Elected, HeadSeen, ViewFetched
from reknit.rendezvous.session.session import Session
from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.rendezvous.store.protocol import Store
from reknit.runtime import logs
from reknit.runtime.config import EXIT_FAILED, EXIT_STATE_LOST, Config
from reknit.runtime.events import EventLog
from reknit.runtime.fleet import Worker, after_report, new_member, read_event, why_not
from reknit.runtime.ipc.server import Peer, PeerEvent, Server
from reknit.runtime.keeper import Keeper, environment_of_workers
from reknit.runtime.progress import Progress
from reknit.runtime.settings import WorkerSettings
from reknit.runtime.supervisor.supervisor import Exited, Failed, Started

log = logging.getLogger("reknit.agent")

CONNECT_SECONDS = 10.0  # for etcd to be there at the start


class _Stop:
    """Somebody asked this agent to end."""

    def __init__(self, number: int) -> None:
        self.number = number


def run(config: Config) -> int:
    """Run the job's part on this host to its end; returns the exit code.  Raises ReknitError if it can't begin."""
    logs.set_up(config.log_json)
    events = EventLog(config.events)
    etcd = EmbeddedEtcd(config.data_folder) if config.standalone else None
    folder = Path(tempfile.mkdtemp(prefix="reknit-"))
    try:
        if etcd is not None:
            etcd.start()
        endpoints, access = etcd.endpoint if etcd is not None else config.etcd or "", config.access
        store = EtcdStore(endpoints, tls=access.tls, user=access.user, password=access.password)
        try:
            store.connect(timeout=CONNECT_SECONDS)
            return Agent(config, store, events, config.socket or folder / "agent.sock").run()
        finally:
            store.close()
    finally:
        if etcd is not None:
            etcd.stop()
        shutil.rmtree(folder, ignore_errors=True)
        events.close()


class Agent:
    """The loop and what it holds.  `run` opens everything and closes it again."""

    def __init__(self, config: Config, store: Store, events: EventLog, path: Path) -> None:
        self._config, self._events = config, events
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._metrics = Metrics(config.job)
        ladder = config.ladder
        timing = Timing(ttl=ladder.lease, keepalive=ladder.keepalive)
        self._session = Session(store, config.job, config.agent, self._inbox.put, timing)
        patience = Patience(ladder.join_window, ladder.report_grace)
        self._leader = Leader(store, config.job, self._session, patience=patience, detect=ladder.detect)
        self._server = Server(path, self._inbox.put)
        self._workers: dict[str, Worker] = {}
        self._keeper: Keeper | None = None
        if config.script is not None:
            prefix = "worker" if config.standalone else config.agent
            self._workers = {f"{prefix}-{i}": Worker(f"{prefix}-{i}", i) for i in range(config.workers)}
            environment = environment_of_workers(config, str(path))
            self._keeper = Keeper(config, self._workers, environment, self._inbox.put, self._event, self._end)
        self._settings = _worker_settings(config, config.spec)
        self._head: Head | None = None
        self._earlier = 0  # an earlier run's last generation, if there was one
        self._finished = False  # this run of the job, for good: what comes after it is another
        self._progress = Progress(config.spec.min_replicas * config.spec.axes.size, time.monotonic())
        self._ending: tuple[int, str] | None = None
        self._deadline: float | None = None

    # ---------------------------------------------------------------- from start to end

    def run(self) -> int:
        """Open everything, take things one by one until this host's part has ended, close everything."""
        stops = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in stops}
        try:
            self._open()
            while not self._has_ended():
                self._take_one()
        finally:
            self._close()
            for number, handler in before.items():
                signal.signal(number, handler)
        code, reason = self._ending or (0, "the script has finished everywhere")
        self._event("agent_ended", None, code=code, reason=reason)
        if code:
            print(f"reknit: {reason}", file=sys.stderr)
        return code

    def _open(self) -> None:
        self._leader.spec = self._session.propose_spec(self._config.spec)
        self._settings = _worker_settings(self._config, self._leader.spec)
        self._leader.earlier = self._earlier = self._session.look_back()
        http = self._metrics.serve()
        config = self._config
        self._event(
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
        log.info("job %s: %d workers here, metrics on http://%s/metrics", config.job, len(self._workers), http)
        if config.standalone and config.spec.wanted == 1:
            log.warning("with one replica nobody else holds its state: a killed worker ends the job (--replicas 2)")
        self._server.start()
        self._session.start()
        self._leader.start()
        if self._keeper is not None:
            self._keeper.open()

    def _close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        self._leader.close()
        self._session.close()
        self._server.close()
        self._metrics.close()

    def _has_ended(self) -> bool:
        if self._ending is not None and (self._deadline is None or self._keeper is None):
            return True
        if self._keeper is None:
            return self._finished and not any(worker.peer for worker in self._workers.values())
        return all(worker.over for worker in self._workers.values())

    def _take_one(self) -> None:
        due = [self._deadline, self._keeper.next_timer() if self._keeper is not None else None]
        now = time.monotonic()
        timeout = max(0.0, min([now + 1.0, *(moment for moment in due if moment is not None)]) - now)
        try:
            item = self._inbox.get(timeout=timeout)
        except queue.Empty:
            pass
        else:
            self.take(item)
        now = time.monotonic()
        self._say_how_it_goes(now)
        if self._keeper is not None:
            self._keeper.run_timers(now)
        if self._deadline is not None and now >= self._deadline:
            self._deadline = None

    def _say_how_it_goes(self, now: float) -> None:
        workers = [worker for worker in self._workers.values() if worker.peer is not None]
        running = self._head is not None and self._head.replicas > 0
        finished = sum(worker.finished for worker in workers)
        sentence = self._progress.sentence(now, running, len(workers), finished)
        if sentence is not None and self._ending is None:
            log.info("%s", sentence)

    def _on_signal(self, number: int, frame: object) -> None:
        self._inbox.put(_Stop(number))

    def take(self, item: object) -> None:
        """Handle one thing that happened; whatever a worker says, or lies in the store, must not end this agent."""
        try:
            self._handle(item)
        except Exception as error:
            log.exception("%.300r could not be handled", item)
            if isinstance(item, PeerEvent):
                self._server.drop(item.peer, f"what it said could not be handled: {error}")
            elif isinstance(item, Started | Exited | Failed):  # nobody else will ever answer it
                self._end(EXIT_FAILED, f"{item.worker_id} cannot be kept running: {error}")

    def _handle(self, item: object) -> None:
        match item:
            case PeerEvent(kind="opened"):
                self._attach(item)
            case PeerEvent(kind="message"):
                self._hear(item)
            case PeerEvent(kind="closed"):
                self._lose(item)
            case Started() | Exited() | Failed():
                self._handle_process(item)
            case HeadSeen(head):
                self._see(head)
            case ViewFetched():
                self._place(item)
            case Assigned():
                self._assign(item)
            case Elected(revision):
                self._leader.lead(revision)
            case Deposed():
                self._leader.follow()
            case _Stop():
                self._end(128 + item.number, f"stopped by {signal.Signals(item.number).name}")
            case _:
                pass

    # ---------------------------------------------------------------- workers

    def _attach(self, item: PeerEvent) -> None:
        peer = item.peer
        worker = self._workers.get(peer.worker_id)
        if self._keeper is None and worker is None:  # whoever comes to the socket is a worker of ours
            worker = Worker(peer.worker_id, len(self._workers))
        try:
            before = None if worker is None else worker.member
            member = new_member(peer, self._config.agent, socket.gethostname(), before)
            why = "this agent has no such worker" if worker is None else why_not(worker, peer, self._keeper is not None)
        except RecordError as error:
            why = str(error)
        if worker is None or why:
            self._refuse(peer, why)
            return
        self._workers[peer.worker_id] = worker
        if self._keeper is None:
            worker.forget_process()
            worker.pid = peer.pid
        worker.peer, worker.member, worker.attached_once, worker.finished = peer, member, True, member.finished
        self._event("attached", worker.worker_id, pid=item.peer.pid, incarnation=item.peer.incarnation)
        if self._finished and self._head is not None:  # it came too late: as a member it would begin the job anew
            self._send_view(worker, View(self._head))
            return
        self._session.set_member(member)
        if member.coordinate is not None and self._head is not None:  # it was here before, and has missed something
            self._ask_view(worker, self._head)

    def _refuse(self, peer: Peer, why: str) -> None:
        log.error("%s (process %d) is refused: %s", peer.worker_id, peer.pid, why)
        self._server.send(peer, {"type": "refused", "reason": why})
        self._server.drop(peer, why)

    def _hear(self, item: PeerEvent) -> None:
        worker = self._workers.get(item.peer.worker_id)
        if worker is None or worker.peer != item.peer or worker.member is None:
            return  # it was dropped, and this was on its way
        if item.message.get("type") == "event":
            self._hear_event(worker, item.message)
            return
        if item.message.get("type") == "gone":  # it will exit; the others need not wait until it has
            worker.gone = True
            self._session.remove_member(worker.worker_id)
        if worker.gone:
            return
        try:
            member = after_report(worker.member, item.message)
        except RecordError as error:
            log.error("%s is dropped: %s", worker.worker_id, error)
            self._server.drop(item.peer, str(error))
            return
        worker.finished = member.finished
        if member != worker.member:
            worker.member = member
            self._session.set_member(member)

    def _hear_event(self, worker: Worker, message: Mapping[str, Any]) -> None:
        told = read_event(message)
        if told is None:
            log.warning("%s told of an event that is none: %.200r", worker.worker_id, message)
            return
        self._events.write(told.event, worker.worker_id, told.generation, told.fields, told.moment)
        self._metrics.observe(told.event, worker.worker_id, told.generation, told.fields)
        step = told.fields.get("step")
        if told.event == "committed" and isinstance(step, int):
            # What the workers of several hosts logged is not all here: no sums of it then.
            numbers = {k: v for k, v in told.fields.items() if isinstance(v, float)} if self._config.standalone else {}
            self._progress.committed(step, numbers)

    def _lose(self, item: PeerEvent) -> None:
        """The kernel says that the worker is gone: first of all the others must hear of it."""
        worker = self._workers.get(item.peer.worker_id)
        if worker is None or worker.peer != item.peer:
            return
        self._session.remove_member(worker.worker_id)
        worker.lost_at = time.monotonic()
        worker.peer = None
        if self._keeper is not None:
            if worker.exited is not None:
                self._keeper.handle(worker.exited, self._finished)
            else:
                self._keeper.kill(worker, self._config.ladder.kill_delay if worker.finished else 0)
        elif not worker.finished and not self._finished:
            self._event("worker_died", worker.worker_id, pid=item.peer.pid, cause="its connection closed")
            log.warning("%s is gone: its connection closed", worker.worker_id)

    def _handle_process(self, item: Started | Exited | Failed) -> None:
        assert self._keeper is not None
        worker = self._workers[item.worker_id]
        if isinstance(item, Exited) and worker.peer is not None:
            worker.exited = item  # what it said before it died is still on its way, and comes before its "closed"
            return
        self._keeper.handle(item, self._finished)

    # ---------------------------------------------------------------- plans

    @property
    def _generation(self) -> int:
        return self._head.generation if self._head is not None else 0

    def _see(self, head: Head) -> None:
        if head.generation <= self._earlier or self._finished:
            return  # of an earlier run of this job, or of a later one
        self._head = head
        self._finished = head.state == FINISHED
        counts = {"replicas": head.replicas, "spares": head.spares}
        self._event("plan", None, reason=head.reason, state=head.state, urgent=head.urgent, **counts)
        self._metrics.see_plan(head.generation, head.replicas, head.state)
        if self._ending is None:
            log.info("generation %d (%s, %d replicas): %s", head.generation, head.state, head.replicas, head.reason)
        for worker in self._workers.values():
            if worker.name in head.restart and self._keeper is not None:
                log.info("%s is started afresh, as the leader asks", worker.worker_id)
                self._keeper.kill(worker, 0)
            else:  # a worker that somebody else keeps reads in the view that it shall end
                self._ask_view(worker, head)
        if head.state == LOST:
            failure = self._keeper.last_failure if self._keeper is not None else None
            why = f" ({failure}; all that it said is above)" if failure else ""
            again = "; if it is started again, it begins at step 0"
            self._end(EXIT_STATE_LOST, f"the job cannot go on: {head.reason}{why}{again}")

    def _ask_view(self, worker: Worker, head: Head) -> None:
        if worker.name is None:
            return
        coordinate = worker.member.coordinate if worker.member is not None else None
        if head.replicas == 0 or coordinate is None:
            self._send_view(worker, View(head))
        else:
            self._session.request_view(head, worker.name, coordinate)

    def _place(self, item: ViewFetched) -> None:
        for worker in self._workers.values():
            if worker.name == item.name and (worker.view is None or worker.view.generation < item.view.generation):
                self._send_view(worker, item.view)

    def _send_view(self, worker: Worker, view: View) -> None:
        worker.view = view
        replica = view.replica
        if replica is not None and worker.member is not None:
            formation = f"{replica.slot}@{replica.formed}"
            fields = {"replica": replica.slot, "coordinate": worker.member.coordinate, "formation": formation}
            self._events.write("placed", worker.worker_id, view.generation, fields)
        if worker.peer is not None:
            self._server.send(worker.peer, {"type": "plan", "view": encode_view(view)})

    def _assign(self, item: Assigned) -> None:
        worker = self._workers.get(item.worker_id)
        if worker is None or worker.member is None or worker.member.incarnation != item.incarnation:
            return
        if worker.peer is None or worker.member.coordinate is not None:
            return
        worker.member = replace(worker.member, coordinate=item.coordinate)
        message = {"type": "assigned", "coordinate": item.coordinate, "settings": self._settings.encode()}
        self._server.send(worker.peer, message)
        if self._head is not None:
            self._ask_view(worker, self._head)

    # ---------------------------------------------------------------- ending

    def _end(self, code: int, reason: str) -> None:
        """End this host's part: workers are told by SIGTERM, and killed when they do not listen."""
        if self._ending is not None:
            return
        self._ending = (code, reason)
        log.info("stopping: %s", reason)
        self._deadline = time.monotonic() + self._config.ladder.kill_delay + 1.0
        if self._keeper is not None:
            self._keeper.stop_all()

    def _event(self, event: str, worker: str | None, t: float | None = None, **fields: Any) -> None:
        self._events.write(event, worker, self._generation, fields, t)


def _worker_settings(config: Config, spec: Spec) -> WorkerSettings:
    ladder = config.ladder
    idle = max(1, round(ladder.user_timeout / 3))
    return WorkerSettings(
        job=config.job,
        pipe=spec.axes.pipe,
        model=spec.axes.model,
        max_replicas=spec.max_replicas,
        pipe_backend=config.pipe_backend,
        address=config.address,
        connect=ladder.connect,
        keepalive_idle=idle,
        keepalive_interval=idle,
        keepalive_probes=2,
        user_timeout=ladder.user_timeout,
        events=config.events is not None,
    )
