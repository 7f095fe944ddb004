"""What chaos did, put together with what the agents told: the events on which the invariants are checked.  Pure.

An agent that is killed takes with it what its workers had just told it.  Two things can be said in its place: that a
victim was lost from the strike on, and what a worker put into a step that was committed.  The latter follows from the
step, as nothing is committed without all its members.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reknit.rendezvous.layout import dense_indices
from reknit.runtime.data import deal

Event = dict[str, Any]
Strike = dict[str, Any]  # as `reknit chaos --json` writes it
EVERYTHING_DIED = "all"  # a strike of the soak's own: all agents and workers at one moment; `step`: of the checkpoint
_SILENCING = ("node", EVERYTHING_DIED)  # strikes that hit those who tell


@dataclass(frozen=True)
class Clean:
    """A stretch (monotonic seconds) with a planned change in it, in which nobody may lose anything."""

    begun: float
    ended: float
    what: str


def disturbances(events: Sequence[Event], clean: Iterable[Clean]) -> list[str]:
    """A sentence for each planned change in which a step was tried again, or somebody died."""
    found = []
    for stretch in clean:
        within = [event for event in events if stretch.begun <= event["t"] <= stretch.ended]
        if bad := [f"{e['event']} of {e['worker']}" for e in within if e["event"] in ("retried", "worker_died")]:
            found.append(f"{stretch.what}, and meanwhile there was: {', '.join(bad)}")
    return found


def wrong_returns(events: Sequence[Event], strikes: Iterable[Strike]) -> list[str]:
    """Whether the job went back to a checkpoint when everything had died, to the newest one then, and never else."""
    back: dict[int, int] = {}
    for event in sorted((e for e in events if e["event"] == "restored"), key=lambda e: int(e["generation"])):
        back.setdefault(event["generation"], event["step"])
    trained = {event["version"][0] for event in events if event["event"] == "committed"}
    found = []
    for strike in (strike for strike in strikes if strike["kind"] == EVERYTHING_DIED):
        first = min((g for g in back if g > strike["generation"]), default=0)
        step = back.pop(first, None)
        if step != strike["step"]:
            found.append(f"everything died with a checkpoint of step {strike['step']}, but the job went on from {step}")
        for g in [g for g in back if g > first and not any(first <= t < g for t in trained)]:
            if back[g] == step:  # the first generation broke before its first step
                del back[g]
    return found + [f"the job went back to step {step} in generation {g}" for g, step in back.items()]


def gap_of(strike: Strike, commits: Sequence[tuple[float, int]]) -> float | None:
    """Seconds from the strike to the first commit in a newer generation; None if there was none.

    `commits`: (t, generation) of all commits, by time.
    """
    start = bisect_right(commits, (strike["t"], 0))
    return next((t - strike["t"] for t, generation in commits[start:] if generation > strike["generation"]), None)


def commits_of(events: Sequence[Event]) -> list[tuple[float, int]]:
    """(t, generation) of all commits, by time."""
    return sorted((e["t"], e["version"][0]) for e in events if e["event"] == "committed")


def complete(
    events: Sequence[Event], strikes: Sequence[Strike], samples_of: Callable[[int], Sequence[int]], micro_batch: int
) -> list[Event]:
    """The events, by time, with every victim dead from its strike on, and what killed nodes could not tell any more."""
    lost = {
        pid: (strike["t"], strike["generation"], name) for strike in strikes for name, pid in strike["workers"].items()
    }
    told = [event for event in events if not (event["event"] == "worker_died" and event["pid"] in lost)]
    told += [
        {"t": t, "event": "worker_died", "worker": name, "pid": pid, "cause": "chaos", "generation": g, "run": "chaos"}
        for pid, (t, g, name) in lost.items()
    ]
    silenced = {name: strike["t"] for strike in strikes if strike["kind"] in _SILENCING for name in strike["workers"]}
    told += untold(events, silenced, samples_of, micro_batch)
    return sorted(told, key=lambda event: float(event["t"]))


def untold(
    events: Sequence[Event], silenced: dict[str, float], samples_of: Callable[[int], Sequence[int]], micro_batch: int
) -> list[Event]:
    """What workers of killed nodes (each with the moment) put into committed steps without being heard.

    Their names are never used again: a node comes back under a fresh one.
    """
    places: dict[int, dict[str, Event]] = defaultdict(dict)
    heard: set[tuple[tuple[int, int], str]] = set()
    committed: set[tuple[int, int]] = set()
    for event in events:
        if event["event"] == "placed":
            places[event["generation"]][event["worker"]] = event
        elif event["event"] in ("contributed", "committed"):
            version = tuple(event["version"])
            heard.add((version, event["worker"])) if event["event"] == "contributed" else committed.add(version)
    found = []
    for version in committed:
        generation, step = version
        members = places[generation]
        indices = dense_indices({event["replica"] for event in members.values()})
        samples = samples_of(step - 1)
        for worker in members.keys() & silenced.keys():
            if (version, worker) not in heard:
                share = deal(len(samples) // micro_batch, len(indices), indices[members[worker]["replica"]])
                own = list(samples[share.start * micro_batch : share.stop * micro_batch])
                found.append(
                    {
                        "t": silenced[worker],
                        "event": "contributed",
                        "worker": worker,
                        "generation": generation,
                        "step": step,
                        "samples": own,
                        "version": list(version),
                        "run": "chaos",
                    }
                )
    return found
