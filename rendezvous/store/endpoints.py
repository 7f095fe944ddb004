"""Where etcd is, as a user types it: addresses and TLS files are checked before anything is connected; no grpc here."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from reknit.rendezvous.errors import StoreError

DEFAULT_PORT = 2379


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One client address of etcd; `host` is a name, an IPv4 or an IPv6 address (without brackets)."""

    host: str
    port: int

    @property
    def url_host(self) -> str:
        """The host as it stands before a colon and a port."""
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"{self.url_host}:{self.port}"

    def own_address(self) -> str:
        """This host's address on its way there.  Sends nothing.  Raises OSError or ValueError if none leads there."""
        family, _, _, _, target = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a TLS connection: the CA that signed etcd's certificate, perhaps our own certificate and key.

    Raises StoreError if one of them cannot be read, or if only one of certificate and key is given.
    """

    ca: Path
    certificate: Path | None = None
    key: Path | None = None

    def stamp(self) -> tuple[tuple[int, ...], ...]:
        """What changes when a file is replaced: a certificate is, long before it expires.  Raises OSError."""
        files = [path.stat() for path in (self.ca, self.certificate, self.key) if path is not None]
        return tuple((found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size) for found in files)

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise StoreError("a client certificate and its key go together: give both or neither")
        _check_readable("CA", self.ca)
        _check_readable("client certificate", self.certificate)
        _check_readable("client key", self.key)


def _check_readable(what: str, path: Path | None) -> None:
    try:
        if path is not None:
            path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read the {what} file for etcd, {path}: {error.strerror}") from error


def parse_endpoints(given: str | Sequence[str], tls: bool) -> tuple[Endpoint, ...]:
    """Return the endpoints in "host:port,host:port" or a sequence of such; each once, in the order given.

    A port left out is 2379; a scheme (http://, https://) may be there and must fit `tls`.
    Raises StoreError for anything else.
    """
    texts = given.split(",") if isinstance(given, str) else [part for text in given for part in text.split(",")]
    if any("@" in text for text in texts):  # what is before it may be a secret, so it is not repeated
        raise StoreError(
            "an address of etcd is not host:port but names a user before an @: give it by --etcd-user NAME, and the "
            "password by --etcd-password-file FILE"
        )
    endpoints = [_parse(text.strip(), tls) for text in texts if text.strip()]
    if not endpoints:
        raise StoreError("no address of etcd was given: give host:port, or several separated by commas")
    return tuple(dict.fromkeys(endpoints))


def _parse(text: str, tls: bool) -> Endpoint:
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    if scheme not in ("", "http", "https"):
        raise StoreError(f"the etcd address {text!r} has the unknown scheme {scheme!r}: give host:port")
    if scheme == "https" and not tls:
        raise StoreError(f"the etcd address {text!r} asks for TLS: give the CA file that signed its certificate")
    if scheme == "http" and tls:
        raise StoreError(
            f"the etcd address {text!r} is plaintext, but TLS files were given: write https://, or drop them"
        )
    if rest.count(":") > 1 and not rest.startswith("["):
        rest = f"[{rest}]"
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise StoreError(f"the etcd address {text!r} is not host:port: {error}") from error
    if not host or port == 0 or parts.path not in ("", "/") or parts.query:
        raise StoreError(f"the etcd address {text!r} is not host:port")
    return Endpoint(host, DEFAULT_PORT if port is None else port)
