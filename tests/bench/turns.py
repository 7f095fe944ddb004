"""Lets systems that are compared take turns: A a few steps, B a few steps, A again, all within seconds.

Each system runs in processes of its own, which are started once and rest, blocked in a read, until it is their turn.
So a machine that is busy for a while is busy for all of them, and no start-up is paid per turn.  `Player` is the side
of the training scripts, `Conductor` that of the bench; they speak JSON lines over a Unix socket.
"""

from __future__ import annotations

import json
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import IO, Any


class Player:
    """One training process.  The constructor connects to the conductor."""

    def __init__(self, path: Path, system: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        self._file: IO[Any] = connection.makefile("rw")
        self._left = 0
        self._pad = 0.0
        self._seconds: list[float] = []
        self._begun = 0.0
        self._say(system=system)

    def step(self) -> float | None:
        """Wait until it is this system's turn; seconds to pad the next step with, None when there is none any more.

        A step's time is from one return of this function to its next call: all that the training loop does.
        """
        if self._left:
            self._seconds.append(time.perf_counter() - self._begun)
            self._left -= 1
        if not self._left:
            if self._seconds:
                self._say(seconds=self._seconds)
            order = json.loads(self._file.readline() or "null")
            if order is None:
                return None
            self._left, self._pad, self._seconds = order["steps"], order["pad"], []
        self._begun = time.perf_counter()
        return self._pad

    def _say(self, **what: Any) -> None:
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()


class Conductor:
    """Gives the turns.  The constructor listens on `path`."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._listener.settimeout(0.2)
        self._players: dict[str, list[IO[Any]]] = defaultdict(list)

    def gather(self, expected: dict[str, int], check: Callable[[], None], seconds: float = 120) -> None:
        """Wait until all processes of all systems have come; `check` raises if one has ended instead."""
        deadline = time.monotonic() + seconds
        while {name: len(players) for name, players in self._players.items()} != expected:
            check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all training processes have come within {seconds:g} s: {self._players}")
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(seconds)
            file = connection.makefile("rw")
            self._players[json.loads(file.readline())["system"]].append(file)

    def turn(self, system: str, steps: int, pad: float = 0.0) -> list[float]:
        """Let a system make some steps.  Seconds of each, the mean over its processes."""
        for player in self._players[system]:
            player.write(json.dumps({"steps": steps, "pad": pad}) + "\n")
            player.flush()
        answers = [json.loads(player.readline())["seconds"] for player in self._players[system]]
        return [mean(step) for step in zip(*answers, strict=True)]

    def end(self) -> None:
        """Let all of them finish."""
        for player in [player for players in self._players.values() for player in players]:
            player.write("null\n")
            player.flush()
        self._listener.close()
