"""A CA of a test's own, and certificates signed by it, made by openssl."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from reknit.rendezvous.store.endpoints import TlsFiles

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """A CA in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self.certificate = folder, folder / "ca.pem"
        (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self._openssl("req", "-x509", *KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test CA")

    def sign(self, certificate: Path, key: Path, name: str) -> None:
        """Put a new certificate and its key into these files, each replaced at one blow, as a secret's are.

        It has no CommonName: etcd takes that for a user, and its gateway refuses it.
        """
        self._openssl("req", "-new", *KEY, "-keyout", "new.key", "-out", "new.csr", "-subj", f"/O={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
        self._openssl("x509", "-req", "-in", "new.csr", "-out", "new.pem", *signed)
        os.replace(self._folder / "new.key", key)
        os.replace(self._folder / "new.pem", certificate)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)


class Pki:
    """What an etcd with TLS on both sides and its clients need: the servers' CA, the clients' CA, and their files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.servers = Authority(folder / "servers")
        self.server, self.server_key = folder / "server.pem", folder / "server.key"
        self.clients_ca = folder / "clients-ca.pem"
        self.client = folder / "client.pem"
        self.client_key = folder / "client.key"
        self._rounds = 0
        self.rotate()

    @property
    def tls(self) -> TlsFiles:
        """A client's files."""
        return TlsFiles(self.servers.certificate, self.client, self.client_key)

    @property
    def arguments(self) -> list[str]:
        """etcd's arguments."""
        files = {"cert-file": self.server, "key-file": self.server_key, "trusted-ca-file": self.clients_ca}
        return [*(f"--{name}={path}" for name, path in files.items()), "--client-cert-auth"]

    def rotate(self) -> None:
        """New certificates everywhere: the server's of the same CA, the clients' of a new one: old ones are refused."""
        self._rounds += 1
        clients = Authority(self._folder / f"clients-{self._rounds}")
        clients.sign(self.client, self.client_key, "client")
        self.servers.sign(self.server, self.server_key, "server")
        new = self._folder / "clients-ca.new"
        # etcd's gateway is a client of its own etcd, with the server's certificate.
        new.write_bytes(clients.certificate.read_bytes() + self.servers.certificate.read_bytes())
        os.replace(new, self.clients_ca)
