"""From torchrun's parameters, and the environment, to a connected handler."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousSettings,
    RendezvousTimeout,
)

from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.keys import ROOT
from reknit.rendezvous.store.endpoints import TlsFiles, parse_endpoints
from reknit.rendezvous.torchrun.agent_store import AgentStore
from reknit.rendezvous.torchrun.backend import StateBackend
from reknit.rendezvous.torchrun.handler import Handler, is_state

_log = logging.getLogger(__name__)

PREFIX = f"{ROOT}.torchrun/"  # no job can have this name, and who may write jobs may write here
ACCESS = ("etcd_ca", "etcd_cert", "etcd_key", "etcd_user", "etcd_password_file")
TIMEOUTS = {"join": 600, "last_call": 30, "close": 30, "heartbeat": 5}  # seconds, as in torch
TIMES = {"keep_alive_interval": 5, "keep_alive_max_attempt": 3, "read_timeout": 60}  # the last: to reach etcd at all
PASSWORD = "REKNIT_ETCD_PASSWORD"
LEAST_TTL = 60.0


@dataclass(frozen=True)
class Access:
    """How to get into etcd."""

    tls: TlsFiles | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)


def access_of(conf: Mapping[str, object], environment: MutableMapping[str, str]) -> Access:
    """TLS files, user and password: keys of `--rdzv-conf`, else the same variables as for `reknit run`.

    The password comes from a file or $REKNIT_ETCD_PASSWORD, which is taken out of the environment that workers inherit.
    Raises ValueError for settings that do not fit together, and for a password in `--rdzv-conf`, where everybody on the
    host could read it.
    """
    password = environment.pop(PASSWORD, None)
    unknown = [key for key in conf if key.startswith("etcd") and key not in ACCESS]
    if unknown:
        raise ValueError(f"--rdzv-conf has {unknown[0]}, which is unknown; of etcd it knows {', '.join(ACCESS)}")
    ca, cert, key, user, path = (
        str(conf.get(name) or environment.get(f"REKNIT_{name.upper()}") or "") or None for name in ACCESS
    )
    if ca is None and (cert or key):
        raise ValueError("etcd_cert and etcd_key need etcd_ca: the CA that signed etcd's certificate")
    tls = None if ca is None else TlsFiles(Path(ca), Path(cert) if cert else None, Path(key) if key else None)
    if user is None:
        if path is not None:
            raise ValueError("etcd_password_file needs etcd_user: whose password it is")
        return Access(tls)
    if path is not None:
        try:
            password = Path(path).read_text().partition("\n")[0].rstrip("\r")
        except (OSError, ValueError) as error:
            raise ValueError(f"etcd_password_file {path} cannot be read: {error}") from None
    if not password:
        raise ValueError(f"etcd_user {user} needs a password: set etcd_password_file, or ${PASSWORD}")
    return Access(tls, user, password)


def make(parameters: RendezvousParameters) -> Handler:
    """Connect and return the handler.  Raises ValueError, or RendezvousConnectionError."""
    from reknit.rendezvous.store.etcd import EtcdStore

    times = {name: _seconds(parameters, name, default) for name, default in TIMES.items()}
    given = {name: _seconds(parameters, f"{name}_timeout", default) for name, default in TIMEOUTS.items()}
    settings = RendezvousSettings(
        parameters.run_id,
        parameters.min_nodes,
        parameters.max_nodes,
        RendezvousTimeout(**{name: timedelta(seconds=value) for name, value in given.items()}),
        timedelta(seconds=times["keep_alive_interval"]),
        times["keep_alive_max_attempt"],
    )
    if parameters.run_id in ("", "none"):
        _log.warning("no --rdzv-id was given: all who use this etcd without one will meet here")
    try:
        access = access_of(parameters.config, os.environ)
        store = EtcdStore(parameters.endpoint, tls=access.tls, user=access.user, password=access.password)
    except StoreError as error:
        raise ValueError(str(error)) from None
    try:
        store.connect(timeout=times["read_timeout"])
    except StoreError as error:
        store.close()
        raise RendezvousConnectionError(str(error)) from error
    prefix = f"{PREFIX}{quote(parameters.run_id, safe='')}/"
    ttl = max(LEAST_TTL, 4.0 * times["keep_alive_interval"] * times["keep_alive_max_attempt"])
    backend = StateBackend(store, f"{prefix}state", ttl, float(times["read_timeout"]), readable=is_state)
    node = DynamicRendezvousHandler._node_desc_generator.generate(
        parameters.local_addr or reachable_address(parameters.endpoint, access.tls is not None)
    )
    return Handler(node, settings, backend, AgentStore(store, prefix), store, float(given["join"]))


def _seconds(parameters: RendezvousParameters, name: str, default: int) -> int:
    value = parameters.get_as_int(name, default)
    if value is None or value <= 0:
        raise ValueError(f"--rdzv-conf: {name} must be a whole number above 0, not {value}")
    return int(value)


def reachable_address(endpoints: str, tls: bool) -> str | None:
    """None if this host's own name leads somewhere (torch takes that then), else its address on the way to etcd.

    In Kubernetes a pod's name usually means nothing to the others.
    """
    try:
        socket.getaddrinfo(socket.getfqdn(), None)
        return None
    except (OSError, ValueError):
        pass
    first = parse_endpoints(endpoints, tls)[0]
    try:
        return first.own_address()
    except (OSError, ValueError) as error:
        _log.debug("no address leads to %s: %s", first, error)
        return None
