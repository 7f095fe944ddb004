"""The rounds inside a replica: every member says a few numbers, and hears everybody's, or that one has failed.

A replica's rounds are what keeps the members of an intact replica together (rule 7 of PROTOCOL.md): they are not
interrupted while the formation stands, and a member that leaves the generation says "failed" in the round that the
others are in or will come to, at once.  So nobody is left waiting for somebody who has gone.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

import torch

from reknit.runtime.errors import Interrupted

WORDS = 6  # numbers that a member may say in one round
_ALIVE, _FAILED = 0, 1


class Gatherer(Protocol):
    """What the rounds need of a communicator."""

    @property
    def rank(self) -> int:
        """The own rank."""

    @property
    def size(self) -> int:
        """How many ranks."""

    def all_gather_into_tensor(
        self, output: torch.Tensor, tensor: torch.Tensor, *, asynchronous: bool = False
    ) -> object:
        """Everybody's tensor, one after another; raises Interrupted."""

    def peers_gone(self) -> list[int]:
        """The ranks that have closed their connections."""

    def interrupt(self) -> None:
        """Fail every wait at once."""

    def close(self) -> None:
        """Interrupt and drop the group."""


class ReplicaRounds:
    """The control rounds of one replica in one generation; with one member every round is the identity."""

    def __init__(self, communicator: Gatherer | None) -> None:
        self._communicator = communicator
        self._over = communicator is None
        self._farewell: list[object] = []

    def say(self, words: Sequence[int] = ()) -> list[tuple[int, ...]]:
        """One round: my words in, everybody's out, by rank within the replica.  At most WORDS integers.

        Raises Interrupted if a member has left the generation or its connection broke.
        """
        padded = (*words, *[0] * (WORDS - len(words)))
        if self._communicator is None:
            return [padded]
        rows = self._gather((_ALIVE, *padded))
        if any(row[0] == _FAILED for row in rows):
            self._over = True
            failed = tuple(rank for rank, row in enumerate(rows) if row[0] == _FAILED)
            message = f"member {failed[0]} of this replica has left the generation"
            raise Interrupted(message, group="replica", rank=self._communicator.rank, peers=failed)
        return [tuple(row[1:]) for row in rows]

    def say_number(self, number: float) -> list[float]:
        """One round of floating point numbers (64 bits, exact)."""
        (word,) = struct.unpack("<q", struct.pack("<d", number))
        return [struct.unpack("<d", struct.pack("<q", row[0]))[0] for row in self.say((word,))]

    def gather(self, words: torch.Tensor) -> torch.Tensor:
        """A large round: an int64 tensor of equal shape from everybody, stacked by rank.

        A round of `say` comes first, since a member that has left could not say so in a message of this size.
        """
        self.say()
        if self._communicator is None:
            return words.unsqueeze(0)
        flat = torch.empty(self._communicator.size * words.numel(), dtype=torch.int64)
        self._run(flat, words.reshape(-1).contiguous())
        return flat.view(self._communicator.size, *words.shape)

    def agreed_to_leave(self) -> None:
        """Everybody leaves by the outcome of a round: nobody needs to be told."""
        self._over = True

    def leave(self) -> None:
        """Tell the others that this member has left, in the round that they are in or will come to.  Does not wait."""
        if self._over or self._communicator is None:
            return
        self._over = True
        row = torch.tensor([_FAILED, *[0] * WORDS], dtype=torch.int64)
        output = torch.empty(self._communicator.size * len(row), dtype=torch.int64)
        try:
            work = self._communicator.all_gather_into_tensor(output, row, asynchronous=True)
            self._farewell = [work, row, output]  # kept until the group is closed
        except Interrupted:
            pass

    def peers_gone(self) -> list[int]:
        """Members whose connections are closed.  Who leaves by `leave` keeps them for a while."""
        return self._communicator.peers_gone() if self._communicator is not None else []

    def interrupt(self) -> None:
        """The formation is over: fail every wait at once."""
        if self._communicator is not None:
            self._communicator.interrupt()

    def close(self) -> None:
        """Drop the group, once nobody can still need the farewell."""
        if self._communicator is not None:
            self._communicator.close()
        self._farewell = []

    def _gather(self, row: Sequence[int]) -> list[list[int]]:
        assert self._communicator is not None
        output = torch.empty(self._communicator.size * len(row), dtype=torch.int64)
        self._run(output, torch.tensor(row, dtype=torch.int64))
        return output.view(self._communicator.size, len(row)).tolist()

    def _run(self, output: torch.Tensor, words: torch.Tensor) -> None:
        assert self._communicator is not None
        try:
            self._communicator.all_gather_into_tensor(output, words)
        except Interrupted:
            self._over = True
            raise
