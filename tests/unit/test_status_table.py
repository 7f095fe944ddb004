"""`reknit status` at a terminal: what is in the picture, within its width, and that nothing in etcd leads it astray."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.unit.lookout import Lookout

from reknit.rendezvous.errors import StoreUnavailable
from reknit.rendezvous.looking import Sight
from reknit.rendezvous.records import Plan
from reknit.rendezvous.store.memory import MemoryStore
from reknit.runtime.cli import main
from reknit.runtime.config import EXIT_USAGE
from reknit.runtime.operating import status_view
from reknit.runtime.operating.opening import NoSuchJobError, which_job
from reknit.runtime.operating.status_table import render, seconds
from reknit.runtime.operating.status_view import show

EXAMPLE = json.loads((Path(__file__).parents[1] / "data" / "status.json").read_text())


def picture(document: dict[str, Any], width: int = 80, terminal: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system="standard" if terminal else None)
    console.print(render(document, width), highlight=False)
    return file.getvalue()


def example(**changed: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(EXAMPLE)), **changed}


def test_the_picture_of_a_job_fits_and_has_no_colour_where_there_is_none() -> None:
    text = picture(example())
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert text.startswith(
        "gpt  RUNNING  generation 7  step 1234\nreplicas 3 of 3 (1 to 3)  leader host0  goodput 98.7 %"
    )
    for line in (
        "1     host1-0 alive 1234  host1-1 slow 1234 backward 1.3 s",
        "  host1-1 computes 1.8 times as long as its group's median",
        "spares  host3-0 (spare, stage 1)",
        "host0  node-a  4000        2  127.0.0.1:42420  400 ms ago  leads",
        "   6  loss   92 ms  lost host2-1: its process died",
    ):
        assert line in text


def test_on_a_terminal_the_verdicts_have_colours() -> None:
    assert "\x1b[33mslow" in picture(example(), terminal=True)


def test_what_is_too_wide_for_a_grid_becomes_a_list() -> None:
    wide = example()
    for replica in wide["grid"]:
        replica["places"] = [
            {**place, "coordinate": f"{stage}.0", "worker": f"training-host-{replica['slot']}-{stage}"}
            for stage in range(4)
            for place in replica["places"][:1]
        ]
    text = picture(wide)
    assert max(map(len, text.splitlines())) <= 80
    for stage in range(4):
        assert f"training-host-2-{stage}  alive" in text


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_whatever_lies_in_etcd_is_only_shown(width: int) -> None:
    odd = "\x1b]0;owned\x07\x1b[2J[red]\r\n\u202e" + "x" * 300
    bad = example(job=odd, reason=odd, leader=odd)
    for replica in bad["grid"]:
        for place in replica["places"]:
            place.update(worker=odd, phase=odd, verdict="odd\x1b", reason=odd, coordinate=odd)
    for section in ("spares", "agents", "events"):
        for row in bad[section]:
            row.update({key: odd for key, value in row.items() if isinstance(value, str)})
    text = picture(bad, width)
    assert not any(letter in text for letter in "\x1b\x07\r\u202e")
    assert "[red]" in text
    assert max(map(len, text.splitlines())) <= max(width, 40)


def test_what_is_not_known_is_a_dash() -> None:
    unknown = example(step=None, leader=None, goodput=None, spares=[], events=[])
    for replica in unknown["grid"]:
        for place in replica["places"]:
            place.update(step=None, phase=None, phase_seconds=None, committed_age=None, told_age=None, pid=None)
    for agent in unknown["agents"]:
        agent.update(told_age=None, http="")
    text = picture(unknown)
    assert "step -" in text
    assert "host0-0 alive -" in text
    assert "never" in text


def test_a_job_that_is_absent_is_two_lines() -> None:
    text = picture(example(state="absent", reason="there is no job gpt", grid=[], spares=[], agents=[], events=[]))
    assert text == "gpt  ABSENT\nthere is no job gpt\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (99.9, "99.9 s"),
        (150, "2 min"),
        (1e5, "28 h"),
    ],
)
def test_times_for_people(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_the_only_job_is_meant_unless_one_is_named() -> None:
    store = MemoryStore()
    with pytest.raises(NoSuchJobError, match="no job lives"):
        which_job(store, None)
    store.put("/reknit/gpt/spec", b"")
    assert (which_job(store, None), which_job(store, "other")) == ("gpt", "other")
    store.put("/reknit/bert/spec", b"")
    with pytest.raises(NoSuchJobError, match="--job: bert, gpt"):
        which_job(store, None)


@pytest.mark.parametrize(("state", "code"), [("running", 0), ("waiting", 0), ("finished", 0), ("lost", 1), ("", 1)])
@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_code_says_how_it_is(state: str, code: int, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    lookout = Lookout()
    if state:
        lookout.publish(Plan(2, "why", state))
    assert show(lookout.looker, as_json) == code
    said = capsys.readouterr().out
    if as_json:
        assert json.loads(said)["state"] == (state or "absent")
    else:
        assert (state or "absent").upper() in said


class Tired:
    """Looks as often as there is something to see, and is then interrupted."""

    def __init__(self, *sights: Sight | StoreUnavailable) -> None:
        self.sights = list(sights)

    def see(self, patience: float) -> Sight:
        if not self.sights:
            raise KeyboardInterrupt
        sight = self.sights.pop(0)
        if isinstance(sight, Exception):
            raise sight
        return sight


@pytest.mark.parametrize("as_json", [False, True])
def test_watching_goes_on_while_etcd_is_away_until_it_is_interrupted(
    as_json: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_view, "EVERY", 0.0)
    lookout = Lookout()
    lookout.publish()
    sight = lookout.see()
    tired = Tired(sight, StoreUnavailable("etcd is \x1b away"), sight)
    assert status_view.watch(tired, as_json) == 0  # type: ignore[arg-type]
    said = capsys.readouterr().out
    if as_json:
        found = [json.loads(line) for line in said.splitlines()]
        assert [one.get("failure") for one in found] == [None, "etcd is \x1b away", None]
    else:
        assert said.count("gpt  RUNNING") == 3
        assert said.count("As it was before: etcd is ? away") == 1
        assert not any(line.endswith(" ") for line in said.splitlines())


@pytest.mark.parametrize("options", [["--etcd", "host:x"], ["--etcd", "h:1", "--job", "a/b"]])
def test_bad_options_are_refused_before_anything_is_asked(options: list[str], capsys: Any) -> None:
    assert main(["status", *options]) == EXIT_USAGE
    assert capsys.readouterr().err.startswith("reknit: ")
