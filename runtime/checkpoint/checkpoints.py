"""One worker's dealings with its job's checkpoints: which it could restore, when it writes its part, how it comes back.

Every worker of a coordinate can read its coordinate's part; one of them writes it, in turns, so that the work of a
checkpoint is spread over the replicas.  What a worker says that it can restore, it has found complete and of the right
size; the checksum is compared as the part is read, and one that differs leads to an older checkpoint.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.records import Axes, Version
from reknit.runtime.checkpoint.files import (
    CheckpointError,
    DamagedError,
    Found,
    GoneError,
    Part,
    check_part,
    complete_steps,
    is_complete,
    is_of,
    read_part,
    set_aside,
    still_stands,
)
from reknit.runtime.checkpoint.writer import Writer
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.state import State

log = logging.getLogger(__name__)

AGAIN = 5.0  # seconds until a part of a last checkpoint that could not be written is tried again
MOST = 8  # so many steps are told to the leader


class Words(Protocol):
    """Where a worker's words go: `Telling`."""

    def report(self, kind: str, **fields: Any) -> None:
        """For its record."""

    def event(self, event: str, **fields: Any) -> None:
        """For the events file."""


@dataclass(frozen=True)
class Schedule:
    """`every`: steps from one checkpoint to the next; `keep`: how many complete ones stay.  Raises CheckpointError."""

    every: int
    keep: int

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("keep", self.keep)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise CheckpointError(f"job.checkpoint(…, {name}={value!r}): it must be a whole number from 1")

    def is_due(self, step: int) -> bool:
        """Whether there shall be a checkpoint of this step."""
        return step > 0 and step % self.every == 0

    def writer(self, step: int, coordinate: int, replicas: int) -> int:
        """The data rank that writes a coordinate's part: they take turns, and one replica does not write it all."""
        return (coordinate + step // self.every) % replicas


class Checkpoints:
    """Checkpoints of one worker's coordinate in a folder.  Nothing is opened before `look`."""

    def __init__(
        self, folder: Path, schedule: Schedule, axes: Axes, coordinate: int, state: State, words: Words
    ) -> None:
        self.folder, self.schedule = folder, schedule
        self._axes, self._coordinate, self._state, self._words = axes, coordinate, state, words
        self._useless: set[int] = set()  # what cannot be restored here, which has been said
        self._last_try = "", 0.0  # of a last checkpoint: in which generation, and when
        self._writer = Writer(folder, schedule.keep, words.event, self.tell)

    # ---------------------------------------------------------------- what there is

    def look(self) -> list[int]:
        """The steps that this worker could restore, newest first, at most MOST."""
        return [step for step in complete_steps(self.folder) if self._is_usable(step)][:MOST]

    def tell(self) -> None:
        """Tell the leader which they are."""
        self._words.report("checkpoints", steps=self.look())

    def _is_usable(self, step: int) -> bool:
        if step in self._useless:
            return False
        try:
            check_part(self.folder, self._part(step))
        except CheckpointError as error:
            self._leave_out(step, error)
            return False
        return True

    def _leave_out(self, step: int, error: CheckpointError) -> None:
        """Say once that a checkpoint cannot be used.  A damaged one is put aside, so that nobody else tries.

        One that was deleted or replaced as this worker looked is neither: there is nothing to say.
        """
        replaced = isinstance(error, DamagedError) and not still_stands(self.folder, step, error.manifest)
        if replaced or isinstance(error, GoneError):
            log.info("the checkpoint of step %d was deleted or replaced meanwhile", step)
            return
        if step not in self._useless:
            self._useless.add(step)
            log.error("the checkpoint of step %d is left out: %s", step, error)
            self._words.event("checkpoint_failed", step=step, reason=str(error))
        if isinstance(error, DamagedError):
            set_aside(self.folder, step)

    # ---------------------------------------------------------------- writing

    def after_commit(self, groups: Groups) -> None:
        """A step was just committed in this generation: write this worker's part if that is due.  Never raises."""
        step = self._state.step
        if self.schedule.is_due(step):
            self._useless.discard(step)  # an older life's, which will be replaced
            self._write(groups, step)

    def after_entering(self, groups: Groups) -> None:
        """If the generation that committed this step has lost somebody, a part of its checkpoint may be lost too."""
        version = self._state.committed
        if version is None or not self.schedule.is_due(version.step) or groups.view.head.broken < version.generation:
            return
        if not is_complete(self.folder, version.step):
            self._useless.discard(version.step)
            self._write(groups, version.step)

    def _write(self, groups: Groups, step: int) -> None:
        if not self._writes(groups, step):
            return
        self._writer.write(self._part(step), _token(groups), lambda: self._content(step))

    def make_last(self, groups: Groups, now: float) -> bool:
        """In a generation in which nobody works: whether the checkpoint of its step is complete (`now`: monotonic).

        Ask again until it is.  This worker's part is written meanwhile, if it is the one to write it; if that has
        failed, once more after AGAIN seconds.
        """
        step, token, version = self._state.step, _token(groups), self._state.committed
        if step == 0 or version is None:
            return True
        if not self._writes(groups, step) or self._writer.written == (token, step):
            return is_of(self.folder, step, version) and self._is_there(step)
        tried, at = self._last_try
        if self._writer.idle and (tried != token or now >= at + AGAIN):
            self._last_try = token, now
            self._useless.discard(step)  # an older life's, which will be replaced
            self._write(groups, step)
        return False

    def _is_there(self, step: int) -> bool:
        """Whether this worker's part looks usable just now; one failed look is not the last word on it."""
        try:
            check_part(self.folder, self._part(step))
        except CheckpointError as error:
            log.debug("the last checkpoint cannot be read yet: %s", error)
            return False
        self._useless.discard(step)
        return True

    def _writes(self, groups: Groups, step: int) -> bool:
        return self.schedule.writer(step, self._coordinate, len(groups.view.peers)) == groups.data_rank

    def _content(self, step: int) -> dict[str, Any]:
        version = self._state.committed
        assert version is not None
        about = {"step": step, "version": list(version), "coordinate": list(self._axes.coordinate(self._coordinate))}
        return {**about, **self._state.pack()}

    def finish(self, timeout: float) -> None:
        """Wait until what is being written is written, but no longer than `timeout` seconds."""
        if not self._writer.finish(timeout):
            log.error("the last checkpoint could not be written to %s within %.0f s", self.folder, timeout)

    # ---------------------------------------------------------------- coming back

    def read(self, step: int) -> Found | None:
        """This worker's part of the checkpoint of a step, or None if that cannot be had, which is said.

        The state stays as it is.
        """
        try:
            return read_part(self.folder, self._part(step))
        except CheckpointError as error:
            self._leave_out(step, error)
            return None

    def take(self, found: Found, version: Version, generation: int) -> None:
        """Come to what was read, which is `version` from now on.

        Raises ReknitError if the script cannot take in what the checkpoint holds.
        """
        self._state.forget()
        try:
            self._state.unpack(found.content, version, generation)
        except Exception as error:
            raise ReknitError(
                f"the checkpoint of step {version.step} in {self.folder} does not fit what this script has registered "
                f"({error}): choose another folder to begin anew"
            ) from error
        log.info("step %d is restored from the checkpoint in %s", version.step, self.folder)

    def _part(self, step: int) -> Part:
        return Part(step, self._axes, self._coordinate)


def _token(groups: Groups) -> str:
    """What tells the parts that are written in this generation from all others."""
    return f"{groups.generation}-{groups.view.head.digest}"
