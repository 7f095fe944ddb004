"""What a training script calls: `join()` and the job that it returns.

The script's own loop stays in charge (README).  Everything that membership changes do to it happens in two places:
when an attempt begins, or the step is asked for, this worker comes to the job's present generation and step; and inside
an attempt anything that the change broke ends the attempt, and the loop tries again.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.parts import decode_view
from reknit.rendezvous.records import FINISHED, LOST, Name, Version
from reknit.runtime.attempt import Attempt, AttemptError
from reknit.runtime.checkpoint.checkpoints import Checkpoints, Schedule
from reknit.runtime.closing import close
from reknit.runtime.communicator.communicator import check_data_backend
from reknit.runtime.communicator.meeting import MeetingPoint
from reknit.runtime.data import Sampler, deal
from reknit.runtime.departure import Departure
from reknit.runtime.ending import EXIT_ORPHAN, EXIT_STOPPED, Ending, exit_now
from reknit.runtime.errors import Interrupted
from reknit.runtime.pipeline import Pipeline, Share
from reknit.runtime.plain import VARIABLE as PLAIN
from reknit.runtime.pulse import Pulse
from reknit.runtime.recovery.formation import choose_backend, prepare
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.phase import Phase
from reknit.runtime.recovery.recovery import Recovery, Released, StateLost
from reknit.runtime.recovery.state import State
from reknit.runtime.recovery.verifying import EVICT, Corrupted, is_due, verify
from reknit.runtime.recovery.wiring import Wiring
from reknit.runtime.settings import WorkerSettings
from reknit.runtime.supervisor.restart import EXIT_RESTART
from reknit.runtime.telling import Telling
from reknit.runtime.timekeeping import Timekeeper
from reknit.runtime.torch_groups import Grouped, TorchGroups
from reknit.runtime.trained import Trained

log = logging.getLogger(__name__)

RESERVED = frozenset(
    {"type", "event", "t", "worker", "generation", "step", "samples", "version", "rolled_forward", "timing"}
)

_job: Job | None = None


class NotUnderReknit(ReknitError):
    """The script was started without an agent."""


def join() -> Job:
    """Attach to the agent and wait until this worker has its coordinate.

    The agent's socket is named by $REKNIT_SOCKET, which `reknit run` sets.  Returns the same job when called again.
    Raises NotUnderReknit without an agent.  Exits with 0 if the job ends while this worker waits.
    """
    global _job
    if _job is None:
        _job = Job()
        _job.ending.watch()
        _job._start()
    return _job


def joined() -> Job | None:
    """The job of this process; None if it has not called `join`."""
    return _job


class Job(Grouped):
    """A worker's hold on its job.  Made by `join`."""

    def __init__(self) -> None:
        socket = os.environ.get("REKNIT_SOCKET")
        if not socket and (script := os.environ.get(PLAIN)):
            raise NotUnderReknit(
                f"this process runs {script} as a script that knows nothing of reknit, as the word does not occur in "
                "it: write `import reknit` there, even if another module calls reknit.join()"
            )
        if not socket:
            raise NotUnderReknit(
                "this script is not running under reknit: start it with `reknit run --standalone script.py`, "
                "or set REKNIT_SOCKET to the socket of a `reknit agent`"
            )
        self.name = Name(os.environ.get("REKNIT_WORKER_ID", f"worker-{os.getpid()}"), uuid.uuid4().hex[:12])
        self.state = State()
        self.settings: WorkerSettings | None = None
        self.device = torch.device("cpu")
        self._socket = socket
        self._told = threading.Event()
        self._assignment: dict[str, Any] | None = None
        self._ended: str | None = None
        self._coordinate_index = 0
        self.built = False  # whether the script has asked for its first place
        self.trained = Trained(self.state)
        self.ending = Ending(self)
        self._in_attempt = False
        self._sampler: Sampler | None = None
        self._dealt: list[int] = []
        self._samples: list[int] = []
        self._numbers: dict[str, float] = {}
        self.wiring = Wiring()
        self.telling = telling = Telling(self.name)
        self.phase = Phase()
        self.times = Timekeeper()
        self.recovery = Recovery(
            self.name, self.state, self.wiring, telling.report, telling.event, telling.committed, self.phase
        )
        self._pulse: Pulse | None = None
        self._departure = Departure(self._ask_to_leave)
        self.checkpoints: Checkpoints | None = None
        self.torch_groups = TorchGroups(self)

    # ---------------------------------------------------------------- attaching

    def _start(self) -> None:
        address = os.environ.get("REKNIT_ADDRESS", "127.0.0.1")
        self._meeting = MeetingPoint("::" if ":" in address else "0.0.0.0")
        host = f"[{address}]" if ":" in address else address
        lease = float(os.environ.get("REKNIT_LEASE_SECONDS", "5"))
        meets_at = f"{host}:{self._meeting.address[1]}"
        self.telling.attach(self._socket, meets_at, self.recovery, self._on_message, self._on_agent_gone, lease)
        self._departure.install()
        self._told.wait()
        if self._assignment is None:
            self.ending.exit_waiting(self._ended or FINISHED)
        else:
            self._take_assignment(self._assignment)

    def _take_assignment(self, message: dict[str, Any]) -> None:
        """On the training thread: CUDA's current device belongs to a thread."""
        self.settings = WorkerSettings.decode(message["settings"])
        self._coordinate_index = int(message["coordinate"])
        self.device = _device()
        self.times.stopwatch.use(self.device)
        backend = choose_backend(self.settings.pipe_backend, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        prepare(backend)
        self.wiring.configure(self.settings, backend, self.device)
        self.telling.everything = self.settings.events
        self.state.verify_every = self.settings.verify_every
        self.telling.keep(coordinate=self._coordinate_index)
        self.phase.enter("building its model")
        self._pulse = Pulse(self.phase, self.settings.hang, self.telling.pulse)
        self._pulse.start()

    def _on_message(self, message: dict[str, Any]) -> None:
        """A line from the agent, on the link's thread: only noted, and what it interrupts interrupted."""
        kind = message.get("type")
        if kind == "assigned" and self._assignment is None:
            self._assignment = message
            self._told.set()
        elif kind == "plan":
            view = decode_view(message["view"])
            if self.name in view.head.restart:
                log.warning("this worker starts afresh: its coordinate is not needed, another one is")
                exit_now(EXIT_RESTART)
            if view.head.state in (FINISHED, LOST) and self._assignment is None:
                self._ended = view.head.state
                self._told.set()
            seen = message.get("seen")
            self.recovery.hear(view, float(seen) if isinstance(seen, (int, float)) else None)
        elif kind == "drained":
            log.info("this worker has drained: it ends")
            self.recovery.release("this worker has drained")
            self._ended = FINISHED
            self._told.set()
        elif kind == "exit" and (message.get("forced") or self._departure.handles_sigterm):
            log.warning("this worker ends at once: %s", message.get("reason"))
            exit_now(EXIT_STOPPED)

    def _ask_to_leave(self, number: int) -> None:
        """This process was sent a signal: its agent sees to it that nothing is lost; without one it just ends."""
        if not self.telling.attached:
            exit_now(128 + number)
        self.telling.report("drain", signal=signal.Signals(number).name)

    def _on_agent_gone(self) -> None:
        log.error("no agent looks after this worker any more: it exits")
        exit_now(EXIT_ORPHAN)

    def _enter(self) -> Groups:
        if not self.built:
            self.built = True
            keeps = self.checkpoints is not None
            restorable = self.checkpoints.look() if self.checkpoints is not None else []
            self.telling.report("built", restorable=restorable, keeps=keeps)
        while (groups := self._come()).view.head.closing:
            close(self.recovery, self.checkpoints, groups, self.telling, self.phase)
        self.torch_groups.renew(groups)
        return groups

    def _come(self) -> Groups:
        try:
            groups = self.recovery.enter()
        except Released:
            self.ending.exit_waiting(FINISHED)
        except StateLost:
            self.ending.exit_waiting(LOST)
        if self.checkpoints is not None:
            self.checkpoints.after_entering(groups)
        return groups

    # ---------------------------------------------------------------- what the script sets up

    def register(self, **objects: Any) -> None:
        """Name everything that a newcomer needs to continue: modules, optimizers, schedulers, anything with state_dict.

        Raises RegistrationError.  Register before the first attempt, and the same names on every worker.
        """
        for name, value in objects.items():
            self.state.register(name, value)
        self.trained.changed()

    def data_parallel(self, module: torch.nn.Module, backend: str = "gloo") -> torch.nn.Module:
        """Reduce this module's gradients over the replicas while its backward pass runs.  Returns the same module.

        Raises BackendRefused for any backend but gloo, before anything is touched.
        """
        check_data_backend(backend)
        if self.settings is not None and self.pipeline_size > 1:
            raise ReknitError(
                f"job.data_parallel is for replicas of one stage, and this job has --pipe {self.pipeline_size}: split "
                "the model by job.coordinate.pipe and run it by job.pipeline(build), or start the job with --pipe 1"
            )
        self.trained.overlap(module)
        return module

    def pipeline(self, build: Callable[[Share], Any]) -> Pipeline:
        """A pipeline whose schedule `build(share)` makes, anew at each formation or change of share.

        The stage's module is registered by `register`; its gradients are reduced once, by `commit`.
        """
        return Pipeline(build, self._share, self.times.stopwatch.leave_out)

    def sampler(self, length: int, global_batch: int, micro_batch: int, seed: int = 0) -> Sampler:
        """Deals the samples 0…length-1 to steps and replicas: each step takes `global_batch`, whoever is here.

        The first sampler is the training's: its micro-batches are a pipeline's.
        """
        sampler = Sampler(length, global_batch, micro_batch, seed, self, self._settings.max_replicas)
        self._sampler = self._sampler or sampler
        return sampler

    def checkpoint(self, folder: str | os.PathLike[str], *, every: int, keep: int = 3) -> None:
        """Write a checkpoint of the job after each `every` steps into `folder`, and begin from the newest one there.

        `folder` is one that all hosts share; the newest `keep` complete checkpoints stay in it.  They hold what is
        registered and the random state, and are read by any number of replicas, or by plain `torch.load`.  If all of a
        coordinate's state is lost, the job goes back to the newest one.  Call it once, before the first attempt, on
        every worker.  Raises CheckpointError for numbers below 1, AttemptError if it comes too late.
        """
        if self.built or self.checkpoints is not None:
            raise AttemptError("call job.checkpoint once, before the first attempt and before job.step is read")
        schedule = Schedule(every, keep)
        self.checkpoints = Checkpoints(
            Path(folder).absolute(), schedule, self._settings.axes, self._coordinate_index, self.state, self.telling
        )
        self.recovery.checkpoints = self.checkpoints

    def _share(self) -> tuple[object, Share]:
        groups, formation = self._present(), self.recovery.formation
        assert formation is not None
        total = self._sampler.micro_batches if self._sampler is not None else self.replicas
        count = len(deal(total, self.replicas, groups.data_rank))
        coordinate = self.coordinate
        share = Share(coordinate.pipe, self.pipeline_size, formation.line("pipe"), count, self.device)
        return (formation.serial, count), share

    # ---------------------------------------------------------------- a step

    def attempt(self) -> Attempt:
        """One attempt at the next step; use it as `with job.attempt() as attempt`."""
        return Attempt(self)

    def long_phase(self, what: str = "evaluation", limit: float | None = None) -> AbstractContextManager[None]:
        """Announce a good reason for keeping the others waiting; use it as `with job.long_phase("evaluation"):`.

        Whoever lets the others wait for longer than the hang time (`--hang`) counts as hung and is replaced.  Put an
        evaluation, a compilation or a checkpoint that you write by hand inside of this, in an attempt or between two.
        `what` is shown to whoever asks what the job waits for.  After `limit` seconds (None: never) this worker is no
        longer excused, which bounds what a hang inside can cost.  Raises ReknitError for a limit that is not positive.
        """
        return self.phase.long(what, limit)

    def log(self, **numbers: Any) -> None:
        """Numbers (a loss; whatever float() takes) that go with this step's `committed` event.

        Raises AttemptError for a name that the event has a field of.
        """
        if taken := RESERVED & numbers.keys():
            raise AttemptError(f"job.log can't take {', '.join(sorted(taken))}: the event has a field of that name")
        self._numbers.update({key: float(value) for key, value in numbers.items()})

    def _give_up(self) -> None:
        """The script's own exception, or its exit, went through an attempt: this worker is a loss to the others.

        They may have gradients of an attempt that it has dropped half-way; it can neither go on nor count as finished.
        """
        self.ending.failed = True
        self.telling.report("gone")
        self.recovery.leave(Interrupted("an exception went through this attempt", group="script", rank=0))

    def _begin_attempt(self) -> Groups:
        if self.ending.failed:
            raise AttemptError(
                "an exception went through an earlier attempt, so this worker cannot take part any more: let the "
                "exception end the script, and a fresh process takes its place"
            )
        groups = self._present()
        assert groups.data is not None
        self._dealt, self._samples, self._numbers = [], [], {}
        for reduction in self.trained.reductions():
            reduction.begin(groups.data)
        self.torch_groups.begin_attempt()
        self.state.begin_attempt()
        self._in_attempt = True
        self.phase.enter("forward and backward")
        self.times.begin(groups)
        return groups

    def _end_attempt(self) -> None:
        self._in_attempt = False
        self.phase.enter("between attempts")

    def begin_shard(self, indices: Sequence[int], is_last: bool) -> None:
        """The sampler is about to hand out a shard: the last one's backward pass completes the gradients.

        From then on the others may have all that they need to commit this step, whatever becomes of this worker: so it
        tells now what it puts in.
        """
        if not self._in_attempt:
            return  # a look at the data, an evaluation: no part of a step
        self.recovery.check()
        self.torch_groups.check(within=True)
        self._dealt.extend(indices)
        if is_last:
            version = Version(self._present().generation, self.state.step + 1)
            self.telling.event("contributed", step=version.step, samples=self._dealt, version=list(version))
        for reduction in self.trained.reductions():
            reduction.arm(is_last)

    @property
    def share(self) -> float:
        """What this worker was dealt in this attempt, over an equal share of the step; 1 if nothing was dealt."""
        return len(self._dealt) * self.replicas / self._sampler.global_batch if self._sampler and self._dealt else 1.0

    def consumed(self, indices: Sequence[int]) -> None:
        """The loop has worked on these samples in this attempt."""
        self._samples.extend(indices)

    def _checkpoint(self, groups: Groups) -> None:
        """A step was just committed."""
        if self.checkpoints is not None:
            self.checkpoints.after_commit(groups)

    def _verify(self, groups: Groups) -> None:
        """Compare the states of the replicas, if it is time.  Raises Interrupted; may end this process."""
        if not is_due(groups.verify_every, self.state.step, groups.excused):
            return
        try:
            verify(groups, self.state, self._settings.verify_policy, self.telling.event)
        except Corrupted as error:
            if error.mine and self._settings.verify_policy == EVICT:
                self.telling.report("gone")
                self.telling.close()  # what was told has left
                exit_now(EXIT_RESTART)
            if error.mine:
                self.state.give_up()
            raise

    def _take_samples(self) -> tuple[int, ...]:
        samples, self._samples = tuple(self._samples), []
        return samples

    def _take_numbers(self) -> dict[str, float]:
        numbers, self._numbers = self._numbers, {}
        return numbers

    # ---------------------------------------------------------------- the end

    def _close(self) -> None:
        """Drop every group and the agent's socket; the process is about to exit."""
        if self._pulse is not None:
            self._pulse.stop()
        self.recovery.close()
        self.telling.close()


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
