"""Going back to a checkpoint: nobody changes before all know that every coordinate can, and from the same one."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.unit.rounds import replica
from tests.unit.wires import Group, at_once
from torch import nn

from reknit.rendezvous.records import Name, Version
from reknit.runtime.recovery.decision import Row
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.recovery.settling import IncompleteError, settle
from reknit.runtime.recovery.state import State

TARGET = Version(9, 300)
OLD = Version(4, 350)


class Shelf:
    """What one worker finds in the checkpoints' folder: its part, filled with `value`, of the checkpoint `mark`."""

    def __init__(self, state: State, mark: int, value: float) -> None:
        self.state, self.mark, self.value = state, mark, value

    def read(self, step: int) -> Any:
        assert step == TARGET.step
        return SimpleNamespace(mark=self.mark, bytes=8) if self.mark else None

    def take(self, found: Any, version: Version, generation: int) -> None:
        self.state.forget()
        packed = self.state.pack()
        packed["registered"]["model"] = {"weight": torch.full((1, 1), self.value)}
        self.state.unpack(packed, version, generation)


class Worker:
    def __init__(self, coordinate: int, rank: int, mark: int | None) -> None:
        self.state, self.model = State(), nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.model.weight.fill_(0.5)
        self.state.register("model", self.model)
        self.state.committed = OLD
        self.coordinate, self.rank = coordinate, rank
        self.shelf = None if mark is None else Shelf(self.state, mark, float(10 + coordinate))
        self.events: list[str] = []

    @property
    def weight(self) -> float:
        return float(self.model.weight.item())


def job(marks: Sequence[Sequence[int | None]]) -> tuple[list[Worker], list[Any]]:
    """All settle in a restore generation; `marks`[replica][coordinate]: what each finds, None without a folder."""
    size = len(marks[0])
    workers = [Worker(c, r, mark) for r, row in enumerate(marks) for c, mark in enumerate(row)]
    data = [Group(len(marks)).wires() for _ in range(size)]
    rounds = [replica(size) for _ in marks]
    head = SimpleNamespace(restore=True, target=TARGET)
    peers = [SimpleNamespace(place=SimpleNamespace(name=Name(f"w{r}", "1"))) for r in range(len(marks))]

    def run(worker: Worker) -> Any:
        groups = SimpleNamespace(
            view=SimpleNamespace(head=head, peers=peers),
            generation=TARGET.generation,
            data=data[worker.coordinate][worker.rank],
            rounds=rounds[worker.rank][worker.coordinate],
            coordinate=worker.coordinate,
            data_rank=worker.rank,
        )
        rows = [Row(worker.coordinate, OLD, None, True)] * len(marks)
        told = lambda name, **_: worker.events.append(name)  # noqa: E731
        settle(cast(Groups, groups), worker.state, TARGET, rows, told, told, worker.shelf)

    return workers, at_once(*(lambda w=w: run(w) for w in workers))


def test_all_come_back_and_who_could_not_read_is_healed() -> None:
    workers, results = job([[7, 7], [None, 7], [7, 0]])
    assert results == [None] * 6
    assert {w.state.committed for w in workers} == {TARGET}
    assert [w.weight for w in workers] == [10, 11] * 3
    assert [w.events for w in workers if w.rank == 0] == [["restored"]] * 2
    assert [w.events for w in workers if not w.shelf or not w.shelf.mark] == [["healed"]] * 2


@pytest.mark.parametrize("marks", [[[7, 0], [7, None]], [[7, 8], [7, 8]], [[7, 7], [8, 7]]])
def test_a_coordinate_that_cannot_or_reads_another_one_changes_nobody(marks: Sequence[Sequence[int | None]]) -> None:
    workers, results = job(marks)
    assert all(isinstance(result, IncompleteError) for result in results), "all alike"
    assert {w.state.committed for w in workers} == {OLD}
    assert {w.weight for w in workers} == {0.5}
    assert not any(w.events for w in workers)
