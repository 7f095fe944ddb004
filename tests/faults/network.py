"""Several hosts on one machine: each in a network namespace of its own, on a router in one more, beside an etcd.

The router is there so that a cut is silent: what it drops, nobody is told of.  Neither end sees a reset or an ICMP
error, as if a switch between them had died.  Nothing of the machine's own network changes, and no namespace has a name:
each lives as long as a process that holds it, which ends when the test's process does, however that ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.faults.harness import JobRun
from tests.faults.hosts import Hosts

from reknit.rendezvous.store.embedded import find_etcd

CLIENT_PORT, PEER_PORT = 2379, 2380  # nobody else is in etcd's namespace
TOOLS = ("ip", "nsenter", "unshare", "setpriv")

# Run beside etcd, since its namespace cannot be reached from outside.
_WAIT_FOR_ETCD = """
import sys, time, urllib.request
deadline = time.monotonic() + 20
while True:
    try:
        sys.exit(b'"true"' not in urllib.request.urlopen(sys.argv[1] + "/health", timeout=1).read())
    except OSError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.02)
"""


def require_namespaces() -> None:
    """Skip the test where network namespaces cannot be made."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here (packages iproute2, util-linux): cannot make network namespaces")
    tried = subprocess.run([*_unshare(), "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"network namespaces are not permitted here: {tried.stderr.strip()}")


def _unshare() -> list[str]:
    """Without root, namespaces are made inside a user namespace in which we are root."""
    return ["unshare", *(["--user", "--map-root-user"] if os.geteuid() else []), "--net", "--uts"]


class Namespace:
    """A host's own network and name, and the process that holds them.  `with` makes it.

    `inside`: whose user namespace it is in, if there is one.
    """

    def __init__(self, name: str, inside: Namespace | None = None) -> None:
        self.name, self._inside = name, inside
        self._holder: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Namespace:
        command = _unshare() if self._inside is None else [*self._inside.enter, "unshare", "--net", "--uts"]
        # It ends with its standard input, so with this process.
        self._holder = subprocess.Popen(
            [*command, "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n", "the namespace could not be made"
        self.run("ip link set lo up", f"echo {self.name} > /proc/sys/kernel/hostname")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._holder is not None
        self._holder.communicate(timeout=5.0)

    @property
    def pid(self) -> int:
        """The process that holds it."""
        assert self._holder is not None
        return self._holder.pid

    @property
    def enter(self) -> list[str]:
        """What to write before a command, so that it runs in here (as the same process)."""
        user = ["--user", "--preserve-credentials"] if os.geteuid() else []
        return ["nsenter", "--target", str(self.pid), *user, "--net", "--uts", "--"]

    def run(self, *commands: str) -> None:
        """Run shell commands in here."""
        done = subprocess.run(
            [*self.enter, "sh", "-ec", "\n".join(commands)], capture_output=True, text=True, timeout=20, check=False
        )
        assert done.returncode == 0, f"{commands}: {done.stderr.strip()}"


class Network:
    """Machines by name, each on a link and in a subnet of its own.  `with` makes the router; machines are added."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.router = Namespace("router")
        self.machines: dict[str, Namespace] = {}

    def __enter__(self) -> Network:
        self._stack.enter_context(self.router)
        # Whatever has no link at present falls into the black hole: a lost link is silent too.
        self.router.run("echo 1 > /proc/sys/net/ipv4/ip_forward", "ip route add blackhole 10.0.0.0/8")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, name: str) -> Namespace:
        """One more machine, reachable from all others."""
        machine = self._stack.enter_context(Namespace(name, self.router))
        self.machines[name] = machine
        own, gateway = self.address(name), self._subnet(name) + ".1"
        self.router.run(
            f"ip link add {name} type veth peer name eth0 netns {machine.pid}",
            f"ip addr add {gateway}/24 dev {name}",
            f"ip link set {name} up",
        )
        machine.run(f"ip addr add {own}/24 dev eth0", "ip link set eth0 up", f"ip route add default via {gateway}")
        return machine

    def address(self, name: str) -> str:
        """The machine's address."""
        return self._subnet(name) + ".2"

    def _subnet(self, name: str) -> str:
        return f"10.77.{list(self.machines).index(name)}"

    @contextmanager
    def etcd(self, folder: Path, name: str = "etcd") -> Iterator[str]:
        """An etcd on a machine of its own; gives its endpoint."""
        machine = self.add(name)
        client, peer = (f"http://{self.address(name)}:{port}" for port in (CLIENT_PORT, PEER_PORT))
        settings = {
            "data-dir": str(folder / name),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        arguments = [str(find_etcd()), *(f"--{key}={value}" for key, value in settings.items())]
        with (folder / f"{name}.log").open("ab") as output:
            process = subprocess.Popen(
                [*machine.enter, "setpriv", "--pdeathsig", "KILL", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            waiting = [*machine.enter, sys.executable, "-I", "-S", "-c", _WAIT_FOR_ETCD, client]
            subprocess.run(waiting, timeout=30, check=True)
            yield client.removeprefix("http://")
        finally:
            process.kill()
            process.wait()

    # ---------------------------------------------------------------- faults

    def unplug(self, name: str) -> None:
        """The machine's link goes down, at the router's end."""
        self.router.run(f"ip link set {name} down")

    def plug(self, name: str) -> None:
        """The machine's link comes back."""
        self.router.run(f"ip link set {name} up")

    def cut(self, name: str, *others: str) -> None:
        """Drop everything between one machine and some others, in both directions."""
        self._rules("add", name, others)

    def heal(self, name: str, *others: str) -> None:
        """Undo `cut`."""
        self._rules("del", name, others)

    def _rules(self, what: str, name: str, others: Sequence[str]) -> None:
        pairs = [pair for other in others for pair in ((name, other), (other, name))]
        addresses = [(self.address(source), self.address(target)) for source, target in pairs]
        self.router.run(*(f"ip rule {what} pref 100 from {a} to {b} blackhole" for a, b in addresses))


class NetworkedHosts(Hosts):
    """Several agents, each on a machine of its own in the network; the hosts have the machines' names.

    Hosts in `left_out` are not waited for: they run, but take no part at present.
    """

    def __init__(self, network: Network, folder: Path, etcd: str, **options: Any) -> None:
        super().__init__(folder, etcd, **options)
        self.network = network
        self.left_out: set[JobRun] = set()

    def add(self, name: str | None = None, prefix: Sequence[str] = ()) -> JobRun:
        """Start one more host on a new machine."""
        name = name if name is not None else f"host{len(self.runs)}"
        return super().add(name, [*prefix, *self.network.add(name).enter])

    @property
    def living(self) -> list[JobRun]:
        """The hosts that take part."""
        return [run for run in super().living if run not in self.left_out]

    def require_strength(self, replicas: int) -> None:
        """Nothing is wrong with the job, which other tests have used before."""
        newest = max(self.of("plan"), key=lambda event: event["generation"])
        if self.left_out or newest["replicas"] != replicas:
            pytest.fail(f"a test before this one has left the job in a bad state: {newest}", pytrace=False)


@contextmanager
def networked(folder: Path, count: int, **options: Any) -> Iterator[NetworkedHosts]:
    """`count` hosts and an etcd, on a machine each."""
    require_namespaces()
    with Network() as network, network.etcd(folder) as endpoint:
        hosts = NetworkedHosts(network, folder, endpoint, **options)
        try:
            for _ in range(count):
                hosts.add()
            yield hosts
        finally:
            hosts.close()
