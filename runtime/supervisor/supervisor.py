"""Starts, watches and stops the workers of one host.

The agent's process holds gRPC threads, so it never forks: workers are forked by a warm process that it execs (or, with
`warm=False`, exec'ed one by one).  Whoever started a worker, its end is learnt in one way, from a pidfd, which also
works when the warm process died and the worker lives on.  A worker leads a process group of its own, which is killed
when the worker is dead: nothing that it started is left behind.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from reknit.runtime.supervisor.bootstrap import command
from reknit.runtime.supervisor.output import OutputPump, print_with_prefix
from reknit.runtime.supervisor.restart import describe_exit
from reknit.runtime.supervisor.warm import NEVER_BEGAN, kill_group
from reknit.runtime.supervisor.warm_handle import WarmHandle
from reknit.runtime.supervisor.worker_process import (
    Exited,
    Failed,
    Started,
    SupervisorError,
    SupervisorEvent,
    WorkerProcess,
)

WARM_MODULES = ("torch", "torch._dynamo")
_WARM_TRIES = 3
_STATUS_SECONDS = 2.0
_FAILED_SECONDS = 0.05  # a pause after a failure, which may come again at once for ever

__all__ = ["Exited", "Failed", "Started", "Supervisor", "SupervisorError", "SupervisorEvent"]

_log = logging.getLogger(__name__)


class Supervisor:
    """Runs workers; `on_event` and `on_output` are called on the supervisor's threads and should return soon.

    `modules` are imported by the warm process; with `warm=False` there is none, and each worker is exec'ed.
    """

    def __init__(
        self,
        on_event: Callable[[SupervisorEvent], None],
        *,
        on_output: Callable[[str, str, str], None] = print_with_prefix,
        warm: bool = True,
        modules: Sequence[str] = WARM_MODULES,
        tail_lines: int = 50,
    ) -> None:
        self._on_event = on_event
        self._output = OutputPump(on_output, tail_lines)
        self._warm = WarmHandle(modules, self._output.attach) if warm else None
        self._broken = ""  # why no worker can be started at all
        self._lock = threading.Lock()  # guards _workers and their pidfds, for callers on other threads
        self._workers: dict[str, WorkerProcess] = {}
        self._queue: list[WorkerProcess] = []  # waiting for the warm process
        self._commands: list[Callable[[], None]] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_numbers = itertools.count()
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = -1, -1
        self._closing = False
        self._empty = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name="reknit-supervisor", daemon=True)

    def open(self) -> None:
        """Start the threads and the warm process."""
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._run_commands)
        self._output.open()
        self._thread.start()
        if self._warm is not None:
            self._post(self._start_warm)

    def start(
        self,
        worker_id: str,
        argv: Sequence[str],
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> None:
        """Start `argv` (a Python script and its arguments) with `environment` added to ours; returns at once.

        `Started` or `Failed` follows, after the warm process is ready; later `Exited`.  Raises SupervisorError if a
        worker of this name has not exited yet, or the supervisor is closing.
        """
        worker = WorkerProcess(worker_id, list(argv), {**os.environ, **(environment or {})}, folder or os.getcwd())
        with self._lock:
            if self._closing:
                raise SupervisorError(f"worker {worker_id} cannot be started: the supervisor is closing")
            if worker_id in self._workers:
                raise SupervisorError(f"worker {worker_id} is running already; stop it first")
            self._workers[worker_id] = worker
        self._post(lambda: self._launch(worker))

    def signal(self, worker_id: str, number: int) -> bool:
        """Send a signal to the worker's process alone; False if there is none."""
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is None or worker.pidfd < 0:
                return False
            try:
                signal.pidfd_send_signal(worker.pidfd, number)
            except ProcessLookupError:
                return False
            return True

    def stop(self, worker_id: str, grace_seconds: float) -> None:
        """SIGTERM to the worker now, SIGKILL to its whole group after `grace_seconds`; returns at once."""
        self._post(lambda: self._stop(worker_id, grace_seconds))

    def stop_all(self, grace_seconds: float) -> None:
        """Stop every worker; returns at once."""
        self._post(lambda: self._stop_all(grace_seconds))

    def close(self, grace_seconds: float = 5.0) -> None:
        """Stop every worker, wait for their ends, then end the warm process and the threads."""
        with self._lock:
            self._closing = True
        if not self._thread.is_alive():
            return
        self.stop_all(grace_seconds)
        with self._empty:
            if not self._empty.wait_for(lambda: not self._workers, timeout=grace_seconds + 10.0):
                _log.error("workers %s do not die; leaving them", ", ".join(sorted(self._workers)))
        self._post(self._finish)
        self._thread.join(timeout=10.0)
        self._output.close()
        with self._lock:
            for descriptor in (self._wake_reader, self._wake_writer):
                os.close(descriptor)
            self._wake_reader = self._wake_writer = -1

    def tail(self, worker_id: str) -> list[str]:
        """The last lines that the worker's newest process wrote to standard error, oldest first."""
        return self._output.tail(worker_id)

    @property
    def warm_pid(self) -> int | None:
        """The warm process's id, while there is one."""
        return self._warm.pid if self._warm is not None else None

    # ------------------------------------------------------------------ the supervisor's own thread

    def _post(self, command: Callable[[], None]) -> None:
        with self._lock:
            self._commands.append(command)
            if self._wake_writer >= 0:
                os.write(self._wake_writer, b"\0")

    def _run_commands(self) -> None:
        os.read(self._wake_reader, 4096)
        with self._lock:
            commands, self._commands = self._commands, []
        for act in commands:
            self._survive(act)

    def _run(self) -> None:
        self._running = True
        while self._running:
            timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            for key, _ in self._selector.select(timeout):
                if self._selector.get_map().get(key.fd) is key:  # may have been unregistered in this very round
                    self._survive(key.data)
            while self._timers and self._timers[0][0] <= time.monotonic():
                self._survive(heapq.heappop(self._timers)[2])
        self._selector.close()

    def _survive(self, act: Callable[[], None]) -> None:
        """One thing that goes wrong must not end the thread: nobody else learns of the other workers' ends."""
        try:
            act()
        except Exception:
            _log.exception("the supervisor failed at one thing, and goes on")
            time.sleep(_FAILED_SECONDS)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._timer_numbers), act))

    def _finish(self) -> None:
        self._running = False
        if self._warm is not None and self._warm.channel is not None:
            self._selector.unregister(self._warm.channel)
            self._warm.bury()

    def _tell(self, event: SupervisorEvent) -> None:
        try:
            self._on_event(event)
        except Exception:
            _log.exception("the handler of %r failed", event)

    # ------------------------------------------------------------------ the warm process

    def _start_warm(self) -> None:
        if self._warm is None or self._closing:
            return
        try:
            channel = self._warm.start()
        except OSError as error:
            self._give_up_on_warm(f"the warm process cannot be started: {error}")
            return
        self._selector.register(channel, selectors.EVENT_READ, self._hear_warm)

    def _hear_warm(self) -> None:
        assert self._warm is not None
        packet = self._warm.receive()
        if packet is None:
            self._lose_warm()
            return
        message, descriptors = packet
        if message["event"] == "ready" and message["unforkable"]:
            self._give_up_on_warm(f"the warm process cannot fork workers: {message['unforkable']}")
        elif message["event"] == "ready":
            queue, self._queue = self._queue, []
            for worker in queue:
                self._launch(worker)
        elif message["event"] == "failed":
            self._broken = message["reason"]
            self._drop_warm()
            queue, self._queue = self._queue, []
            for worker in queue:
                self._fail(worker, self._broken)
        elif message["event"] == "spawned":
            self._adopt(message["worker_id"], message["pid"], descriptors[0])
        elif message["event"] == "exited":
            exited = self._workers.get(message["worker_id"])
            if exited is not None and exited.pid == message["pid"]:
                self._bury(exited, message["returncode"])

    def _lose_warm(self) -> None:
        """It died: start it anew, ask it again for what it had not answered; its workers live on."""
        assert self._warm is not None
        returncode = self._drop_warm()
        if self._closing:
            return
        _log.warning("the warm process died (%s); starting it anew, its workers live on", describe_exit(returncode))
        if self._warm.deaths_before_ready >= _WARM_TRIES:
            self._give_up_on_warm(f"the warm process died {_WARM_TRIES} times before it was ready")
        elif self._warm.deaths_before_ready:
            self._later(0.5 * self._warm.deaths_before_ready, self._start_warm)
        else:
            self._start_warm()

    def _drop_warm(self) -> int:
        assert self._warm is not None
        assert self._warm.channel is not None
        warm_pid = self._warm.pid
        self._selector.unregister(self._warm.channel)
        returncode = self._warm.bury()
        for worker in list(self._workers.values()):
            if worker.requested:
                # It was perhaps forked: the end of `go` tells it to vanish, before it has run anything.
                os.close(worker.go)
                worker.go = -1
                worker.requested = False
                if worker.stopping:
                    self._cancel(worker)
                else:
                    self._queue.append(worker)
            elif worker.warm_pid == warm_pid:
                worker.warm_pid = None
        return returncode

    def _give_up_on_warm(self, why: str) -> None:
        _log.warning("%s; workers are started one by one, which is slower", why)
        if self._warm is not None and self._warm.channel is not None:
            self._drop_warm()
        self._warm = None
        queue, self._queue = self._queue, []
        for worker in queue:
            self._launch(worker)

    # ------------------------------------------------------------------ one worker

    def _launch(self, worker: WorkerProcess) -> None:
        if self._workers.get(worker.worker_id) is not worker:
            return  # stopped while it waited
        if self._broken:
            self._fail(worker, self._broken)
            return
        if self._warm is not None and not self._warm.ready:
            self._queue.append(worker)
            return
        try:
            self._attach_output(worker)
            if self._warm is None:
                self._exec(worker)
            else:
                self._request(worker, self._warm)
        except OSError as error:  # of descriptors there may be too few
            if worker.process is not None:
                worker.process.kill()
                worker.process.wait()
            self._fail(worker, str(error))

    def _attach_output(self, worker: WorkerProcess) -> None:
        if worker.descriptors:
            return  # it was asked for before
        self._output.forget_tail(worker.worker_id)
        for name in ("stdout", "stderr"):
            reader, writer = os.pipe()
            self._output.attach(worker.worker_id, name, reader)
            worker.descriptors.append(writer)

    def _request(self, worker: WorkerProcess, warm: WarmHandle) -> None:
        worker.requests += 1
        if worker.requests > _WARM_TRIES:
            self._fail(worker, f"the warm process died {_WARM_TRIES} times when it was asked to start it")
            return
        reader, worker.go = os.pipe()
        worker.requested = True
        try:
            warm.request(
                worker.worker_id, worker.argv, worker.environment, worker.folder, [*worker.descriptors, reader]
            )
        except OSError:
            self._lose_warm()
        finally:
            os.close(reader)

    def _exec(self, worker: WorkerProcess) -> None:
        try:
            worker.process = subprocess.Popen(
                command(sys.executable, "bootstrap", worker.argv),
                stdin=subprocess.DEVNULL,
                stdout=worker.descriptors[0],
                stderr=worker.descriptors[1],
                env=worker.environment,
                cwd=worker.folder,
                start_new_session=True,
            )
        except OSError as error:
            self._fail(worker, f"its process cannot be started in {worker.folder}: {error}")
            return
        self._watch(worker, worker.process.pid, os.pidfd_open(worker.process.pid))

    def _adopt(self, worker_id: str, pid: int, pidfd: int) -> None:
        """The warm process has forked it; now it may begin."""
        worker = self._workers[worker_id]
        assert self._warm is not None
        worker.requested = False
        worker.warm_pid = self._warm.pid
        go, worker.go = worker.go, -1
        if not worker.stopping:
            try:
                os.write(go, b"\0")
            except BrokenPipeError:
                pass  # killed already: its exit is on the way
        os.close(go)
        self._watch(worker, pid, pidfd)

    def _watch(self, worker: WorkerProcess, pid: int, pidfd: int) -> None:
        worker.close_descriptors()
        worker.began = time.monotonic()
        with self._lock:
            worker.pid, worker.pidfd = pid, pidfd
        self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._died(worker))
        if not worker.stopping:
            worker.told = True
            self._tell(Started(worker.worker_id, pid))

    def _died(self, worker: WorkerProcess) -> None:
        self._selector.unregister(worker.pidfd)
        assert worker.pid is not None
        if worker.process is not None:
            kill_group(worker.pid)  # before the wait, while its number is still its own
            self._bury(worker, worker.process.wait())
        elif worker.warm_pid is not None:
            # The warm process tells the status in a moment.
            self._later(_STATUS_SECONDS, lambda: self._bury(worker, None))
        else:
            kill_group(worker.pid)
            self._bury(worker, None)

    def _bury(self, worker: WorkerProcess, returncode: int | None) -> None:
        if self._workers.get(worker.worker_id) is not worker:
            return
        lived = time.monotonic() - worker.began
        if worker.pidfd in self._selector.get_map():
            self._selector.unregister(worker.pidfd)
        self._output.finish(worker.worker_id)
        pid = None if returncode == NEVER_BEGAN and not worker.told else worker.pid
        self._remove(worker)
        self._tell(Exited(worker.worker_id, pid, returncode, lived))

    def _fail(self, worker: WorkerProcess, reason: str) -> None:
        worker.close_descriptors()
        self._output.finish(worker.worker_id)
        self._remove(worker)
        self._tell(Failed(worker.worker_id, f"worker {worker.worker_id} cannot be started: {reason}"))

    def _remove(self, worker: WorkerProcess) -> None:
        with self._empty:
            del self._workers[worker.worker_id]
            if worker.pidfd >= 0:
                os.close(worker.pidfd)
                worker.pidfd = -1
            self._empty.notify_all()

    def _stop_all(self, grace_seconds: float) -> None:
        for worker_id in list(self._workers):
            self._stop(worker_id, grace_seconds)

    def _stop(self, worker_id: str, grace_seconds: float) -> None:
        worker = self._workers.get(worker_id)
        if worker is None:
            return
        worker.stopping = True
        if worker.requested:
            return  # it will not be let go
        if worker.pid is None:
            self._cancel(worker)
        elif grace_seconds <= 0:
            self._kill(worker)
        else:
            self.signal(worker_id, signal.SIGTERM)
            self._later(grace_seconds, lambda: self._kill(worker))

    def _cancel(self, worker: WorkerProcess) -> None:
        """Stop a worker that no process runs yet."""
        if worker in self._queue:
            self._queue.remove(worker)
        worker.close_descriptors()
        self._remove(worker)
        self._tell(Exited(worker.worker_id, None, -int(signal.SIGTERM), 0.0))

    def _kill(self, worker: WorkerProcess) -> None:
        if self._workers.get(worker.worker_id) is worker and worker.pid is not None:
            self.signal(worker.worker_id, signal.SIGKILL)
            kill_group(worker.pid)
