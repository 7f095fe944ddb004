"""Events and reports in words and tables for people; `view` puts them on the screen.  Pure."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.table import Table

from reknit.runtime.demo.report import Report
from reknit.runtime.demo.story import Event


def tell(event: Event) -> str | None:
    """One sentence on an event that a spectator cares for; None for the others."""
    worker = event["worker"]
    match event["event"]:
        case "killed":
            return f"killed {worker} ({event['kind']} to process {event['pid']}) after step {event['step']}"
        case "worker_died":
            return f"{worker} died: {event['cause']}"
        case "worker_started":
            return f"{worker} started as process {event['pid']}"
        case "plan":
            state = "" if event["state"] == "running" else f" ({event['state']})"
            return f"generation {event['generation']}{state}, replicas: {event['replicas']}: {event['reason']}"
        case "healed" if event["step"] > 0:
            return (
                f"{worker} got step {event['step']} from {', '.join(event['sources'])}: {event['bytes'] / 1e6:.1f} MB"
            )
        case "retried":
            return f"step {event['step']} is taken again"
        case "agent_ended" if event["code"]:
            return f"the job ended with code {event['code']}: {event['reason']}"
        case _:
            return None


def fault_table(report: Report, on_terminal: bool) -> Table:
    """A row for each kill."""
    table = Table(box=box.ROUNDED if on_terminal else None, title="What the kills cost", title_justify="left")
    for heading in ("killed", "step", "generation", "gap ms", "reinit ms", "full strength ms"):
        table.add_column(heading, justify="left" if heading == "killed" else "right", no_wrap=True)
    for fault in report["faults"]:
        table.add_row(
            fault["worker"],
            str(fault["step"]),
            f"{fault['generation_before']} > {_number(fault['generation_after'])}",
            _number(fault["gap_ms"]),
            _number(fault["reinit_ms"]),
            _number(fault["full_strength_ms"]),
        )
    return table


def summary_table(report: Report, on_terminal: bool) -> Table:
    """Everything else, a line each."""
    samples, intact, leaks, gap = report["samples"], report["intact"], report["leaks"], report["gap_ms"]
    came_back = [fault for fault in report["faults"] if fault["full_strength_ms"] is not None]
    rows = (
        ("training", f"{report['steps']} steps in {report['seconds']:.1f} s"),
        ("loss", f"{_number(report['loss_first'], 3)} at first, {_number(report['loss_last'], 3)} at last"),
        ("step", f"{_number(report['step_ms']['median'])} ms (median)"),
        ("kills survived", f"{len(came_back)} of {len(report['faults'])}"),
        ("gap", f"{_number(gap['median'])} ms (median), {_number(gap['max'])} ms (worst)"),
        (
            "samples",
            f"{samples['committed']} of {samples['expected']} in committed steps, "
            f"{samples['missing']} missing, {samples['repeated']} repeated",
        ),
        ("replicas identical", "yes" if report["replicas_identical"] else "NO"),
        *((f"  state at {at}", hashed[:16]) for at, hashed in report["state_sha256"].items()),
        ("intact replicas", f"{intact['checked']} comparisons, {intact['violations']} violations"),
        ("leaks", f"descriptors {_number(leaks['fds'], 0)}, threads {_number(leaks['threads'], 0)}"),
    )
    table = Table(box=box.ROUNDED if on_terminal else None, show_header=False)
    for label, value in rows:
        table.add_row(label, value)
    return table


def _number(value: Any, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
