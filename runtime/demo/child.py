"""The training that the demo watches: `reknit run` as a child process, which never outlives the demo."""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from reknit.rendezvous.errors import ReknitError
from reknit.runtime.demo.situation import DEAD, Situation
from reknit.runtime.options import PREFIX

STEP_MS = 80
_CONTEXT, _MICRO_BATCH, _MICRO_BATCHES = 64, 4, 6
_LAYERS = 4
_TEXT_BYTES = 2_000_000
_KILL_DELAY_SECONDS = 3.0
_STOP_SECONDS = 15.0

# Run by a Python of its own between the demo and the job: if the demo is killed, the kernel asks the job to end, which
# ends its workers.  1 is PR_SET_PDEATHSIG, 15 SIGTERM.
_RUN_BOUND_TO_PARENT = """
import ctypes, os, runpy, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
    if os.getppid() != int(sys.argv.pop(1)):
        sys.exit("the demo has ended already")
runpy.run_module("reknit.runtime.cli", run_name="__main__", alter_sys=True)
"""


class DemoError(ReknitError):
    """The demo itself cannot go on."""


def _environment() -> dict[str, str]:
    """Ours, but for settings of a job: the demo's are its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


class Training:
    """`reknit run` of the GPT example; the constructor starts nothing, `start` does.

    Its files lie in `folder`: `events` (the events file), `log` (all that it and its workers print), `text`.
    """

    def __init__(self, folder: Path, steps: int, low: int, high: int, pipe: int, seed: int) -> None:
        self.events, self.log, self._text = folder / "events.jsonl", folder / "log", folder / "text"
        self._shape = (low, high, pipe)
        self._steps, self._seed = steps, seed
        self._global_batch = _MICRO_BATCH * max(_MICRO_BATCHES, high)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Write the text, the standard library's own sources, and start the job."""
        sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        self._text.write_bytes(b"".join(source.read_bytes() for source in sources)[:_TEXT_BYTES])
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _RUN_BOUND_TO_PARENT, str(os.getpid()), *self._arguments()],
                env={**_environment(), **({} if self._has_gpus() else {"CUDA_VISIBLE_DEVICES": ""})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _has_gpus(self) -> bool:
        """Whether every worker can have a GPU of its own, as NCCL asks; else all train on the CPUs."""
        _, high, pipe = self._shape
        there = Path("/proc/driver/nvidia/gpus")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        count = len(list(there.iterdir())) if there.is_dir() else 0
        return high * pipe <= (count if visible is None else min(count, len(visible.split(","))))

    def _arguments(self) -> list[str]:
        low, high, pipe = self._shape
        script = importlib.resources.files("reknit.deploy") / "examples" / "train_gpt.py"
        run = ["run", "--standalone", "--replicas", f"{low}:{high}", "--pipe", str(pipe)]
        run += ["--events", str(self.events), "--kill-delay", str(_KILL_DELAY_SECONDS), str(script)]
        numbers = {
            "--steps": self._steps,
            "--step-ms": STEP_MS,
            "--layers": max(_LAYERS, pipe),
            "--context": _CONTEXT,
            "--global-batch": self._global_batch,
            "--micro-batch": _MICRO_BATCH,
            "--seed": self._seed,
        }
        return [*run, "--data", str(self._text), *(word for name, n in numbers.items() for word in (name, str(n)))]

    def expected(self) -> Callable[[int], Sequence[int]]:
        """The samples that belong to the step that begins with so many steps committed.

        Asks a process that imports torch, which takes seconds.  Raises DemoError if that fails.
        """
        blocks = (self._text.stat().st_size - 1) // _CONTEXT
        numbers = (blocks, self._global_batch, _MICRO_BATCH, self._seed, self._steps)
        command = [sys.executable, "-m", "reknit.runtime.demo.dealt", *map(str, numbers)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise DemoError(f"the expected samples cannot be told: {done.stderr.strip()}")
        dealt: list[list[int]] = json.loads(done.stdout)
        return dealt.__getitem__

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process is not None else None

    def tail(self, lines: int = 15) -> list[str]:
        """The last lines of the log."""
        return self.log.read_text(errors="replace").splitlines()[-lines:] if self.log.exists() else []

    def stop(self, situation: Situation) -> None:
        """End it, if it runs, with everything that it has started; by SIGKILL if need be."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for worker in situation.workers.values():
                if worker.status != DEAD:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker.pid, signal.SIGKILL)
