"""Asks an etcd how it is: each endpoint by HTTP, which needs no login, and the whole by writes as an agent makes them.

An answer by HTTP has the time by that member's clock, to a second.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import json
import ssl
import statistics
import time
import uuid
from pathlib import Path
from typing import Any

from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.keys import ROOT
from reknit.rendezvous.store.embedded import find_etcd
from reknit.rendezvous.store.endpoints import Endpoint, TlsFiles, parse_endpoints
from reknit.runtime.config import EtcdAccess
from reknit.runtime.doctor.facts import Cluster, Member, Standalone

ASK_SECONDS = 3.0
WRITES = 10
DAY = 86400.0
LARGEST = 1_000_000  # bytes of an answer


def standalone() -> Standalone:
    """The program that would be started."""
    try:
        return Standalone(str(find_etcd()))
    except StoreError as error:
        return Standalone(None, str(error).partition(":")[0])


def cluster(endpoints: str, access: EtcdAccess, job: str | None) -> Cluster:
    """Ask all endpoints, and write under the job's prefix, or beside all jobs.  Raises StoreError for bad addresses."""
    parsed = parse_endpoints(endpoints, access.tls is not None)
    members = tuple(_ask(endpoint, access.tls) for endpoint in parsed)
    seconds, error = _write(endpoints, access, job)
    days = (None, None) if access.tls is None else (_file_days(access.tls.certificate), _file_days(access.tls.ca))
    return Cluster(members, seconds, error, *days)


def _write(endpoints: str, access: EtcdAccess, job: str | None) -> tuple[tuple[float, float] | None, str]:
    from reknit.rendezvous.store.etcd import EtcdStore

    key = f"{ROOT}{job or ''}/doctor/{uuid.uuid4().hex}"
    store = EtcdStore(endpoints, tls=access.tls, user=access.user, password=access.password)
    try:
        store.connect(timeout=ASK_SECONDS)
        lease = store.grant(60.0)  # so that nothing is left, whatever happens
        took = []
        for _ in range(WRITES):
            begun = time.monotonic()
            store.put(key, b"{}", lease=lease)
            took.append(time.monotonic() - begun)
        store.revoke(lease)
        return (statistics.median(took), max(took)), ""
    except StoreError as error:
        return None, str(error).partition(".  ")[0]
    finally:
        store.close()


def _ask(endpoint: Endpoint, tls: TlsFiles | None) -> Member:
    address = f"{endpoint.url_host}:{endpoint.port}"
    connection: http.client.HTTPConnection | None = None
    try:
        if tls is None:
            connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=ASK_SECONDS)
        else:
            context = _context(tls)
            connection = http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=ASK_SECONDS, context=context)
        return _questions(address, connection)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Member(address, error=_words(error))
    finally:
        if connection is not None:
            connection.close()


def _context(tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(tls.ca))
    if tls.certificate is not None:
        context.load_cert_chain(str(tls.certificate), None if tls.key is None else str(tls.key))
    return context


def _questions(address: str, connection: http.client.HTTPConnection) -> Member:
    begun = time.time()
    found, date = _get(connection, "GET", "/version")
    skew = None
    if date is not None:
        # Its time was cut to the second, and was read somewhere between our question and its answer.
        skew = email.utils.parsedate_to_datetime(date).timestamp() + 0.5 - (begun + time.time()) / 2
    days = None
    if isinstance(connection.sock, ssl.SSLSocket):
        days = _days(connection.sock.getpeercert() or {})
    health, _ = _get(connection, "GET", "/health")
    # These two may ask for a login, which the doctor does not have here: then they stay unknown.
    status, _ = _get(connection, "POST", "/v3/maintenance/status")
    alarm, _ = _get(connection, "POST", "/v3/maintenance/alarm")
    alarms = [str(one.get("alarm")) for one in alarm.get("alarms") or [] if isinstance(one, dict)]
    leader = status.get("leader")
    header = status.get("header") or {}
    return Member(
        address,
        version=str(found["etcdserver"]) if "etcdserver" in found else None,
        healthy=None if "health" not in health else str(health["health"]).lower() == "true",
        alarms=tuple(dict.fromkeys(alarms)),
        leads=None if leader is None else leader == header.get("member_id"),
        size=_number(status.get("dbSize")),
        skew=skew,
        certificate_days=days,
    )


def _get(connection: http.client.HTTPConnection, method: str, path: str) -> tuple[dict[str, Any], str | None]:
    """The answer's object, empty if it is none, and its date."""
    connection.request(
        method, path, body='{"action":"GET"}' if path.endswith("alarm") else "{}" if method == "POST" else None
    )
    answer = connection.getresponse()
    text = answer.read(LARGEST)
    try:
        found = json.loads(text)
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}, answer.getheader("Date")


def _number(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None


def _days(certificate: dict[str, Any]) -> float | None:
    ends = certificate.get("notAfter")
    return None if ends is None else (ssl.cert_time_to_seconds(str(ends)) - time.time()) / DAY


def _file_days(path: Path | None) -> float | None:
    """Days that the certificate in a file has; None where this Python can't tell."""
    decode = getattr(getattr(ssl, "_ssl", None), "_test_decode_cert", None)
    with contextlib.suppress(Exception):
        if path is not None and decode is not None:
            return _days(decode(str(path)))
    return None


def _words(error: Exception) -> str:
    """The error in one line."""
    if isinstance(error, TimeoutError):
        return f"it did not answer within {ASK_SECONDS:g} s"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    return text.partition("\n")[0]
