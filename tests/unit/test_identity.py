"""Who may take an agent's name: its own next life, and nobody while the first one lives."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reknit.rendezvous.accusation import AgentRecord
from reknit.rendezvous.keys import check_name
from reknit.runtime.identity import Seen, default_agent_name, look, node, why_twin

RECORD = AgentRecord("a", "host", 7, "", "host:1")
AGENT = Seen(7, 0, ("/usr/bin/python3", "/usr/bin/reknit", "agent", "--etcd=h:1", "--job=j", "--agent", "a"))


def test_two_living_agents_of_one_name_cannot_be() -> None:
    why = why_twin(RECORD, "host:1", 8, "j", AGENT)
    assert why == (
        "agent a of job j runs here already, as process 7: end that one first, or give this one another --agent NAME"
    )
    assert why_twin(RECORD, "host:1", 8, "j", replace(AGENT, uid=4711)), "whosever it is"


@pytest.mark.parametrize(
    ("record", "pid", "seen"),
    [
        (None, 8, None),
        (RECORD, 8, None),  # it has ended
        (RECORD, 7, AGENT),  # it is itself: in its container the first process again
        (replace(RECORD, node="host:2"), 8, AGENT),  # of another pod, where process 7 is another one
        (RECORD, 8, replace(AGENT, arguments=("sleep", "60"))),
        (RECORD, 8, replace(AGENT, arguments=(*AGENT.arguments[:-1], "b"))),
    ],
)
def test_the_name_is_free_for_its_next_life(record: AgentRecord | None, pid: int, seen: Seen | None) -> None:
    assert why_twin(record, "host:1", pid, "j", seen) == ""


def test_a_living_process_shows_what_its_settings_file_says(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('job = "j"\nagent = "a"\npipe = 2\n')
    for file, expected in (("c.toml", {"job": "j", "agent": "a"}), ("none.toml", {})):
        words = [sys.executable, "-uc", "print(); input()", "reknit", "agent", "--config", file]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as process:
            assert process.stdout is not None
            process.stdout.readline()  # just after its exec the kernel may not yet show a process's command line
            seen = look(process.pid)
            process.communicate()
        assert seen is not None
        assert seen.file == expected


def test_a_node_is_the_same_at_each_look_and_the_default_name_names_this_process() -> None:
    assert node() == node()
    assert check_name("agent", default_agent_name()).endswith(f"-{os.getpid()}")
