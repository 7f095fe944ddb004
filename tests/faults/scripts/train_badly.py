"""A training script with a mistake, chosen by its first argument."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

mistake = sys.argv.pop()
if mistake == "before join":
    raise KeyError("no such setting: width")
if mistake == "no join":
    print("trained alone")
    sys.exit()

from tests.faults import problem  # noqa: E402
from tests.faults.following import Orders  # noqa: E402
from torch.nn import functional  # noqa: E402

import reknit  # noqa: E402

orders = Orders()
points, answers = problem.dataset()
job = reknit.join()
model = job.data_parallel(problem.part(0))
optimizer, scheduler = problem.optimizer_of(model)
data = job.sampler(problem.LENGTH, problem.GLOBAL_BATCH, problem.MICRO_BATCH, seed=problem.SEED)
job.register(model=model, optimizer=optimizer, scheduler=scheduler)


class TheirOwn(RuntimeError):
    """What the script itself raises."""


@contextmanager
def seen() -> Iterator[None]:
    try:
        yield
    except TheirOwn as error:
        print("it is unchanged" if error is made and error.__cause__ is None else f"it became {error!r}", flush=True)
        raise


made = TheirOwn("loss is not a number")
while orders.go_on(job.step):
    with seen(), job.attempt() as attempt:
        for shard in data.shards(job.step):
            # Who was started anew makes the mistake again, or not.
            if job.step >= 5 and (mistake == "in every attempt" or orders.first("mistake")):
                raise SystemExit(0) if mistake == "leaves" else made
            loss = functional.mse_loss(model(points[shard]), answers[shard].repeat(1, 8)) * shard.weight
            loss.backward()
        attempt.commit(optimizer, scheduler)
