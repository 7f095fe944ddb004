"""One worker's dealings with checkpoints: when it writes, what it offers to restore, and how it comes back."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.records import Axes, Version
from reknit.runtime.checkpoint import checkpoints as checkpoints_module
from reknit.runtime.checkpoint import files as files_module
from reknit.runtime.checkpoint import writer as writer_module
from reknit.runtime.checkpoint.checkpoints import Checkpoints, Schedule
from reknit.runtime.checkpoint.files import CheckpointError, Part, complete_steps, write_part
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.state import State


class Words:
    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def report(self, kind: str, **fields: Any) -> None:
        self.reports.append({"kind": kind, **fields})

    def event(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})


class Worker:
    """A worker at coordinate 0 of a job of one stage, in generation 5, with another replica beside it."""

    def __init__(self, folder: Path, every: int = 2, width: int = 3, rank: int = 0) -> None:
        self.state, self.words, self.rank = State(), Words(), rank
        self.model = nn.Linear(width, 1)
        self.state.register("model", self.model)
        self.checkpoints = Checkpoints(folder, Schedule(every, 2), Axes(), 0, self.state, self.words)

    def at(self, step: int, generation: int = 5, broken: int = 0) -> Groups:
        """Committed `step` in generation 5, and is now in `generation`."""
        self.state.committed = Version(5, step)
        head = SimpleNamespace(digest=f"digest{generation}", broken=broken)
        view = SimpleNamespace(head=head, peers=[None, None])
        return cast(Groups, SimpleNamespace(view=view, generation=generation, data_rank=self.rank))

    def commit(self, step: int) -> None:
        with torch.no_grad():
            self.model.weight.fill_(float(step))
        self.checkpoints.after_commit(self.at(step))
        self.checkpoints.finish(5.0)


def restore(worker: Worker, version: Version) -> None:
    found = worker.checkpoints.read(version.step)
    assert found is not None
    worker.checkpoints.take(found, version, version.generation)


@pytest.mark.parametrize(("every", "keep"), [(0, 1), (1, 0), (-3, 1), (True, 1), (1.5, 1)])
def test_numbers_below_one_are_refused(every: Any, keep: Any) -> None:
    with pytest.raises(CheckpointError, match="whole number from 1"):
        Schedule(every, keep)


def test_the_work_is_spread_over_the_replicas() -> None:
    schedule = Schedule(10, 3)
    writers = Counter(
        (schedule.writer(step, coordinate, 3), coordinate) for step in range(10, 100, 10) for coordinate in range(3)
    )
    assert set(writers.values()) == {3}
    assert [step for step in range(31) if schedule.is_due(step)] == [10, 20, 30]


def test_it_writes_when_it_is_its_turn(tmp_path: Path) -> None:
    worker = Worker(tmp_path)  # data rank 0 of 2
    for step in range(1, 9):
        worker.commit(step)
    assert complete_steps(tmp_path) == [8, 4]
    assert worker.words.reports[-1] == {"kind": "checkpoints", "steps": [8, 4]}
    assert [(e["event"], e["step"], e["complete"]) for e in worker.words.events] == [
        ("checkpoint", 4, True),
        ("checkpoint", 8, True),
    ]


def test_it_is_written_anew_only_if_the_generation_lost_somebody(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    for generation, broken in ((6, 0), (6, 4)):  # planned, and an older loss
        worker.checkpoints.after_entering(worker.at(4, generation, broken))
    worker.checkpoints.after_entering(worker.at(3, 6, 5))  # no step for one
    worker.checkpoints.finish(5.0)
    assert complete_steps(tmp_path) == []
    worker.checkpoints.after_entering(worker.at(4, 6, 5))
    worker.checkpoints.finish(5.0)
    assert complete_steps(tmp_path) == [4]


def test_it_comes_back_to_what_it_was(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.commit(4)
    drawn = torch.rand(3)
    other = Worker(tmp_path)
    assert other.checkpoints.look() == [4]
    restore(other, Version(9, 4))
    assert torch.equal(other.model.weight, torch.full((1, 3), 4.0))
    assert torch.equal(torch.rand(3), drawn), "the random state, too"
    assert (other.state.committed, other.state.ready, other.state.pristine) == (Version(9, 4), 9, False)
    assert other.words.events == []


def test_a_damaged_one_is_said_once_and_put_aside_and_nothing_is_touched(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    for step in (4, 8):
        worker.commit(step)
    path = tmp_path / "step-000000008" / Part(8, Axes(), 0).name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    other = Worker(tmp_path)
    before = other.model.weight.detach().clone()
    assert other.checkpoints.look() == [8, 4]
    assert other.checkpoints.read(8) is None
    assert torch.equal(other.model.weight, before)
    assert other.state.committed is None
    assert other.state.pristine
    assert other.checkpoints.look() == [4]
    assert [event["event"] for event in other.words.events] == ["checkpoint_failed"]
    assert Worker(tmp_path).checkpoints.look() == [4], "nobody else tries"
    restore(other, Version(10, 4))


def test_what_is_deleted_or_replaced_as_it_is_looked_at_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, other = Worker(tmp_path), Worker(tmp_path)
    for step in (4, 8):
        worker.commit(step)

    def replace(path: Path) -> str:
        monkeypatch.undo()
        write_part(tmp_path, "another", Part(4, Axes(), 0), {"version": [9, 4], "more": 1})
        return "of the other one"

    monkeypatch.setattr(files_module, "_sha256", replace)
    assert other.checkpoints.read(4) is None, "neither the one nor the other"
    assert complete_steps(tmp_path) == [8, 4]
    assert other.checkpoints.look() == [8, 4]
    found = other.checkpoints.read(4)
    assert found is not None
    assert found.content["more"] == 1
    shutil.rmtree(tmp_path / "step-000000008")
    monkeypatch.setattr(checkpoints_module, "complete_steps", lambda folder: [8, 4])
    assert other.checkpoints.look() == [4]
    assert other.words.events == []


def test_what_does_not_fit_the_script_is_said_so(tmp_path: Path) -> None:
    Worker(tmp_path).commit(4)
    with pytest.raises(ReknitError, match="does not fit what this script has registered"):
        restore(Worker(tmp_path, width=7), Version(9, 4))


def test_while_one_is_being_written_the_next_one_is_left_out_but_not_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, begun = threading.Event(), threading.Event()

    def wait_and_write(*arguments: Any) -> bool:
        begun.set()
        assert slow.wait(5.0)
        return write_part(*arguments)

    monkeypatch.setattr(writer_module, "write_part", wait_and_write)
    worker = Worker(tmp_path)
    worker.checkpoints.after_commit(worker.at(4))
    assert begun.wait(5.0)
    worker.checkpoints.after_commit(worker.at(8))
    worker.checkpoints.after_entering(worker.at(4, 6, 5))
    (event,) = worker.words.events
    assert (event["event"], event["step"]) == ("checkpoint_failed", 8)
    assert "still being written" in event["reason"]
    slow.set()
    worker.checkpoints.finish(5.0)
    assert [(e["event"], e["step"]) for e in worker.words.events[1:]] == [("checkpoint", 4), ("checkpoint", 4)]
    assert complete_steps(tmp_path) == [4]


# ---------------------------------------------------------------- the last one


def until(worker: Worker, groups: Groups, now: float = 0.0) -> bool:
    there = worker.checkpoints.make_last(groups, now)
    worker.checkpoints.finish(5.0)
    return there


def test_as_the_job_stops_the_step_that_it_has_come_to_is_written_whatever_its_number(tmp_path: Path) -> None:
    writer, other = Worker(tmp_path, every=100), Worker(tmp_path, every=100, rank=1)
    groups = writer.at(7, 6)
    assert not until(other, other.at(7, 6)), "the other one writes"
    assert complete_steps(tmp_path) == []
    assert not until(writer, groups)
    assert complete_steps(tmp_path) == [7]
    assert until(writer, groups)
    assert until(other, other.at(7, 6))


def test_an_older_lifes_checkpoint_of_that_step_is_replaced_first(tmp_path: Path) -> None:
    old = Worker(tmp_path, every=7, rank=1)
    old.commit(7)
    worker = Worker(tmp_path, every=100)
    worker.state.committed = Version(9, 7)
    groups = worker.at(7, 10)
    worker.state.committed = Version(9, 7)
    assert not until(worker, groups), "what is there is not what this worker holds"
    assert until(worker, groups)
    found = worker.checkpoints.read(7)
    assert found is not None
    assert found.content["version"] == [9, 7]


def test_what_cannot_be_written_is_tried_again_after_a_while(tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.write_text("no folder")
    worker = Worker(folder, every=100)
    groups = worker.at(7, 6)
    for now in (0.0, 1.0, 2.0):
        assert not until(worker, groups, now)
    assert [event["event"] for event in worker.words.events] == ["checkpoint_failed"]
    folder.unlink()
    assert not until(worker, groups, 4.9)
    assert not until(worker, groups, 5.0)
    assert until(worker, groups, 5.1)


def test_a_disk_that_fails_at_the_very_end_is_tried_again_and_no_older_life_is_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Worker(tmp_path, every=7, rank=1).commit(7)  # an older life's
    worker = Worker(tmp_path, every=100)
    groups = worker.at(7, 10)
    worker.state.committed = Version(9, 7)
    with monkeypatch.context() as patch:
        patch.setattr(files_module, "_put_in_place", _full)
        assert not until(worker, groups, 0.0)
        assert not until(worker, groups, 0.1)
    assert not until(worker, groups, 6.0)
    assert until(worker, groups, 6.1)
    found = worker.checkpoints.read(7)
    assert found is not None
    assert found.content["version"] == [9, 7]


def _full(*_: Any) -> bool:
    raise OSError(28, "No space left on device")


def test_before_the_first_step_there_is_nothing_to_write(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    assert until(worker, worker.at(0, 6))
    assert complete_steps(tmp_path) == []
