"""What ps shows of a process that gave itself a title."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODE = """
import json, os, sys
from reknit.runtime.title import entitle
entitle(*json.loads(sys.argv[1]))
files = [open(f"/proc/self/{name}", "rb").read().decode(errors="replace") for name in ("comm", "cmdline", "environ")]
print(json.dumps([*files, sys.argv[2], os.environ["BESIDE"]]))
"""


@pytest.mark.parametrize("command", ["reknit:w0 train.py", "x" * 10_000, "ä" * 2000, ""])
def test_a_title_takes_the_place_of_the_command_line_and_no_more(command: str) -> None:
    words = [sys.executable, "-c", CODE, json.dumps(["reknit:worker-17-long", command]), "the last argument"]
    answer = subprocess.run(words, env={"BESIDE": "stays", "PATH": "/bin"}, capture_output=True, text=True, check=True)
    comm, shown, environment, last, beside = json.loads(answer.stdout)
    assert comm == "reknit:worker-1\n"
    title = shown.rstrip("\0")
    assert command.startswith(title.rstrip("\ufffd"))
    assert title if command else not title
    assert (last, beside) == ("the last argument", "stays")
    assert environment.startswith("BESIDE=stays\0")
