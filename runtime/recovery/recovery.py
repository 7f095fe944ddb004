"""Moves a worker from one generation to the next: connect, compare, settle, ready (PROTOCOL.md, rules 6-12).

Two threads meet here.  The training thread enters and leaves generations and does everything that takes time.  The
reactor thread hears of newer plans and interrupts what the training thread may be blocked in; it decides that by the
pure `decision.reaction`, under a lock that guards only who holds which groups.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.parts import View
from reknit.rendezvous.records import FINISHED, LOST, Name
from reknit.runtime import injection
from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.errors import Interrupted
from reknit.runtime.process import footprint
from reknit.runtime.recovery import settling
from reknit.runtime.recovery.building import Builder, Wiring
from reknit.runtime.recovery.control import ReplicaRounds
from reknit.runtime.recovery.decision import Reaction, reaction
from reknit.runtime.recovery.evidence import Evidence
from reknit.runtime.recovery.formation import Formation, FormationError, FormationId
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.midway import Midway
from reknit.runtime.recovery.passage import Passage
from reknit.runtime.recovery.phase import PATIENT, Phase
from reknit.runtime.recovery.settling import Event, IncompleteError, TellCommitted, compare, settle
from reknit.runtime.recovery.state import State

log = logging.getLogger(__name__)

LATE_SECONDS = 1.0  # who leaves for a plan that is older than this may have been waited for: it reports that it comes
RETIRED = 4  # generations whose farewells are kept alive; whoever waits in an older one has been told by a plan


class Released(ReknitError):
    """A worker that waits for a place, or for the others to finish, may exit: the job has finished, or it drained."""


class StateLost(ReknitError):
    """No complete set of coordinates holds a state any more."""


class Superseded(Interrupted):
    """A newer plan came before the comparison of this generation was entered."""


class Checkpoints(settling.Checkpoints, Protocol):
    """What this needs of the job's checkpoints."""

    def tell(self) -> None:
        """Tell the leader what could be restored."""


Report = Callable[..., None]  # report(kind, **fields): a line to the agent


