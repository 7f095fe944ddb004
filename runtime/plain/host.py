"""A worker that runs the user's script as a child, together with all others that have a place in the generation.

Several times a second all hosts exchange a `Word` over the data group: so they start and restart their children at the
same moment, and know when all have ended well; whoever knows that tells newcomers.  They train nothing: the job's state
stays at step 0.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence

import torch

from reknit.runtime.ending import exit_now
from reknit.runtime.errors import Interrupted
from reknit.runtime.job import Job, join
from reknit.runtime.plain import GIVEN_UP, VARIABLE
from reknit.runtime.plain.child import Child
from reknit.runtime.plain.world import Word, World
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.phase import PATIENT
from reknit.runtime.supervisor.restart import EXIT_RESTART, RestartPolicy, WorkerExit, is_failure, next_restart

log = logging.getLogger(__name__)

SETTLE_SECONDS = 3.0  # for who was lost, or is still on the way, to come before a smaller world starts
_ROUND_SECONDS, _QUICK_ROUND_SECONDS = 0.2, 0.05  # between two words, with a child and without
_GPUS = "CUDA_VISIBLE_DEVICES"


def main() -> None:
    """`sys.argv`: ours, the policy's most restarts, window and backoff, its grace, the script, its arguments."""
    policy = RestartPolicy(int(sys.argv[1]), float(sys.argv[2]), backoff=float(sys.argv[3]))
    grace, script = float(sys.argv[4]), sys.argv[5:]
    environment = _environment_of_children(script[0])
    os.environ[_GPUS] = ""  # they are the child's; here they would only cost memory
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the child gets one as well, and time
    host = Host(join(), script, environment, policy, Child(grace, leads=os.getpgrp() == os.getpid()))
    try:
        host.run()
    finally:
        host.child.end()


def _environment_of_children(script: str) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("REKNIT_")}
    return {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **mine, VARIABLE: script}


class Host:
    """One worker and its child."""

    def __init__(
        self, job: Job, script: Sequence[str], environment: Mapping[str, str], policy: RestartPolicy, child: Child
    ) -> None:
        self._job, self._script, self._environment, self._policy = job, script, environment, policy
        self.child = child
        self._restarts = 0
        self._exits: list[WorkerExit] = []
        self._start_at = 0.0
        self._given_up = self._done = False
        self._why_again = ""  # why the next start is not the first

    def run(self) -> None:
        """Ends by SystemExit: when the job has finished, or this worker has drained."""
        while True:
            groups = self._job._present()
            try:
                self._stay(groups)
                why, error = "the membership changes", None
            except Interrupted as interrupted:
                why, error = "a worker was lost", interrupted
            if self.child.started and not self._done:
                self._why_again = why
                self.child.terminate()
            self._job.recovery.leave(error)

    def _stay(self, groups: Groups) -> None:
        """Live in one generation, until all know a newer one.  Raises Interrupted."""
        job, entered = self._job, time.monotonic()
        world = World.of(groups.view.peers, job.name)
        full = world.size >= job._settings.max_replicas
        port = 0
        while True:
            said = self._exchange(groups, self._word(world, port))
            self._restarts = said.restarts
            if -said.newest > groups.generation:
                return
            if said.given_up:
                self.child.end()
                exit_now(GIVEN_UP)
            if said.done or not said.unfinished:
                self._finish()
            elif self.child.started and said.why:
                self._restart(world, said)
            elif said.port:
                self._start(world, said)
            waits = not (self._done or self.child.started or said.ending or said.port)
            due = self._start_at if full else max(self._start_at, entered + SETTLE_SECONDS)
            port = _free_port() if world.rank == 0 and waits and time.monotonic() >= due else 0
            job.phase.enter("running the script")
            self.child.wait(_ROUND_SECONDS if self.child.started else _QUICK_ROUND_SECONDS)

    def _word(self, world: World, port: int) -> Word:
        code = self.child.returncode if self.child.started else None
        ended_badly, failed = code is not None and code != 0, _has_failed(code)
        return Word(
            newest=-self._job.recovery.known,
            failed=(world.rank + 1) * failed,
            killed=(world.rank + 1) * (ended_badly and not failed),
            unfinished=int(code != 0),
            done=int(self._done),
            ending=int(not self.child.started and not self.child.has_ended()),
            port=port,
            restarts=self._restarts,
            given_up=int(self._given_up),
            teller=world.size - world.rank if self._why_again else 0,
        )

    def _exchange(self, groups: Groups, word: Word) -> Word:
        self._job.phase.enter("agreeing with the other workers", PATIENT)
        numbers = torch.tensor(word.numbers(), dtype=torch.int64)
        assert groups.data is not None
        groups.data.all_reduce(numbers, "max")
        self._job.phase.progressed()
        return Word(*numbers.tolist())

    def _start(self, world: World, said: Word) -> None:
        told = world.environment(said.port, said.restarts, self._policy.max_restarts, self._job._settings.job)
        pid = self.child.start(self._script, {**self._environment, **told})
        fields = {"pid": pid, "rank": world.rank, "world": world.size, "port": said.port, "restarts": said.restarts}
        self._job.telling.event("script_started", **fields)
        if self._why_again and said.teller == world.size - world.rank:
            log.warning(
                "%s: %s is started again on all %d workers, as torchrun would do; to keep the processes that live, let "
                "it `import reknit`, call `job = reknit.join()`, and make each step in `with job.attempt()`",
                self._why_again,
                self._script[0],
                world.size,
            )
        self._why_again = ""

    def _finish(self) -> None:
        """All children have ended well: so does the job, as soon as the leader has heard it of all."""
        if not self._done:
            self._done = True
            self._job.telling.report("finished", step=self._job.state.step)

    def _restart(self, world: World, said: Word) -> None:
        """One of the children has not ended well: all are started anew, in the same generation."""
        now = time.monotonic()
        # Who is killed takes the others along: their failures are not the script's.
        self._exits.append(WorkerExit(now, self.child.lived, -9 if said.killed else 1))
        decision = next_restart(self._exits, now, self._policy)
        if decision.delay_seconds is None:
            self._given_up = True
            if world.rank == 0:
                log.error("%s, for the last time: %s", said.why, decision.reason)
        else:
            self._restarts, self._start_at = self._restarts + 1, now + decision.delay_seconds
            self._why_again = said.why
        self.child.terminate()


def _has_failed(code: int | None) -> bool:
    """Whether a script ended by its own fault.  One that knows nothing of reknit cannot wish to be started afresh."""
    return code == EXIT_RESTART or is_failure(code)


def _free_port() -> int:
    """One that nobody has now; if somebody takes it before rank 0's child does, that fails and all start again."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
