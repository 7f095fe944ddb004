"""The store on an etcd that dies, freezes, compacts, loses its disk, or asks for passwords and certificates."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from reknit.rendezvous.errors import LeaseLost, StoreError, StoreRefused, StoreUnavailable
from reknit.rendezvous.store import etcd_watch
from reknit.rendezvous.store.embedded import EmbeddedEtcd, find_etcd
from reknit.rendezvous.store.endpoints import TlsFiles
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.rendezvous.store.etcd_messages import etcd3, rpc
from reknit.rendezvous.store.protocol import Compare, Put

WaitUntil = Callable[..., None]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedEtcd]:
    """An etcd of the test's own, to be mistreated; its data outlive it."""
    with EmbeddedEtcd(tmp_path / "etcd") as server:
        yield server


@pytest.fixture
def store(server: EmbeddedEtcd) -> Iterator[EtcdStore]:
    store = EtcdStore(server.endpoint)
    store.connect()
    yield store
    store.close()


def kill(server: EmbeddedEtcd, wait_until: WaitUntil) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: server.pid is None)


@contextmanager
def frozen(pid: int | None, wait_until: WaitUntil) -> Iterator[None]:
    """Stop a process, all of its threads, for as long as this lasts."""
    assert pid is not None

    def stopped() -> bool:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    os.kill(pid, signal.SIGSTOP)
    try:
        # On a busy machine a thread runs on for a moment, long enough to answer.
        wait_until(stopped)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_killed_and_restarted_etcd_costs_the_watch_nothing(
    server: EmbeddedEtcd, store: EtcdStore, recorder: Any, wait_until: WaitUntil
) -> None:
    endpoint, acknowledged, ended = server.endpoint, [store.put("/w/0", b"0")], threading.Event()
    store.watch("/w/", recorder.on_reset, recorder.on_events, prefix=True)
    recorder.wait()

    def write() -> None:
        while not ended.is_set():
            with suppress(StoreUnavailable):
                acknowledged.append(store.put(f"/w/{len(acknowledged) % 5}", b"x", timeout=0.5))

    writer = threading.Thread(target=write)
    writer.start()
    for enough in (50, 100):
        wait_until(lambda enough=enough: len(acknowledged) > enough)
        kill(server, wait_until)
        server.start()
        assert server.endpoint == endpoint
    wait_until(lambda: len(acknowledged) > 200)
    ended.set()
    writer.join()
    last = store.put("/w/end", b"")
    wait_until(lambda: recorder.events[-1].revision == last)
    # Each write is one revision here, so what was lost, repeated or out of order would show as a gap.
    first = recorder.resets[0].revision + 1
    assert [event.revision for event in recorder.events] == list(range(first, last + 1))
    assert set(acknowledged[1:]) <= {event.revision for event in recorder.events}
    assert len(recorder.resets) == 1
    assert recorder.state == {entry.key: entry.value for entry in store.list("/w/").entries}


def test_calls_to_a_frozen_etcd_end_in_time(
    server: EmbeddedEtcd, store: EtcdStore, recorder: Any, wait_until: WaitUntil
) -> None:
    lease = store.grant(30)
    store.watch("/w", recorder.on_reset, recorder.on_events)
    recorder.wait()
    newcomer = EtcdStore(server.endpoint)
    calls: list[Callable[[float], object]] = [
        lambda timeout: store.get("/w", timeout=timeout),
        lambda timeout: store.put("/w", b"1", timeout=timeout),
        lambda timeout: store.transaction([Compare.absent("/w")], [Put("/w", b"2")], timeout=timeout),
        lambda timeout: store.keep_alive(lease, timeout=timeout),
        lambda timeout: store.grant(5, timeout=timeout),
        lambda timeout: newcomer.connect(timeout=timeout),
        # Four seconds in all, less than gRPC's own detection takes.
        lambda timeout: store.get("/w", timeout=4 - 6 * timeout),
    ]
    with frozen(server.pid, wait_until):
        begin = time.monotonic()
        for call in calls:
            with pytest.raises(StoreUnavailable, match=server.endpoint):
                call(0.5)
        assert 3.9 < time.monotonic() - begin < 5.5
    newcomer.close()
    written = store.put("/w", b"3")
    assert store.keep_alive(lease) == lease.ttl
    wait_until(lambda: recorder.events and recorder.events[-1].revision == written)
    assert len(recorder.resets) == 1


