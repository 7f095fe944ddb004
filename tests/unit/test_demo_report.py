"""The demo's report tells what happened, and every way in which events can be wrong makes it fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.demo_story import GLOBAL_BATCH, STEPS, VICTIM, expected, write_story

from reknit.runtime.demo.report import Report, find_problems, make_report
from reknit.runtime.demo.story import Event, Reader, follow


def report_on(events: list[Event]) -> Report:
    return make_report(events, STEPS, expected)


def problems_of(events: list[Event], kills: int = 1) -> list[str]:
    return find_problems(report_on(events), STEPS, kills, replicas=3, workers=6)


def find(events: list[Event], event: str, worker: str, step: int | None = None, generation: int | None = None) -> Event:
    """The only event like that."""
    (found,) = [
        line
        for line in events
        if (line["event"], line["worker"]) == (event, worker)
        and step in (None, line.get("step"))
        and generation in (None, line["generation"])
    ]
    return found


def test_a_good_run_is_told_as_it_was() -> None:
    report = report_on(write_story())
    assert report == {
        "steps": STEPS,
        "seconds": pytest.approx(0.2 + 0.3 + 0.05 + 0.02 + 0.2 + 0.03 + 0.4),
        "loss_first": 3.0,
        "loss_last": pytest.approx(3 / STEPS),
        "step_ms": {"median": pytest.approx(100)},
        "faults": [
            {
                "kind": "SIGKILL",
                "worker": VICTIM,
                "step": 3,
                "generation_before": 1,
                "generation_after": 2,
                "gap_ms": pytest.approx(50 + 20 + 100),
                "reinit_ms": 20,
                "full_strength_ms": pytest.approx(20 + 2 * 100 + 30 + 100),
            }
        ],
        "gap_ms": {"median": pytest.approx(170), "max": pytest.approx(170)},
        "samples": {"expected": STEPS * GLOBAL_BATCH, "committed": STEPS * GLOBAL_BATCH, "missing": 0, "repeated": 0},
        "replicas_identical": True,
        "state_sha256": {"0.0": "hash-0", "1.0": "hash-1"},
        "intact": {"checked": 2 * 4, "violations": 0},
        "leaks": {"fds": 0, "threads": 0},
    }
    assert problems_of(write_story()) == []


def test_a_victim_that_had_contributed_to_a_committed_step_counts_as_having_consumed_its_samples() -> None:
    report = report_on(write_story(killed_after_vote=True))
    assert report["samples"]["missing"] == report["samples"]["repeated"] == 0
    # The survivors' last step of the old generation came after the kill: the gap begins there.
    assert report["faults"][0]["gap_ms"] == pytest.approx(20 + 100)


def test_work_that_was_never_committed_does_not_count() -> None:
    events = write_story()
    for line in [line for line in events if line["event"] == "contributed" and line["step"] == 4]:
        events.append({**line, "generation": 1, "version": [1, 4]})
    assert problems_of(events) == []


def test_a_rolled_forward_step_counts_once_and_does_not_end_the_gap() -> None:
    events = write_story(killed_after_vote=True)
    late = find(events, "committed", "worker-0", step=4)
    begins = find(events, "reinit_done", "worker-0", generation=2)
    late.update(generation=2, rolled_forward=True, t=begins["t"])
    report = report_on(events)
    assert find_problems(report, STEPS, 1, 3, 6) == []
    # Worker 0 made no step between its third and its fifth: 100 ms lost in step 4, 20 ms of reinit, 100 ms for step 5.
    assert report["faults"][0]["gap_ms"] == pytest.approx(220)


Doctor = Callable[[list[Event]], None]


def lose_a_sample(events: list[Event]) -> None:
    for worker in ("worker-0", "worker-1"):
        for event in ("contributed", "committed"):
            find(events, event, worker, step=2)["samples"].pop()


def repeat_a_sample(events: list[Event]) -> None:
    for worker in ("worker-0", "worker-1"):
        for event in ("contributed", "committed"):
            find(events, event, worker, step=5)["samples"].append(24)


def use_a_foreign_sample(events: list[Event]) -> None:
    for worker in ("worker-0", "worker-1"):
        for event in ("contributed", "committed"):
            find(events, event, worker, step=5)["samples"][0] = 777


def commit_a_step_twice(events: list[Event]) -> None:
    fourth = [line for line in events if line["event"] == "committed" and line["step"] == 4]
    events.extend({**line, "generation": 3, "version": [3, 4]} for line in fourth)


def let_stages_disagree(events: list[Event]) -> None:
    for event in ("contributed", "committed"):
        mine, other = find(events, event, "worker-1", step=2), find(events, event, "worker-5", step=2)
        mine["samples"], other["samples"] = other["samples"], mine["samples"]


def contradict_oneself(events: list[Event]) -> None:
    find(events, "committed", "worker-0", step=2)["samples"] = [6, 8]


def forget_a_worker(events: list[Event]) -> None:
    for event in ("contributed", "committed"):
        events.remove(find(events, event, "worker-4", step=2))


def end_early(events: list[Event]) -> None:
    events[:] = [line for line in events if not ("version" in line and line["step"] == STEPS)]


def differ_in_state(events: list[Event]) -> None:
    find(events, "finished", "worker-3")["state_sha256"] = "hash-9"


def keep_silent_about_state(events: list[Event]) -> None:
    events.remove(find(events, "finished", "worker-3"))


def finish_elsewhere(events: list[Event]) -> None:
    find(events, "finished", "worker-3").update(coordinate="0.0", state_sha256="hash-0")


def change_a_process(events: list[Event]) -> None:
    began = events.index(find(events, "reinit_done", "worker-4", generation=2))
    events.insert(began, {**events[began], "event": "worker_started", "pid": 999})


def change_a_formation(events: list[Event]) -> None:
    find(events, "reinit_done", "worker-4", generation=3)["formation"] = "2@3"


def change_a_group(events: list[Event]) -> None:
    find(events, "reinit_done", "worker-5", generation=2)["group"] = "105.2"


def drop_an_intact_worker(events: list[Event]) -> None:
    events.remove(find(events, "reinit_done", "worker-5", generation=3))


def leak_descriptors(events: list[Event]) -> None:
    find(events, "inspected", "worker-2", generation=3)["fds"] += 1


def leak_threads(events: list[Event]) -> None:
    find(events, "inspected", "worker-2", generation=3)["threads"] += 2


def inspect_nobody(events: list[Event]) -> None:
    events[:] = [line for line in events if line["event"] != "inspected"]


def never_be_back(events: list[Event]) -> None:
    events[:] = [
        line
        for line in events
        if not (line["event"] == "committed" and line["worker"] == "worker-3" and line["generation"] == 3)
    ]


def kill_nobody(events: list[Event]) -> None:
    events[:] = [line for line in events if line["event"] != "killed"]


@pytest.mark.parametrize(
    ("doctor", "problem"),
    [
        (lose_a_sample, "1 samples are missing"),
        (repeat_a_sample, "1 samples were used too often"),
        (use_a_foreign_sample, "1 samples are missing"),
        (use_a_foreign_sample, "1 samples were used too often"),
        (commit_a_step_twice, "6 samples were used too often"),
        (let_stages_disagree, "4 samples are missing"),
        (let_stages_disagree, "4 samples were used too often"),
        (contradict_oneself, "samples were used too often"),
        (forget_a_worker, "samples are missing"),
        (end_early, "the training made 8 of 9 steps"),
        (end_early, "6 samples are missing"),
        (differ_in_state, "identical"),
        (keep_silent_about_state, "identical"),
        (finish_elsewhere, "identical"),
        (change_a_process, "times a worker got another process"),
        (change_a_formation, "1 times a worker got another process, formation or group"),
        (change_a_group, "1 times a worker got another process, formation or group"),
        (drop_an_intact_worker, "1 times a worker got another process, formation or group"),
        (leak_descriptors, "1 more open descriptors"),
        (leak_threads, "2 more threads"),
        (inspect_nobody, "checked for leaks"),
        (never_be_back, "not back at full strength after 1 of 1 kills: worker-3 at step 3"),
        (kill_nobody, "only 0 of 1 kills"),
    ],
)
def test_whatever_is_wrong_is_found(doctor: Doctor, problem: str) -> None:
    events = write_story()
    doctor(events)
    problems = problems_of(events)
    assert any(problem in found for found in problems), problems


def test_closing_groups_are_not_taken_for_a_leak() -> None:
    events = write_story()
    settled = find(events, "inspected", "worker-2", generation=3)
    events.insert(events.index(settled), {**settled, "fds": settled["fds"] + 4, "threads": settled["threads"] + 4})
    assert report_on(events)["leaks"] == {"fds": 0, "threads": 0}


def test_a_run_that_never_began_is_reported_as_bad_without_failing() -> None:
    assert "the training made 0 of 9 steps" in problems_of([])
    assert report_on([])["samples"]["missing"] == STEPS * GLOBAL_BATCH


def test_the_reader_hands_out_whole_lines_once(tmp_path: Path) -> None:
    path = tmp_path / "events"
    reader = Reader(path)
    assert reader.read() == []
    path.write_bytes(b'{"event":"a","n":1}\n{"event":"b",')
    assert reader.read() == [{"event": "a", "n": 1}]
    assert reader.read() == []
    with path.open("ab") as file:
        file.write(b'"n":2}\ngarbage\n[1]\n{"event":"c"}\n')
    assert reader.read() == [{"event": "b", "n": 2}, {"event": "c"}]


def test_following_ends_after_everything_was_read(tmp_path: Path) -> None:
    path = tmp_path / "events"
    path.write_text("".join(json.dumps({"event": "e", "n": n}) + "\n" for n in range(3)))
    assert [event["n"] for event in follow(path, ended=lambda: True)] == [0, 1, 2]
