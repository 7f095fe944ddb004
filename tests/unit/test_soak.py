"""The pure parts of the soak: what is added to the evidence, gaps, and growth."""

from __future__ import annotations

from typing import Any

import pytest
from tests.faults import invariants
from tests.soak.acts import change_of_death
from tests.soak.evidence import Clean, commits_of, complete, disturbances, gap_of, wrong_returns
from tests.soak.footprints import LONG_SECONDS, SETTLED_SECONDS, Footprint, Growth, complaints, growth_of
from tests.soak.program import ACTS_SECONDS, CHAOS, EVERYTHING, HOST, PAIR, WORKER, program

MICRO_BATCH = 2


def samples_of(step: int) -> tuple[int, ...]:
    """Four micro-batches of two samples."""
    return tuple(range(8 * step, 8 * step + 8))


def event(t: float, name: str, worker: str, generation: int, **fields: Any) -> dict[str, Any]:
    return {"t": t, "event": name, "worker": worker, "generation": generation, "run": worker[0], **fields}


def story() -> list[dict[str, Any]]:
    """Two replicas of one stage, a in slot 0 and b in slot 2; b's node is killed before it tells what it put in."""
    events = [event(0.5, "attached", "a", 0, pid=1), event(0.5, "attached", "b", 0, pid=2)]
    events += [event(1.0, "placed", w, 1, replica=r, coordinate=0, formation=w) for w, r in (("a", 0), ("b", 2))]
    events += [
        event(1.1, "reinit_done", w, 1, formation=w, group=f"{pid}.1", step=0) for w, pid in (("a", 1), ("b", 2))
    ]
    events += [
        event(1.5, "contributed", "a", 1, version=[1, 1], step=1, samples=list(range(4))),
        event(2.1, "committed", "a", 1, version=[1, 1], step=1),
        event(2.4, "plan", "a", 2, reason="r", state="running", replicas=1),
        event(2.5, "placed", "a", 2, replica=0, coordinate=0, formation="a"),
        event(2.6, "reinit_done", "a", 2, formation="a", group="1.1", step=1),
        event(2.8, "contributed", "a", 2, version=[2, 2], step=2, samples=list(range(8, 16))),
        event(3.0, "committed", "a", 2, version=[2, 2], step=2),
    ]
    return events


STRIKE = {"t": 2.0, "kind": "node", "agent": "b", "workers": {"b": 2}, "generation": 1}


def test_what_a_killed_node_could_not_tell_is_added_and_nothing_else() -> None:
    with pytest.raises(AssertionError, match=r"missing \[4, 5, 6, 7\]"):
        invariants.every_sample_once(story(), samples_of)
    whole = complete(story(), [STRIKE], samples_of, MICRO_BATCH)
    invariants.check(whole, samples_of)
    added = [e for e in whole if e not in story()]
    assert [(e["event"], e["worker"], e["t"]) for e in added] == [("worker_died", "b", 2.0), ("contributed", "b", 2.0)]


def test_a_sample_that_nobody_used_is_still_found() -> None:
    events = [e if e["event"] != "contributed" or e["step"] != 2 else {**e, "samples": [8]} for e in story()]
    with pytest.raises(AssertionError, match="step 2"):
        invariants.check(complete(events, [STRIKE], samples_of, MICRO_BATCH), samples_of)
    of_a_worker = {**STRIKE, "kind": "kill"}  # whose agent lives, and would have told
    with pytest.raises(AssertionError, match="missing"):
        invariants.check(complete(story(), [of_a_worker], samples_of, MICRO_BATCH), samples_of)


def test_a_victim_is_dead_from_the_strike_on() -> None:
    later = event(9.0, "worker_died", "b", 2, pid=2, cause="SIGKILL")
    deaths = [e for e in complete([*story(), later], [STRIKE], samples_of, MICRO_BATCH) if e["event"] == "worker_died"]
    assert [(e["t"], e["pid"]) for e in deaths] == [(2.0, 2)]


def test_a_gap_ends_with_a_commit_of_a_newer_generation() -> None:
    commits = commits_of(story())
    assert gap_of(STRIKE, commits) == pytest.approx(1.0)
    assert gap_of({**STRIKE, "t": 3.1}, commits) is None


def seen(seconds: int, growing: float, descriptors: int = 10) -> list[Footprint]:
    """A look each second; now and then there are a few descriptors more, or less."""
    return [Footprint(100.0 + s, 200 + growing * s, descriptors + 5 * (s % 3 - 1), 4) for s in range(seconds)]


def test_growth_is_judged_after_a_while_and_only_of_long_lives() -> None:
    long = int(SETTLED_SECONDS + LONG_SECONDS) + 2
    assert growth_of("worker", 1, seen(long - 4, 1.0)) is None
    assert growth_of("worker", 1, []) is None
    growth = growth_of("worker", 1, [Footprint(99.0, 5, 3, 1), *seen(long, 0.5)])
    assert growth is not None
    assert (growth.descriptors, growth.threads) == (0, 0)
    assert growth.memory == pytest.approx(0.5 * LONG_SECONDS * 2 / 3, rel=0.25)
    assert complaints([growth], 32.0, 4, 4) == []
    (sentence,) = complaints([growth, Growth("agent", 7, 80.0, 1.0, 9, 0)], 32.0, 4, 4)
    assert sentence == "the agent 7 grew in 80 s by 1.0 MB, 9 descriptors, 0 threads"


# ---------------------------------------------------------------- back to a checkpoint

