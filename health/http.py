"""What an agent answers over HTTP: its metrics, its probes, the job's status, and the page that shows it.

A WSGI application, so that it can be asked without a socket; `http_server` serves it.  It only reads.  It knows nothing
of jobs: what it tells comes from plain callables, and the page gets from /status all that it shows.

The page shows what lies in etcd, where anybody who may join the job can write.  So its policy lets a browser run the
page's own script and nothing else (by hash), and lets that script put text on the page, but no markup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reknit.health.addresses import is_local_name

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

log = logging.getLogger("reknit.http")

Probe = Callable[[], tuple[bool, str]]  # whether it is so, and why

PAGE = Path(__file__).with_name("page.html")
TEXT, JSON, HTML = "text/plain; charset=utf-8", "application/json", "text/html; charset=utf-8"
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
WORTH_PACKING = 1024  # bytes

REASONS = {
    200: "OK",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
# Of no use to a browser that was lured here by another site, nor to a cache.
HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
NO_CONTENT_POLICY = "default-src 'none'; frame-ancestors 'none'"


class Unavailable(Exception):
    """Raised by a callable that cannot tell for now; its message is told to whoever asked."""


@dataclass(frozen=True)
class Answer:
    """A response, before it is written."""

    code: int
    kind: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Pages:
    """The WSGI application.  The constructor reads the page from its file.

    `metrics` → the exposition; `status` → the status document, raising Unavailable (None: there is none yet);
    `ready` and `healthy` → whether it is so, and why.  They are called on threads of the server.  `local`: it is served
    on loopback only, so a request that calls it by any name but localhost is some web site's, and is refused.
    """

    def __init__(
        self,
        *,
        metrics: Callable[[], bytes],
        ready: Probe,
        healthy: Probe,
        status: Callable[[], Mapping[str, Any]] | None = None,
        local: bool = False,
    ) -> None:
        self._metrics, self._ready, self._healthy = metrics, ready, healthy
        self.status = status
        self._local = local
        page = PAGE.read_bytes()
        self._page = Answer(200, HTML, page, (("Content-Security-Policy", content_policy(page)),))
        self._routes: dict[str, Callable[[], Answer]] = {
            "/": lambda: self._page,
            "/status": self._tell_status,
            "/metrics": lambda: Answer(200, EXPOSITION, self._metrics()),
            "/healthz": lambda: _probe(self._healthy),
            "/readyz": lambda: _probe(self._ready),
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request, as PEP 3333 says."""
        answer = self._answer(environ)
        body, headers = answer.body, [("Content-Type", answer.kind), *HEADERS, *answer.headers]
        if "Content-Security-Policy" not in dict(headers):
            headers.append(("Content-Security-Policy", NO_CONTENT_POLICY))
        if len(body) >= WORTH_PACKING:
            headers.append(("Vary", "Accept-Encoding"))
            if accepts_gzip(environ.get("HTTP_ACCEPT_ENCODING", "")):
                body = gzip.compress(body, compresslevel=1)
                headers.append(("Content-Encoding", "gzip"))
        headers.append(("Content-Length", str(len(body))))
        start_response(f"{answer.code} {REASONS[answer.code]}", headers)
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    def _answer(self, environ: WSGIEnvironment) -> Answer:
        if self._local and not is_local_name(environ.get("HTTP_HOST", "")):
            return _text(421, "this agent's page is for this host: ask for it as localhost or 127.0.0.1")
        path = environ.get("PATH_INFO", "")
        route = self._routes.get(path or "/")
        if route is None:
            return _text(404, f"there is no such page; there are {', '.join(self._routes)}")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            answer = _text(405, "an agent's pages can only be read")
            return Answer(answer.code, answer.kind, answer.body, (("Allow", "GET, HEAD"),))
        try:
            return route()
        except Exception:
            log.exception("%s could not be told", path)
            return _text(500, "this could not be told; the agent's log says why")

    def _tell_status(self) -> Answer:
        try:
            if self.status is None:
                raise Unavailable("this agent knows nothing of its job yet")
            document = self.status()
        except Unavailable as error:
            return Answer(503, JSON, json.dumps({"error": str(error)}).encode() + b"\n")
        return Answer(200, JSON, json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n")


def content_policy(page: bytes) -> str:
    """The policy under which a page may use the script and the style that stand in it, and no other."""

    def hashes(element: bytes) -> str:
        found = re.findall(rb"<%s>(.*?)</%s>" % (element, element), page, re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'" for text in found)

    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {hashes(b'script')}",
            f"style-src {hashes(b'style')}",
            "connect-src 'self'",
            "img-src data:",  # the icon, which shows the job's state
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",  # and as there is no policy that makes any: text only
            "trusted-types 'none'",
        )
    )


def accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding header names gzip, and does not refuse it."""
    for part in header.lower().split(","):
        coding, _, quality = part.replace(" ", "").partition(";q=")
        if coding == "gzip":
            return not re.fullmatch(r"0(\.0*)?", quality)
    return False


def _probe(probe: Probe) -> Answer:
    holds, reason = probe()
    return _text(200 if holds else 503, reason)


def _text(code: int, sentence: str) -> Answer:
    return Answer(code, TEXT, sentence.encode() + b"\n")
