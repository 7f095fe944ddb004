"""An example as its users run it, but for how long, and for what it tells: train_example.py --orders FOLDER NAME WORDS…

It trains until the test says when to stop, fails where the test says, and tells a hash of its state with each step.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.faults.following import Orders

from reknit.runtime.attempt import Attempt
from reknit.runtime.job import Job

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"


class Until:
    """The number of steps, as the test has it: `step < Until(orders)`."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def __gt__(self, step: int) -> bool:
        return self._orders.go_on(step)


def load(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, EXAMPLES / name)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tell_the_state() -> None:
    """Before each commit: so it is the state after the step before."""
    commit = Attempt.commit

    def told(attempt: Attempt, *arguments: Any, **keywords: Any) -> None:
        job = attempt._job
        job.log(state=int(job.state.digest()[:12], 16))  # 48 bits: a float holds them exactly
        commit(attempt, *arguments, **keywords)

    setattr(Attempt, "commit", told)  # noqa: B010


def obey(orders: Orders) -> None:
    """Put the faults into what the example registers as `model` and `optimizer`."""
    register = Job.register

    def registered(job: Job, **objects: Any) -> None:
        register(job, **objects)
        orders.obey(job, objects["model"], objects["optimizer"])

    setattr(Job, "register", registered)  # noqa: B010


def main() -> None:
    """Run it."""
    place = sys.argv.index("--orders")
    words = sys.argv[1:place] + sys.argv[place + 2 :]
    sys.argv[1:] = sys.argv[place : place + 2]
    orders = Orders()
    example = load(words[0])
    arguments = example.parse(words[1:])
    arguments.steps = Until(orders)
    tell_the_state()
    obey(orders)
    example.main(arguments)


if __name__ == "__main__":
    main()