DEATH = {"t": 3.5, "kind": "all", "agent": "", "workers": {"a": 1}, "generation": 2, "step": 1}


def life_after(step: int) -> list[dict[str, Any]]:
    """As `story` ends everything dies; a fresh worker goes on from the checkpoint of `step` and makes one step more."""
    place = {"replica": 0, "coordinate": 0, "formation": "c"}
    return [
        event(4.0, "attached", "c", 0, pid=3),
        event(4.1, "plan", "c", 3, reason="again", state="running", replicas=1),
        event(4.2, "placed", "c", 3, **place),
        event(4.3, "restored", "c", 3, step=step),
        event(4.4, "reinit_done", "c", 3, formation="c", group="3.1", step=step),
        event(4.5, "contributed", "c", 3, version=[3, step + 1], step=step + 1, samples=list(samples_of(step))),
        event(4.6, "committed", "c", 3, version=[3, step + 1], step=step + 1, state=7.0),
    ]


def test_between_two_checkpoints_nobody_goes_back() -> None:
    whole = complete([*story(), *life_after(1)], [STRIKE, DEATH], samples_of, MICRO_BATCH)
    with pytest.raises(AssertionError, match=r"step 2 was committed in versions"):
        invariants.check(whole, samples_of)
    first, second = invariants.stretches(whole)
    assert (first[0], second[0]) == (0, 1)
    assert {e["generation"] for e in first[1]} == {0, 1, 2}
    assert {e["generation"] for e in second[1] if e["event"] != "attached"} == {3}
    assert invariants.check_stretches(whole, samples_of) == second[1]


def test_a_step_that_goes_back_further_than_the_checkpoint_is_found() -> None:
    bad = [{**e, "step": 0} if e["event"] == "reinit_done" else e for e in life_after(1)]
    bad += [event(4.7, "plan", "c", 4, reason="r", state="running", replicas=1)]
    bad += [event(4.8, "reinit_done", "c", 4, formation="c", group="3.1", step=1)]  # and step 2 was committed in 3
    whole = complete([*story(), *bad], [STRIKE, DEATH], samples_of, MICRO_BATCH)
    with pytest.raises(AssertionError, match="generation 4 at step 1, but 2 was committed"):
        invariants.check_stretches(whole, samples_of)


def test_a_generation_does_not_go_on_from_two_checkpoints() -> None:
    with pytest.raises(AssertionError, match="steps 1 and 0"):
        invariants.stretches([*life_after(1), event(4.35, "restored", "d", 3, step=0)])


def test_the_job_goes_back_only_when_everything_has_died_and_to_the_newest_checkpoint() -> None:
    assert wrong_returns([*story(), *life_after(1)], [STRIKE, DEATH]) == []
    (late,) = wrong_returns([*story(), *life_after(1)], [{**DEATH, "step": 2}])
    assert late == "everything died with a checkpoint of step 2, but the job went on from 1"
    (never,) = wrong_returns(story(), [DEATH])
    assert never.endswith("went on from None")
    assert wrong_returns(life_after(1), [STRIKE]) == ["the job went back to step 1 in generation 3"]


def test_a_generation_that_broke_before_its_first_step_is_begun_again() -> None:
    again = [event(4.9, "restored", "c", 4, step=1)]
    before = [e for e in life_after(1) if e["event"] != "committed"]
    assert wrong_returns([*story(), *before, *again], [DEATH]) == []
    assert wrong_returns([*story(), *life_after(1), *again], [DEATH]) == ["the job went back to step 1 in generation 4"]


def test_a_planned_change_disturbs_nobody() -> None:
    retried = event(2.5, "retried", "a", 2, step=2, reason="r")
    assert disturbances([*story(), retried], [Clean(0.0, 2.4, "x drained")]) == []
    assert disturbances([*story(), retried], [Clean(2.4, 2.6, "x drained")]) == [
        "x drained, and meanwhile there was: retried of a"
    ]


# ---------------------------------------------------------------- what happens when


def test_ten_minutes_hold_every_kind_of_act_and_the_end_of_everything_twice() -> None:
    acts = program(10, 3, seed=0)
    counts = {kind: sum(act.kind == kind for act in acts) for kind in (HOST, WORKER, PAIR, EVERYTHING, CHAOS)}
    assert counts == {HOST: 4, WORKER: 4, PAIR: 4, EVERYTHING: 2, CHAOS: 4}
    assert sum(act.seconds for act in acts) == pytest.approx(600 - 4 * ACTS_SECONDS)
    assert all(sorted(act.nodes) == [0, 1, 2] for act in acts)
    assert len({act.nodes for act in acts}) > 3, "nodes take turns"
    assert acts == program(10, 3, seed=0)
    assert acts != program(10, 3, seed=1)


def test_a_minute_holds_one_of_each() -> None:
    assert sorted(act.kind for act in program(1, 3, seed=0)) == sorted((HOST, WORKER, PAIR, EVERYTHING, CHAOS))


def test_the_change_in_which_somebody_died_is_the_newest_plan_before() -> None:
    plans = [event(t, "plan", "a", g, urgent=g == 3) for t, g in ((1.0, 1), (2.0, 2), (3.0, 3))]
    death = event(2.5, "worker_died", "b", 2, pid=2)
    events = [event(0.5, "worker_died", "b", 0, pid=1), *plans, death]
    assert change_of_death(events, "b", 1) == plans[1]
    assert change_of_death(events, "a", 1) is None
    assert change_of_death(events, "b", 5) is None