def test_closing_does_not_wait_for_a_frozen_etcd(server: EmbeddedEtcd, recorder: Any, wait_until: WaitUntil) -> None:
    store = EtcdStore(server.endpoint)
    store.watch("/w", recorder.on_reset, recorder.on_events)
    recorder.wait()
    with frozen(server.pid, wait_until):
        # One watch waits for events, the other for the answer to its list.
        store.watch("/v", recorder.on_reset, recorder.on_events)
        begin = time.monotonic()
        store.close()
        assert time.monotonic() - begin < 0.5
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("reknit-watch")]


def test_after_a_compaction_the_watch_lists_anew(
    server: EmbeddedEtcd, store: EtcdStore, recorder: Any, wait_until: WaitUntil
) -> None:
    store.put("/w/a", b"1")
    store.put("/w/b", b"1")
    store.watch("/w/", recorder.on_reset, recorder.on_events, prefix=True)
    recorder.wait()
    kill(server, wait_until)
    # The same data at another address: written to and compacted where the watch cannot see it.
    with EmbeddedEtcd(server.folder) as elsewhere:
        client = etcd3.client(*elsewhere.endpoint.split(":"), timeout=5)
        client.put("/w/a", b"2")
        client.delete("/w/b")
        client.put("/elsewhere", b"")
        client.compact(client.get("/elsewhere")[1].mod_revision, physical=True)
        client.close()
    server.start()
    recorder.wait(resets=2)
    assert recorder.state == {"/w/a": b"2"}
    assert recorder.events == []
    store.put("/w/c", b"3")
    recorder.wait(events=1, resets=2)
    assert recorder.state == {"/w/a": b"2", "/w/c": b"3"}


