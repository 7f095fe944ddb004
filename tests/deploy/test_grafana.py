"""The dashboards: the committed JSON is what the code builds, every query parses, and no metric is made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.deploy.metrics import GRAFANA, dashboards, exported, expressions, recorded, rules, used
from tests.deploy.test_prometheus import needs_promtool, promtool

NAMES = ["fleet.json", "job.json"]


def test_the_committed_json_is_what_the_code_builds(tmp_path: Path) -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="it needs Python 3.11")
    from reknit.deploy.grafana.build import main

    assert main(tmp_path) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES == list(dashboards())
    for path in tmp_path.iterdir():
        assert path.read_text() == (GRAFANA / path.name).read_text(), f"{path.name}: build it anew"


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_is_classic_and_asks_which_data_source(name: str) -> None:
    dashboard = dashboards()[name]
    assert dashboard["schemaVersion"] == 42
    assert dashboard["templating"]["list"][0]["name"] == "datasource"
    assert dashboard["templating"]["list"][0]["type"] == "datasource"
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) > 10
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels:
        asked = {target["refId"]: target["datasource"]["uid"] for target in panel["targets"]}
        assert set(asked.values()) == {"${datasource}"}, panel["title"]
        assert len(asked) == len(panel["targets"]), panel["title"]
        assert panel["description"]


@pytest.mark.parametrize("name", NAMES)
def test_panels_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboards()[name]["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@needs_promtool
def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    asked = [query for dashboard in dashboards().values() for query in expressions(dashboard)]
    rules = [{"record": f"q:{number}", "expr": expression} for number, (_, expression) in enumerate(asked)]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    result = promtool("check", "rules", path)
    assert result.returncode == 0, result.stderr
    assert f"{len(asked)} rules found" in result.stdout


def query_problem(folder: Path, expression: str) -> str:
    """What promtool says against one query."""
    path = folder / "query.yaml"
    path.write_text(json.dumps({"groups": [{"name": "q", "rules": [{"record": "q:q", "expr": expression}]}]}))
    result = promtool("check", "rules", path)
    return "" if result.returncode == 0 else result.stderr


@needs_promtool
def test_a_typo_in_a_query_is_found(tmp_path: Path) -> None:
    good = next(iter(expressions(dashboards()["job.json"])))[1]
    assert query_problem(tmp_path, good) == ""
    assert query_problem(tmp_path, good + ")")
    assert query_problem(tmp_path, f"sume({good})")


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_in_a_panel_is_exported_or_recorded(name: str) -> None:
    known = exported() | recorded()
    for title, expression in expressions(dashboards()[name]):
        assert used(expression), title
        assert used(expression) <= known, title
    for variable in dashboards()[name]["templating"]["list"][1:]:
        assert used(variable["query"]) <= known


def test_a_metric_that_nobody_exports_is_found() -> None:
    assert used('sum(rate(reknit_step_secondz_sum{training_job="gpt"}[5m]))') == {"reknit_step_secondz_sum"}
    assert not used("reknit_step_secondz_sum") <= exported() | recorded()
    assert used("training_job:reknit_goodput:ratio_rate1h") <= recorded()


def test_every_exported_metric_is_shown_or_watched() -> None:
    asked = [expression for dashboard in dashboards().values() for _, expression in expressions(dashboard)]
    asked += [rule["expr"] for rule in rules()]
    seen = {name for expression in asked for name in used(expression)}
    # A histogram is looked at through its buckets; the rest of it is for who asks by hand.
    shown = {name for name in exported() if not name.endswith(("_sum", "_count"))}
    assert shown <= seen
