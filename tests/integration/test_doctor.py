"""`reknit doctor` on this host, and on etcds that are well, guarded, full, or not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.certificates import Pki
from tests.faults.etcd_cluster import EtcdCluster

from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.keys import ROOT
from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.runtime import cli

Doctor = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """doctor(arguments…) → exit code and findings by name; without torch."""

    def ask(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
        code = cli.main(["doctor", "--no-torch", "--json", *arguments])
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return code, {finding["name"]: finding for finding in found}

    return ask


def test_two_processes_meet_and_part_and_all_of_it_is_said_in_80_columns() -> None:
    command = [sys.executable, "-m", "reknit.runtime.cli", "doctor"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    lines = answer.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("ok    torch ") for line in lines)
    assert any(line.startswith("ok    gloo ") and "a blocked wait was cut in" in line for line in lines)


def test_an_etcd_that_is_well(doctor: Doctor, etcd: EmbeddedEtcd) -> None:
    code, found = doctor("--etcd", etcd.endpoint)
    assert code == 0
    assert found[f"etcd {etcd.endpoint}"]["verdict"] == "ok"
    assert "healthy, leads, clock as ours" in found[f"etcd {etcd.endpoint}"]["says"]
    assert found["etcd writes"]["verdict"] in ("ok", "warn")  # a busy machine's disk is slow
    store = EtcdStore(etcd.endpoint)
    try:
        assert not [entry.key for entry in store.list(ROOT).entries if "/doctor/" in entry.key], "it leaves nothing"
    finally:
        store.close()


def test_an_etcd_that_is_not_there(doctor: Doctor) -> None:
    code, found = doctor("--etcd", "127.0.0.1:9")
    assert code == 1
    assert found["etcd 127.0.0.1:9"]["says"] == "Connection refused"


def test_an_etcd_with_passwords_and_certificates(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki = Pki(tmp_path / "pki")
    with EtcdCluster(tmp_path / "etcd", arguments=[*pki.arguments, "--auth-token=simple"], tls=pki.tls) as etcd:
        etcd.ask_for_passwords("trainer", "secret")
        name = f"etcd {etcd.endpoint}"
        ours = ["--etcd-cert", str(pki.client), "--etcd-key", str(pki.client_key)]
        access = ["--etcd", etcd.endpoint, "--etcd-ca", str(pki.tls.ca)]
        monkeypatch.setenv("REKNIT_ETCD_PASSWORD", "secret")
        code, found = doctor(*access, *ours, "--etcd-user", "trainer")
        assert code == 0, found
        assert found[name]["verdict"] == "ok"
        assert found["certificates"]["verdict"] == "warn"  # they are made for two days
        monkeypatch.setenv("REKNIT_ETCD_PASSWORD", "wrong")
        code, found = doctor(*access, *ours, "--etcd-user", "trainer")
        assert code == 1
        assert "invalid user ID or password" in found["etcd writes"]["says"]
        code, found = doctor(*access)
        assert "--etcd-cert" in found[name]["advice"]
        code, found = doctor("--etcd", etcd.endpoint, "--etcd-ca", str(pki.client), *ours)
        assert "--etcd-ca" in found[name]["advice"]
        code, found = doctor("--etcd", etcd.endpoint)
        assert "may speak TLS" in found[name]["advice"]


def fill(store: EtcdStore) -> None:
    """Write until it refuses."""
    try:
        for number in range(100):
            store.put(f"/fill/{number}", os.urandom(20_000))
    except StoreError:
        return
    pytest.fail("it takes everything")


def test_an_etcd_that_is_full(doctor: Doctor, tmp_path: Path) -> None:
    with EtcdCluster(tmp_path / "etcd", arguments=["--quota-backend-bytes=100000"]) as etcd:
        store = EtcdStore(etcd.endpoint)
        try:
            fill(store)
        finally:
            store.close()
        code, found = doctor("--etcd", etcd.endpoint)
        assert code == 1
        assert "alarm: NOSPACE" in found[f"etcd {etcd.endpoint}"]["says"]
        assert "defrag" in found[f"etcd {etcd.endpoint}"]["advice"]


def test_a_socket_folder_that_others_reach(doctor: Doctor, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    code, found = doctor("--socket", str(tmp_path / "agent.sock"))
    assert code == 1
    assert "open to other users" in found["agent socket"]["says"]
    tmp_path.chmod(0o700)
    code, found = doctor("--socket", str(tmp_path / "agent.sock"))
    assert code == 0, found
    assert not list(tmp_path.iterdir())


def test_addresses_that_are_none_are_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--etcd", "h:p:q"]) == 2
    assert cli.main(["doctor", "--etcd-ca", __file__]) == 2
    assert "--etcd-ca needs --etcd" in capsys.readouterr().err
