"""DESIGN.md §7, invariants 1 to 5, read off a job's events: each function raises AssertionError naming what broke.

They may be asked at any moment; only `finished_alike` needs a job that has ended.  The events of several agents of a
job may be put together (each says in `run` which file it is from).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

Event = dict[str, Any]
Version = tuple[int, int]


def check(
    events: Sequence[Event],
    samples_of: Callable[[int], Sequence[int]],
    up_to: int | None = None,
    waits: float = 5.0,
    silent: Collection[str] = (),
    after: int = 0,
) -> None:
    """All that can be said of a running job.  `samples_of(step)`: what the attempt on top of `step` steps must use.

    `up_to`: the newest step whose samples to count, if the job goes on: of the very newest, not everything is told yet.
    `silent`: runs whose agent was killed, and could not tell any more what its workers did last.
    `after`: the step of the checkpoint from which these events go on.
    `waits`: seconds that may pass from a death to the next step (more than a few only while the store is away).
    """
    in_order = sorted(events, key=lambda event: event["t"])
    one_plan_a_generation(in_order)
    one_generation_at_a_time(in_order)
    intact_replicas_untouched(in_order)
    one_state_a_step(in_order)
    every_sample_once(in_order, samples_of, up_to, silent, after)
    never_back(in_order)
    nobody_waits(in_order, waits)


def one_plan_a_generation(events: Iterable[Event]) -> None:
    """1: every agent sees the same plan under a number, and numbers grow."""
    plans: dict[int, tuple[str, str, int]] = {}
    last: dict[str, int] = {}
    for event in of(events, "plan"):
        plan = (event["reason"], event["state"], event["replicas"])
        assert plans.setdefault(event["generation"], plan) == plan, f"two plans for generation {event['generation']}"
        newest = last.get(event["run"], 0)
        assert event["generation"] > newest, f"{event['run']} saw generation {event['generation']} after {newest}"
        last[event["run"]] = event["generation"]


def one_generation_at_a_time(events: Iterable[Event]) -> None:
    """1: a process enters ever newer generations, and contributes and commits only in the one that it is in."""
    current: dict[int, int] = {}
    for event, pid in with_pid(events):
        generation = event["generation"]
        if event["event"] == "reinit_done":
            assert generation > current.get(pid, 0), f"{event['worker']} went back to generation {generation}"
            current[pid] = generation
        elif event["event"] in ("contributed", "committed") and not event.get("rolled_forward"):
            acted = event["version"][0]
            assert acted == current.get(pid), f"{event['worker']} acted in {acted} while in {current.get(pid)}: {event}"


def intact_replicas_untouched(events: Sequence[Event]) -> None:
    """2: a formation stands while nobody of it is lost or drains; its members keep processes and group objects."""
    groups: dict[tuple[str, str], str] = {}
    for event, pid in with_pid(events):
        if event["event"] == "reinit_done":
            key, group = (event["formation"], event["worker"]), event["group"]
            assert group.split(".")[0] == str(pid), f"a group of another process: {event}"
            if event.get("remade"):  # the script's own use of the data group made an attempt end midway
                groups[key] = group
            assert groups.setdefault(key, group) == group, f"{key} had group {groups[key]}, and then {group}"
    left = {event["pid"]: event["t"] for event in (*of(events, "worker_died"), *of(events, "draining"))}
    published: dict[int, float] = {}
    for event in of(events, "plan"):
        published[event["generation"]] = min(event["t"], published.get(event["generation"], event["t"]))
    members: dict[tuple[int, str], dict[str, int]] = defaultdict(dict)  # (generation, formation) -> worker -> pid
    for event, pid in with_pid(events):
        if event["event"] == "reinit_done":
            members[event["generation"], event["formation"]][event["worker"]] = pid
    for generation, formation in members:
        later = [g for g, _ in members if g > generation]
        if not later:
            continue
        following, here = min(later), members[generation, formation]
        if any(left.get(pid, published[following] + 1) <= published[following] for pid in here.values()):
            continue
        now = {e["formation"] for e in of(events, "placed") if e["worker"] in here and e["generation"] == following}
        assert now <= {formation}, f"{formation} lost nobody, and was {now} in generation {following}"


def one_state_a_step(events: Iterable[Event]) -> None:
    """3: after every committed step all replicas hold the same state at a coordinate, whoever tried the next step."""
    coordinates: dict[int, int] = {}
    states: dict[tuple[int, int], dict[float, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for event, pid in with_pid(events):
        if event["event"] == "placed":
            coordinates[pid] = event["coordinate"]
        elif event["event"] == "committed" and "state" in event:
            states[event["step"] - 1, coordinates[pid]][event["state"]].append((event["worker"], event["version"]))
    for (step, coordinate), seen in states.items():
        assert len(seen) == 1, f"after step {step} coordinate {coordinate} had different states: {dict(seen)}"


def every_sample_once(
    events: Sequence[Event],
    samples_of: Callable[[int], Sequence[int]],
    up_to: int | None = None,
    silent: Collection[str] = (),
    after: int = 0,
) -> None:
    """4: each committed step is committed in one version, and that used each of its samples once at each coordinate."""
    versions = committed_versions(events)
    used: dict[tuple[Version, int], Counter[int]] = defaultdict(Counter)
    coordinates: dict[int, int] = {}
    untold: dict[tuple[int, int], set[int]] = defaultdict(set)  # (generation, coordinate) -> members of silent runs
    told: dict[Version, set[int]] = defaultdict(set)
    for event, pid in with_pid(events):
        if event["event"] == "placed":
            coordinates[pid] = event["coordinate"]
            if event["run"] in silent:
                untold[event["generation"], event["coordinate"]].add(pid)
        elif event["event"] == "contributed":
            used[version_of(event), coordinates[pid]].update(event["samples"])
            told[version_of(event)].add(pid)
    newest = max(versions, default=0)
    for step in range(after + 1, (newest if up_to is None else up_to) + 1):
        assert len(versions[step]) == 1, f"step {step} was committed in versions {sorted(versions[step])}"
        (version,) = versions[step]
        for coordinate in set(coordinates.values()):
            expected, got = Counter(samples_of(step - 1)), used[version, coordinate]
            if not (got - expected) and untold[version[0], coordinate] - told[version]:
                continue
            assert got == expected, (
                f"step {step} (version {version}) at coordinate {coordinate}: "
                f"missing {sorted((expected - got).elements())}, repeated {sorted((got - expected).elements())}"
            )


def never_back(events: Iterable[Event]) -> None:
    """5: whoever enters a generation is at the newest step that anybody ever committed in an older one."""
    entered = [(e["generation"], e["step"], e["worker"]) for e in of(events, "reinit_done")]
    newest: dict[int, int] = {}
    for event in of(events, "committed"):
        generation, step = event["version"]
        newest[generation] = max(newest.get(generation, 0), step)
    for generation, step, worker in entered:
        before = max((s for g, s in newest.items() if g < generation), default=0)
        assert step >= before, f"{worker} entered generation {generation} at step {step}, but {before} was committed"
    last: dict[int, int] = {}
    for event, pid in with_pid(events):
        if event["event"] in ("healed", "restored"):
            last[pid] = event["step"]
        elif event["event"] == "committed":
            before = last.get(pid, 0)
            assert event["step"] == before + 1, f"{event['worker']} went from step {before}: {event}"
            last[pid] = event["step"]


def nobody_waits(events: Sequence[Event], seconds: float) -> None:
    """6, roughly: after a death the rest commits again within `seconds`; a blocked collective would wait for longer.

    On a quiet machine it takes a tenth of a second.  Only of deaths after which a step was committed at all.
    """
    commits = [event["t"] for event in of(events, "committed")]
    for death in of(events, "worker_died"):
        following = next((t for t in commits if t > death["t"]), death["t"])
        gap = following - death["t"]
        assert gap < seconds, f"after {death['worker']} died at {death['t']} nothing was committed for {gap:.1f} s"


def finished_alike(events: Iterable[Event], step: int, workers: int) -> None:
    """3, at the end: `workers` processes finished at one step, with one state a coordinate.

    `step` is where they were told to; on a busy machine they may have been beyond it when the order came.
    """
    finished = list(of(events, "finished"))
    names, steps = {event["worker"] for event in finished}, {event["step"] for event in finished}
    assert len(finished) == len(names) == workers, f"{len(finished)} ends of {len(names)} workers, {workers} expected"
    assert len(steps) == 1, f"finished at {steps}, not all at one step"
    assert min(steps) >= step, f"finished at {steps}, before {step}"
    hashes = defaultdict(set)
    for event in finished:
        hashes[event["coordinate"]].add(event["state_sha256"])
    assert all(len(seen) == 1 for seen in hashes.values()), f"replicas ended in different states: {dict(hashes)}"


def since_generation(events: Sequence[Event], generation: int) -> list[Event]:
    """The events of a generation and of those after it, as if the job had begun with it: after it went back."""
    return [event for event in events if event["event"] == "attached" or event["generation"] >= generation]


def stretches(events: Sequence[Event]) -> list[tuple[int, list[Event]]]:
    """The events between the job's goings-back to a checkpoint, each with the step of the one that it went on from.

    Within a stretch nobody goes back; all of a generation begin at one step, or are healed by those who do.
    """
    begun: dict[int, int] = {}
    for event in of(events, "restored"):
        step = begun.setdefault(event["generation"], event["step"])
        assert step == event["step"], f"generation {event['generation']} began with steps {step} and {event['step']}"
    bounds = [0, *sorted(begun)]
    found = []
    for start, end in zip(bounds, [*bounds[1:], None], strict=True):
        mine = [e for e in since_generation(events, start) if end is None or e["generation"] < end]
        found.append((begun.get(start, 0), mine))
    return found


def check_stretches(
    events: Sequence[Event], samples_of: Callable[[int], Sequence[int]], waits: float = 5.0
) -> list[Event]:
    """All that can be said of a job that has ended, and that went back to checkpoints; returns its last stretch.

    Of the newest step before everything died, nobody need have told everything.
    """
    found = stretches(events)
    for number, (after, mine) in enumerate(found):
        is_last = number == len(found) - 1
        newest = max(committed_versions(mine), default=after)
        check(mine, samples_of, None if is_last else newest - 1, waits, after=after)
    return found[-1][1]


def losses(events: Iterable[Event]) -> dict[int, float]:
    """The loss of each committed step, summed over its replicas; without steps of which somebody died untold."""
    coordinates: dict[int, int] = {}
    told: dict[Version, dict[int, float]] = defaultdict(dict)
    members: dict[Version, set[int]] = defaultdict(set)
    for event, pid in with_pid(events):
        if event["event"] == "placed":
            coordinates[pid] = event["coordinate"]
        elif event["event"] == "contributed":
            members[version_of(event)].add(pid)
        elif event["event"] == "committed" and "loss" in event:
            told[version_of(event)][pid] = event["loss"]
    last = max(coordinates.values())
    found = {}
    for version, parts in told.items():
        mine = {pid: loss for pid, loss in parts.items() if coordinates[pid] == last}  # others may know it, too
        if mine and mine.keys() == {pid for pid in members[version] if coordinates[pid] == last}:
            found[version[1]] = sum(mine.values())
    return found


def of(events: Iterable[Event], *kinds: str) -> Iterable[Event]:
    """The events of some kinds."""
    return (event for event in events if event["event"] in kinds)


def with_pid(events: Iterable[Event]) -> Iterable[tuple[Event, int]]:
    """Events of workers, each with the process id of the incarnation that it is about."""
    pids: dict[str, int] = {}
    for event in events:
        if event["event"] == "attached":
            pids[event["worker"]] = event["pid"]
        if event["worker"] in pids:
            yield event, pids[event["worker"]]


def version_of(event: Event) -> Version:
    """The version that an event is about."""
    generation, step = event["version"]
    return generation, step


def committed_versions(events: Iterable[Event]) -> dict[int, set[Version]]:
    """The versions in which each step was committed by anybody."""
    versions: dict[int, set[Version]] = defaultdict(set)
    for event in of(events, "committed"):
        versions[event["step"]].add(version_of(event))
    return versions
