"""An etcd that lets nobody in without a login and a certificate: logins run out, certificates are rotated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.faults.certificates import Pki
from tests.faults.etcd_cluster import EtcdCluster
from tests.faults.harness import TRAIN_DATA
from tests.faults.hosts import Hosts
from tests.faults.outage import Ordeal

USER, PASSWORD = "trainer", "a pass phrase"
LOGIN_SECONDS = 1  # a login that is not used for so long runs out
REPLICAS = 2


class Guarded(Ordeal):
    """A job whose etcd asks for passwords and certificates."""

    def __init__(self, hosts: Hosts, etcd: EtcdCluster, pki: Pki) -> None:
        super().__init__(hosts, etcd, REPLICAS)
        self.pki = pki


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    pki = Pki(folder / "pki")
    password = folder / "password"
    password.write_text(PASSWORD + "\n")
    etcd_arguments = [*pki.arguments, "--auth-token=simple", f"--auth-token-ttl={LOGIN_SECONDS}"]
    access = ["--etcd-ca", str(pki.tls.ca), "--etcd-cert", str(pki.client), "--etcd-key", str(pki.client_key)]
    access += ["--etcd-user", USER, "--etcd-password-file", str(password), "--backoff", "0"]
    with EtcdCluster(folder / "etcd", arguments=etcd_arguments, tls=pki.tls) as etcd:
        etcd.ask_for_passwords(USER, PASSWORD)
        shape: dict[str, Any] = {"script": TRAIN_DATA, "replicas": str(REPLICAS), "pipe": 1, "workers": 1}
        hosts = Hosts(folder, etcd.endpoint, options=access, **shape)
        try:
            for _ in range(REPLICAS):
                hosts.add()
            ordeal = Guarded(hosts, etcd, pki)
            ordeal.begin()
            yield ordeal
        finally:
            hosts.close()


def test_logins_run_out(guarded: Guarded) -> None:
    with guarded.unnoticed("the end of every login"):
        time.sleep(3 * LOGIN_SECONDS)  # renewing a lease uses no login
    assert guarded.etcd.only.log.read_text().count("deleted a simple token") >= REPLICAS
    guarded.replace_a_worker()


def test_a_restarted_etcd_has_forgotten_all_logins(guarded: Guarded) -> None:
    with guarded.unnoticed("the loss of all logins"):
        guarded.etcd.only.restart()
        guarded.etcd.wait_healthy()
    guarded.replace_a_worker()


def test_certificates_are_rotated(guarded: Guarded) -> None:
    with guarded.unnoticed("new certificates"):
        guarded.pki.rotate()
        guarded.etcd.only.restart()  # refuses the old ones from now on
        guarded.etcd.wait_healthy()
    guarded.replace_a_worker()


def test_the_job_finishes(guarded: Guarded) -> None:
    guarded.hosts.finish()
    printed = "".join(run.output() for run in guarded.hosts.runs)
    assert PASSWORD not in printed
    assert "Traceback" not in printed
