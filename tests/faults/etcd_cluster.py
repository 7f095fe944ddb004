"""An etcd of one or three members for a test to mistreat: kill, freeze, wipe, compact, fill up.

Its ports are the cluster's own from beginning to end, even while no etcd listens there: a job that goes on asking for a
dead etcd could otherwise be given that very port for its own end of the connection.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from reknit.rendezvous.store.embedded import find_etcd
from reknit.rendezvous.store.endpoints import TlsFiles

START_SECONDS = 30.0
FILLER = "/filler/"
LOGINS = 5  # tries: a login of the tests may last a second, and a busy machine takes as long between two calls
ALL = "\0"  # as the end of a range: every key from its beginning on


@dataclass(frozen=True)
class Stored:
    """One key as etcd holds it; `lease` 0: none."""

    value: bytes
    lease: int
    mod_revision: int


class Member:
    """One etcd process and its data.  `with` ends it; it dies with the thread that starts it, too."""

    def __init__(self, command: Sequence[str], folder: Path, endpoint: str, tls: TlsFiles | None) -> None:
        self.endpoint, self.folder = endpoint, folder
        self._command, self._tls = command, tls
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def log(self) -> Path:
        """What it prints."""
        return Path(f"{self.folder}.log")

    @property
    def runs(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process; it must run."""
        assert self._process is not None
        assert self.runs, f"etcd has ended, see {self.log}"
        return self._process.pid

    def start(self) -> None:
        """Start it on the data that it has; does not wait until it answers."""
        command = ["setpriv", "--pdeathsig", "KILL", *self._command]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ETCD_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """SIGKILL it and start it again on its data."""
        self.kill()
        self.start()

    def wipe(self) -> None:
        """SIGKILL it, and start it again without its data."""
        self.kill()
        shutil.rmtree(self.folder)
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all of its threads for as long as this lasts."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            wait_until(self._is_stopped, 5.0, "etcd to stop")  # until then a thread may still answer
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def _is_stopped(self) -> bool:
        stats = [path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    def ask(self, path: str, body: Mapping[str, Any] | None = None, *, token: str | None = None) -> Any:
        """What it answers on its JSON gateway.  Raises OSError, HTTPException or EtcdRefused."""
        connection = self._connect()
        try:
            headers = {} if token is None else {"Authorization": token}
            connection.request("GET" if body is None else "POST", path, json.dumps(body) if body else "{}", headers)
            answer = connection.getresponse()
            told = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200:
            raise EtcdRefused(str(told))
        return told

    def healthy(self) -> bool:
        """Whether it serves, with a quorum behind it."""
        try:
            return bool(self.ask("/health")["health"] == "true")
        except (OSError, http.client.HTTPException, ValueError, EtcdRefused):
            return False

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self.endpoint.split(":")
        if self._tls is None:
            return http.client.HTTPConnection(host, int(port), timeout=5)
        context = ssl.create_default_context(cafile=str(self._tls.ca))
        assert self._tls.certificate is not None
        context.load_cert_chain(self._tls.certificate, self._tls.key)
        return http.client.HTTPSConnection(host, int(port), timeout=5, context=context)


class EtcdRefused(Exception):
    """etcd said no."""


class EtcdCluster:
    """`size` members; `with` starts them, waits until they serve, and ends them.

    `arguments` are for each member's command line.  `tls`: what a client needs to get in, if `arguments` ask for TLS.
    """

    def __init__(
        self, folder: Path, size: int = 1, *, arguments: Sequence[str] = (), tls: TlsFiles | None = None
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._arguments, self._tls, self._stack = folder, tuple(arguments), tls, ExitStack()
        ports = [self._hold_port() for _ in range(2 * size)]
        self.endpoints = [f"127.0.0.1:{port}" for port in ports[:size]]
        self._peers = [f"http://127.0.0.1:{port}" for port in ports[size:]]
        self.members = [self._member(number, endpoint) for number, endpoint in enumerate(self.endpoints)]
        self._root: str | None = None  # root's password, if there is one
        self._token: str | None = None

    def __enter__(self) -> EtcdCluster:
        with ExitStack() as undo:
            undo.callback(self._stack.close)
            for member in self.members:
                self._stack.enter_context(member)
                member.start()
            self.wait_healthy()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def endpoint(self) -> str:
        """As `--etcd` wants it: all members."""
        return ",".join(self.endpoints)

    @property
    def only(self) -> Member:
        """The member of a cluster of one."""
        (member,) = self.members
        return member

    def wait_healthy(self, *members: Member) -> None:
        """Wait until these members (by default: all) serve."""
        for member in members or self.members:
            wait_until(member.healthy, START_SECONDS, f"etcd at {member.endpoint} to serve, see {member.log}")

    def leader(self) -> Member:
        """The member that leads."""
        for member in self.members:
            status = member.ask("/v3/maintenance/status", {}, token=self._token)
            if status["leader"] == status["header"]["member_id"]:
                return member
        raise AssertionError("no member leads")

    # ---------------------------------------------------------------- what it holds

    def stored(self, prefix: str) -> dict[str, Stored]:
        """All keys with this prefix, without it."""
        found = self._ask("kv/range", key=_text(prefix), range_end=_text(prefix[:-1] + chr(ord(prefix[-1]) + 1)))
        return {
            base64.b64decode(item["key"]).decode().removeprefix(prefix): Stored(
                base64.b64decode(item.get("value", "")), int(item.get("lease", 0)), int(item["mod_revision"])
            )
            for item in found.get("kvs", [])
        }

    def compact(self) -> int:
        """Write something, and forget all history before it; return its revision."""
        revision = int(self._ask("kv/put", key=_text("/elsewhere"), value=_text("x"))["header"]["revision"])
        self._ask("kv/compaction", revision=revision, physical=True)
        return revision

    @contextmanager
    def elsewhere(self) -> Iterator[EtcdCluster]:
        """The same data served at another address while this cluster of one is down: its clients cannot see it."""
        self.only.kill()
        with EtcdCluster(self._folder, arguments=(*self._arguments, "--force-new-cluster")) as other:
            yield other
        self.only.start()
        self.wait_healthy()

    def fill(self) -> None:
        """Write until the quota (an argument of this cluster) is used up, which raises the NOSPACE alarm."""
        with suppress(EtcdRefused):
            for number in range(1000):
                self._ask("kv/put", key=_text(f"{FILLER}{number}"), value=_text("x" * (1 << 20)))
        assert self._ask("maintenance/alarm", action="GET").get("alarms"), "etcd raised no alarm"

    def make_room(self) -> None:
        """What an operator does after that: delete, compact, defragment, disarm."""
        self._ask("kv/deleterange", key=_text(FILLER), range_end=_text(FILLER[:-1] + "0"))
        revision = int(self._ask("kv/range", key=_text("/elsewhere"))["header"]["revision"])
        self._ask("kv/compaction", revision=revision, physical=True)
        self._ask("maintenance/defragment")
        for alarm in self._ask("maintenance/alarm", action="GET")["alarms"]:
            self._ask("maintenance/alarm", action="DEACTIVATE", **alarm)
        assert not self._ask("maintenance/alarm", action="GET").get("alarms")

    def ask_for_passwords(self, user: str, password: str) -> None:
        """Turn authentication on: with this password `root` may do all, and `user` may touch /reknit/ only."""
        mine = {"permType": "READWRITE", "key": _text("/reknit/"), "range_end": _text("/reknit0")}
        for name in ("root", user):
            self._ask("auth/role/add", name=name)
            self._ask("auth/user/add", name=name, password=password)
            self._ask("auth/user/grant", user=name, role=name)
        self._ask("auth/role/grant", name=user, perm=mine)
        self._ask("auth/enable")
        self._root = password

    def _ask(self, method: str, **body: Any) -> Any:
        member = next(member for member in self.members if member.runs)
        for _ in range(LOGINS):
            try:
                return member.ask(f"/v3/{method}", body, token=self._token)
            except EtcdRefused:  # perhaps since our login has run out
                if self._root is None:
                    raise
            login = {"name": "root", "password": self._root}
            self._token = str(member.ask("/v3/auth/authenticate", login)["token"])
        return member.ask(f"/v3/{method}", body, token=self._token)

    # ---------------------------------------------------------------- its making

    def _hold_port(self) -> int:
        """A port of the kernel's choice: bound for as long as the cluster is, which keeps others off, but not etcd."""
        held = self._stack.enter_context(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as etcd's own, which may then listen there
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])

    def _member(self, number: int, endpoint: str) -> Member:
        scheme = "http" if self._tls is None else "https"
        name, peer = f"m{number}", self._peers[number]
        settings = {
            "name": name,
            "data-dir": str(self._folder / name),
            "listen-client-urls": f"{scheme}://{endpoint}",
            "advertise-client-urls": f"{scheme}://{endpoint}",
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"m{other}={url}" for other, url in enumerate(self._peers)),
            "logger": "zap",
            "log-outputs": "stderr",
        }
        command = [str(find_etcd()), *(f"--{key}={value}" for key, value in settings.items()), *self._arguments]
        return Member(command, self._folder / name, endpoint, self._tls)


def wait_until(condition: Callable[[], object], timeout: float, what: str) -> None:
    """Wait until `condition()` is true; the test fails when the time is over."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout:g} s in vain for {what}")
        time.sleep(0.01)


def _text(value: str) -> str:
    return base64.b64encode(value.encode()).decode()
