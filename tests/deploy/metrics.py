"""What is documented as exported, and what rules and dashboards make use of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "reknit.rules.yaml"
GRAFANA = ROOT / "deploy" / "grafana"
_ROW = re.compile(r"^\| `(reknit_\w+)` \| (gauge|counter|histogram) \|", re.MULTILINE)


def exported() -> set[str]:
    """The series that an agent exports, by `health/METRICS.md`."""
    found = _ROW.findall((ROOT / "health" / "METRICS.md").read_text())
    assert found, "the table has no rows"
    plain = {name for name, kind in found if kind != "histogram"}
    return plain | {f"{n}_{part}" for n, kind in found if kind == "histogram" for part in ("bucket", "sum", "count")}


def used(expression: str) -> set[str]:
    """The names of metrics of ours in an expression, recorded ones by their whole name."""
    return set(re.findall(r"(?<![\w:])(?:\w+:)?reknit_\w+(?::\w+)?", expression))


def rules() -> list[dict[str, Any]]:
    """All recording and alert rules."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def recorded() -> set[str]:
    """The names that recording rules make."""
    return {rule["record"] for rule in rules() if "record" in rule}


def dashboards() -> dict[str, dict[str, Any]]:
    """The committed dashboards, by the name of their file."""
    return {path.name: json.loads(path.read_text()) for path in sorted(GRAFANA.glob("*.json"))}


def expressions(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The title of each panel with each of its expressions, for which Grafana's variables have been put in."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            text = target["expr"].replace("$__rate_interval", "5m").replace("$training_job", "gpt")
            yield panel["title"], text.replace("$worker", ".*")
