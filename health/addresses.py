"""Addresses as people write them: host and port in one word."""

from __future__ import annotations

import ipaddress


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPv6]:PORT` → (host, port).  Raises ValueError, which says what is wrong."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address stands in brackets, [::1]:9400")
    if not colon or not host:
        raise ValueError("it is HOST:PORT, 127.0.0.1:9400 or 0.0.0.0:9400 (every interface)")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"the port is a number below 65536 (0: a free one), not {port!r:.40}")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The reverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this host itself can reach what is bound there."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def is_every_interface(host: str) -> bool:
    """Whether it stands for all of this host's addresses, and so can't be connected to."""
    address = _address(host)
    return address is not None and address.is_unspecified


def is_local_name(host: str) -> bool:
    """Whether a Host header (`name`, `name:port`, `[IPv6]:port`, or none at all) can't be that of a foreign site."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower().removesuffix(".") in ("", "localhost") or _address(name) is not None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
