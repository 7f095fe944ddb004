"""The rules: Prometheus takes them, every alert fires and rests in its stories, and no metric is made up."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.metrics import ROOT, RULES, exported, recorded, rules, used

README = ROOT / "deploy" / "README.md"
STORIES = sorted(RULES.parent.glob("*.tests.yaml"))
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool (of Debian's prometheus) is not installed")


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(PROMTOOL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def copy_with(folder: Path, old: str, new: str) -> Path:
    """The rules, with one thing changed."""
    text = RULES.read_text()
    assert old in text
    (folder / RULES.name).write_text(text.replace(old, new))
    return folder / RULES.name


def stories() -> list[dict[str, Any]]:
    """All of them."""
    return [story for path in STORIES for story in yaml.safe_load(path.read_text())["tests"]]


def checks_of(story: dict[str, Any]) -> list[dict[str, Any]]:
    """What it says of alerts."""
    return list(story.get("alert_rule_test", []))


@needs_promtool
def test_prometheus_takes_the_rules() -> None:
    result = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
def test_all_stories_come_true() -> None:
    result = promtool("test", "rules", *STORIES)
    assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
@pytest.mark.parametrize(
    ("old", "new"),
    [("clamp_min(10", "clampmin(10"), ("        for: 5m", "        fro: 5m"), ("or (max by", "or (max bye")],
)
def test_a_typo_in_the_rules_is_found(tmp_path: Path, old: str, new: str) -> None:
    assert promtool("check", "rules", copy_with(tmp_path, old, new)).returncode != 0


@needs_promtool
@pytest.mark.parametrize(
    ("alert", "old", "new"),
    [
        # Another leader would begin the alert anew.
        ("ReknitBelowMinimum", "or max by (training_job) (last_over_time(reknit_job_replicas[5m]))", ""),
        ("ReknitNoProgress", 'phase="announced"', 'phase="anounced"'),
        ("ReknitStraggler", "reknit_worker_slowdown_ratio) > 1.5", "reknit_worker_slowdown_ratio) > 2"),
    ],
)
def test_a_rule_that_means_something_else_is_found(tmp_path: Path, alert: str, old: str, new: str) -> None:
    rules_file = copy_with(tmp_path, old, new)
    assert promtool("check", "rules", rules_file).returncode == 0
    about_it = [story for story in stories() if any(check["alertname"] == alert for check in checks_of(story))]
    told = {"rule_files": [rules_file.name], "evaluation_interval": "1m", "tests": about_it}
    (tmp_path / "stories.yaml").write_text(yaml.safe_dump(told))
    assert promtool("test", "rules", tmp_path / "stories.yaml").returncode != 0


def test_every_metric_in_a_rule_is_exported_or_recorded() -> None:
    known = exported() | recorded()
    for rule in rules():
        assert used(rule["expr"]), rule
        assert used(rule["expr"]) <= known, rule


def test_every_alert_has_a_story_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    checks = [check for story in stories() for check in checks_of(story)]
    fires = {check["alertname"] for check in checks if check["exp_alerts"]}
    rests = {check["alertname"] for check in checks if not check["exp_alerts"]}
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert alerts
    assert fires == rests == alerts


def runbooks() -> dict[str, str]:
    """What `deploy/README.md` says under the heading of each alert."""
    parts = re.split(r"^#+ (.+)$", README.read_text(), flags=re.MULTILINE)
    return {
        heading: text for heading, text in zip(parts[1::2], parts[2::2], strict=True) if heading.startswith("Reknit")
    }


def test_every_alert_leads_to_its_runbook() -> None:
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    assert alerts.keys() == runbooks().keys()
    for name, rule in alerts.items():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}
        assert rule["annotations"]["runbook"] == f"deploy/README.md#{name.lower()}"
        for part in ("**Means:**", "**Look:**", "**Do:**"):
            assert part in runbooks()[name], f"{name}'s runbook lacks {part}"
        assert "`reknit " in runbooks()[name], f"{name}'s runbook names no command to look with"
