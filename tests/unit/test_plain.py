"""Scripts that know nothing of reknit: how they are told, what they find in their environment, what their hosts say."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from reknit.rendezvous.parts import Peer
from reknit.rendezvous.records import Axes, Name, Place, Spec
from reknit.runtime.config import Config, ConfigError
from reknit.runtime.job import Job, NotUnderReknit
from reknit.runtime.keeper import Keeper
from reknit.runtime.plain import VARIABLE, hosted, is_plain
from reknit.runtime.plain.child import Child
from reknit.runtime.plain.host import Host
from reknit.runtime.plain.world import Word, World
from reknit.runtime.progress import EVERY, Progress
from reknit.runtime.supervisor.restart import RestartPolicy


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("import torch.distributed as dist\ndist.init_process_group()\n", True),
        ("import reknit\n", False),
        ("from reknit import join\n", False),
        ("# started by reknit\n", False),
        ("import os\nworker = os.environ['REKNIT_WORKER_ID']\n", False),
        ("", True),
    ],
)
def test_a_script_without_the_word_knows_nothing_of_reknit(text: str, plain: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert is_plain(str(script)) is plain


def test_a_script_that_cannot_be_read_is_left_to_whoever_runs_it(tmp_path: Path) -> None:
    assert not is_plain(str(tmp_path / "none.py"))


def test_the_host_is_a_script_of_ours() -> None:
    start, *rest = hosted(["train.py", "--lr", "1"], RestartPolicy(3, 300.0, backoff=0.5), kill_delay=30.0)
    assert Path(start).is_file()
    assert rest == ["3", "300.0", "0.5", "29.0", "train.py", "--lr", "1"]
    assert hosted(["train.py"], RestartPolicy(3, 300.0), kill_delay=0.5)[-2] == "0.25"  # never none at all


def test_it_has_no_pipeline(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    config = Config(str(script), spec=Spec(Axes(pipe=2)))
    with pytest.raises(ConfigError, match=r"train\.py knows nothing of reknit .*--pipe or --model above 1"):
        Keeper(config, {}, {}, lambda item: None, lambda *_, **__: None, lambda code, why: None)


def test_a_child_that_joins_is_told_why_it_has_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REKNIT_SOCKET", raising=False)
    monkeypatch.setenv(VARIABLE, "train.py")
    with pytest.raises(NotUnderReknit, match=r"train\.py .*write `import reknit` there"):
        Job()


def peer(slot: int, worker: str, agent: str, host: str) -> Peer:
    return Peer(slot, Place(Name(worker, "x"), agent, f"{host}:5{slot}", 1, agent))


PEERS = (
    peer(0, "b-1", "b", "10.0.0.2"),
    peer(1, "a-0", "a", "10.0.0.1"),
    peer(2, "b-0", "b", "10.0.0.2"),
    peer(3, "a-10", "a", "10.0.0.1"),
    peer(5, "a-2", "a", "10.0.0.1"),
)


def test_ranks_of_an_agent_follow_each_other() -> None:
    worlds = {each.place.name.worker_id: World.of(PEERS, each.place.name) for each in PEERS}
    assert {name: (world.rank, world.group) for name, world in worlds.items()} == {
        "b-0": (0, 0),
        "b-1": (1, 0),
        "a-0": (2, 1),
        "a-2": (3, 1),
        "a-10": (4, 1),
    }
    assert {name: (world.local, world.locals) for name, world in worlds.items()} == {
        "b-0": (0, 2),
        "b-1": (1, 2),
        "a-0": (0, 3),
        "a-2": (1, 3),
        "a-10": (2, 3),
    }
    assert {(world.size, world.groups, world.master) for world in worlds.values()} == {(5, 2, "10.0.0.2")}


def test_local_ranks_begin_at_0_though_the_agents_first_worker_has_no_place() -> None:
    told = [World.of(PEERS[3:], each.place.name).environment(29500, 0, 3, "j") for each in PEERS[3:]]
    assert [(each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"]) for each in told] == [("1", "2"), ("0", "2")]


def test_the_master_may_have_an_ipv6_address() -> None:
    assert World.of([peer(0, "a-0", "a", "[fd00::1]")], Name("a-0", "x")).master == "fd00::1"


def test_the_environment_is_torchruns() -> None:
    told = World.of(PEERS, Name("a-2", "x")).environment(port=29500, restarts=2, max_restarts=3, job="j")
    assert told == {
        "RANK": "3",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "3",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "5",
        "MASTER_ADDR": "10.0.0.2",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "j",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def test_who_was_killed_takes_the_others_along() -> None:
    said = Word(*(max(pair) for pair in zip(Word(-3, killed=2).numbers(), Word(-4, failed=1).numbers(), strict=True)))
    assert said.why == "the script of rank 1 was killed"
    assert said.newest == -3  # what all know
    assert Word(0, failed=4).why == "the script of rank 3 failed"
    assert Word(0).why == ""


def test_a_child_runs_is_ended_and_can_run_again(tmp_path: Path) -> None:
    script, child = tmp_path / "sleep.py", Child(grace=5.0)
    script.write_text("import sys, time\ntime.sleep(60 if len(sys.argv) == 1 else 0)\nsys.exit(5)\n")
    assert child.has_ended()
    assert child.returncode is None
    child.start([str(script)], {})
    assert child.started
    child.end()
    assert not child.started
    assert child.returncode == -15
    child.start([str(script), "soon"], {})
    while child.returncode is None:
        child.wait(10.0)
    assert child.returncode == 5
    assert child.started  # nobody has asked it to end


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    script, up, child = tmp_path / "ignores.py", tmp_path / "up", Child(grace=0.5)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    script.write_text(f"import pathlib, signal, time\n{ignore}\npathlib.Path({str(up)!r}).touch()\ntime.sleep(60)\n")
    child.start([str(script)], {})
    while not up.exists():
        child.wait(0.05)
    before = time.monotonic()
    child.end()
    assert child.returncode == -signal.SIGKILL
    assert 0.5 <= time.monotonic() - before < 4.0


def test_what_a_child_has_started_ends_with_it_when_it_is_asked_to(tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(
        "import subprocess, time\nprint(subprocess.Popen(['sleep', '60']).pid, flush=True)\ntime.sleep(60)\n"
    )
    code = (
        "import os, sys, time\nfrom reknit.runtime.plain.child import Child\nchild = Child(5.0, leads=True)\n"
        f"child.start([{str(script)!r}], dict(os.environ))\nsys.stdin.read()\nchild.end()\n"
        "print('ended', flush=True)\ntime.sleep(60)\n"
    )
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        grandchild = int(host.stdout.readline())
        host.stdin.close()
        assert host.stdout.readline() == b"ended\n"
        stat = Path(f"/proc/{grandchild}/stat")
        assert not stat.exists() or ") Z " in stat.read_text()
        host.kill()


def test_a_child_dies_with_its_host(tmp_path: Path) -> None:
    script = tmp_path / "sleep.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    code = (
        "import os, signal, time\nfrom reknit.runtime.plain.child import Child\n"
        f"Child(5.0).start([{str(script)!r}], dict(os.environ))\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"up\n"
        host.kill()
        assert host.stdout.read() == b""  # comes to its end only when the child has died, too


def test_no_steps_are_missed_in_a_job_that_makes_none() -> None:
    assert Progress(2, 0.0, plain=True).sentence(EVERY, True, 2, 0) is None
    assert "no step for" in str(Progress(2, 0.0).sentence(EVERY, True, 2, 0))
    assert "have finished" in str(Progress(2, 0.0, plain=True).sentence(EVERY, True, 2, 2))
    assert "at least 2 must" in str(Progress(2, 0.0, plain=True).sentence(EVERY, False, 1, 0))


@pytest.mark.parametrize(
    ("code", "failed", "killed"), [(0, 0, 0), (1, 1, 0), (75, 1, 0), (-signal.SIGSEGV, 1, 0), (-signal.SIGKILL, 0, 1)]
)
def test_a_script_fails_by_any_exit_code_of_its_own(code: int, failed: int, killed: int) -> None:
    job = Mock()
    job.recovery.known = 1
    child = Mock(started=True, returncode=code)
    host = Host(job, ["train.py"], {}, RestartPolicy(3, 300.0, backoff=0.5), child)
    word = host._word(World(0, 1, 0, 1, "10.0.0.1"), port=0)
    assert (word.failed, word.killed, word.unfinished) == (failed, killed, int(code != 0))
