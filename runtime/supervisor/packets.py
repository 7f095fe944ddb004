"""Packets between the supervisor and its warm process: a JSON object and, with it, open descriptors.

Both ends are ours and of one version, over a socketpair that nobody else can reach, so nothing is validated here.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

_HEADER = struct.Struct("!I")
_MAX_DESCRIPTORS = 3


def send_packet(channel: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one packet whole.  Raises OSError if the other end is gone, or (with a timeout set) does not read."""
    body = json.dumps(message).encode()
    socket.send_fds(channel, [_HEADER.pack(len(body))], list(descriptors))
    channel.sendall(body)


def receive_packet(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """One packet, waiting for it; None if the other end is gone.  The caller owns the descriptors."""
    try:
        header, descriptors, _, _ = socket.recv_fds(channel, _HEADER.size, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if len(header) < _HEADER.size:
            return None
        rest = _HEADER.unpack(header)[0]
        body = bytearray()
        while len(body) < rest:
            chunk = channel.recv(rest - len(body))
            if not chunk:
                return None
            body += chunk
    except ConnectionError:
        return None
    return json.loads(body), list(descriptors)
