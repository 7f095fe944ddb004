"""What an agent does with plans: tells its workers what they need of the newest one, and who shall start afresh."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from reknit.rendezvous.parts import Head, View, encode_view
from reknit.rendezvous.records import FINISHED, LOST, Spec
from reknit.rendezvous.session.events import Assigned, ViewFetched
from reknit.runtime.config import EXIT_FAILED, EXIT_STATE_LOST, Config
from reknit.runtime.fleet import Worker
from reknit.runtime.settings import WorkerSettings
from reknit.runtime.station import Station

log = logging.getLogger("reknit.agent")


class Plans:
    """Hands plans to this agent's workers.  `earlier`: the last generation of an earlier run, which is no news."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self.earlier = 0
        self._seen_at = 0.0  # when this agent saw the newest plan (monotonic)
        self.settings = worker_settings(station.config, station.config.spec)

    def see(self, head: Head) -> None:
        """A newer plan was published."""
        station = self._station
        if head.generation <= self.earlier or station.finished:
            return  # of an earlier run of this job, or of a later one
        station.head = head
        station.finished = head.state == FINISHED
        station.gaps.see_plan(head.generation, head.state in (FINISHED, LOST))
        counts = {"replicas": head.replicas, "spares": head.spares}
        station.event("plan", None, reason=head.reason, state=head.state, urgent=head.urgent, **counts)
        station.recording.plan(runs=head.replicas > 0)
        station.standing.published_at, self._seen_at = time.time(), time.monotonic()
        if station.ending is None:
            log.info("generation %d (%s, %d replicas): %s", head.generation, head.state, head.replicas, head.reason)
        for worker in station.workers.values():
            if worker.name in head.restart and station.keeper is not None:
                log.info("%s is started afresh, as the leader asks", worker.worker_id)
                station.keeper.kill(worker, 0)
            else:  # a worker that somebody else keeps reads in the view that it shall end
                self.ask_view(worker, head)
        if head.state == LOST:
            failure = station.keeper.last_failure if station.keeper is not None else None
            why = f" ({failure}; all that it said is above)" if failure else ""
            if station.keeper is not None and station.keeper.plain:
                station.end(EXIT_FAILED, f"the job cannot go on: all of its workers were lost at once{why}")
                return
            again = "; if it is started again, it begins at step 0"
            station.end(EXIT_STATE_LOST, f"the job cannot go on: {head.reason}{why}{again}")

    def ask_view(self, worker: Worker, head: Head) -> None:
        """Get what this worker needs of a plan, and send it when it is there."""
        if worker.name is None:
            return
        coordinate = worker.member.coordinate if worker.member is not None else None
        if head.replicas == 0 or coordinate is None:
            self.send_view(worker, View(head))
        else:
            self._station.session.request_view(head, worker.name, coordinate)

    def place(self, item: ViewFetched) -> None:
        """A view has come."""
        for worker in self._station.workers.values():
            if worker.name == item.name and (worker.view is None or worker.view.generation < item.view.generation):
                self.send_view(worker, item.view)

    def send_view(self, worker: Worker, view: View) -> None:
        """Tell a worker of a plan."""
        worker.view = view
        replica, now = view.replica, time.monotonic()
        draining = worker.member is not None and worker.member.draining
        self._station.recording.placed(worker.worker_id, replica is not None, draining, now)
        if replica is not None and worker.member is not None:
            formation = f"{replica.slot}@{replica.formed}"
            fields = {"replica": replica.slot, "coordinate": worker.member.coordinate, "formation": formation}
            self._station.events.write("placed", worker.worker_id, view.generation, fields)
        if worker.peer is not None:
            self._station.server.send(worker.peer, {"type": "plan", "view": encode_view(view), "seen": self._seen_at})

    def assign(self, item: Assigned) -> None:
        """The leader says for which coordinate a fresh process shall build its model."""
        station = self._station
        worker = station.workers.get(item.worker_id)
        if worker is None or worker.member is None or worker.member.incarnation != item.incarnation:
            return
        if worker.peer is None or worker.member.coordinate is not None:
            return
        worker.member = replace(worker.member, coordinate=item.coordinate)
        station.recording.assigned(worker.worker_id, time.monotonic())
        message = {"type": "assigned", "coordinate": item.coordinate, "settings": self.settings.encode()}
        station.server.send(worker.peer, message)
        if station.head is not None:
            self.ask_view(worker, station.head)


def worker_settings(config: Config, spec: Spec) -> WorkerSettings:
    """What workers are told of the job: its shape as it stands, which may not be what this agent asked for."""
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
        hang=ladder.hang,
        verify_every=config.verify_every,
        verify_policy=config.verify_policy,
        events=config.events is not None,
    )
