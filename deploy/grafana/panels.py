"""What the dashboards are made of: panels that look alike, queries on one data source, a sheet that places them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as choices
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

Query = tuple[str, str]  # an expression, and what its series or its column is called

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "yellow", "orange", "red", "blue", "text"
WIDTH = 24
LETTERS = "ABCDEFGHIJKL"  # the names of a panel's queries
GOODPUT = ((None, RED), (0.5, ORANGE), (0.85, YELLOW), (0.95, GREEN))
# The state of a job as a number, so that a panel can colour it.
STATES = {"1": ("waiting", ORANGE), "2": ("running", GREEN), "3": ("finished", BLUE), "4": ("lost", RED)}


def state_of(labels: str) -> str:
    """An expression whose value is a key of STATES; `labels`: matchers, each with a comma behind it."""
    metric = "training_job_state:reknit_job_state:current"
    each = (f'{number} * ({metric}{{{labels}state="{name}"}} == 1)' for number, (name, _) in STATES.items())
    return f"max by (training_job) ({' or '.join(each)})"


def number(
    title: str,
    expression: str,
    explained: str,
    unit: str = "none",
    colors: Sequence[tuple[float | None, str]] = ((None, BLUE),),
) -> stat.Panel:
    """One number; `colors`: from which value on it has which, the first from the least one."""
    steps = [model.Threshold(value=value, color=color) for value, color in colors]
    return (
        _begin(stat.Panel(), title, explained)
        .unit(unit)
        .with_target(_query(expression, ""))
        .thresholds(dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(choices.BigValueGraphMode.NONE)
        .no_value("–")
    )


def lines(
    title: str,
    queries: Sequence[Query],
    explained: str,
    unit: str = "none",
    *,
    stacked: bool = False,
    least: float | None = 0,
    most: float | None = None,
) -> timeseries.Panel:
    """Lines over time, on an axis from `least` to `most`."""
    panel = (
        _begin(timeseries.Panel(), title, explained)
        .unit(unit)
        .line_width(1)
        .fill_opacity(20 if stacked else 0)
        .show_points(choices.VisibilityMode.NEVER)
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(choices.TooltipDisplayMode.MULTI).sort(choices.SortOrder.DESCENDING))
    )
    if least is not None:
        panel = panel.min(least)
    if most is not None:
        panel = panel.max(most)
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(choices.StackingMode.NORMAL))
    for letter, (expression, name) in zip(LETTERS, queries, strict=False):
        panel = panel.with_target(_query(expression, name, letter))
    return panel


def states(title: str, query: Query, explained: str, values: Mapping[str, tuple[str, str]]) -> statetimeline.Panel:
    """A band for each series; `values`: what a value is called, and its colour."""
    results = {
        value: model.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(values.items())
    }
    return (
        _begin(statetimeline.Panel(), title, explained)
        .with_target(_query(*query))
        .mappings([model.ValueMap(options=results)])
        .merge_values(True)
        .show_value(choices.VisibilityMode.AUTO)
        .row_height(0.8)
        .legend(_legend())
    )


def rows(title: str, queries: Sequence[Query], by: str, explained: str) -> table.Panel:
    """A table of what holds now: a row for each value of the label `by`, a column for each query."""
    panel = _begin(table.Panel(), title, explained).filterable(True)
    headings = {}
    for letter, (expression, name) in zip(LETTERS, queries, strict=False):
        panel = panel.with_target(_query(expression, "", letter).instant().format(PromQueryFormat.TABLE))
        headings[f"Value #{letter}"] = name
    times = ["Time", *(f"Time {index + 1}" for index in range(len(queries)))]  # what a join calls them
    organized = {"excludeByName": dict.fromkeys(times, True), "renameByName": headings, "indexByName": {}}
    join = model.DataTransformerConfig(id_val="joinByField", options={"byField": by, "mode": "outer"})
    return panel.with_transformation(join).with_transformation(
        model.DataTransformerConfig(id_val="organize", options=organized)
    )


def _begin(panel: Any, title: str, explained: str) -> Any:
    return panel.title(title).description(explained).datasource(SOURCE)


def _query(expression: str, name: str, letter: str = "A") -> prometheus.Dataquery:
    built = prometheus.Dataquery().expr(expression).datasource(SOURCE).ref_id(letter)
    return built.legend_format(name or "__auto").range()


def _legend() -> common.VizLegendOptions:
    legend = common.VizLegendOptions().display_mode(choices.LegendDisplayMode.LIST)
    return legend.placement(choices.LegendPlacement.BOTTOM).show_legend(True)


def choose(name: str, label: str, metric: str, *, several: bool = False) -> dashboard.QueryVariable:
    """A variable of a dashboard: the values of the label of that name."""
    built = (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(f"label_values({metric}, {name})")
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.NATURAL_ASC)
        .multi(several)
        .include_all(several)
    )
    return built.all_value(".*") if several else built


class Sheet:
    """A dashboard that places its panels from left to right, line by line."""

    def __init__(self, uid: str, title: str, description: str) -> None:
        self._x = self._y = self._height = self._panels = 0
        source = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        self.builder = (
            dashboard.Dashboard(title)
            .uid(uid)
            .description(description)
            .tags(["reknit"])
            .editable()
            .refresh("30s")
            .time("now-3h", "now")
            .timezone("browser")
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .with_variable(source)
        )

    def row(self, title: str) -> None:
        """Begin a part, with a heading."""
        self._end_line()
        self._panels += 1
        position = model.GridPos(h=1, w=WIDTH, x=0, y=self._y)
        self.builder.with_row(dashboard.Row(title).id(self._panels).grid_pos(position))
        self._y += 1

    def add(self, width: int, height: int, *panels: Any) -> None:
        """Place panels of one size: beside the last one, or below if there is no room."""
        for panel in panels:
            if self._x + width > WIDTH:
                self._end_line()
            self._panels += 1
            position = model.GridPos(h=height, w=width, x=self._x, y=self._y)
            self.builder.with_panel(panel.id(self._panels).grid_pos(position))
            self._x += width
            self._height = max(self._height, height)

    def _end_line(self) -> None:
        self._y += self._height
        self._x = self._height = 0

    def encode(self) -> str:
        """The dashboard's JSON."""
        return str(JSONEncoder(sort_keys=True, indent=2).encode(self.builder.build())) + "\n"