def test_after_a_wipe_the_watch_lists_anew(
    server: EmbeddedEtcd, store: EtcdStore, recorder: Any, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(20):
        store.put("/w/a", str(number).encode())
    store.watch("/w/", recorder.on_reset, recorder.on_events, prefix=True)
    recorder.wait()
    kill(server, wait_until)
    shutil.rmtree(server.folder / "data")
    server.start()
    recorder.wait(resets=2)
    assert recorder.resets[1].revision < recorder.resets[0].revision
    assert recorder.state == {}
    store.put("/w/b", b"new")
    recorder.wait(events=1, resets=2)
    assert recorder.state == {"/w/b": b"new"}


def test_a_watch_outlives_a_long_outage_and_says_so_once(
    server: EmbeddedEtcd, store: EtcdStore, recorder: Any, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="reknit.rendezvous.store.etcd_watch")
    store.watch("/w", recorder.on_reset, recorder.on_events)
    recorder.wait()
    kill(server, wait_until)
    tries = "still interrupted"
    wait_until(lambda: caplog.text.count(tries) >= 3)
    begin = time.process_time()
    more = caplog.text.count(tries) + 2
    started = time.monotonic()
    wait_until(lambda: caplog.text.count(tries) >= more)
    assert time.process_time() - begin < 0.5 * (time.monotonic() - started)
    server.start()
    store.put("/w", b"", timeout=10)
    recorder.wait(events=1)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert len(recorder.resets) == 1


def test_a_call_that_is_answered_ends_the_watches_wait(
    server: EmbeddedEtcd, store: EtcdStore, recorder: Any, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_watch, "_FIRST_DELAY", 3600.0)
    store.watch("/w", recorder.on_reset, recorder.on_events)
    recorder.wait()
    kill(server, wait_until)
    with pytest.raises(StoreUnavailable):
        store.get("/w", timeout=0.2)
    server.start()
    store.put("/w", b"", timeout=10)
    recorder.wait(events=1)


def test_a_watch_begun_before_its_etcd_waits_for_it(tmp_path: Path, recorder: Any, wait_until: WaitUntil) -> None:
    with EmbeddedEtcd(tmp_path) as server:
        endpoint = server.endpoint
        kill(server, wait_until)
        store = EtcdStore(endpoint)
        store.watch("/w", recorder.on_reset, recorder.on_events)
        with pytest.raises(StoreUnavailable):
            store.get("/w", timeout=0.2)
        server.start()
        recorder.wait()
        store.close()


def test_a_lease_is_held_by_renewals_only(etcd_store: EtcdStore, prefix: str, recorder: Any) -> None:
    held, dropped = etcd_store.grant(1), etcd_store.grant(1)
    etcd_store.put(prefix + "held", b"", lease=held)
    etcd_store.put(prefix + "dropped", b"", lease=dropped)
    etcd_store.watch(prefix, recorder.on_reset, recorder.on_events, prefix=True)
    recorder.wait()
    while not recorder.events:
        assert etcd_store.keep_alive(held) == held.ttl
    assert [event.key for event in recorder.events] == [prefix + "dropped"]
    with pytest.raises(LeaseLost):
        etcd_store.keep_alive(dropped)


def test_a_restarted_etcd_knows_its_leases(server: EmbeddedEtcd, store: EtcdStore, wait_until: WaitUntil) -> None:
    lease = store.grant(5)
    store.put("/member", b"", lease=lease)
    kill(server, wait_until)
    server.start()
    assert store.keep_alive(lease, timeout=10) == 5
    assert store.get("/member") is not None


def test_limits_of_size(etcd_store: EtcdStore, prefix: str) -> None:
    value = b"v" * (1 << 20)
    for number in range(6):
        etcd_store.put(f"{prefix}{number}", value)
    # More than gRPC's own limit of 4 MiB for an answer.
    assert [entry.value for entry in etcd_store.list(prefix).entries] == [value] * 6
    with pytest.raises(StoreRefused, match="smaller"):
        etcd_store.put(prefix + "big", b"v" * (3 << 20))
    etcd_store.delete_prefix(prefix)


def test_keys_of_any_bytes_are_read(etcd: EmbeddedEtcd, etcd_store: EtcdStore, prefix: str) -> None:
    client = etcd3.client(*etcd.endpoint.split(":"), timeout=5)
    client.put(prefix.encode() + b"\xff\xfe", b"\x80")
    client.close()
    (entry,) = etcd_store.list(prefix).entries
    assert entry.value == b"\x80"
    assert etcd_store.get(entry.key) == entry
    assert etcd_store.delete(entry.key)


# Addresses


def test_an_unreachable_etcd_is_named_with_what_to_do() -> None:
    with socket.socket() as taken:
        # Bound but not listening: nobody else gets it, and nobody answers.
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        store = EtcdStore([f"127.0.0.1:{port}", f"localhost:{port}"])
        with pytest.raises(StoreUnavailable) as caught:
            store.connect(timeout=1)
        store.close()
    message = str(caught.value)
    assert f"127.0.0.1:{port}, localhost:{port}" in message
    assert "refused" in message.lower()
    assert "Check that etcd is running" in message


def test_a_name_that_does_not_exist_is_named() -> None:
    store = EtcdStore("etcd.invalid:2379")
    with pytest.raises(StoreUnavailable, match=r"etcd\.invalid:2379"):
        store.connect(timeout=1)
    store.close()


def test_a_dead_endpoint_does_not_matter_beside_a_living_one(etcd: EmbeddedEtcd, prefix: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for order in ([f"127.0.0.1:{port}", etcd.endpoint], [etcd.endpoint, f"localhost:{port}"]):
            store = EtcdStore(order)
            assert store.transaction([Compare.absent(prefix)], [Put(prefix + "a", b"")]).succeeded
            store.close()


def test_a_host_name_is_an_address(etcd: EmbeddedEtcd, prefix: str) -> None:
    store = EtcdStore(f"http://localhost:{etcd.endpoint.split(':')[1]}")
    assert store.put(prefix + "a", b"") > 0
    store.close()


def test_an_ipv6_address_is_one_too(etcd: EmbeddedEtcd, prefix: str) -> None:
    # The shared etcd listens on 127.0.0.1 only: a bridge from ::1 leads to it.
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with listener:
        bridge(listener, int(etcd.endpoint.split(":")[1]))
        store = EtcdStore(f"[::1]:{listener.getsockname()[1]}")
        assert store.put(prefix + "a", b"") > 0
        store.close()


def bridge(listener: socket.socket, port: int) -> None:
    """Pass the bytes of one connection to `listener` on to 127.0.0.1:port, both ways, until it ends."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            near, _ = listener.accept()
            with near, socket.create_connection(("127.0.0.1", port)) as far:
                back = threading.Thread(target=pump, args=(far, near), daemon=True)
                back.start()
                pump(near, far)
                back.join()

    threading.Thread(target=accept, daemon=True).start()


# Users and passwords


def with_users(endpoint: str) -> None:
    """Turn authentication on: root/secret may do all, guest/guest may touch /open/ only."""
    host, port = endpoint.split(":")
    client = etcd3.client(host, int(port), timeout=5)
    auth = rpc.AuthStub(client.channel)
    auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"), 5)
    auth.RoleAdd(rpc.AuthRoleAddRequest(name="guest"), 5)
    allow_guest(auth, b"/open/", b"/open0", None)
    for name, password in (("root", "secret"), ("guest", "guest")):
        auth.UserAdd(rpc.AuthUserAddRequest(name=name, password=password), 5)
        auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=name, role=name), 5)
    auth.AuthEnable(rpc.AuthEnableRequest(), 5)
    client.close()


def allow_guest(auth: Any, key: bytes, end: bytes, metadata: Any) -> None:
    permission = rpc.AuthRoleGrantPermissionRequest(name="guest")
    permission.perm.permType = 2
    permission.perm.key, permission.perm.range_end = key, end
    auth.RoleGrantPermission(permission, 5, metadata=metadata)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[EmbeddedEtcd]:
    """An etcd that asks for passwords, over plaintext, and forgets a login after a second without use."""
    with EmbeddedEtcd(tmp_path, arguments=["--auth-token=simple", "--auth-token-ttl=1"]) as server:
        with_users(server.endpoint)
        yield server


def test_a_login_that_runs_out_is_renewed(
    guarded: EmbeddedEtcd, recorder: Any, make_recorder: Any, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    store = EtcdStore(guarded.endpoint, user="root", password="secret")
    store.connect()
    store.watch("/w", recorder.on_reset, recorder.on_events)
    recorder.wait()

    def let_login_run_out() -> None:
        log = guarded.folder / "etcd.log"
        before = log.read_text().count("deleted a simple token")
        wait_until(lambda: log.read_text().count("deleted a simple token") > before)

    let_login_run_out()
    assert store.transaction([Compare.absent("/w")], [Put("/w", b"1")]).succeeded
    let_login_run_out()
    lease = store.grant(30)
    let_login_run_out()
    assert store.keep_alive(lease) == 30
    store.revoke(lease)
    let_login_run_out()
    late = make_recorder()
    store.watch("/w", late.on_reset, late.on_events)
    late.wait()
    # A restart forgets all logins, and the streams come back with the old one.
    kill(guarded, wait_until)
    guarded.start()
    store.put("/w", b"2", timeout=10)
    recorder.wait(events=2)
    late.wait(events=1)
    assert (len(recorder.resets), len(late.resets)) == (1, 1)
    assert "refused" not in caplog.text
    store.close()


def test_who_may_not_is_refused_with_advice(guarded: EmbeddedEtcd, recorder: Any, wait_until: WaitUntil) -> None:
    for user, password, advice in (
        ("root", "wrong", "Check the user and the password"),
        (None, None, "asks for a user and a password"),
    ):
        store = EtcdStore(guarded.endpoint, user=user, password=password)
        with pytest.raises(StoreRefused, match=advice):
            store.connect()
        with pytest.raises(StoreRefused, match=advice):
            store.put("/open/a", b"")
        store.close()
    guest = EtcdStore(guarded.endpoint, user="guest", password="guest")
    guest.connect()
    guest.put("/open/a", b"")
    for use in (lambda: guest.get("/closed"), lambda: guest.transaction([], [Put("/closed", b"")])):
        with pytest.raises(StoreRefused, match=r"permission denied.*Grant"):
            use()
    guest.close()


def test_a_refused_watch_goes_on_once_it_is_allowed(
    guarded: EmbeddedEtcd, recorder: Any, wait_until: WaitUntil, caplog: pytest.LogCaptureFixture
) -> None:
    guest = EtcdStore(guarded.endpoint, user="guest", password="guest")
    guest.watch("/later/", recorder.on_reset, recorder.on_events, prefix=True)
    wait_until(lambda: "permission denied" in caplog.text)
    client = etcd3.client(*guarded.endpoint.split(":"), timeout=5)
    token = rpc.AuthStub(client.channel).Authenticate(rpc.AuthenticateRequest(name="root", password="secret"), 5).token
    allow_guest(rpc.AuthStub(client.channel), b"/later/", b"/later0", (("token", token),))
    client.close()
    recorder.wait()
    guest.put("/later/a", b"")
    recorder.wait(events=1)
    guest.close()


def reknit_run(folder: Path, endpoint: str, *options: str, password: str | None = None) -> tuple[int, str]:
    """A job on this etcd whose script shows its environment and ends; the exit code and all that was printed."""
    script = folder / "show.py"
    script.write_text("import os; print('it ran', dict(os.environ))  # without reknit")
    command = [sys.executable, "-m", "reknit.runtime.cli", "run", "--etcd", endpoint, "--job", "j", "--no-warm"]
    environment = {**os.environ, **({} if password is None else {"REKNIT_ETCD_PASSWORD": password})}
    done = subprocess.run(
        [*command, *options, str(script)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_command_line_logs_in_and_its_workers_do_not_see_the_password(
    guarded: EmbeddedEtcd, tmp_path: Path
) -> None:
    code, said = reknit_run(tmp_path, guarded.endpoint, "--etcd-user", "root", password="secret")
    assert code == 1
    assert "it ran" in said
    assert "without ever calling reknit.join()" in said
    assert "secret" not in said
    code, said = reknit_run(tmp_path, guarded.endpoint, "--etcd-user", "root", password="wrong")
    assert code == 1
    assert "Check the user and the password" in said
    assert "Traceback" not in said


def test_a_password_for_an_etcd_without_users_is_refused(etcd: EmbeddedEtcd) -> None:
    store = EtcdStore(etcd.endpoint, user="root", password="secret")
    with pytest.raises(StoreRefused, match="authentication is off there"):
        store.connect()
    store.close()


# Certificates


class Certificates:
    """A CA, and certificates signed by it, made by openssl in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.ca = folder / "ca.pem"
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        self._openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test CA")
        (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        for name in ("server", "client"):
            self._openssl("req", "-new", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2"]
            self._openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *sign)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def client(self) -> TlsFiles:
        return TlsFiles(self.ca, self.folder / "client.pem", self.folder / "client.key")


class Cluster:
    """Members started by hand, to have what an embedded etcd has not: TLS, and several of them."""

    def __init__(self, folder: Path, size: int, scheme: str = "http", arguments: tuple[str, ...] = ()) -> None:
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(2 * size)]
            for each in sockets:
                each.bind(("127.0.0.1", 0))
            ports = [each.getsockname()[1] for each in sockets]
        self.endpoints = [f"127.0.0.1:{port}" for port in ports[:size]]
        peers = [f"http://127.0.0.1:{port}" for port in ports[size:]]
        everybody = ",".join(f"m{number}={peer}" for number, peer in enumerate(peers))
        self.members = []
        for number, (endpoint, peer) in enumerate(zip(self.endpoints, peers, strict=True)):
            settings = {
                "name": f"m{number}",
                "data-dir": str(folder / f"m{number}"),
                "listen-client-urls": f"{scheme}://{endpoint}",
                "advertise-client-urls": f"{scheme}://{endpoint}",
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": everybody,
            }
            command = [str(find_etcd()), *(f"--{key}={value}" for key, value in settings.items()), *arguments]
            with (folder / f"m{number}.log").open("wb") as log:
                self.members.append(subprocess.Popen(command, stdout=log, stderr=log))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()
        for member in self.members:
            member.wait()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates of this test")
def test_certificates_on_both_sides(tmp_path: Path, recorder: Any) -> None:
    good, other = Certificates(tmp_path / "good"), Certificates(tmp_path / "other")
    ours = str(good.folder)
    arguments = (
        f"--cert-file={ours}/server.pem",
        f"--key-file={ours}/server.key",
        f"--trusted-ca-file={ours}/ca.pem",
        "--client-cert-auth",
    )
    with Cluster(tmp_path, 1, "https", arguments) as cluster:
        port = cluster.endpoints[0].split(":")[1]
        for host in ("127.0.0.1", "https://localhost"):
            store = EtcdStore(f"{host}:{port}", tls=good.client())
            store.connect(timeout=20)
            store.close()
        store = EtcdStore(cluster.endpoints, tls=good.client())
        store.watch("/w", recorder.on_reset, recorder.on_events)
        recorder.wait()
        store.put("/w", b"1")
        recorder.wait(events=1)
        store.close()
        strangers: list[tuple[TlsFiles | None, str]] = [
            (TlsFiles(other.ca, good.folder / "client.pem", good.folder / "client.key"), "CA must match"),
            (None, "TLS"),
        ]
        for files, advice in strangers:
            store = EtcdStore(cluster.endpoints, tls=files)
            with pytest.raises(StoreUnavailable, match=advice):
                store.connect(timeout=1)
            store.close()
        given = ["--etcd-ca", "ca.pem", "--etcd-cert", "client.pem", "--etcd-key", "client.key"]
        options = [str(good.folder / each) if each.endswith((".pem", ".key")) else each for each in given]
        assert "it ran" in reknit_run(tmp_path, cluster.endpoints[0], *options)[1]
        for files in (TlsFiles(good.ca), other.client()):
            store = EtcdStore(cluster.endpoints, tls=files)
            with pytest.raises(StoreUnavailable):
                store.connect(timeout=1)
            store.close()


def test_tls_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"CA file for etcd.*nothing\.pem"):
        TlsFiles(tmp_path / "nothing.pem")
    (tmp_path / "ca.pem").write_text("")
    with pytest.raises(StoreError, match="go together"):
        TlsFiles(tmp_path / "ca.pem", certificate=tmp_path / "ca.pem")


# Several members


def test_two_of_three_members_suffice(tmp_path: Path, recorder: Any, wait_until: WaitUntil) -> None:
    with Cluster(tmp_path, 3) as cluster:
        store = EtcdStore(cluster.endpoints)
        store.connect(timeout=30)
        first = store.put("/w/0", b"", timeout=20)
        store.watch("/w/", recorder.on_reset, recorder.on_events, prefix=True)
        recorder.wait()
        in_use = cluster.endpoints.index(str(store._calls.current().endpoint))
        other = (in_use + 1) % 3
        # Frozen first: its connections stay open, so only the calls' own deadlines tell.
        with frozen(cluster.members[in_use].pid, wait_until):
            store.put("/w/1", b"", timeout=15)
            second = store.put("/w/2", b"", timeout=15)
            wait_until(lambda: recorder.events and recorder.events[-1].revision == second, 4.0, "the watch to move")
        store.put("/w/3", b"", timeout=15)
        # Then another one dies, perhaps the one in use now.
        cluster.members[other].kill()
        last = store.put("/w/4", b"", timeout=20)
        wait_until(lambda: recorder.events[-1].revision == last)
        assert [event.revision for event in recorder.events] == list(range(first + 1, last + 1))
        assert len(recorder.resets) == 1
        store.close()


# Forking


def test_a_forked_child_is_told_to_exec(etcd_store: EtcdStore) -> None:
    etcd_store.connect()
    child = os.fork()
    if child == 0:
        # Nothing of the test's must run on in the child, whatever happens here.
        code = 1
        try:
            etcd_store.get("/a")
        except StoreError as error:
            code = 0 if "use exec" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
