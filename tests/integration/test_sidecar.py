"""`reknit agent` beside workers that somebody else starts: in either order, again after a kill, and to the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.request import urlopen

import pytest
from tests.faults.following import STOP
from tests.faults.harness import ROOT, TRAIN_DATA

from reknit.rendezvous.keys import Keys
from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.runtime.ending import EXIT_ORPHAN
from reknit.runtime.supervisor.restart import EXIT_RESTART

START_SECONDS = 60.0


class Pod:
    """One agent, its events, and the workers that a test starts beside it."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.endpoint = folder, endpoint
        self.socket, self.orders = folder / "private" / "agent.sock", folder / "orders"
        self.orders.mkdir()
        self.output = (folder / "output").open("ab")
        self.children: list[subprocess.Popen[bytes]] = []

    def agent(self, replicas: int, *more: str) -> subprocess.Popen[bytes]:
        options = ["--etcd", self.endpoint, "--job", "pod", "--replicas", str(replicas), "--socket", str(self.socket)]
        options += ["--events", str(self.folder / "events"), "--detect", "3", *more]
        return self._start(["-m", "reknit.runtime.cli", "agent", *options], {})

    def worker(self, name: str) -> subprocess.Popen[bytes]:
        """What a container's command is: the script, with two variables in its environment."""
        environment = {"REKNIT_SOCKET": str(self.socket), "REKNIT_WORKER_ID": name, "PYTHONPATH": str(ROOT)}
        return self._start([str(TRAIN_DATA), "--orders", str(self.orders)], {**environment, "OMP_NUM_THREADS": "1"})

    def _start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.output,
            env={**os.environ, **environment},
            cwd=self.folder,
        )
        self.children.append(child)
        return child

    def events(self, kind: str, **fields: Any) -> list[dict[str, Any]]:
        path = self.folder / "events"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [e for e in found if e["event"] == kind and all(e[key] == value for key, value in fields.items())]

    def step(self, worker: str) -> int:
        return max((event["step"] for event in self.events("committed", worker=worker)), default=0)

    def wait(self, condition: Callable[[], object], what: str, timeout: float = START_SECONDS) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"waited {timeout:g} s in vain for {what}")
            time.sleep(0.02)

    def wait_ends(self, *children: subprocess.Popen[bytes]) -> list[int | None]:
        self.wait(lambda: all(child.poll() is not None for child in children), "the ends")
        return [child.returncode for child in children]

    def stop_at(self, step: int) -> None:
        (self.orders / "new").write_text(str(step))
        (self.orders / "new").rename(self.orders / STOP)

    def said(self) -> str:
        return (self.folder / "output").read_text()

    def fail(self, why: str) -> NoReturn:
        pytest.fail(f"{why}\n{self.said()[-8000:]}", pytrace=False)

    def close(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
        self.output.close()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    with EmbeddedEtcd() as etcd:
        pod = Pod(tmp_path, etcd.endpoint)
        yield pod
        pod.close()


@pytest.mark.parametrize("first", ["agent", "worker"])
def test_an_agent_and_its_worker_start_in_either_order_and_both_end_with_0(pod: Pod, first: str) -> None:
    if first == "agent":
        agent = pod.agent(1)
        pod.wait(pod.socket.exists, "the agent's socket")
        worker = pod.worker("w0")
    else:
        worker = pod.worker("w0")
        agent = pod.agent(1)
    pod.stop_at(20)
    assert pod.wait_ends(worker, agent) == [0, 0]
    assert pod.step("w0") == 20
    assert [event["worker"] for event in pod.events("finished")] == ["w0"]


def test_an_agent_that_begins_a_job_only_once_tells_workers_how_it_ended(pod: Pod) -> None:
    """As on Kubernetes, which starts both containers again when they have ended."""
    worker, agent = pod.worker("w0"), pod.agent(1, "--once")
    pod.stop_at(5)
    assert pod.wait_ends(worker, agent) == [0, 0]
    agent = pod.agent(1, "--once", "--http", "127.0.0.1:0")
    again = pod.worker("w0")
    assert pod.wait_ends(again) == [0]
    assert pod.step("w0") == 5
    assert agent.poll() is None
    page = re.findall(r"begins it no more.* its page is at (http://\S+)", pod.said())[-1]
    told = {path: urlopen(f"{page}/{path}", timeout=10.0).read().decode() for path in ("readyz", "metrics", "status")}
    assert told["readyz"] == "the job has finished\n"
    assert 'reknit_job_state{state="finished",training_job="pod"} 1.0' in told["metrics"]
    assert "reknit_leader{" not in told["metrics"]
    assert json.loads(told["status"])["state"] == "finished"
    agent.terminate()
    assert pod.wait_ends(agent) == [0]


def test_a_second_agent_of_the_same_name_is_refused_and_leaves_the_first_one_alone(pod: Pod) -> None:
    first = pod.agent(1, "--agent", "twin")
    pod.wait(lambda: "leads the job" in pod.said(), "an office")
    second = pod.agent(1, "--agent=twin", "--socket", str(pod.folder / "other" / "agent.sock"))
    assert pod.wait_ends(second) != [0]
    assert f"agent twin of job pod runs here already, as process {first.pid}: end that one first" in pod.said()
    assert "lease" not in pod.said()
    first.terminate()
    assert pod.wait_ends(first) == [0]


def test_a_killed_worker_that_somebody_starts_again_is_healed_and_trains_on(pod: Pod) -> None:
    agent = pod.agent(2)
    stays, dies = pod.worker("w0"), pod.worker("w1")
    pod.wait(lambda: min(pod.step("w0"), pod.step("w1")) >= 3, "3 steps of both")
    dies.send_signal(signal.SIGKILL)
    pod.wait(lambda: pod.events("worker_died", worker="w1"), "the notice of the death", 5.0)
    at = pod.step("w0")
    pod.wait(lambda: pod.step("w0") > at + 3, "the survivor to train on alone", 10.0)
    again = pod.worker("w1")
    pod.wait(lambda: pod.step("w1") > at + 3, "the new process to train")
    assert pod.events("healed", worker="w1")

    # Whoever takes a name that is in use is turned away, and disturbs nobody.
    second = pod.worker("w1")
    assert pod.wait_ends(second) != [0]
    at = pod.step("w1")
    pod.stop_at(at + 30)
    assert pod.wait_ends(stays, again, agent) == [0, 0, 0]
    assert pod.step("w0") == pod.step("w1") == at + 30


# ---------------------------------------------------------------- the agent alone crashes, and comes back


class Pair:
    """Two pods of one job with a worker each: `w-a` beside agent `a`, `w-b` beside agent `b`."""

    def __init__(self, folder: Path, endpoint: str, detect: int) -> None:
        self.detect = detect
        self.keys, self.store = Keys("pod"), EtcdStore(endpoint)
        self.pods = {name: Pod(folder / name, endpoint) for name in ("a", "b")}
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    def open(self, first: str) -> None:
        """Start both agents, `first` before the other, so that it leads, and their workers."""
        self.store.connect(timeout=10.0)
        for name in (first, *{"a", "b"} - {first}):
            self.start_agent(name)
            self.pods[name].wait(self.leader, "a leader", 20.0)
        for name in self.pods:
            self.start_worker(name)
        self.wait_steps(5)

    def start_agent(self, name: str) -> None:
        self.agents[name] = self.pods[name].agent(2, "--agent", name, "--detect", str(self.detect), "--hang", "3")

    def start_worker(self, name: str) -> None:
        self.workers[name] = self.pods[name].worker(f"w-{name}")

    def replace_worker(self, name: str) -> None:
        """Start it again, and wait until the others have healed it."""
        pod, worker = self.pods[name], f"w-{name}"
        before = len(pod.events("healed", worker=worker))
        self.start_worker(name)
        pod.wait(lambda: len(pod.events("healed", worker=worker)) > before, "the new worker to be healed")

    def leader(self) -> str | None:
        entry = self.store.get(self.keys.leader)
        return None if entry is None else entry.value.decode()

    def lease(self, name: str) -> int | None:
        entry = self.store.get(self.keys.agent(name))
        return None if entry is None else entry.lease

    def step(self, name: str) -> int:
        return self.pods[name].step(f"w-{name}")

    def wait_steps(self, more: int) -> None:
        """Until both have made so many more steps."""
        at = {name: self.step(name) for name in self.pods}
        for name, pod in self.pods.items():
            pod.wait(lambda: self.step(name) >= at[name] + more, f"{more} steps of w-{name}")  # noqa: B023

    def generations(self) -> set[int]:
        return {event["generation"] for pod in self.pods.values() for event in pod.events("plan")}

    def kill_agent(self, name: str) -> float:
        self.agents[name].kill()
        self.agents[name].wait()
        return time.monotonic()

    def finish(self) -> None:
        at = max(map(self.step, self.pods)) + 30
        for pod in self.pods.values():
            pod.stop_at(at)
        for name, pod in self.pods.items():
            assert pod.wait_ends(self.workers[name], self.agents[name]) == [0, 0]
            assert self.step(name) == at

    def close(self) -> None:
        for pod in self.pods.values():
            pod.close()
        self.store.close()


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with EmbeddedEtcd() as etcd:
        first, detect = getattr(request, "param", ("a", 5))
        pair = Pair(tmp_path, etcd.endpoint, detect)
        try:
            pair.open(first)
            yield pair
        finally:
            pair.close()


# As on Kubernetes: on a busy machine an agent may need seconds to start.
@pytest.mark.parametrize("pair", [("a", 15), ("b", 15)], indirect=True, ids=["it led", "the other led"])
def test_an_agent_that_crashes_and_is_back_within_its_lease_disturbs_nobody(pair: Pair) -> None:
    pod, before = pair.pods["a"], pair.generations()
    lease, leader = pair.lease("a"), pair.leader()
    killed = pair.kill_agent("a")
    pair.pods["b"].wait(lambda: time.monotonic() > killed + 0.5, "half a second to pass")
    pair.start_agent("a")
    pod.wait(lambda: len(pod.events("attached")) == 2, "the worker to attach again", 10.0)
    pair.wait_steps(20)
    back = pod.events("attached")[1]
    away = [event["t"] for event in pod.events("committed", worker="w-a") if killed < event["t"] < back["t"]]
    assert len(away) > 3, "w-a did not train on while its agent was away"
    assert back["incarnation"] == pod.events("attached")[0]["incarnation"]
    assert (pair.lease("a"), pair.leader(), pair.generations()) == (lease, leader, before)

    # What it adopted is its own: it notices a death, and if it leads it plans.
    pair.workers["a"].kill()
    pod.wait(lambda: pod.events("worker_died", worker="w-a"), "the notice of the death", 5.0)
    at = pair.step("b")
    pair.pods["b"].wait(lambda: pair.step("b") > at + 10, "the other one to train on alone", 10.0)
    pair.replace_worker("a")
    pair.finish()


def test_an_agent_that_comes_back_later_than_its_lease_finds_its_worker_gone(pair: Pair) -> None:
    """It was the leader, too: the other agent is elected meanwhile."""
    lease, pod = pair.lease("a"), pair.pods["a"]
    pair.kill_agent("a")
    pod.wait(lambda: pair.workers["a"].poll() is not None, "the worker to give up", 20.0)
    assert pair.workers["a"].returncode == EXIT_ORPHAN
    pod.wait(lambda: pair.leader() == "b", "the other agent to lead", 10.0)
    at = pair.step("b")
    pair.pods["b"].wait(lambda: pair.step("b") > at + 5, "the other worker to train on alone", 10.0)
    pair.start_agent("a")
    pair.replace_worker("a")
    assert pair.lease("a") not in (None, lease)
    pair.finish()


def test_a_worker_that_stopped_and_wakes_up_finds_itself_put_out(pair: Pair) -> None:
    """Nobody kills it, as its agent did not start it; it ends by itself, and a fresh process takes its place."""
    stopped = pair.workers["a"]
    stopped.send_signal(signal.SIGSTOP)
    try:
        verdict = {"worker": "w-a", "verdict": "hung"}
        pods = pair.pods.values()
        pair.pods["b"].wait(lambda: any(pod.events("verdict", **verdict) for pod in pods), "the verdict", 20.0)
        at = pair.step("b")
        pair.pods["b"].wait(lambda: pair.step("b") > at + 5, "the other worker to train on alone", 10.0)
    finally:
        stopped.send_signal(signal.SIGCONT)
    pod = pair.pods["a"]
    assert pod.wait_ends(stopped) == [EXIT_RESTART]
    pair.replace_worker("a")
    pair.finish()
