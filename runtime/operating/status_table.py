"""The status document for people at a terminal of 80 columns, with colour or without.  Pure.

What comes from the store may hold anything: control characters, with which a terminal could be led astray, are
replaced.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Document = Mapping[str, Any]

EVENTS = 6
WORD_STYLES = {
    "alive": "green",
    "slow": "yellow",
    "hung": "bold red",
    "long": "cyan",
    "silent": "bold red",
    "healing": "cyan",
    "draining": "blue",
    "unknown": "yellow",
}
STATE_STYLES = {"running": "green", "waiting": "yellow", "finished": "blue", "lost": "bold red", "absent": "bold red"}
GAP = (0, 2, 0, 0)  # between two columns


def render(document: Document, width: int = 80, events: int = EVENTS) -> RenderableType:
    """The whole picture, for a console of `width` columns."""
    parts: list[RenderableType] = [*_head(document)]
    if document["grid"] and document["agents"]:
        parts += [Text(""), _grid(document, width), *_troubles(document["grid"])]
    parts += [Text(""), *_spares(document["spares"])] if document["spares"] else []
    parts += [Text(""), _agents(document["agents"])] if document["agents"] else []
    parts += [Text(""), _events(document["events"][:events])] if document["events"] and events else []
    return Group(*parts)


def clean(value: object) -> str:
    """Text that a terminal only shows."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(value))


def seconds(value: float | None) -> str:
    """A time for people: "40 ms", "1.3 s", "12 min"."""
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{1000 * value:.0f} ms"
    if value < 99.95:
        return f"{value:.1f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.0f} h"


def _head(document: Document) -> list[Text]:
    replicas, state = document["replicas"], document["state"]
    first = Text.assemble(
        (clean(document["job"]), "bold"), "  ", (clean(state).upper(), STATE_STYLES.get(state, "")), overflow="fold"
    )
    reason = Text(clean(document["reason"]), style="dim", overflow="fold")
    if state == "absent":
        return [first, reason]
    first.append(f"  generation {document['generation']}")
    first.append(f"  step {'-' if document['step'] is None else document['step']}")
    less = replicas["now"] < replicas["wanted"] and state in ("running", "waiting")
    second = Text.assemble(
        "replicas ",
        (f"{replicas['now']} of {replicas['wanted']}", "yellow" if less else ""),
        f" ({replicas['min']} to {replicas['max']})",
        f"  leader {clean(document['leader'] or '-')}",
        "" if document["goodput"] is None else f"  goodput {100 * document['goodput']:.1f} %",
        overflow="fold",
    )
    return [first, second, reason]


def _table(columns: Sequence[str], right: Iterable[str] = ()) -> Table:
    table = Table(box=None, padding=GAP, header_style="dim", pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", no_wrap=True, overflow="ellipsis")
    return table


# ---------------------------------------------------------------- the grid


def _grid(document: Document, width: int) -> RenderableType:
    """A row for each replica, a column for each coordinate; a row for each place if that is too wide."""
    grid = document["grid"]
    coordinates = [place["coordinate"] for place in grid[0]["places"]]
    cells = [[_cell(place) for place in replica["places"]] for replica in grid]
    widths = [max(cell.cell_len for cell in column) + GAP[1] for column in zip(*cells, strict=False)]
    if sum(widths) + 5 > width:
        return _list_of_places(grid)
    names = document["axes"]["model"] > 1
    table = _table(["slot", *(f"stage {name}" if names else f"stage {name.split('.')[0]}" for name in coordinates)])
    for replica, row in zip(grid, cells, strict=True):
        table.add_row(str(replica["slot"]), *row)
    return table


def _cell(place: Document) -> Text:
    return Text.assemble(f"{clean(place['worker'])} ", _verdict(place), f" {_doing(place)}")


def _verdict(place: Document) -> tuple[str, str]:
    return clean(place["verdict"]), WORD_STYLES.get(place["verdict"], "")


def _doing(place: Document) -> str:
    """Step, and what it is at if that is not just the next step."""
    step = "-" if place["step"] is None else str(place["step"])
    at = clean(place["phase"] or "")
    if at in ("", "step", "finished"):
        return f"{step} {at if at == 'finished' else ''}".rstrip()
    return f"{step} {at} {seconds(place['phase_seconds'])}"


def _list_of_places(grid: Sequence[Document]) -> Table:
    table = _table(["slot", "stage", "worker", "verdict", "step", "phase", "for"], right=("step", "for"))
    for replica in grid:
        for place in replica["places"]:
            table.add_row(
                str(replica["slot"]),
                clean(place["coordinate"]),
                clean(place["worker"]),
                Text.assemble(_verdict(place)),
                "-" if place["step"] is None else str(place["step"]),
                clean(place["phase"] or "-"),
                seconds(place["phase_seconds"]),
            )
    return table


def _troubles(grid: Sequence[Document]) -> list[Text]:
    """A sentence on everybody who is not just alive."""
    return [
        Text(f"  {clean(place['reason'])}", style=WORD_STYLES.get(place["verdict"], ""), overflow="fold")
        for replica in grid
        for place in replica["places"]
        if place["verdict"] != "alive" and place["reason"]
    ]


# ---------------------------------------------------------------- spares, agents, events


def _spares(spares: Sequence[Document]) -> list[Text]:
    text = Text("spares  ", style="dim", overflow="fold")
    for number, spare in enumerate(spares):
        at = "draining" if spare["draining"] else clean(spare["phase"] or "")
        more = "" if spare["coordinate"] is None else f", stage {clean(spare['coordinate']).split('.')[0]}"
        text.append(f"{', ' * (number > 0)}{clean(spare['worker'])} ({at or 'spare'}{more})", style="not dim")
    return [text]


def _agents(agents: Sequence[Document]) -> Table:
    table = _table(["agent", "host", "pid", "workers", "http", "heard", ""], right=("pid", "workers", "heard"))
    for agent in agents:
        age = agent["told_age"]
        table.add_row(
            clean(agent["agent"]),
            clean(agent["host"]),
            str(agent["pid"]),
            str(agent["workers"]),
            clean(agent["http"]) or "-",
            Text("never", style="bold red") if age is None else Text(f"{seconds(age)} ago"),
            Text("leads", style="bold") if agent["leads"] else Text(""),
        )
    return table


def _events(events: Sequence[Document]) -> Table:
    table = _table(["when", "gen", "what", "gap", "why"], right=("gen", "gap"))
    table.columns[-1].no_wrap = False
    table.columns[-1].overflow = "fold"
    days = len({moment(event["at"], True)[:6] for event in events}) > 1
    for event in events:
        kind, reason = clean(event["kind"]), clean(event["reason"])
        table.add_row(moment(event["at"], days), str(event["generation"]), kind, seconds(event["gap"]), reason)
    return table


def moment(at: float, day: bool) -> str:
    """A moment on the wall clock here, with its day if that is needed."""
    return time.strftime("%b %d %H:%M:%S" if day else "%H:%M:%S", time.localtime(at))
