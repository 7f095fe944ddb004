"""What a worker does in a closing generation: nothing but the job's last checkpoint (`rendezvous.closing`)."""

from __future__ import annotations

import logging
import time

from reknit.runtime.checkpoint.checkpoints import Checkpoints
from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.phase import PATIENT, Phase
from reknit.runtime.recovery.recovery import Recovery
from reknit.runtime.telling import Telling

log = logging.getLogger(__name__)

LOOK = 0.05  # seconds between two looks whether the checkpoint is complete


def close(recovery: Recovery, checkpoints: Checkpoints | None, groups: Groups, telling: Telling, phase: Phase) -> None:
    """Write this worker's part, tell when the checkpoint is complete, and stay until there is a newer plan.

    Then this worker has left the generation: it drains, or goes on with whoever has come.
    """
    phase.enter("the job's last checkpoint", PATIENT)
    log.info("all members drain: the job stops at step %d for a last checkpoint", recovery.step)
    told = False
    while recovery.known <= groups.generation:
        if not told and (checkpoints is None or checkpoints.make_last(groups, time.monotonic())):
            if checkpoints is not None:
                checkpoints.tell()
            telling.report("closed", generation=groups.generation)
            told = True
        recovery.wait_for_newer(groups.generation, None if told else LOOK)
    recovery.leave(Interrupted("a newer plan came", group="data", rank=groups.data_rank))
