"""Events of a run → the report on it.  Pure; nothing in it is assumed, so doctored events make it fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby, pairwise
from statistics import median
from typing import Any, TypeAlias

from reknit.runtime.demo.audit import (
    Expected,
    check_intact,
    compare_states,
    count_samples,
    find_leaks,
    intact_workers,
)
from reknit.runtime.demo.chronicle import Chronicle, Kill
from reknit.runtime.demo.story import Event

Report: TypeAlias = dict[str, Any]


def make_report(events: Sequence[Event], steps: int, expected: Expected) -> Report:
    """The report as `reknit demo --json` writes it.

    Args:
        events: of the whole run, with `killed` and `inspected` events among them.
        steps: how many the training was to make.
        expected: the samples that belong to the step that begins with so many steps committed.

    Times in a fault, in milliseconds, null where it never came to that:
        gap_ms: between the last step of the generation that the kill ended and the first one after it, in the worst
            worker of the replicas that lost nobody; if there is no such replica, in the worst survivor.
        reinit_ms: from a survivor's notice of the change until its groups are rebuilt, in the worst.
        full_strength_ms: from the kill to the first step that all replicas have committed together again.
    """
    chronicle = Chronicle.of(events)
    faults = [_fault(chronicle, kill) for kill in chronicle.kills]
    gaps = [fault["gap_ms"] for fault in faults if fault["gap_ms"] is not None]
    losses = _losses(chronicle)
    identical, hashes = compare_states(chronicle)
    return {
        "steps": max((commit.version.step for commit in chronicle.commits), default=0),
        "seconds": round(chronicle.ended - chronicle.began, 3),
        "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None,
        "step_ms": {"median": _median(_step_times(chronicle))},
        "faults": faults,
        "gap_ms": {"median": _median(gaps), "max": max(gaps, default=None)},
        "samples": asdict(count_samples(chronicle, steps, expected)),
        "replicas_identical": identical,
        "state_sha256": hashes,
        "intact": asdict(check_intact(chronicle)),
        "leaks": asdict(find_leaks(chronicle)),
    }


def find_problems(report: Report, steps: int, kills: int, replicas: int, workers: int) -> list[str]:
    """Sentences on everything in the report that should not be; empty if all is well.

    `steps` and `kills` are what was asked; `replicas` and `workers` how many there are at full strength.  That
    something could not be checked is a problem too.
    """
    samples, intact, leaks = report["samples"], report["intact"], report["leaks"]
    faults = report["faults"]
    lost = [fault for fault in faults if fault["full_strength_ms"] is None]
    checks = (
        (report["steps"] < steps, f"the training made {report['steps']} of {steps} steps"),
        (
            len(faults) < kills,
            f"only {len(faults)} of {kills} kills were done: each waits until the job is back at full strength, and "
            "the last must leave time to recover; if the training itself went well, give it more --steps",
        ),
        (
            bool(lost),
            f"the job was not back at full strength after {len(lost)} of {len(faults)} kills: "
            + ", ".join(f"{fault['worker']} at step {fault['step']}" for fault in lost),
        ),
        (samples["missing"] > 0, f"{samples['missing']} samples are missing from committed steps"),
        (samples["repeated"] > 0, f"{samples['repeated']} samples were used too often in committed steps"),
        (not report["replicas_identical"], "the replicas did not end with identical states"),
        (
            intact["violations"] > 0,
            f"{intact['violations']} times a worker got another process, formation or group, "
            "though its replica lost nobody",
        ),
        (bool(faults) and replicas > 1 and not intact["checked"], "no worker of an intact replica could be compared"),
        (bool(faults) and workers > 1 and leaks["fds"] is None, "no process lived long enough to be checked for leaks"),
        ((leaks["fds"] or 0) > 0, f"a process ended with {leaks['fds']} more open descriptors than it began with"),
        ((leaks["threads"] or 0) > 0, f"a process ended with {leaks['threads']} more threads than it began with"),
    )
    return [sentence for wrong, sentence in checks if wrong]


def _fault(chronicle: Chronicle, kill: Kill) -> dict[str, Any]:
    before = chronicle.generation_at(kill.t)
    after = min((g for g in chronicle.seats if g > before), default=None)
    return {
        "kind": kill.kind,
        "worker": kill.worker,
        "step": kill.step,
        "generation_before": before,
        "generation_after": after,
        "gap_ms": _milliseconds(_gap(chronicle, kill, before)),
        "reinit_ms": _milliseconds(_reinit(chronicle, before, after)),
        "full_strength_ms": _milliseconds(_full_strength(chronicle, kill, before)),
    }


def _gap(chronicle: Chronicle, kill: Kill, before: int) -> float | None:
    """Seconds.  A step that all had prepared when the kill came belongs to the generation before it."""
    pids = {worker: seat.pid for worker, seat in chronicle.seats.get(before, {}).items() if worker != kill.worker}
    survivors = intact_workers(chronicle, before, kill.worker) or list(pids)
    gaps = []
    for worker in survivors:
        mine = [commit for commit in chronicle.commits if commit.pid == pids[worker] and not commit.rolled_forward]
        earlier = [commit.t for commit in mine if commit.version.generation == before]
        later = [commit.t for commit in mine if commit.version.generation > before]
        if earlier and later:
            gaps.append(min(later) - max(earlier))
    return max(gaps, default=None)


def _reinit(chronicle: Chronicle, before: int, after: int | None) -> float | None:
    """Seconds."""
    if after is None:
        return None
    pids = {seat.pid for seat in chronicle.seats.get(before, {}).values()}
    return max((seat.seconds for seat in chronicle.seats[after].values() if seat.pid in pids), default=None)


def _full_strength(chronicle: Chronicle, kill: Kill, before: int) -> float | None:
    """Seconds."""
    everybody = chronicle.max_replicas * chronicle.axes.size
    commits = sorted(
        (commit.version, commit.t)
        for commit in chronicle.commits
        if commit.version.generation > before and not commit.rolled_forward
    )
    for _, of_version in groupby(commits, key=lambda commit: commit[0]):
        times = [t for _, t in of_version]
        if len(times) == everybody:
            return max(times) - kill.t
    return None


def _losses(chronicle: Chronicle) -> list[float]:
    """The loss of each step, in order, of which every replica told its part."""
    losses: dict[int, float] = {}
    for version, parts in sorted(chronicle.losses.items()):
        seats = chronicle.seats.get(version.generation, {})
        if len(parts) == len({seat.replica for seat in seats.values()}):
            losses[version.step] = sum(parts.values())
    return [losses[step] for step in sorted(losses)]


def _step_times(chronicle: Chronicle) -> list[float]:
    """Milliseconds between steps that followed each other undisturbed, of every worker."""
    commits = sorted((c.pid, c.version, c.t) for c in chronicle.commits if not c.rolled_forward)
    return [
        (after[2] - before[2]) * 1000
        for before, after in pairwise(commits)
        if before[0] == after[0] and after[1] == (before[1].generation, before[1].step + 1)
    ]


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _median(values: Sequence[float]) -> float | None:
    return round(median(values), 1) if values else None
