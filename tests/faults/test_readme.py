"""The README's training script does what the README says: it trains on one host and survives a kill."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.harness import START_SECONDS, JobRun

README = Path(__file__).parents[2] / "README.md"


def test_the_readmes_script_survives_a_kill(tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    assert found.group(1).count("\n") < 30
    script = tmp_path / "train.py"
    script.write_text(found.group(1))
    with JobRun(tmp_path, script, replicas="3") as run:
        run.wait_strength(3, timeout=START_SECONDS)
        run.wait_step(100)
        since = len(run.poll())
        run.kill("worker-1")
        run.wait_strength(3, since)
        assert run.wait_end(60) == 0
    losses = [float(loss) for loss in re.findall(r"step \d+00: loss ([\d.]+)", run.output())]
    assert len(losses) >= 5
    assert losses[-1] < losses[0] / 2
