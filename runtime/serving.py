"""The agent's HTTP server: what `--http` says is bound here, and each page is given what it tells."""

from __future__ import annotations

import os
from typing import Protocol

from reknit.health.addresses import is_every_interface, is_loopback, join_address, parse_address
from reknit.health.http import Pages
from reknit.health.http_server import HttpServer
from reknit.health.metrics import Metrics
from reknit.rendezvous.errors import ReknitError
from reknit.runtime.config import Config


class HttpAddressError(ReknitError):
    """The address that `--http` names cannot be had."""


class Probed(Protocol):
    """Who knows whether this agent is well, and ready, and why."""

    def ready(self) -> tuple[bool, str]:
        """For /readyz."""

    def healthy(self) -> tuple[bool, str]:
        """For /healthz."""


class Serving:
    """One agent's pages and their server.  The constructor opens nothing, `start` does."""

    def __init__(self, config: Config, metrics: Metrics, probes: Probed) -> None:
        host, port = parse_address(config.http)
        self._config, self._host = config, host
        self.pages = Pages(
            metrics=metrics.exposition,
            ready=probes.ready,
            healthy=probes.healthy,
            local=is_loopback(host),
        )
        self._server = HttpServer(self.pages, host, port)

    def start(self) -> str:
        """Bind and serve; returns `host:port` as others reach it.  Raises HttpAddressError."""
        try:
            host, port = self._server.start()
        except OSError as error:
            raise HttpAddressError(
                f"--http {self._config.http} cannot be bound: {_reason(error)}; name an address of this host and a "
                "port that is free (port 0: any)"
            ) from None
        return join_address(self._config.address if is_every_interface(host) else host, port)

    def close(self) -> None:
        """Stop serving."""
        self._server.close()


def _reason(error: OSError) -> str:
    """Why, without what Python adds to it."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror or str(error)
