"""The agent's log: what others wrote cannot lead a terminal astray, nor is anything lost."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from reknit.runtime import logs

HOSTILE = "from etcd: \x1b]0;title\x07\x1b[2J\u202e\x00 end"


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("reknit")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def test_a_line_of_text_holds_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(False)
    logging.getLogger("reknit.agent").warning("%s", HOSTILE)
    said = capsys.readouterr().err
    assert said.endswith(" reknit W from etcd: ?]0;title??[2J?? end\n")
    try:
        raise ValueError("wrong\nand so on")
    except ValueError:
        logging.getLogger("reknit.agent").exception("failed")
    assert capsys.readouterr().err.count("\n") > 4, "a traceback keeps its lines"


def test_a_line_of_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up(True)
    logging.getLogger("reknit.agent").warning("%s\n%s", HOSTILE, "more")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == f"{HOSTILE}\nmore"
    assert line.isprintable()
