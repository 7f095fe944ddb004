"""The Slurm batch script with everything real but Slurm: its own etcd, an agent, a worker that trains to the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.harness import EXAMPLES, ROOT

SCRIPT = ROOT / "deploy" / "slurm" / "reknit.sbatch"
pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None or shutil.which("etcd") is None, reason="bash and etcd are needed"
)

SRUN = """#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
export SLURMD_NODENAME=127.0.0.1
"$@" &
child=$!
trap 'kill $child' TERM
code=0
wait "$child" || code=$?
while kill -0 "$child" 2>/dev/null; do sleep 0.05; done
exit "$code"
"""


def test_a_batch_job_trains_to_its_end_and_takes_its_etcd_along(tmp_path: Path) -> None:
    for name, text in (("srun", SRUN), ("scontrol", "#!/usr/bin/env bash\necho 127.0.0.1\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REKNIT_", "SLURM"))}
    told = {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(tmp_path),
        "SLURM_JOB_ID": str(os.getpid()),  # its ports follow from it
        "SLURM_JOB_NAME": "gpt",
        "SLURM_JOB_NODELIST": "127.0.0.1",
        "REKNIT_EVENTS": str(tmp_path / "events"),
    }
    command = ["bash", str(SCRIPT), str(EXAMPLES / "train_ddp.py"), "--steps", "20"]
    output = tmp_path / "output"
    with output.open("wb") as sink:
        child = subprocess.Popen(
            command, env={**kept, **told}, stdout=sink, stderr=sink, cwd=tmp_path, start_new_session=True
        )
        try:
            code = child.wait(timeout=90)
        finally:
            left = _end_of_group(child.pid)
            child.wait()
    assert code == 0, output.read_text()[-4000:]
    assert not left, "something of it was left behind"
    committed = [line for line in (tmp_path / "events").read_text().split("\n") if '"committed"' in line]
    assert len(committed) == 20
    assert list(tmp_path.glob("reknit-etcd-*-0/member"))


def _end_of_group(group: int) -> bool:
    """End all that is left of a process group; whether there was anything."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
