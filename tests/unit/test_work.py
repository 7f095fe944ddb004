"""An operation's end, as gloo tells it, at the moments at which it is easily misheard."""

from __future__ import annotations

import datetime
from typing import Any, cast

import pytest

from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.communicator.work import Work
from reknit.runtime.errors import Interrupted


class Late:
    """Completes just after a limited wait for it has given up, well or with an error."""

    def __init__(self, error: str | None) -> None:
        self._error = error
        self._completed = False

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        if not self._completed and timeout is not None:
            self._completed = True
            raise RuntimeError("Operation timed out!")
        if self._error is not None:
            raise RuntimeError(self._error)
        return True

    def is_completed(self) -> bool:
        return self._completed


def work(pending: Any) -> Work:
    return Work(Communicator(None, name="group", rank=0, size=1), "all_reduce", cast(Any, pending), None, None)


def test_an_operation_that_completes_as_a_limited_wait_gives_up_has_not_failed() -> None:
    operation = work(Late(None))
    operation.wait()
    assert operation.is_completed()


def test_one_that_fails_then_is_reported_with_its_own_reason() -> None:
    with pytest.raises(Interrupted, match="Connection closed by peer"):
        work(Late("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:7. This is")).wait()
