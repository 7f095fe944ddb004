"""How a worker ends, after its script's last line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from reknit.rendezvous.records import FINISHED, LOST
from reknit.runtime.ending import Ending
from reknit.runtime.job import Job
from reknit.runtime.recovery.recovery import Released
from reknit.runtime.supervisor.restart import EXIT_RESTART


class Desk:
    """A job whose script has ended, of which a member is lost once, and which then finishes."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.generations = [6]
        self.job = SimpleNamespace(
            built=True,
            settings=SimpleNamespace(events=False),
            state=SimpleNamespace(step=9),
            phase=SimpleNamespace(enter=lambda *_: None),
            telling=SimpleNamespace(report=lambda kind, **_: self.said.append(kind)),
            checkpoints=SimpleNamespace(
                after_entering=lambda groups: self.said.append(f"looks in {groups.generation}"),
                finish=lambda _: self.said.append("has written"),
            ),
            recovery=SimpleNamespace(
                groups=SimpleNamespace(generation=5, data_rank=0),
                enter=self.enter,
                wait_for_newer=lambda generation: self.said.append(f"waits in {generation}"),
                leave=self.leave,
            ),
            _close=lambda: self.said.append("closed"),
        )
        self.ending = Ending(cast(Job, self.job))

    def enter(self) -> Any:
        if not self.generations:
            raise Released("the job has finished")
        self.job.recovery.groups = SimpleNamespace(generation=self.generations.pop(), data_rank=0)
        return self.job.recovery.groups

    def leave(self, error: BaseException) -> None:
        self.job.recovery.groups = None


def test_the_last_checkpoint_is_whole_before_it_ends_even_if_a_writer_of_it_dies_meanwhile() -> None:
    desk = Desk()
    desk.ending.end()
    assert desk.said == ["has written", "finished", "waits in 5", "looks in 6", "waits in 6", "has written", "closed"]


@pytest.mark.parametrize("what", ["failed", "built"])
def test_who_has_failed_or_never_began_has_nothing_to_finish(what: str) -> None:
    desk = Desk()
    desk.ending.failed = what == "failed"
    desk.job.built = what != "built"
    desk.ending.end()
    assert desk.said == []


@pytest.mark.parametrize(("state", "code"), [(FINISHED, 0), (LOST, EXIT_RESTART)])
def test_who_waits_for_a_place_in_vain_exits_when_it_has_written(state: str, code: int) -> None:
    desk = Desk()
    with pytest.raises(SystemExit) as raised:
        desk.ending.exit_waiting(state)
    assert raised.value.code == code
    assert desk.said == ["has written"]
    assert desk.ending.failed
