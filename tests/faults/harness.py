"""Runs a job as a user does, with `reknit run` in processes of its own, and lets a test wait for what happens to it.

Everything is learnt from the events file.  A wait has a deadline and fails the test with what the job said last;
nothing that a job has started outlives its test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.faults.fail_at import fail_at
from tests.faults.following import HOLD, STOP

Event = dict[str, Any]

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
TRAIN_DATA, TRAIN_PIPE = SCRIPTS / "train_data.py", SCRIPTS / "train_pipe.py"
EXAMPLES = ROOT / "deploy" / "examples"
START_SECONDS = 60.0  # a busy machine imports torch for that long
MARK = "TEST_RUN_OF_REKNIT"  # in the environment of everything that a run starts, so that it is found again
LAST_STEPS = 60  # from the order to stop to the last step: every worker must have read it by then


class JobRun:
    """One `reknit run`: an agent and its workers.  `with` starts it, and ends whatever is left of it.

    `options` are more options of `reknit run`; `script` gets `arguments` and, if it is one of the fault tests' own, the
    folder of the test's orders.  `prefix` comes before the whole command.
    """

    def __init__(
        self,
        folder: Path,
        script: Path | str,
        arguments: Sequence[str] = (),
        *,
        replicas: str | None = "1",
        pipe: int | None = 1,
        options: Sequence[str] = ("--standalone",),
        name: str = "run",
        prefix: Sequence[str] = (),
    ) -> None:
        self.folder, self.name = folder, name
        self.orders = folder / "orders"
        self.events_path, self.output_path = folder / f"{name}.events", folder / f"{name}.output"
        shape = ["--replicas", replicas] if replicas is not None else []
        shape += ["--pipe", str(pipe)] if pipe is not None else []
        ordered = ["--orders", str(self.orders)] if Path(script).parent == SCRIPTS else []
        self._command = [*prefix, sys.executable, "-m", "reknit.runtime.cli", "run", *options, *shape]
        self._command += ["--events", str(self.events_path), str(script), *ordered, *arguments]
        self._mark = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._process: subprocess.Popen[bytes] | None = None
        self._read, self._rest = 0, b""
        self.events: list[Event] = []

    # ---------------------------------------------------------------- start and end

    def start(self) -> None:
        """Start the agent; returns at once."""
        self.orders.mkdir(exist_ok=True)
        # The scripts import from tests/.
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, MARK: self._mark, "PYTHONPATH": path}
        with self.output_path.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def __enter__(self) -> JobRun:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill whatever of it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        for pid in self.processes():
            _kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    @property
    def pid(self) -> int:
        """The agent's process id."""
        assert self._process is not None
        return self._process.pid

    def returncode(self) -> int | None:
        """The agent's exit code; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def reap(self) -> None:
        """Wait for the end of an agent that was killed."""
        assert self._process is not None
        self._process.wait(timeout=10.0)

    def wait_end(self, timeout: float = 30.0) -> int:
        """Wait until the agent has ended and nothing that it started is left; return its exit code."""
        self.wait(lambda: self.returncode() is not None, timeout, "the agent's end", ending=True)
        # A killed child that init has not reaped yet is no process left behind, but it takes a moment to show so.
        self.wait(lambda: not self.processes(), 2.0, "the end of everything that the agent started", ending=True)
        code = self.returncode()
        assert code is not None
        return code

    def processes(self) -> dict[int, str]:
        """Living processes that this run has started, by id: their command lines."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{MARK}={self._mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        return found

    # ---------------------------------------------------------------- what happens

    def poll(self) -> list[Event]:
        """Read what has been appended to the events file; return all events so far."""
        if self.events_path.exists():
            with self.events_path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            self._read += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self.events += ({**json.loads(line), "run": self.name} for line in lines)
        return self.events

    def output(self) -> str:
        """What the agent and its workers have printed."""
        return self.output_path.read_text(errors="replace")

    def of(self, kind: str, since: int = 0, **fields: Any) -> Iterator[Event]:
        """The events of one kind whose fields have these values, from position `since` on."""
        for event in self.events[since:]:
            if event["event"] == kind and all(event.get(key) == value for key, value in fields.items()):
                yield event

    def wait(self, condition: Callable[[], Any], timeout: float, what: str, *, ending: bool = False) -> Any:
        """Wait until `condition()` is true and return its value; fails if the agent ends first, unless `ending`."""
        deadline = time.monotonic() + timeout
        while True:
            ended = self.returncode() is not None
            self.poll()
            value = condition()
            if value:
                return value
            if ended and not ending:
                self.fail(f"the agent ended with {self.returncode()} while the test waited for {what}")
            if time.monotonic() > deadline:
                self.fail(f"waited {timeout:g} s in vain for {what}")
            time.sleep(0.004)

    def wait_event(self, kind: str, timeout: float = 15.0, since: int = 0, **fields: Any) -> Event:
        """Wait for an event with these fields."""
        found: Event = self.wait(
            lambda: next(self.of(kind, since, **fields), None), timeout, f"an event {kind} with {fields}"
        )
        return found

    def fail(self, why: str) -> NoReturn:
        """Fail the test with what the job said last, and where its processes are."""
        workers = {event["pid"] for event in self.of("attached")} & self.processes().keys()
        before = len(self.output())
        for pid in workers:
            _kill(pid, signal.SIGUSR1)  # a stack trace
        deadline = time.monotonic() + 2.0
        while workers and self.output()[before:].count("most recent call first") < len(workers):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        last = "\n".join(json.dumps(event)[:300] for event in self.poll()[-60:])
        left = "\n".join(f"{pid} {command}" for pid, command in self.processes().items())
        printed = self.output()[-12000:]
        pytest.fail(f"{self.name}: {why}\n{last}\n--- left:\n{left}\n--- printed:\n{printed}", pytrace=False)

    # ---------------------------------------------------------------- the job's state

    @property
    def step(self) -> int:
        """The newest committed step."""
        return max((event["step"] for event in self.of("committed")), default=0)

    @property
    def generation(self) -> int:
        """The newest generation."""
        return max((event["generation"] for event in self.of("plan")), default=0)

    def pids(self) -> dict[str, int]:
        """Each worker's present process (or its last one)."""
        return {event["worker"]: event["pid"] for event in self.of("attached")}

    def coordinates(self) -> dict[str, int]:
        """Each worker's present coordinate."""
        return {event["worker"]: event["coordinate"] for event in self.of("placed")}

    def wait_step(self, step: int, timeout: float = 20.0) -> None:
        """Wait until `step` is committed."""
        self.wait(lambda: self.step >= step, timeout, f"step {step}")

    def wait_steps(self, count: int = 3, timeout: float = 20.0) -> None:
        """Wait for `count` more committed steps."""
        self.poll()
        self.wait_step(self.step + count, timeout)

    def wait_strength(self, replicas: int, since: int = 0, timeout: float = 20.0) -> Event:
        """Wait for a step committed in a generation with so many replicas, both after position `since`; return it."""

        def reached() -> Event | None:
            full = {event["generation"] for event in self.of("plan", since) if event["replicas"] == replicas}
            return next((e for e in self.of("committed", since) if e["version"][0] in full), None)

        found: Event = self.wait(reached, timeout, f"a step with {replicas} replicas")
        return found

    # ---------------------------------------------------------------- faults

    def kill(self, worker: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to the worker's present process; return its id."""
        self.poll()
        pid = self.pids()[worker]
        _kill(pid, number)
        return pid

    def kill_started(self, worker: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a worker that may not have attached yet."""
        started = [event["pid"] for event in self.of("worker_started", worker=worker)]
        _kill(started[-1], number)

    def fail_at(self, worker: str, phase: str, step: int | None = None, number: int = signal.SIGKILL) -> Path:
        """Let `worker` send itself a signal when it is first at `phase` of `step` (by default: soon) or a later one."""
        self.poll()
        return fail_at(self.orders, worker, self.step + 2 if step is None else step, phase, number)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let processes that start now wait before they join, until the block is left."""
        path = self.orders / HOLD
        path.touch()
        try:
            yield
        finally:
            path.unlink()

    def stop_soon(self, steps: int = LAST_STEPS) -> int:
        """Let the job end in a while; return its last step."""
        self.poll()
        last = self.step + steps
        new = self.orders / f"{STOP}.new"
        new.write_text(str(last))
        new.rename(self.orders / STOP)
        return last


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
