"""Ranks become names, whatever group they are of."""

from __future__ import annotations

from reknit.rendezvous.records import Name
from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery.evidence import MOST, Evidence

A, B, C = (Name(worker, "1") for worker in "abc")


class Group:
    def __init__(self, *gone: int) -> None:
        self.gone = list(gone)

    def peers_gone(self) -> list[int]:
        return self.gone


def test_what_groups_and_failures_say_is_gathered_by_name() -> None:
    evidence = Evidence()
    assert evidence.fields() == {"gone": [], "absent": []}
    evidence.ask(None, ())
    evidence.ask(Group(1), (C, B))
    evidence.add(Interrupted("", group="data/1/0", rank=0, peers=(2,), absent=(1,)), (C, B, A))
    evidence.add(RuntimeError("torch's own"), (A,))
    evidence.ask(Group(0), (B, A))
    assert evidence.fields() == {"gone": [A, B], "absent": [B]}


def test_a_report_names_no_more_than_can_be_read_by_everybody() -> None:
    names = [Name(f"w{number:04}", "1") for number in range(1000)]
    evidence = Evidence(set(names), {A})
    assert evidence.fields() == {"gone": names[:MOST], "absent": [A]}
