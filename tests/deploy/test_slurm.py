"""The batch script: a shell takes it, and with stand-ins for Slurm's own programs it does what it says."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.deploy.manifests import DEPLOY
from tests.deploy.test_docker import tool

SCRIPT = DEPLOY / "slurm" / "reknit.sbatch"
BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="bash is not installed")

# One node after the other, in this host's processes; a signal to it is passed on, as srun's own manual says.
SRUN = """#!/usr/bin/env bash
echo "srun $*" >> "$CALLS"
while [[ "$1" == --* ]]; do shift; done
export SLURMD_NODENAME=node1
"$@" &
child=$!
trap 'kill -USR1 $child' USR1
trap 'kill $child' TERM
while true; do code=0; wait "$child" || code=$?; kill -0 "$child" 2>/dev/null || break; done
exit "$code"
"""
SCONTROL = """#!/usr/bin/env bash
echo "scontrol $*" >> "$CALLS"
if [ "$1" = show ]; then printf 'node%s\\n' 1 2 3 4; fi
"""
REKNIT = """#!/usr/bin/env bash
echo "reknit $*" >> "$CALLS"
env | grep ^REKNIT_ | sort >> "$CALLS"
trap 'exit 143' USR1
case "$*" in *waits.py) touch "$CALLS.waits"; while true; do sleep 0.05; done;; *fails.py) exit 1;; esac
"""
ETCD = """#!/usr/bin/env bash
echo "etcd $*" >> "$CALLS"
exec sleep 60
"""


class Cluster:
    """Slurm's programs, as far as the script needs them, and what was asked of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        self.calls.touch()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("reknit", REKNIT), ("etcd", ETCD)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def submit(self, *arguments: str, script: Path = SCRIPT, **environment: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("REKNIT_", "SLURM"))}
        told = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "CALLS": str(self.calls),
            "TMPDIR": str(self.folder),
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_NAME": "gpt",
            "SLURM_JOB_NODELIST": "node[1-4]",
            "SLURM_GPUS_ON_NODE": "2",
        }
        command = [str(BASH), str(script), *arguments]
        return subprocess.Popen(command, env={**kept, **told, **environment}, stderr=subprocess.PIPE, text=True)

    def run(self, *arguments: str, script: Path = SCRIPT, **environment: str) -> int:
        child = self.submit(*arguments, script=script, **environment)
        try:
            child.communicate(timeout=30)
        finally:
            child.kill()
        return child.returncode

    def said(self, beginning: str) -> list[str]:
        return [line for line in self.calls.read_text().split("\n") if line.startswith(beginning)]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + 30.0
        while not condition():
            assert time.monotonic() < deadline, f"no {what}: {self.calls.read_text()}"
            time.sleep(0.01)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_a_shell_and_shellcheck_find_nothing(tmp_path: Path) -> None:
    assert subprocess.run([str(BASH), "-n", str(SCRIPT)], check=False).returncode == 0
    shellcheck = tool("shellcheck")
    if shellcheck is not None:
        result = subprocess.run([shellcheck, str(SCRIPT)], capture_output=True, text=True, check=False)
        assert result.stdout == ""
    broken = tmp_path / "broken"
    broken.write_text(SCRIPT.read_text().replace("\nfi\n", "\nif\n", 1))
    assert subprocess.run([str(BASH), "-n", str(broken)], capture_output=True, check=False).returncode != 0


def test_one_agent_a_node_and_an_etcd_on_the_first_three(cluster: Cluster) -> None:
    assert cluster.run("train.py", "--steps", "5", REKNIT_PIPE="2") == 0
    (reknit,) = cluster.said("reknit run")
    assert reknit == (
        "reknit run --agent node1 --workers 2 --drain-signal USR1 --drain-deadline 120 train.py --steps 5"
    )
    assert cluster.said("reknit") == ["reknit jobs", reknit]  # none starts before etcd answers
    assert cluster.said("REKNIT_")[-4:] == [
        "REKNIT_ETCD=node1:20154,node2:20154,node3:20154",
        "REKNIT_JOB=gpt-77",
        "REKNIT_PIPE=2",
        "REKNIT_REPLICAS=1:4",
    ]
    etcd, agents = sorted(cluster.said("srun"), key=lambda line: "--kill-on-bad-exit" in line)
    assert "--nodes=3" in etcd
    assert "--nodelist=node1,node2,node3" in etcd
    assert "--nodes=4" in agents
    assert "--no-kill" in agents
    (member,) = cluster.said("etcd")
    assert "--name node1 " in member
    assert "node1=http://node1:20155,node2=http://node2:20155,node3=http://node3:20155" in member
    assert not cluster.said("scontrol requeue")


def test_an_etcd_that_is_given_is_used(cluster: Cluster) -> None:
    assert cluster.run("train.py", REKNIT_ETCD="e1:2379", REKNIT_JOB="mine", WORKERS="3") == 0
    assert len(cluster.said("srun")) == 1
    assert {"REKNIT_ETCD=e1:2379", "REKNIT_JOB=mine", "REKNIT_REPLICAS=1:12"} <= set(cluster.said("REKNIT_"))
    assert not cluster.said("etcd")


@pytest.mark.parametrize(("restarts", "requeued"), [("0", True), ("10", False)])
def test_when_the_time_is_up_the_agents_are_told_and_the_job_is_requeued(
    cluster: Cluster, restarts: str, requeued: bool
) -> None:
    child = cluster.submit("waits.py", SLURM_RESTART_COUNT=restarts)
    try:
        cluster.wait((cluster.folder / "calls.waits").exists, "agent")
        child.send_signal(signal.SIGUSR1)
        assert child.wait(timeout=30) == 143
    finally:
        child.kill()
        child.communicate()
    assert cluster.said("scontrol requeue") == ["scontrol requeue 77"] * requeued


def test_a_script_that_fails_is_not_requeued_and_none_is_a_mistake(cluster: Cluster) -> None:
    assert cluster.run("fails.py") == 1
    assert not cluster.said("scontrol requeue")
    assert cluster.run() == 2


def test_an_etcd_that_does_not_come_up_ends_it(cluster: Cluster) -> None:
    (cluster.folder / "reknit").write_text('#!/usr/bin/env bash\necho "reknit $*" >> "$CALLS"\nexit 1\n')
    assert cluster.run("train.py") == 1
    assert set(cluster.said("reknit")) == {"reknit jobs"}


def test_a_typo_in_a_variable_is_found(cluster: Cluster) -> None:
    broken = cluster.folder / "broken"
    broken.write_text(SCRIPT.read_text().replace("SLURM_JOB_NODELIST", "SLURM_JOB_NODES"))
    assert cluster.run("train.py", script=broken) != 0
    assert not cluster.said("reknit run")


def test_slurm_tells_in_time_for_a_drain() -> None:
    lines = [line.removeprefix("#SBATCH ") for line in SCRIPT.read_text().split("\n") if line.startswith("#SBATCH ")]
    (told,) = [line for line in lines if line.startswith("--signal=")]
    deadline = SCRIPT.read_text().split("--drain-deadline ")[-1].split()[0]
    assert told.startswith("--signal=B:USR1@")  # to this script, which passes it on
    assert int(told.rpartition("@")[2]) >= int(deadline) + 15
    assert {"--no-kill", "--requeue"} <= set(lines)