class Recovery:
    """One worker's way through the generations."""

    def __init__(
        self,
        name: Name,
        state: State,
        wiring: Wiring,
        report: Report,
        event: Event,
        tell_committed: TellCommitted,
        phase: Phase,
    ) -> None:
        self.name, self.state, self._report, self._event = name, state, report, event
        self._builder = Builder(wiring)
        self._tell_committed, self._phase = tell_committed, phase
        self._changed = threading.Condition()
        self._newest: View | None = None
        self._heard = 0.0  # when the newest plan came
        self._passage = Passage()
        self._midway = Midway()
        self._remade = False
        self._groups: Groups | None = None
        self._formation: Formation | None = None
        self._retired: list[ReplicaRounds] = []
        self._left = 0
        self._placed = False
        self._notice: float | None = None
        self._released = ""  # why this worker may exit
        self.checkpoints: Checkpoints | None = None

    # ---------------------------------------------------------------- what the reactor thread calls

    def hear(self, view: View, seen: float | None = None) -> None:
        """A plan has come from the agent, which had `seen` it at that time (time.monotonic)."""
        with self._changed:
            if self._newest is not None and view.generation <= self._newest.generation:
                return
            self._newest, self._heard = view, time.monotonic()
            self._passage.hear(seen)
            self._react()
            self._changed.notify_all()

    def release(self, reason: str) -> None:
        """Nobody needs this worker any more: it ends as soon as its training thread waits for a place."""
        with self._changed:
            self._released = reason
            self._changed.notify_all()

    def _react(self) -> None:
        groups, newest = self._groups, self._newest
        assert newest is not None
        over = self._formation_over()
        if groups is None:
            if over and self._formation is not None:
                self._formation.interrupt()
            return
        match reaction(groups.generation, groups.entered, newest.generation, newest.head.broken, not over):
            case Reaction.SUPERSEDED:
                groups.cancelled.set()
                if over:
                    groups.interrupt(formation_over=True)
            case Reaction.URGENT:
                self._note()
                groups.interrupt(formation_over=False)
            case Reaction.URGENT_ALL:
                self._note()
                groups.interrupt(formation_over=True)
            case _:
                pass

    def _formation_over(self) -> bool:
        """Whether the newest plan known no longer holds the formation that this worker is in, or is about to make."""
        newest = self._newest
        if self._groups is not None:
            mine: FormationId | None = FormationId.of(self._groups.replica)
        else:
            mine = self._formation.identity if self._formation is not None else None
        if newest is None or mine is None:
            return False
        return newest.replica is None or not FormationId.of(newest.replica).same(mine)

    # ---------------------------------------------------------------- what the training thread sees

    @property
    def groups(self) -> Groups | None:
        """The generation that this worker is in, ready for work; None between generations."""
        return self._groups

    @property
    def formation(self) -> Formation | None:
        """The replica's own groups."""
        return self._formation

    @property
    def known(self) -> int:
        """The newest generation known."""
        newest = self._newest
        return newest.generation if newest is not None else 0

    @property
    def present(self) -> int:
        """The generation that this worker is in, else the newest generation known."""
        groups = self._groups
        return groups.generation if groups is not None else self.known

    @property
    def step(self) -> int:
        """Committed steps."""
        return self.state.step

    def check(self) -> None:
        """Raise Interrupted if this generation is over and nobody depends on this worker going on."""
        groups = self._groups
        if groups is not None and groups.urgent and len(groups.replica.places) == 1:
            raise Interrupted("a member of the job is lost", group="data", rank=groups.data_rank)

    def enter(self) -> Groups:
        """Enter the newest generation that has a place for this worker, and come to the decided version in it.

        Waits for such a plan; repeats with the next one when something breaks on the way.  Raises Released or
        StateLost.
        """
        while True:
            groups = self._take_place()
            try:
                self._phase.enter("connect", PATIENT)
                injection.reach("connect", self.state.step)
                self._connect(groups)
                self._passage.connected()
                self._phase.enter("compare", PATIENT)
                injection.reach("compare", self.state.step)
                version, rows = compare(groups, self.state)
                self._phase.enter("heal", PATIENT)
                settle(groups, self.state, version, rows, self._event, self._tell_committed, self.checkpoints)
                self._phase.enter("ready", PATIENT)
                self._ready(groups)
                self._phase.enter("between attempts")
                return groups
            except (Interrupted, IncompleteError) as error:
                self.leave(error, comparing=groups.entered)

    def connect_ends(self, groups: Groups) -> Communicator:
        """First and last stage of this replica, for this generation: those two call it, and wait for each other."""
        return self._builder.connect_ends(groups)

    def wait_for_newer(self, generation: int, timeout: float | None = None) -> None:
        """Wait until a plan newer than `generation` is known."""
        with self._changed:
            self._changed.wait_for(lambda: self.known > generation, timeout)

    # ---------------------------------------------------------------- leaving

    def open_attempt(self) -> None:
        """The round that follows lets everybody in the replica begin an attempt."""
        formation = self._formation
        if formation is not None and len(formation.identity.names) > 1:
            self._midway.open(formation)

    def leave(self, error: BaseException | None, comparing: bool = False, midway: bool = False) -> None:
        """Close the generation's groups, keep state and prepared gradients; `error` None: agreed at a vote.

        `comparing`: on the way from the comparison to work; `midway`: from an attempt before its commit.
        """
        with self._changed:
            groups, self._groups = self._groups, None
            if groups is None:
                return
            self._note()
            groups.cancelled.set()
            self._left = max(self._left, groups.generation)
            if midway and len(groups.replica.places) > 1:
                self._midway.leave()
            torn = self._is_torn(groups, error)
            nothing_newer = self.known <= groups.generation
            self._passage.leave(unexpected=nothing_newer)
            late = not nothing_newer and time.monotonic() - self._heard > LATE_SECONDS
        if nothing_newer:
            groups.gather_evidence()
        if groups.rounds is not None:
            if error is None:
                groups.rounds.agreed_to_leave()
            groups.rounds.leave()
            self._retired.append(groups.rounds)
            for rounds in self._retired[:-RETIRED]:
                rounds.close()
            del self._retired[:-RETIRED]
        groups.close()
        incomplete = isinstance(error, IncompleteError)
        if self.checkpoints is not None and (incomplete or (comparing and nothing_newer)):
            self.checkpoints.tell()  # somebody may have found that the leader has to go back to one
        if nothing_newer or late or incomplete or torn:
            why = str(error) if error is not None else "all know a newer plan"
            number = groups.generation
            self._report_left(number if incomplete else 0, number if torn else 0, why, groups.evidence)

    def _is_torn(self, groups: Groups, error: BaseException | None) -> bool:
        """Whether a connection within the replica broke, though nobody said that it leaves (rule 7)."""
        if groups.urgent or not isinstance(error, Interrupted) or isinstance(error, Superseded):
            return False
        formation = self._formation
        if formation is not None and not formation.ended and formation.lost_a_member():
            return True
        return groups.entered and error.group.startswith("control/")

    def _report_left(self, incomplete: int, torn: int, why: str, evidence: Evidence) -> None:
        self._report(
            "left",
            generation=self._left,
            incomplete=incomplete,
            torn=torn,
            why=why,
            committed=self.state.committed,
            prepared=self.state.prepared,
            pristine=self.state.pristine,
            **evidence.fields(),
        )

    def _note(self) -> None:
        if self._notice is None:
            self._notice = time.monotonic()
            self._event("reinit_begin")

    # ---------------------------------------------------------------- entering

    def _take_place(self) -> Groups:
        """Wait for a plan with a place for this worker, newer than what it has left; take it."""
        with self._changed:
            while True:
                view = self._newest
                if self._released:
                    raise Released(self._released)
                if view is not None:
                    if view.head.state == FINISHED:
                        raise Released(view.head.reason)
                    if view.head.state == LOST:
                        raise StateLost(view.head.reason)
                    if view.generation > self._left:
                        if view.replica is not None and self.name in view.replica.names:
                            if not self._placed:
                                self._phase.progressed()  # as long as nobody counted on it, it waited for nobody
                            self._placed = True
                            self._groups = Groups(view, self.name)
                            return self._groups
                        self._left, self._placed = view.generation, False
                        self._passage.forget()
                        if view.head.stopped and self.checkpoints is not None:
                            self.checkpoints.tell()  # one more was written since this worker looked
                        self._report_left(0, 0, "the plan has no place for this worker", Evidence())
                self._phase.enter("waiting for a plan", PATIENT)
                self._changed.wait()

    def _connect(self, groups: Groups) -> None:
        """Build the data group, the control rounds and, for a new formation, the replica's default group."""
        if self._formation is not None and not FormationId.of(groups.replica).same(self._formation.identity):
            self._end_formation()
        try:
            with self._midway.freeing(self._formation):
                self._builder.connect(groups)
                self._go_on_unless_superseded(groups)
                keep = self._can_keep(groups)
            self._remade = not keep and self._formation is not None
            if not keep:
                self._form(groups)
            self._midway.settle()
        except Interrupted:
            if self.known > groups.generation:
                raise _superseded(groups) from None
            raise
        self._go_on_unless_superseded(groups, entering=True)

    def _go_on_unless_superseded(self, groups: Groups, entering: bool = False) -> None:
        """Rule 6, under the lock: a plan that comes after this finds the groups, and interrupts them if it must."""
        with self._changed:
            if self.known > groups.generation:
                raise _superseded(groups)
            groups.formation, groups.entered = self._formation, entering

    def _can_keep(self, groups: Groups) -> bool:
        """Whether every member has the formation's groups, and nothing is left in them of an attempt.

        A generation may break while a new formation is being made, when some members have its groups and some don't.
        """
        assert groups.rounds is not None
        formation = self._formation
        has = formation is not None and not formation.ended
        said = groups.rounds.say((int(has), int(self._builder.uses_nccl), *self._midway.words(formation)))
        if len({words[1] for words in said}) > 1:
            raise FormationError(
                "some members of this replica would use NCCL within it and some gloo, as not all hosts have a device "
                "for each worker: say which by --pipe-backend, on every host"
            )
        return all(words[0] for words in said) and not Midway.spoils([words[2:4] for words in said])

    def _form(self, groups: Groups) -> None:
        """Make the replica's groups anew, in this generation."""
        self._end_formation()
        formation = self._builder.form(groups)
        with self._changed:
            formation.stand()
            self._formation = formation

    def _end_formation(self) -> None:
        formation = self._formation
        if formation is not None:
            formation.end()
            with self._changed:
                self._formation = None

    def _ready(self, groups: Groups) -> None:
        """One round in the replica after healing, then work (rule 12)."""
        assert groups.rounds is not None
        self._report("ready", generation=groups.generation, committed=self.state.committed)
        injection.reach("ready", self.state.step)
        self.open_attempt()
        groups.rounds.say()
        self._phase.progressed()
        for rounds in self._retired:
            rounds.close()
        self._retired.clear()
        notice, self._notice = self._notice, None
        formation = self._formation
        assert formation is not None
        self._event(
            "reinit_done",
            seconds=time.monotonic() - notice if notice is not None else 0.0,
            formation=str(formation.identity),
            group=formation.group_identity,
            replica=groups.replica.slot,
            replicas=len(groups.view.peers),
            step=self.state.step,
            phases=self._passage.arrive(behind=self.known > groups.generation),
            **({"remade": True} if self._remade else {}),
            **footprint(),
        )

    def close(self) -> None:
        """Drop every group; the process is about to exit."""
        self.leave(Interrupted("this worker exits", group="all", rank=0))
        for rounds in self._retired:
            rounds.close()
        self._end_formation()


def _superseded(groups: Groups) -> Superseded:
    return Superseded("a newer plan came", group=f"generation {groups.generation}", rank=groups.data_rank)
