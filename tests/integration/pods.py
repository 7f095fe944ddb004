"""Runs the containers of the Kubernetes base as a kubelet would, on this host: their own arguments, variables, probes.

Each container is a process of its own, first of a process namespace of its own, so that agent and worker see nothing of
each other but the socket; each pod has an address of its own on the loopback interface.  Only paths, the endpoint of
etcd and the port are put in place.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from tests.deploy.manifests import Manifest, container, environment
from tests.faults.following import STOP
from tests.faults.harness import ROOT, TRAIN_DATA

START_SECONDS = 60.0
# What `unshare` makes: the program is process 1, as in a container, and ends with its `unshare`.
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
COMMANDS = Path(sys.executable).parent  # `reknit` lies here, as in the image


def can_part() -> bool:
    """Whether this user may make process namespaces."""
    if shutil.which(APART[0]) is None:
        return False
    return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0


def free_port() -> int:
    """One that nobody on this host has now."""
    with socket.create_server(("0.0.0.0", 0)) as held:
        return int(held.getsockname()[1])


class Container:
    """A process that a kubelet started."""

    def __init__(self, command: list[str], variables: Mapping[str, str], output: Path) -> None:
        self._output = output.open("ab")
        self.child = subprocess.Popen(
            [*APART, *command], stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output, env=dict(variables)
        )

    def signal(self, number: int) -> None:
        """To its process 1."""
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text().split()
        for pid in children:
            os.kill(int(pid), number)

    def close(self) -> None:
        """End it, however it is."""
        self.child.kill()
        self.child.wait()
        self._output.close()


class Pod:
    """One pod.  `made_from`: the manifests; `place`: what stands in the variables → what it is here."""

    def __init__(
        self, made_from: list[Manifest], name: str, address: str, folder: Path, place: Mapping[str, str]
    ) -> None:
        folder.mkdir()
        self.name, self.address, self.folder, self._made_from = name, address, folder, made_from
        self.orders, self.output = folder / "orders", folder / "output"
        self.orders.mkdir()
        self._place = {**place, "/run/reknit": str(folder / "run")}
        self.agent: Container | None = None
        self.worker: Container | None = None

    def variables(self, name: str) -> dict[str, str]:
        """A container's environment."""
        told = environment(self._made_from, name, self.name, self.address)
        for variable, text in told.items():
            for old, new in self._place.items():
                text = text.replace(old, new)
            told[variable] = text
        return {"PATH": f"{COMMANDS}:{os.environ['PATH']}", "HOME": str(self.folder), "OMP_NUM_THREADS": "1", **told}

    def start_agent(self) -> None:
        """As the image's entrypoint does."""
        own = {"REKNIT_EVENTS": str(self.folder / "events"), "PYTHONPATH": str(ROOT)}
        words = container(self._made_from, "agent")["args"]
        self.agent = Container(["reknit", *words], {**self.variables("agent"), **own}, self.output)

    def start_worker(self) -> None:
        """As the image's entrypoint does, with a script of the fault tests."""
        script = [sys.executable, str(TRAIN_DATA), "--orders", str(self.orders)]
        self.worker = Container(script, {**self.variables("worker"), "PYTHONPATH": str(ROOT)}, self.output)

    @property
    def http(self) -> str:
        """Where its agent answers; an IPv4 address needs no brackets."""
        return f"{self.address}:{self.variables('agent')['REKNIT_HTTP'].rpartition(':')[2]}"

    def probe(self, name: str) -> tuple[int, str]:
        """What the kubelet gets: a code (0 for no answer), and what it says."""
        path = container(self._made_from, "agent")[name]["httpGet"]["path"]
        try:
            with urlopen(f"http://{self.http}{path}", timeout=5.0) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()
        except (URLError, OSError) as error:
            return 0, str(error)

    def start(self) -> None:
        """The agent, and once its startup probe has passed the worker."""
        self.start_agent()
        self.wait(lambda: self.probe("startupProbe")[0] == 200, "the startup probe to pass")
        self.start_worker()

    def stop(self) -> list[int]:
        """As a kubelet stops a pod: the sidecar's preStop beside the worker's SIGTERM, then SIGTERM to the sidecar.

        Returns what preStop, worker and agent end with.
        """
        assert self.agent is not None
        assert self.worker is not None
        hook = container(self._made_from, "agent")["lifecycle"]["preStop"]["exec"]["command"]
        pre_stop = Container(list(hook), self.variables("agent"), self.output)
        try:
            self.worker.signal(signal.SIGTERM)
            codes = [self.ended(pre_stop), self.ended(self.worker)]
        finally:
            pre_stop.close()
        self.agent.signal(signal.SIGTERM)
        return [*codes, self.ended(self.agent)]

    def ended(self, its: Container | None) -> int:
        """What a container ends with."""
        assert its is not None
        self.wait(lambda: its.child.poll() is not None, "the end of a container")
        return int(its.child.returncode)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What this pod's agent has told of."""
        path = self.folder / "events"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [event for line in lines if (event := json.loads(line))["event"] == kind]

    def step(self) -> int:
        """The newest that its worker has committed."""
        return max((event["step"] for event in self.events("committed")), default=0)

    def stop_at(self, step: int) -> None:
        """The worker's last step."""
        (self.orders / "new").write_text(str(step))
        (self.orders / "new").rename(self.orders / STOP)

    def wait(self, condition: Callable[[], object], what: str, timeout: float = START_SECONDS) -> None:
        """Until it holds; fails the test with what was said."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                self.fail(f"{self.name} waited {timeout:g} s in vain for {what}")
            time.sleep(0.02)

    def fail(self, why: str) -> NoReturn:
        """With the end of what its containers have said."""
        pytest.fail(f"{why}\n{self.output.read_text()[-8000:]}", pytrace=False)

    def close(self) -> None:
        """End what is left."""
        for its in (self.worker, self.agent):
            if its is not None:
                its.close()
