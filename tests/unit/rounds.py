"""Replicas whose members are threads: what the rounds inside a replica are tested with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery.control import ReplicaRounds


class Meeting:
    """An all-gather among threads.  A round is over when every member has come."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.condition = threading.Condition()
        self.rounds: list[dict[int, torch.Tensor]] = []
        self.interrupted = False


class Member:
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size, self._round = meeting, rank, meeting.size, 0

    def all_gather_into_tensor(
        self, output: torch.Tensor, tensor: torch.Tensor, *, asynchronous: bool = False
    ) -> object:
        meeting = self.meeting
        with meeting.condition:
            while len(meeting.rounds) <= self._round:
                meeting.rounds.append({})
            entered = meeting.rounds[self._round]
            entered[self.rank] = tensor.clone()
            self._round += 1
            meeting.condition.notify_all()
            if asynchronous:
                return None
            meeting.condition.wait_for(lambda: len(entered) == self.size or meeting.interrupted, timeout=5)
            if len(entered) < self.size:
                raise Interrupted("interrupted", group="control/1/0", rank=self.rank)
        output.copy_(torch.cat([entered[rank] for rank in range(self.size)]))
        return None

    def peers_gone(self) -> list[int]:
        return []

    def interrupt(self) -> None:
        with self.meeting.condition:
            self.meeting.interrupted = True
            self.meeting.condition.notify_all()

    def close(self) -> None:
        self.interrupt()


def together(*actions: Callable[[], Any]) -> list[Any]:
    results: list[Any] = [None] * len(actions)

    def run(i: int) -> None:
        try:
            results[i] = actions[i]()
        except Interrupted as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    return results


def replica(size: int) -> list[ReplicaRounds]:
    meeting = Meeting(size)
    return [ReplicaRounds(Member(meeting, rank)) for rank in range(size)]
