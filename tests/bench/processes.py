"""Starts the systems that are compared, and ends them whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
_END_SECONDS = 20


class Processes:
    """Some child processes, their output in files of `folder`.  Leaving the `with` block ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            _wait(process)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start one; its own modules are found from the repository's root."""
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        self._running[name] = process
        return process

    def reknit(
        self,
        name: str,
        script: Path,
        *arguments: str,
        replicas: int,
        pipe: int = 1,
        events: bool = False,
        options: Sequence[str] = ("--standalone",),
    ) -> subprocess.Popen[bytes]:
        """An agent, by default of a standalone job; all settings but those in `options` at their defaults."""
        options = [*options, "--replicas", str(replicas), "--pipe", str(pipe)]
        if events:
            options += ["--events", str(self.events(name))]
        return self.start(name, [sys.executable, "-m", "reknit.runtime.cli", "run", *options, str(script), *arguments])

    def stock(self, name: str, script: Path, *arguments: str, ranks: int) -> None:
        """The same number of bare processes, which meet by a file."""
        store = self._folder / f"{name}.store"
        for rank in range(ranks):
            place = ["--rank", str(rank), "--ranks", str(ranks), "--store", str(store)]
            self.start(f"{name}-{rank}", [sys.executable, str(script), *arguments, *place])

    def bury(self, name: str) -> None:
        """One was killed: wait for its end, and take it for no failure."""
        _wait(self._running.pop(name))

    def events(self, name: str) -> Path:
        """The events file of a reknit job."""
        return self._folder / f"{name}.events"

    def check(self) -> None:
        """RuntimeError with the end of its output if one has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                output = (self._folder / f"{name}.log").read_text(errors="replace")
                raise RuntimeError(f"{name} has ended with code {process.returncode}:\n{output[-2000:]}")


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
