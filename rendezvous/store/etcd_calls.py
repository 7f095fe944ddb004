"""Single calls to etcd, every one of which ends: at which endpoint, with which token, by when, and what an error means.

There is one connection per endpoint, made when first needed, instead of gRPC's own balancing over a list of
addresses: so endpoints may be host names (gRPC balances over addresses only), each TLS certificate is checked against
its own endpoint's name, and a member that froze is left behind after one slow call instead of slowing every n-th call
until its pings fail.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import tenacity

from reknit.rendezvous.errors import LeaseLost, StoreError, StoreRefused, StoreUnavailable
from reknit.rendezvous.store.endpoints import Endpoint, TlsFiles
from reknit.rendezvous.store.etcd_connection import Connection
from reknit.rendezvous.store.etcd_messages import grpc, rpc

_log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]

_LEAST_ATTEMPT = 0.5
"""Seconds that one try gets at least, when the time is shared among several endpoints."""

_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    }
)

_OPERATIONS = {
    "RangeRequest": "read",
    "PutRequest": "write",
    "DeleteRangeRequest": "write",
    "TxnRequest": "transaction",
}


class AttemptError(Exception):
    """One try failed in a way that says nothing about the next."""


class PermissionDenied(StoreRefused):
    """The user is known, but may not do this to this key."""


class EtcdCalls:
    """Makes calls to a list of endpoints; opens no socket until the first one.  Safe to use from several threads."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        tls: TlsFiles | None,
        user: str | None,
        password: str | None,
        timeout: float,
    ) -> None:
        self.timeout = timeout
        self.on_silence: Callable[[Connection], None] = lambda connection: None
        """Called when an endpoint has let a call run out of time, so that streams to it can be moved."""
        self.on_answer: Callable[[], None] = lambda: None
        """Called when a call succeeds after one that failed: what waits to try again need wait no longer."""
        self._endpoints = tuple(endpoints)
        self._tls = tls
        self._user, self._password = user, password
        self._lock = threading.Lock()
        self._login_lock = threading.Lock()
        self._connections: dict[Endpoint, Connection] = {}
        # Not all from the first: so the members of a cluster share the watchers.
        self._position = random.randrange(len(self._endpoints))
        self._token: str | None = None
        self._closed = False
        self._process = os.getpid()
        self.errors: Counter[str] = Counter()
        """Tries that failed, by operation."""
        self.doubtful = True
        """Whether the newest call failed, or there was none: the next may well fail too."""

    def close(self) -> None:
        """Close all connections; calls in flight fail."""
        with self._lock:
            self._closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            connection.close()

    def current(self) -> Connection:
        """Return the connection to use now.  Raises StoreError if closed, in a forked child, or without its files."""
        if os.getpid() != self._process:
            raise StoreError(
                "this process was forked from one that uses etcd, and grpc does not survive that: use exec"
            )
        with self._lock:
            if self._closed:
                raise StoreError("this store is closed")
            endpoint = self._endpoints[self._position % len(self._endpoints)]
            if endpoint not in self._connections:
                try:
                    self._connections[endpoint] = Connection(endpoint, self._tls)
                except OSError as error:
                    raise StoreUnavailable(f"the TLS files for etcd cannot be read at present: {error}") from error
            return self._connections[endpoint]

    def leave(self, connection: Connection) -> None:
        """Use the next endpoint from now on, if `connection` is the one in use, and TLS files that were replaced."""
        with self._lock:
            if self._endpoints[self._position % len(self._endpoints)] == connection.endpoint:
                self._position += 1
            replaced = self._replace_outdated(connection)
        if replaced:
            connection.close()

    def _replace_outdated(self, connection: Connection) -> bool:
        """Make a connection anew if the TLS files have changed since it was made; return whether that was so."""
        endpoint = connection.endpoint
        if self._tls is None or self._closed or self._connections.get(endpoint) is not connection:
            return False
        try:
            if self._tls.stamp() == connection.stamp:
                return False
            self._connections[endpoint] = Connection(endpoint, self._tls)
        except OSError as error:  # they are being replaced at this very moment
            _log.debug("the TLS files for etcd cannot be read at present: %s", error)
            return False
        _log.info("the TLS files for etcd were replaced: connecting to %s with the new ones", endpoint)
        return True

    def call(self, method: Callable[[Connection], Any], request: Any, doing: str, timeout: float | None) -> Any:
        """Make a call, again and again until `timeout` seconds (None: the default) are over.

        `method` picks the stub from a connection; `doing` names the operation in errors.
        Raises StoreUnavailable, StoreRefused or LeaseLost.
        """
        budget = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + budget
        share = max(budget / len(self._endpoints), _LEAST_ATTEMPT)
        jitter = tenacity.wait_random_exponential(multiplier=0.05, max=0.5)
        reasons: dict[str, str] = {}
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(AttemptError),
            wait=lambda state: min(jitter(state), max(0.0, deadline - time.monotonic())),
            stop=lambda state: time.monotonic() >= deadline,
            reraise=True,
        )
        try:
            return retrying(lambda: self._attempt(method, request, min(deadline, time.monotonic() + share), reasons))
        except AttemptError as error:
            raise self._unavailable(doing, budget, reasons) from error.__cause__

    def call_once(
        self,
        method: Callable[[Connection], Any],
        request: Any,
        doing: str,
        timeout: float | None,
        track: Callable[[Any], None] | None = None,
    ) -> Any:
        """Make a call once.  Errors as `call`.  `track` gets the call in flight, which can be cancelled."""
        budget = self.timeout if timeout is None else timeout
        reasons: dict[str, str] = {}
        try:
            return self._attempt(method, request, time.monotonic() + budget, reasons, track)
        except AttemptError as error:
            raise self._unavailable(doing, budget, reasons) from error.__cause__

    def _attempt(
        self,
        method: Callable[[Connection], Any],
        request: Any,
        deadline: float,
        reasons: dict[str, str],
        track: Callable[[Any], None] | None = None,
    ) -> Any:
        """Try once at the current endpoint; a token that has run out is renewed.  A failure is noted in `reasons`."""
        connection = self.current()
        try:
            for renewed in (False, True):
                metadata = self.metadata(connection, deadline)
                try:
                    answer = _perform(method(connection), request, deadline, metadata, track)
                    self._answered()
                    return answer
                except grpc.RpcError as error:
                    # A refused token means that nothing was done, so even a transaction may be sent again.
                    if not (_token_refused(error) and metadata and not renewed):
                        raise
                    self.forget_token(metadata)
        except grpc.RpcError as error:
            self._count(error, request)
            reasons[str(connection.endpoint)] = error.details() or error.code().name.lower()
            raise self._judge(error, connection) from error
        except (ValueError, grpc.FutureCancelledError) as error:
            # grpc's way of saying that the channel was closed, or the call cancelled, under it.
            self.current()
            raise AttemptError(str(error)) from error
        raise AssertionError("unreachable")

    def _count(self, error: grpc.RpcError, request: Any) -> None:
        if error.code() is not grpc.StatusCode.NOT_FOUND:  # a lease that is gone is an answer
            self.errors[_OPERATIONS.get(type(request).__name__, "lease")] += 1

    def _answered(self) -> None:
        """A call has succeeded."""
        doubted, self.doubtful = self.doubtful, False
        if doubted:
            self.on_answer()

    def _judge(self, error: grpc.RpcError, connection: Connection) -> Exception:
        """Return the exception that stands for a failed call, and take leave of an endpoint that fails."""
        code, details = error.code(), error.details() or ""
        busy = code is grpc.StatusCode.RESOURCE_EXHAUSTED and "too many requests" in details
        if code in _TRANSIENT or busy:
            self.doubtful = True
            self.leave(connection)
            if code is grpc.StatusCode.DEADLINE_EXCEEDED and len(self._endpoints) > 1:
                self.on_silence(connection)
            return AttemptError(details)
        if code is grpc.StatusCode.NOT_FOUND and "lease not found" in details:
            return LeaseLost("the lease is gone from etcd: it ran out or was revoked, and its keys are deleted")
        refusal = PermissionDenied if code is grpc.StatusCode.PERMISSION_DENIED else StoreRefused
        return refusal(f"etcd at {connection.endpoint} refused: {details or code.name}.  {_advice(code, details)}")

    def _unavailable(self, doing: str, budget: float, reasons: dict[str, str]) -> StoreUnavailable:
        """Return the error that names all endpoints, what each said, and what to do."""
        asked = ", ".join(map(str, self._endpoints))
        heard = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in reasons.items()) or "no answer"
        advice = "Check that etcd is running, that these are its client addresses, and that this host reaches them"
        if any(word in heard.lower() for word in ("ssl", "tls", "certificate", "handshake")):
            advice += "; the certificate, its host names and the CA must match"
        elif self._tls is None and ("closed" in heard.lower() or "reset" in heard.lower()):
            advice += "; if it speaks TLS, give its CA"
        return StoreUnavailable(f"etcd did not answer {doing} within {budget:g} s at {asked} ({heard}).  {advice}.")

    def metadata(self, connection: Connection, deadline: float) -> Metadata:
        """Return what proves to etcd who we are, after logging in if need be; empty without a user."""
        if self._user is None:
            return ()
        # Waiting for another thread's login counts against our own time.
        if not self._login_lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise AttemptError("another thread's login has not ended")
        try:
            if self._token is None:
                request = rpc.AuthenticateRequest(name=self._user, password=self._password)
                # As plain metadata: grpc's own call credentials refuse to travel over plaintext.
                self._token = connection.authenticate(request, max(0.001, deadline - time.monotonic())).token
            return (("token", str(self._token)),)
        finally:
            self._login_lock.release()

    def forget_token(self, metadata: Metadata) -> None:
        """Log in anew at the next call, unless the token in `metadata` has been replaced already."""
        with self._login_lock:
            if metadata == (("token", self._token),):
                self._token = None


def _perform(stub: Any, request: Any, deadline: float, metadata: Metadata, track: Callable[[Any], None] | None) -> Any:
    # A deadline that has passed already is an error of its own kind to grpc.
    timeout = max(0.001, deadline - time.monotonic())
    if track is None:
        return stub(request, timeout, metadata=metadata)
    call = stub.future(request, timeout, metadata=metadata)
    track(call)
    return call.result()


def _token_refused(error: grpc.RpcError) -> bool:
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or "auth store is old" in (error.details() or "")


def _advice(code: grpc.StatusCode, details: str) -> str:
    if "user name is empty" in details:
        return "It asks for a user and a password: give them."
    if "authentication is not enabled" in details:
        return "A user was given, but authentication is off there: leave the user out, or enable it."
    if code is grpc.StatusCode.UNAUTHENTICATED or "authentication failed" in details:
        return "Check the user and the password."
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return "Grant this user's role read and write on the job's keys."
    if "space exceeded" in details:
        return "Its database is full: compact and defragment it, then disarm the NOSPACE alarm."
    if "too large" in details or "larger than max" in details:
        return "The value is over its request limit (about 1.5 MiB): make it smaller, or raise --max-request-bytes."
    return "Nothing was written."
