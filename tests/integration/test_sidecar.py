"""`reknit agent` beside workers that somebody else starts: in either order, again after a kill, and to the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.faults.following import STOP
from tests.faults.harness import ROOT, TRAIN_DATA

from reknit.rendezvous.store.embedded import EmbeddedEtcd

START_SECONDS = 60.0


class Pod:
    """One agent, its events, and the workers that a test starts beside it."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder, self.endpoint = folder, endpoint
        self.socket, self.orders = folder / "private" / "agent.sock", folder / "orders"
        self.orders.mkdir()
        self.output = (folder / "output").open("ab")
        self.children: list[subprocess.Popen[bytes]] = []

    def agent(self, replicas: int) -> subprocess.Popen[bytes]:
        options = ["--etcd", self.endpoint, "--job", "pod", "--replicas", str(replicas), "--socket", str(self.socket)]
        options += ["--events", str(self.folder / "events"), "--detect", "3"]
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
        self.wait(lambda: all(child.poll() is not None for child in children), "the ends", 30.0)
        return [child.returncode for child in children]

    def stop_at(self, step: int) -> None:
        (self.orders / "new").write_text(str(step))
        (self.orders / "new").rename(self.orders / STOP)

    def fail(self, why: str) -> NoReturn:
        pytest.fail(f"{why}\n{(self.folder / 'output').read_text()[-8000:]}", pytrace=False)

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
