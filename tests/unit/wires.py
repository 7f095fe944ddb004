"""A data group whose members are threads: what healing is tested with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from reknit.runtime.errors import Interrupted

SECONDS = 5.0


class Group:
    """What its wires share.  `spoil(source, receiver, tag, tensor)` may damage a message on its way."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.condition = threading.Condition()
        self.messages: dict[tuple[int, int, int], list[torch.Tensor]] = {}
        self.gathers: list[dict[int, torch.Tensor]] = []
        self.broken = False
        self.spoil: Callable[[int, int, int, torch.Tensor], None] = lambda *_: None
        self.sent: list[tuple[int, int, int, int]] = []  # source, receiver, tag, bytes

    def wires(self) -> list[Wire]:
        return [Wire(self, rank) for rank in range(self.size)]

    def wait(self, condition: Callable[[], Any]) -> None:
        """Until it holds; Interrupted if the group breaks first."""
        with self.condition:
            assert self.condition.wait_for(lambda: self.broken or condition(), SECONDS), "nobody came"
            if not condition():
                raise Interrupted("broken", group="data/1/0", rank=0)

    def break_off(self) -> None:
        """Somebody died."""
        with self.condition:
            self.broken = True
            self.condition.notify_all()


class Work:
    def __init__(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    def wait(self) -> None:
        self._wait()


class Wire:
    """One member's end.  As gloo, it insists on equal sizes."""

    def __init__(self, group: Group, rank: int) -> None:
        self.group, self.rank, self.size, self.name, self._gathers = group, rank, group.size, "data/1/0", 0

    def isend(self, tensor: torch.Tensor, destination: int, tag: int = 0) -> Work:
        if self.group.broken:
            raise Interrupted("broken", group=self.name, rank=self.rank)
        message = tensor.clone()
        self.group.spoil(self.rank, destination, tag, message)
        with self.group.condition:
            self.group.sent.append((self.rank, destination, tag, tensor.numel() * tensor.element_size()))
            self.group.messages.setdefault((self.rank, destination, tag), []).append(message)
            self.group.condition.notify_all()
        return Work(lambda: None)

    def irecv(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Work:
        key = (source, self.rank, tag)

        def wait() -> None:
            self.group.wait(lambda: self.group.messages.get(key))
            message = self.group.messages[key].pop(0)
            assert (message.shape, message.dtype) == (tensor.shape, tensor.dtype)
            tensor.copy_(message)

        return Work(wait)

    def follow(self, works: object) -> None:
        pass

    def all_gather_into_tensor(self, output: torch.Tensor, tensor: torch.Tensor) -> None:
        with self.group.condition:
            while len(self.group.gathers) <= self._gathers:
                self.group.gathers.append({})
            entered = self.group.gathers[self._gathers]
            entered[self.rank] = tensor.clone()
            self._gathers += 1
            self.group.condition.notify_all()
        self.group.wait(lambda: len(entered) == self.size)
        output.copy_(torch.cat([entered[rank] for rank in range(self.size)]))


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """Each on a thread; what they return, or raise."""
    results: list[Any] = [None] * len(actions)

    def run(i: int) -> None:
        try:
            results[i] = actions[i]()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    return results
