"""An etcd that lets nobody in without a login and a certificate: logins run out, certificates are rotated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.certificates import Pki
from tests.faults.etcd_cluster import EtcdCluster
from tests.faults.harness import TRAIN_DATA
from tests.faults.hosts import JOB, Hosts
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


def test_the_password_is_nowhere_to_be_seen(guarded: Guarded) -> None:
    """Not in a command line, in a worker's environment, in what the agents print, write or serve."""
    seen: dict[str, str] = {}
    for run in guarded.hosts.living:
        (started,) = run.of("agent_started")
        for path in ("/status", "/metrics", "/"):
            with urllib.request.urlopen(f"http://{started['http']}{path}", timeout=10) as page:
                seen[f"{run.name}{path}"] = page.read().decode()
        seen[f"{run.name} printed"], seen[f"{run.name} events"] = run.output(), run.events_path.read_text()
        for pid, command in run.processes().items():
            seen[f"{run.name} {pid}"] = command + Path(f"/proc/{pid}/environ").read_text(errors="replace")
    assert len(seen) >= 8 * REPLICAS, "of each host five texts, an agent, its warm process, its worker"
    assert not [where for where, text in seen.items() if PASSWORD in text]


def test_a_command_gets_in_by_variables_alone(guarded: Guarded) -> None:
    pki = guarded.pki
    access = {
        "REKNIT_ETCD": guarded.etcd.endpoint,
        "REKNIT_ETCD_CA": str(pki.tls.ca),
        "REKNIT_ETCD_CERT": str(pki.client),
        "REKNIT_ETCD_KEY": str(pki.client_key),
        "REKNIT_ETCD_USER": USER,
        "REKNIT_ETCD_PASSWORD": PASSWORD,
    }
    command = [sys.executable, "-m", "reknit.runtime.cli", "jobs", "--json"]
    answer = subprocess.run(
        command, env={**os.environ, **access}, capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert [json.loads(line)["job"] for line in answer.stdout.splitlines()] == [JOB]


def test_the_job_finishes(guarded: Guarded) -> None:
    guarded.hosts.finish()
    printed = "".join(run.output() for run in guarded.hosts.runs)
    assert PASSWORD not in printed
    assert "Traceback" not in printed
