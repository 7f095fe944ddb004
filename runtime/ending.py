"""How a worker ends: with which code, and, after the script's last line, not before all have made the last step."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from reknit.rendezvous.records import FINISHED
from reknit.runtime.errors import Interrupted
from reknit.runtime.process import footprint
from reknit.runtime.recovery.phase import PATIENT
from reknit.runtime.recovery.recovery import Released, StateLost
from reknit.runtime.supervisor import bootstrap
from reknit.runtime.supervisor.restart import EXIT_RESTART

if TYPE_CHECKING:
    from reknit.runtime.job import Job

log = logging.getLogger(__name__)

EXIT_STOPPED = 128 + signal.SIGTERM
EXIT_ORPHAN = 76  # the agent is gone for longer than its lease stands
LAST_SECONDS = 600.0  # for a checkpoint that is being written when this worker ends


class Ending:
    """The end of one worker.  `failed`: it can neither go on nor count as finished, whatever handlers run at exit."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.failed = False

    def watch(self) -> None:
        """See to it that this worker's end is one, however the script ends; called before the job is entered."""
        self._watch_for_failure()
        if bootstrap.running:
            bootstrap.at_end.append(self.end)
        else:
            # Not a daemon: the interpreter waits for it after the script's last line, while threads can be started.
            threading.Thread(target=self._end_after_script, name="reknit-end").start()

    def _watch_for_failure(self) -> None:
        """An uncaught exception means that this worker has not finished, whatever atexit handlers run afterwards."""
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: Any) -> Any:
            self.failed = True
            return before(kind, error, trace)

        sys.excepthook = hook

    def exit_waiting(self, state: str) -> NoReturn:
        """The script waits for a place, and nobody needs it any more: FINISHED (or drained), or LOST."""
        self.failed = True  # nothing to finish
        self._finish_writing()
        raise SystemExit(0 if state == FINISHED else EXIT_RESTART)

    def end(self) -> None:
        """The script has ended: wait for the others, and go."""
        job = self._job
        if self.failed or not job.built:
            return
        try:
            self._finish()
        except Released:
            self._finish_writing()
        except StateLost:
            exit_now(EXIT_RESTART)
        finally:
            job._close()

    def _end_after_script(self) -> None:
        threading.main_thread().join()
        self.end()

    def _finish_writing(self) -> None:
        """This worker's part of a checkpoint may be the last one missing."""
        if self._job.checkpoints is not None:
            self._job.phase.enter("writing the last checkpoint", PATIENT)
            self._job.checkpoints.finish(LAST_SECONDS)

    def _finish(self) -> None:
        """The loop has ended: stay until all have made the last step (rule 15), taking part in every comparison."""
        job, last = self._job, self._job.state.step
        job.phase.enter("its end")  # on this thread: the one that trained may be over
        self._finish_writing()
        if job.settings is not None and job.settings.events:
            digest = job.state.digest()
            job.telling.event("finished", step=last, coordinate=str(job.coordinate), state_sha256=digest, **footprint())
        job.telling.report("finished", step=last)
        while True:
            groups = job.recovery.groups
            if groups is None:
                groups = job.recovery.enter()
                if job.checkpoints is not None:
                    job.checkpoints.after_entering(groups)  # somebody may have died as it wrote the last one
                if job.state.step != last:
                    log.warning("the job went back from step %d to %d: this worker starts afresh", last, job.state.step)
                    exit_now(EXIT_RESTART)
            job.phase.enter(FINISHED, PATIENT)
            job.recovery.wait_for_newer(groups.generation)
            job.recovery.leave(Interrupted("a newer plan came", group="data", rank=groups.data_rank))


def exit_now(code: int) -> NoReturn:
    """End this process from any thread, without the interpreter's own end."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
