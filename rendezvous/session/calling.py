"""Whether anybody accepts a connection at an address: a process that does lives, whatever the store says."""

from __future__ import annotations

import socket
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from reknit.rendezvous.codec import split_address

ANSWER = 0.5  # seconds: from one machine of a cluster to another it takes milliseconds
AT_ONCE = 32


def somebody_answers(addresses: Collection[str]) -> bool:
    """Whether somebody listens at one of these addresses (host:port); takes a second or two at most."""
    with ThreadPoolExecutor(AT_ONCE, "reknit-call") as pool:
        return any(pool.map(_answers, addresses))


def _answers(address: str) -> bool:
    with suppress(OSError), socket.create_connection(split_address(address), timeout=ANSWER):
        return True
    return False
