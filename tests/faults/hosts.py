"""Several agents on one machine, each as on a host of its own, that make one job on one etcd."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.faults import invariants, problem
from tests.faults.harness import START_SECONDS, TRAIN_DATA, TRAIN_PIPE, Event, JobRun

from reknit.rendezvous.codec import encode_spec
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.records import Axes, Spec
from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore

JOB = "shared"


class Hosts:
    """The job's agents, each with `workers` workers and an events file of its own."""

    def __init__(
        self,
        folder: Path,
        etcd: str,
        *,
        script: Path = TRAIN_PIPE,
        replicas: str = "1:3",
        pipe: int = 2,
        workers: int = 2,
        options: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> None:
        self.runs: list[JobRun] = []
        self.folder, self.etcd, self.script, self.arguments = folder, etcd, script, arguments
        self.replicas, self.pipe, self.workers, self.options = replicas, pipe, workers, options
        self._stack = ExitStack()

    def add(self, name: str | None = None, prefix: Sequence[str] = ()) -> JobRun:
        """Start one more host; `prefix` comes before its command."""
        name = name if name is not None else f"host{len(self.runs)}"
        common = ("--etcd", self.etcd, "--job", JOB, "--workers", str(self.workers), "--agent", name)
        options = (*common, *self.options)
        run = JobRun(
            self.folder,
            self.script,
            self.arguments,
            replicas=self.replicas,
            pipe=self.pipe,
            options=options,
            name=name,
            prefix=prefix,
        )
        self.runs.append(self._stack.enter_context(run))
        return run

    def close(self) -> None:
        """End everything that is left."""
        self._stack.close()

    # ---------------------------------------------------------------- what happens

    @property
    def living(self) -> list[JobRun]:
        """The hosts whose agent runs."""
        return [run for run in self.runs if run.returncode() is None]

    @property
    def leader(self) -> JobRun:
        """The host whose agent leads: the last one that said so, of those that live."""
        led = [
            run
            for run in self.living
            if run.output().rfind("leads the job (revision") > run.output().rfind("no longer leads")
        ]
        assert led, "nobody leads"
        return led[-1]

    def events(self) -> list[Event]:
        """All events of all hosts, in order of time (one machine, one clock)."""
        return sorted((event for run in self.runs for event in run.poll()), key=lambda event: event["t"])

    def of(self, kind: str, since: float = 0.0, **fields: Any) -> Iterator[Event]:
        """Events of one kind whose fields have these values, later than `since`."""
        for event in self.events():
            fits = all(event.get(key) == value for key, value in fields.items())
            if event["event"] == kind and event["t"] > since and fits:
                yield event

    def generations(self, since: float) -> dict[int, Event]:
        """The plans that were seen since `since`, by generation, as seen first."""
        seen: dict[int, Event] = {}
        for event in self.of("plan", since):
            seen.setdefault(event["generation"], event)
        return seen

    def wait(self, condition: Callable[[], Any], timeout: float, what: str) -> Any:
        """Wait until `condition()` is true and return its value."""
        return self.living[0].wait(condition, timeout, what)

    def wait_strength(self, replicas: int, since: float = 0.0, timeout: float = 20.0) -> int:
        """Wait for a step in a generation of so many replicas, newer than `since`; return it when all are beyond."""

        def reached() -> int | None:
            events = [event for event in self.events() if event["t"] > since]
            full = {event["generation"] for event in invariants.of(events, "plan") if event["replicas"] == replicas}
            committed = invariants.of(events, "committed")
            return next((event["step"] for event in committed if event["version"][0] in full), None)

        step: int = self.wait(reached, timeout, f"a step with {replicas} replicas")
        for run in self.living:
            if any(run.of("committed")):
                run.wait_step(step + 3)
        return step

    def gap(self, at: float, timeout: float = 20.0) -> float:
        """Seconds from `at` to the first step committed in a generation that was published after it."""

        def first() -> Event | None:
            newer = self.generations(at).keys()
            return next((e for e in self.of("committed", at) if e["version"][0] in newer), None)

        found: Event = self.wait(first, timeout, "a step in a newer generation")
        return float(found["t"]) - at

    def check(self, up_to: int | None = None) -> None:
        """All invariants hold."""
        silent = {run.name for run in self.runs if run.returncode() == -signal.SIGKILL}
        invariants.check(self.events(), problem.samples_of, up_to, silent=silent)

    def finish(self) -> None:
        """Let the job end well: every living agent with 0, all workers alike."""
        living = self.living
        last = living[0].stop_soon()
        assert [run.wait_end(60.0) for run in living] == [0] * len(living)
        self.check()
        finished = {event["worker"] for event in self.of("finished")}
        invariants.finished_alike(self.events(), last, len(finished))

    # ---------------------------------------------------------------- faults

    def kill_node(self, *runs: JobRun) -> float:
        """SIGKILL agents and all their workers together; return the moment (monotonic)."""
        doomed = [pid for run in runs for pid in (run.pid, *run.processes())]
        at = time.monotonic()
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for run in runs:
            run.reap()
        return at


@contextmanager
def scalable(folder: Path) -> Iterator[tuple[Hosts, EtcdStore]]:
    """Two hosts of two workers, whose job shall have 2 of at most 4 replicas of one worker, and has; their store."""
    with EmbeddedEtcd() as etcd:
        store = EtcdStore(etcd.endpoint)
        hosts = Hosts(folder, etcd.endpoint, script=TRAIN_DATA, replicas="1:4", pipe=1, workers=2)
        try:
            store.put(Keys(JOB).spec, encode_spec(Spec(Axes(), 1, 4, desired=2)))
            for _ in range(2):
                hosts.add()
            hosts.wait_strength(2, timeout=START_SECONDS)
            yield hosts, store
        finally:
            hosts.close()
            store.close()


@contextmanager
def several(folder: Path, count: int, **options: Any) -> Iterator[Hosts]:
    """`count` hosts on an etcd of their own, started together; the job gives each whole replicas where they fit."""
    with EmbeddedEtcd() as etcd:
        hosts = Hosts(folder, etcd.endpoint, **options)
        try:
            for _ in range(count):
                hosts.add()
            yield hosts
        finally:
            hosts.close()
