"""Plain torchrun, its rendezvous in a real etcd: workers and hosts die, etcd starts again, nothing stays behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.torchrun_agents import Agents, Moment

from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.rendezvous.torchrun.making import ROOT

BOTH = (0, 1)
SECONDS = 100.0  # every worker and agent imports torch, perhaps on a busy host
TIMES = "join_timeout=120,last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=5"


def options(endpoint: str, name: str) -> Sequence[str]:
    unused = "127.0.0.1:1"  # nobody listens there: the next endpoint is taken
    where = [f"--rdzv-endpoint={unused},{endpoint}", f"--rdzv-id={name}"]
    return ["--rdzv-backend=reknit-etcd", *where, "--nnodes=1:2", f"--rdzv-conf={TIMES}"]


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
        etcd.start()
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
        entries = store.list(ROOT).entries
        store.close()
        assert entries
        assert all(entry.key.startswith(f"{ROOT}a%20b/") and entry.lease for entry in entries)
