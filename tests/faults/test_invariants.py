"""The invariants themselves: a sound story passes, and each way to spoil it is noticed by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.faults import invariants
from tests.faults.invariants import Event

SAMPLES = {0: (1, 2), 1: (3, 4), 2: (5, 6)}


class Story:
    """Two replicas of one worker; `b` dies when both have prepared step 2; `a` rolls it forward and goes on alone."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        for pid, worker in enumerate("ab", start=1):
            self.tell("attached", worker, 0, pid=pid)
        self.plan(1, "a, b joined", 2, "ab")
        self.enter(1, 0, "ab")
        self.step(1, 1, "ab", SAMPLES[0])
        for worker, sample in zip("ab", SAMPLES[1], strict=True):
            self.tell("contributed", worker, 1, step=2, samples=[sample], version=[1, 2])
        self.tell("worker_died", "b", 1, pid=2)
        self.plan(2, "lost b", 1, "a")
        self.commit("a", 2, (1, 2), SAMPLES[1][:1], rolled_forward=True)
        self.enter(2, 2, "a")
        self.step(2, 3, "a", SAMPLES[2])
        self.tell("finished", "a", 2, step=3, coordinate="0.0", state_sha256="x")

    def tell(self, event: str, worker: str | None, generation: int, **fields: Any) -> None:
        t = float(len(self.events))
        line = {"t": t, "event": event, "worker": worker, "generation": generation, "run": "run", **fields}
        self.events.append(line)

    def plan(self, generation: int, reason: str, replicas: int, workers: str) -> None:
        self.tell("plan", None, generation, reason=reason, state="running", replicas=replicas)
        for slot, worker in enumerate(workers):
            self.tell("placed", worker, generation, replica=slot, coordinate=0, formation=f"{slot}@1")

    def enter(self, generation: int, step: int, workers: str) -> None:
        for slot, worker in enumerate(workers):
            group = f"{slot + 1}.1"
            self.tell("reinit_done", worker, generation, step=step, formation=f"{slot}@1", group=group, replica=slot)

    def step(self, generation: int, step: int, workers: str, samples: Sequence[int]) -> None:
        shares = [samples[i :: len(workers)] for i in range(len(workers))]
        for worker, share in zip(workers, shares, strict=True):
            self.tell("contributed", worker, generation, step=step, samples=list(share), version=[generation, step])
        for worker, share in zip(workers, shares, strict=True):
            self.commit(worker, generation, (generation, step), share)

    def commit(self, worker: str, generation: int, version: tuple[int, int], share: Sequence[int], **more: Any) -> None:
        more["state"] = float(version[1] - 1)
        self.tell(
            "committed",
            worker,
            generation,
            step=version[1],
            samples=list(share),
            version=list(version),
            **more,
        )

    def find(self, kind: str, **fields: Any) -> Event:
        return next(e for e in self.events if e["event"] == kind and all(e[k] == v for k, v in fields.items()))


def check(story: Story) -> None:
    invariants.check(story.events, SAMPLES.__getitem__)
    invariants.finished_alike(story.events, 3, 1)


def test_a_sound_story_passes() -> None:
    check(Story())


def spoil(kind: str, **spoilt: Any) -> Callable[[Story], None]:
    """Change the last event of a kind."""
    return lambda story: [e for e in story.events if e["event"] == kind][-1].update(spoilt)


def second_plan(story: Story) -> None:
    story.plan(2, "lost b and a", 0, "")


def back_to_an_old_generation(story: Story) -> None:
    story.enter(1, 3, "a")


def in_two_versions(story: Story) -> None:
    story.find("contributed", step=3)["version"] = [1, 3]
    story.find("committed", step=3)["version"] = [1, 3]
    story.step(2, 3, "a", SAMPLES[2])


def lost_contribution(story: Story) -> None:
    story.events.remove(story.find("contributed", worker="b", step=2))


def other_group(story: Story) -> None:
    story.find("reinit_done", generation=2)["group"] = "1.2"


def other_formation(story: Story) -> None:
    story.find("placed", generation=2)["formation"] = "0@2"


def other_state(story: Story) -> None:
    story.find("committed", worker="b", step=1)["state"] = 7.0


def step_back(story: Story) -> None:
    story.find("reinit_done", generation=2)["step"] = 1


def long_wait(story: Story) -> None:
    for event in story.events[story.events.index(story.find("plan", generation=2)) :]:
        event["t"] += 60


def two_ends(story: Story) -> None:
    story.tell("finished", "a", 2, step=3, coordinate="0.0", state_sha256="y")


@pytest.mark.parametrize(
    ("spoiling", "what"),
    [
        (second_plan, "two plans for generation 2|saw generation 2 after 2"),
        (back_to_an_old_generation, "went back to generation 1"),
        (in_two_versions, "acted in 1 while in 2"),
        (lost_contribution, r"step 2 .* missing \[4\]"),
        (spoil("contributed", samples=[5, 5, 6]), r"step 3 .* repeated \[5\]"),
        (other_group, "had group 1.1, and then 1.2"),
        (other_formation, "0@1 lost nobody"),
        (other_state, "different states"),
        (step_back, "entered generation 2 at step 1, but 2 was committed"),
        (spoil("committed", step=5, version=[2, 5]), "went from step 2|step 3"),
        (long_wait, "nothing was committed for"),
        (two_ends, "2 ends of 1 workers"),
    ],
)
def test_a_spoilt_story_is_noticed(spoiling: Callable[[Story], None], what: str) -> None:
    story = Story()
    spoiling(story)
    with pytest.raises(AssertionError, match=what):
        check(story)
