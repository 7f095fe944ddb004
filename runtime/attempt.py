"""One attempt at a step: reduce, vote, commit; or be ended by a membership change and swallowed.

The order is PROTOCOL.md's, rules 13 and 14.  What can fail, fails before the vote; after it there is only the
optimizer's own step.
"""

from __future__ import annotations

import logging
import math
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.records import Version
from reknit.runtime import injection
from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery.control import ReplicaRounds
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.phase import PATIENT, SHARED
from reknit.runtime.recovery.state import Update
from reknit.runtime.sharding import OfParts, counts, local

if TYPE_CHECKING:
    from reknit.runtime.job import Job

log = logging.getLogger(__name__)

BLAME_SECONDS = 0.5  # how long an error inside the replica waits for the notice that explains it


class AttemptError(ReknitError):
    """The training loop used an attempt in a way that could not keep the job's promises."""


class Attempt:
    """What `with job.attempt() as attempt` gives: a membership change ends it early, and the loop tries again."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._groups: Groups | None = None
        self._committed = self._reached_commit = False
        self._step = 0

    def __enter__(self) -> Attempt:
        self._groups = self._job._begin_attempt()
        self._step = self._job.state.step + 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._job._end_attempt()
        if error is None:
            if self._committed:
                return False
            self._job._give_up()
            raise AttemptError(
                "the attempt ended without attempt.commit(optimizer): nothing would ever be committed; "
                "call it as the last thing in the `with` block"
            )
        if not self._explains(error):
            self._job._give_up()
            return False
        if not self._committed:
            log.info("step %d is tried again: %s", self._step, _sentence(error))
            self._job.telling.event("retried", step=self._step, reason=_sentence(error))
        self._job.recovery.leave(error, midway=not self._reached_commit)
        return True

    def _explains(self, error: BaseException) -> bool:
        """Whether a membership change, and not the user's own mistake, ended the attempt."""
        if isinstance(error, Interrupted):
            return True
        # A schedule inside the replica fails with whatever torch raises; a closed connection there is the explanation.
        formation = self._job.recovery.formation
        if not isinstance(error, RuntimeError) or isinstance(error, ReknitError) or formation is None:
            return False
        until = time.monotonic() + (BLAME_SECONDS if len(formation.identity.names) > 1 else 0)
        while not (formation.lost_a_member() or (self._groups is not None and self._groups.urgent)):
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True

    # ---------------------------------------------------------------- committing

    def commit(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Any = None,
        *,
        clip_norm: float | None = None,
        scaler: Any = None,
    ) -> None:
        """Reduce the gradients, let the whole job vote, and make the step.

        `clip_norm`: the largest global norm of the gradients, over all coordinates of the replica; what workers hold
        alike counts once (DTensors say so; plain parameters are alike for all of a stage, but with the mark
        `tensor_model_parallel`).  `scheduler` and `scaler` (a torch GradScaler) step with the optimizer, here or when
        the step is rolled forward later.  Ends the attempt with Interrupted, which the `with` block swallows, if the
        membership changes first.
        """
        if self._committed:
            raise AttemptError("attempt.commit was called twice in one attempt: an attempt is one step")
        job, groups = self._job, self._groups
        assert groups is not None
        assert groups.rounds is not None
        step = job.state.step
        job.trained.check(optimizer, scheduler, scaler)
        job.trained.settle()
        job.times.stopwatch.stop()
        self._reached_commit = True
        job.phase.enter("reduce", SHARED)
        injection.reach("reduce", step)
        for reduction in job.trained.reductions():
            reduction.finish()
        job.torch_groups.check()
        job.times.reduced(job.share)
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        scaled = optimizer
        if scaler is not None:
            _agree_on_overflow(groups.rounds, parameters)
            job.state.unscaled_by(scaler)
            scaled = OfParts.of(optimizer)
            scaler.unscale_(scaled)
        if clip_norm is not None:
            _clip(groups.rounds, parameters, clip_norm, job.coordinate.model)
        job._verify(groups)
        version = Version(groups.generation, step + 1)
        update = Update(optimizer, scheduler, scaler, job._take_samples(), job._take_numbers(), scaled)
        job.state.prepare(version, update)
        job.phase.enter("vote", PATIENT)
        injection.reach("vote", step)
        newest = self._vote(groups)
        job.phase.enter("the optimizer's step")
        injection.reach("voted", step)
        update = job.state.commit()
        self._committed = True
        job.phase.committed()
        injection.reach("committed", step)
        job.telling.committed(version, update, timing=job.times.fields())
        job._checkpoint(groups)
        if newest > groups.generation:
            job.recovery.leave(None)

    def _vote(self, groups: Groups) -> int:
        """MIN of the newest generation known, in the data group, then in the replica.  Success: all are prepared.

        What each rank needs itself goes along.
        """
        assert groups.data is not None
        assert groups.rounds is not None
        times, recovery, step = self._job.times, self._job.recovery, self._job.state.step
        begun = time.perf_counter()
        word = torch.tensor([times.ballot(recovery.known, groups.data.rank, step)], dtype=torch.int64)
        groups.data.all_reduce(word, "min")
        injection.reach("half voted", step)
        known = times.hear(int(word.item()))
        recovery.open_attempt()
        said = groups.rounds.say((known, *times.words()))
        times.voted([words[1:3] for words in said], time.perf_counter() - begun)
        return min(words[0] for words in said)


def _sentence(error: BaseException) -> str:
    return str(error) if isinstance(error, Interrupted) else "a connection within this replica was closed"


def _agree_on_overflow(rounds: ReplicaRounds, parameters: list[torch.nn.Parameter]) -> None:
    """If one stage's gradients overflowed, make the scaler of every stage see it, so that all skip the step."""
    total = sum(float(local(p.grad).float().sum()) for p in parameters if p.grad is not None)
    mine = int(not math.isfinite(total))
    anybody = any(words[0] for words in rounds.say((mine,)))
    if anybody:  # the sum of finite ones may overflow, too; of a sharded one this worker's part may be empty
        for parameter in parameters:
            if parameter.grad is not None:
                local(parameter.grad).fill_(math.inf)


def _clip(rounds: ReplicaRounds, parameters: list[torch.nn.Parameter], limit: float, model_rank: int) -> None:
    """Scale the gradients so that their norm over the whole replica is at most `limit` (as torch's clip_grad_norm_).

    What several workers of the replica hold alike counts once: see `sharding.counts`.
    """
    grads = [local(p.grad) for p in parameters if p.grad is not None]
    counted = [local(p.grad) for p in parameters if p.grad is not None and counts(p, model_rank)]
    norms = torch._foreach_norm(counted) if counted else []
    square = float(torch.stack([n.double() for n in norms]).square().sum()) if norms else 0.0
    norm = math.sqrt(sum(rounds.say_number(square)))
    factor = limit / (norm + 1e-6)
    if grads and not factor >= 1:
        torch._foreach_mul_(grads, factor)
