"""What a worker's greeting repeats, so that an agent that comes back knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from reknit.rendezvous.records import Name
from reknit.runtime import telling
from reknit.runtime.telling import Telling


class Line:
    """A link that keeps what it is given."""

    def __init__(self, path: str, hello: Mapping[str, Any], *others: Any, lease_seconds: float) -> None:
        self.hello, self.said = dict(hello), list[Mapping[str, Any]]()

    def start(self) -> None:
        pass

    def set_hello(self, hello: Mapping[str, Any]) -> None:
        self.hello = dict(hello)

    def report(self, message: Mapping[str, Any], *, important: bool) -> bool:
        self.said.append(message)
        return True


class Somewhere:
    present, step = 7, 40


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Telling:
    monkeypatch.setattr(telling, "Link", Line)
    worker = Telling(Name("w0", "a"))
    worker.attach("socket", "127.0.0.1:5000", Somewhere(), lambda message: None, lambda: None, 5.0)
    return worker


def line_of(worker: Telling) -> Line:
    assert isinstance(worker._link, Line)
    return worker._link


def test_what_was_reported_is_in_every_greeting_from_then_on(worker: Telling) -> None:
    worker.report("built", restorable=[], keeps=False)
    worker.report("ready", generation=6, committed=(6, 40))
    versions = {"committed": (6, 41), "prepared": None, "pristine": False}
    worker.report("left", generation=6, incomplete=0, torn=0, why="x", gone=[("w1", "b")], absent=[], **versions)
    hello = line_of(worker).hello
    assert (hello["address"], hello["built"], hello["ready"], hello["left"]) == ("127.0.0.1:5000", True, 6, 6)
    assert (hello["committed"], hello["gone"]) == ((6, 41), [("w1", "b")])
    assert "why" not in hello
    assert "over" not in hello


def test_who_takes_no_part_any_more_says_so_whenever_it_attaches(worker: Telling) -> None:
    worker.report("gone")
    assert line_of(worker).hello["over"] is True
    assert [message["type"] for message in line_of(worker).said] == ["gone"]
