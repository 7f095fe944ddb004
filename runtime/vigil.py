"""What an agent does as time passes: it notes who is silent or held up, and asks who lives while its workers wait.

What is due is decided by pure functions (`stalls`, `suspicion`); here it is done.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from reknit.rendezvous.accusation import Accusation
from reknit.rendezvous.records import SILENT
from reknit.runtime.attending import Attending
from reknit.runtime.fleet import Worker
from reknit.runtime.judging import Judged
from reknit.runtime.showing import show_of
from reknit.runtime.stalls import after_silence, held_up, is_stopped, silence_after
from reknit.runtime.station import Station
from reknit.runtime.suspicion import Waiting, agents_of, suspects, waiting

log = logging.getLogger("reknit.agent")

LATE = 2.5  # seconds between two turns of the loop, which takes one each second: this agent itself was stopped


class Vigil:
    """Watches over the workers that are attached, and over the agents of their peers.

    `held_up`: a sentence on each worker that seems never to come to a place.
    """

    def __init__(self, station: Station, attending: Attending) -> None:
        self._station, self._attending = station, attending
        self.held_up: list[str] = []
        self._turned: float | None = None
        self._accused_at: dict[str, float] = {}
        self._again: float | None = None
        self._cut_off: dict[str, int] = {}  # worker_id → the generation of which it was said

    def next_timer(self) -> float | None:
        """When something will be due (monotonic)."""
        hang = self._station.config.ladder.hang
        # Who is excused is looked at whenever the loop comes round.
        awaited = [w for w in self._watched() if not _is_silent(w) and not w.watch.excused]
        silences = [w.watch.heard + silence_after(hang) for w in awaited]
        return min([*silences, *([] if self._again is None else [self._again])], default=None)

    def turn(self, now: float) -> None:
        """The loop has come round: an agent that was stopped itself knows nothing of its workers' silence."""
        if self._turned is not None and now - self._turned > LATE:
            for worker in self._station.workers.values():
                worker.watch.heard = now
        self._turned = now

    def run_timers(self, now: float) -> None:
        """Do what is due; call it when all that has come in is taken in."""
        for worker in self._watched():
            self._listen(worker, now)
        self.held_up = [self._name(worker, said) for worker, said in self._find_held_up(now)]
        self._suspect(now)

    def _attached(self) -> list[Worker]:
        """Who takes part."""
        return [worker for worker in self._station.workers.values() if worker.peer is not None and not worker.gone]

    def _watched(self) -> list[Worker]:
        """Who is attached and has a place."""
        return [worker for worker in self._attached() if worker.view is not None and worker.view.replica is not None]

    def _find_held_up(self, now: float) -> list[tuple[Worker, str]]:
        """Of those who could have a place and have none: who does not come, and what holds it up."""
        found, placed = [], {worker.worker_id for worker in self._watched()}
        for worker in self._attached():
            member = worker.member
            if member is None or member.coordinate is None or worker.finished or worker.worker_id in placed:
                continue  # before it has its coordinate a worker waits, and says nothing
            said = held_up(member, worker.watch, self._station.config.ladder.hang, now)
            if said is None or self._station.finished:
                worker.watch.named = False
            else:
                found.append((worker, said))
        return found

    def _name(self, worker: Worker, said: str) -> str:
        """Say once who is held up: nobody waits for it, so it is left."""
        if not worker.watch.named:
            worker.watch.named = True
            log.warning("%s, and has no place: it may never come; nobody waits for it, and it is left", said)
            self._station.event("held_up", worker.worker_id, reason=said)
        return said

    def _listen(self, worker: Worker, now: float) -> None:
        hang = self._station.config.ladder.hang
        if worker.member is None or worker.view is None or now - worker.watch.heard < silence_after(hang):
            return
        stopped = worker.pid is not None and is_stopped(_stat(worker.pid))
        member = after_silence(worker.member, worker.view.generation, worker.watch, hang, stopped, now)
        self._attending.declare(worker, member)

    # ---------------------------------------------------------------- other agents

    def _suspect(self, now: float) -> None:
        waits = self._waiting()
        self._again = None
        if not waits:
            return
        station = self._station
        down_since = station.session.state.down_since
        if down_since is not None:  # nobody can be asked, and nobody could answer
            self._say_cut_off(waits, now - down_since)
            return
        found, self._again = suspects(
            waits,
            agents_of(worker.view for worker in self._watched()),
            station.config.agent,
            station.session.leader,
            self._accused_at,
            station.config.ladder.accuse_after,
            now,
        )
        for suspect in found:
            self._accused_at[suspect.agent] = now
            station.event("accuses", None, agent=suspect.agent, reason=suspect.reason)
            station.session.accuse(suspect.agent, suspect.generation, suspect.reason)

    def _waiting(self) -> list[Waiting]:
        found = []
        for worker in self._watched():
            if worker.member is not None:
                one = waiting(worker.member, worker.view, self._station.generation, worker.left_at)
                found += [] if one is None else [one]
        return found

    def _say_cut_off(self, waits: list[Waiting], seconds: float) -> None:
        for one in waits:
            if self._cut_off.get(one.worker_id) != one.generation:
                self._cut_off[one.worker_id] = one.generation
                log.warning(
                    "cut off from etcd for %.1f s: %s has left generation %d and waits; the job may go on without it",
                    seconds,
                    one.worker_id,
                    one.generation,
                )

    def answer(self, accusation: Accusation) -> None:
        """This agent was asked whether it lives: so do its workers that are attached, as their records now say."""
        self._station.event("accused", None, by=accusation.by, reason=accusation.reason)
        for worker in self._attached():
            if worker.member is not None:
                answered = max(worker.member.answered, accusation.generation)
                self._attending.declare(worker, replace(worker.member, answered=answered))

    def show(self, now: float) -> None:
        """Somebody looks at the job: tell what goes on here."""
        station = self._station
        stopped = {w.worker_id for w in self._attached() if w.pid is not None and is_stopped(_stat(w.pid))}
        workers, hang = station.workers.values(), station.config.ladder.hang
        productive, lost = station.recording.totals()
        show = show_of(station.config.agent, workers, stopped, hang, now, productive=productive, lost=lost)
        station.session.tell(show)

    def tell(self, judged: Judged) -> None:
        """As the leader this agent has found somebody slow or hung."""
        verdict = judged.verdict
        log.warning("%s", verdict.reason)
        self._station.event("verdict", judged.worker, verdict=verdict.state, reason=verdict.reason)


def _is_silent(worker: Worker) -> bool:
    stall = worker.member.stall if worker.member is not None else None
    return stall is not None and stall.kind == SILENT


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
