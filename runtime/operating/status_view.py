"""Shows a job on the terminal: once, or again and again in place; as text or as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.looking import Looker
from reknit.rendezvous.records import LOST
from reknit.runtime.config import EXIT_FAILED
from reknit.runtime.operating.status_table import clean, render
from reknit.runtime.status_document import ABSENT, document

PATIENCE = 3.5  # seconds in which all agents may tell; one that has not after 3 s is silent
EVERY = 1.0  # seconds between two looks
WIDTH = 80  # of what goes elsewhere than to a terminal


def exit_code(found: dict[str, Any]) -> int:
    """0 for a job that runs, waits or has finished."""
    return EXIT_FAILED if found["state"] in (ABSENT, LOST) else 0


def show(looker: Looker, as_json: bool) -> int:
    """Show the job once; returns the exit code.  Raises StoreError."""
    found = _see(looker, PATIENCE)
    if as_json:
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        console = _console()
        _print(render(found, console.width), console)
    return exit_code(found)


def watch(looker: Looker, as_json: bool) -> int:
    """Show the job until Ctrl-C; returns the exit code.  An etcd that stops answering meanwhile ends nothing."""
    found, console = _see(looker, PATIENCE), _console()
    try:
        if as_json or not console.is_terminal:
            while True:
                _print_again(found, as_json, console)
                found = _see_again(looker, found)
        with Live(_picture(found, console), console=console, auto_refresh=False) as live:
            while True:
                live.update(_picture(found, console), refresh=True)
                found = _see_again(looker, found)
    except KeyboardInterrupt:
        return exit_code(found)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def _see(looker: Looker, patience: float) -> dict[str, Any]:
    return document(looker.see(patience), time.monotonic())


def _see_again(looker: Looker, before: dict[str, Any]) -> dict[str, Any]:
    """The job a second later; while etcd does not answer, as it was, with the reason."""
    time.sleep(EVERY)
    try:
        return _see(looker, 0.0)
    except StoreError as error:
        return before | {"failure": str(error)}


def _picture(found: dict[str, Any], console: Console) -> RenderableType:
    picture = render(found, console.width)
    if "failure" not in found:
        return picture
    return Group(picture, Text(""), Text(f"As it was before: {clean(found['failure'])}", style="bold red"))


def _print_again(found: dict[str, Any], as_json: bool, console: Console) -> None:
    if as_json:
        print(json.dumps(found, allow_nan=False, separators=(",", ":")), flush=True)
    else:
        _print(Group(_picture(found, console), Text("")), console)


def _print(picture: RenderableType, console: Console) -> None:
    """Without the blanks at the ends of lines, which only a terminal's colours need."""
    with console.capture() as captured:
        console.print(picture, highlight=False)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), flush=True)
