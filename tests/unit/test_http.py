"""What the agent's pages answer, asked without a socket; and the addresses under which they are served."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from base64 import b64encode
from typing import Any
from wsgiref.validate import validator

import pytest

from reknit.health.addresses import is_every_interface, is_local_name, is_loopback, join_address, parse_address
from reknit.health.http import PAGE, Pages, Unavailable, accepts_gzip
from reknit.runtime.config import ConfigError, check_http

EXPOSITION = b"# HELP reknit_leader Whether\n# TYPE reknit_leader gauge\nreknit_leader 1.0\n"


class Answered:
    """What one request got."""

    def __init__(self, pages: Pages, path: str, method: str = "GET", **headers: str) -> None:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": _Nothing(),
            "wsgi.errors": _Nothing(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            **{f"HTTP_{name.upper()}": value for name, value in headers.items()},
        }

        def start(status: str, fields: list[tuple[str, str]], _: object = None) -> Any:
            self.code, self.headers = int(status.split()[0]), dict(fields)

        # The validator refuses what PEP 3333 does not allow.
        answer = (validator(pages) if method != "HEAD" else pages)(environ, start)
        self.body = b"".join(answer)
        if hasattr(answer, "close"):
            answer.close()

    @property
    def text(self) -> str:
        return self.body.decode()


class _Nothing:
    def read(self, *_: Any) -> bytes:
        return b""

    readline = readlines = __iter__ = read

    def write(self, *_: Any) -> None:
        pass

    flush = writelines = write


def pages(**callables: Any) -> Pages:
    usual = {"metrics": lambda: EXPOSITION, "ready": lambda: (True, "ok"), "healthy": lambda: (True, "ok")}
    return Pages(**{**usual, **callables})


def test_metrics_come_as_what_prometheus_reads() -> None:
    answered = Answered(pages(), "/metrics")
    assert (answered.code, answered.body) == (200, EXPOSITION)
    assert answered.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(("path", "name"), [("/healthz", "healthy"), ("/readyz", "ready")])
def test_a_probe_fails_with_its_reason(path: str, name: str) -> None:
    assert Answered(pages(), path).code == 200
    failing = Answered(pages(**{name: lambda: (False, "not attached: w0")}), path)
    assert (failing.code, failing.text) == (503, "not attached: w0\n")


def test_the_status_is_the_document_as_it_is_now() -> None:
    steps = iter(range(10))
    asked = pages(status=lambda: {"format": 1, "step": next(steps), "reason": "<b>é"})
    for step in range(2):
        answered = Answered(asked, "/status")
        assert answered.headers["Content-Type"] == "application/json"
        assert json.loads(answered.body) == {"format": 1, "step": step, "reason": "<b>é"}


def test_a_status_that_cannot_be_told_yet_says_why() -> None:
    def unavailable() -> dict[str, Any]:
        raise Unavailable("etcd does not answer")

    for asked, why in ((pages(), "knows nothing of its job yet"), (pages(status=unavailable), "etcd does not answer")):
        answered = Answered(asked, "/status")
        assert answered.code == 503
        assert why in json.loads(answered.body)["error"]


@pytest.mark.parametrize("wrong", [ValueError("secret"), None, float("nan")])
def test_what_goes_wrong_inside_is_logged_and_not_told(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    def status() -> Any:
        if isinstance(wrong, Exception):
            raise wrong
        return {"step": wrong if wrong is not None else object()}

    answered = Answered(pages(status=status), "/status")
    assert answered.code == 500
    assert "secret" not in answered.text
    assert "/status could not be told" in caplog.text


@pytest.mark.parametrize("path", ["/nowhere", "/status/", "//", "/../etc/passwd", "/metrics\x00", "/page.html", "/é"])
def test_there_are_no_other_pages(path: str) -> None:
    assert Answered(pages(), path).code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(method: str) -> None:
    answered = Answered(pages(), "/status", method)
    assert (answered.code, answered.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/status", "/nowhere"])
def test_head_gets_the_same_headers_without_the_body(path: str) -> None:
    head, get = (Answered(pages(status=lambda: {"step": 1}), path, method) for method in ("HEAD", "GET"))
    assert (head.code, head.headers, head.body) == (get.code, get.headers, b"")
    assert int(head.headers["Content-Length"]) == len(get.body) > 0


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/status", "/nowhere"])
def test_no_answer_is_kept_guessed_at_or_used_by_another_site(path: str) -> None:
    headers = Answered(pages(), path).headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def test_the_page_is_whole_and_only_its_own_script_runs() -> None:
    answered = Answered(pages(), "/")
    assert answered.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answered.body == PAGE.read_bytes()
    (script,) = re.findall(r"<script>(.*?)</script>", answered.text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", answered.text, re.DOTALL)
    policy = answered.headers["Content-Security-Policy"]
    for kind, text in (("script-src", script), ("style-src", style)):
        assert f"{kind} 'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    # What the policy would not let through must not be there either.
    assert not re.search(
        r"\bon\w+=|\bstyle=|<script\s|<link[^>]+stylesheet|@import|https?://(?!www\.w3\.org/|\$\{http\}/)",
        answered.text,
    )
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)


def test_long_answers_are_packed_for_those_who_take_it() -> None:
    long = b"reknit_leader 1.0\n" * 1000
    packed = Answered(pages(metrics=lambda: long), "/metrics", accept_encoding="br, gzip;q=0.5")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert int(packed.headers["Content-Length"]) == len(packed.body) < len(long) / 10
    assert gzip.decompress(packed.body) == long
    for header in ("", "br", "gzip;q=0", "identity"):
        plain = Answered(pages(metrics=lambda: long), "/metrics", accept_encoding=header)
        assert "Content-Encoding" not in plain.headers
        assert plain.headers["Vary"] == "Accept-Encoding"
    assert "Content-Encoding" not in Answered(pages(), "/healthz", accept_encoding="gzip").headers


@pytest.mark.parametrize(
    ("header", "takes"),
    [("gzip", True), ("deflate,GZIP ; q=0.2", True), ("gzip;q=0.0", False), ("gzippo", False), ("*", False)],
)
def test_who_takes_gzip(header: str, takes: bool) -> None:
    assert accepts_gzip(header) is takes


def test_on_loopback_only_this_host_may_be_named() -> None:
    local = pages(local=True)
    for host in ("localhost:8080", "127.0.0.1:1", "[::1]:1", "LOCALHOST", ""):
        assert Answered(local, "/status", host=host).code == 503
    for host in ("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"):
        assert Answered(local, "/", host=host).code == 421
    assert Answered(pages(), "/", host="reknit-0.reknit.svc:9400").code == 200


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:9400", "::1", 9400),
        ("[::]:0", "::", 0),
        ("node-a.cluster:65535", "node-a.cluster", 65535),
    ],
)
def test_an_address_is_read_and_written(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)
    assert join_address(host, port) == text
    assert check_http(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "9400", ":9400", "::1:9400", "localhost", "localhost:", "localhost:http", "h:65536", "h:-1", "[]:1", "h:１"],
)
def test_an_address_that_is_none_is_refused_by_the_name_of_its_flag(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--http "):
        check_http(text)


def test_which_addresses_are_special() -> None:
    assert [
        host for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost", "10.0.0.1", "a.b") if is_loopback(host)
    ] == [
        "127.0.0.1",
        "127.8.8.8",
        "::1",
        "localhost",
    ]
    assert [host for host in ("0.0.0.0", "::", "127.0.0.1", "localhost") if is_every_interface(host)] == [
        "0.0.0.0",
        "::",
    ]
    assert is_local_name("[::1]")
    assert not is_local_name("[evil]:80")
