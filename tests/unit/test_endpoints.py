"""Addresses of etcd as users type them."""

from __future__ import annotations

import pytest

from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.store.endpoints import parse_endpoints


@pytest.mark.parametrize(
    ("given", "tls", "parsed"),
    [
        ("127.0.0.1:2379", False, ["127.0.0.1:2379"]),
        ("etcd-0.etcd", False, ["etcd-0.etcd:2379"]),
        (" a:1 , b:2,a:1,", False, ["a:1", "b:2"]),
        (["a:1,b:2", "http://c:3/"], False, ["a:1", "b:2", "c:3"]),
        ("https://a:1,b", True, ["a:1", "b:2379"]),
        ("[::1]:4,fe80::2,https://[::3]:5", True, ["[::1]:4", "[fe80::2]:2379", "[::3]:5"]),
    ],
)
def test_addresses_are_read(given: str | list[str], tls: bool, parsed: list[str]) -> None:
    assert [str(endpoint) for endpoint in parse_endpoints(given, tls)] == parsed


@pytest.mark.parametrize(
    ("given", "tls", "complaint"),
    [
        ("", False, "no address"),
        ([], False, "no address"),
        ("ftp://a:1", False, "unknown scheme"),
        ("https://a:1", False, "give the CA file"),
        ("http://a:1", True, "plaintext"),
        ("a:port", False, "not host:port"),
        ("a:0", False, "not host:port"),
        ("a:65536", False, "not host:port"),
        ("a:1/path", False, "not host:port"),
        ("user@a:1", False, "--etcd-user"),
        (":2379", False, "not host:port"),
        ("[::1", False, "not host:port"),
    ],
)
def test_what_is_no_address_is_refused(given: str | list[str], tls: bool, complaint: str) -> None:
    with pytest.raises(StoreError, match=complaint):
        parse_endpoints(given, tls)


@pytest.mark.parametrize("given", ["http://me:secret@a:1", "me:sec,ret@a:1", "b:2,me:secret@a:1,c", "secret@"])
def test_a_secret_in_an_address_is_not_repeated(given: str) -> None:
    with pytest.raises(StoreError) as raised:
        parse_endpoints(given, False)
    assert "ret" not in str(raised.value)
    assert "--etcd-password-file" in str(raised.value)
