"""The agent's Prometheus metrics, and the only importer of prometheus_client.

Workers never export anything themselves: they tell the agent, which owns the one registry of this host's part of the
job. Label `training_job`, since `job` is Prometheus' own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """What this agent exports; opens nothing: `http` serves it."""

    def __init__(self, job: str) -> None:
        self.registry = CollectorRegistry()
        names = ("training_job",)

        def labelled(kind: Any, name: str, text: str, more: tuple[str, ...] = (), **options: Any) -> Any:
            return kind(f"reknit_{name}", text, (*names, *more), registry=self.registry, **options)

        self._job = job
        self._generation = labelled(Gauge, "generation", "Number of the newest plan").labels(job)
        self._replicas = labelled(Gauge, "replicas", "Replicas in the newest plan").labels(job)
        self._step = labelled(Gauge, "worker_step", "Newest step that a worker of this agent committed", ("worker",))
        self._committed = labelled(Counter, "steps_committed", "Steps committed by workers of this agent", ("worker",))
        self._retried = labelled(Counter, "steps_retried", "Attempts that a membership change ended", ("worker",))
        self._healed = labelled(Counter, "heal_bytes", "Bytes of state that workers received from peers").labels(job)
        self._checkpoints = labelled(Counter, "checkpoints", "Checkpoints that a worker here completed").labels(job)
        self._failed = labelled(
            Counter, "checkpoints_failed", "Parts of checkpoints that workers here could not write or restore"
        ).labels(job)
        self._reinit = labelled(
            Histogram, "reinit_seconds", "From the notice of a change to rebuilt groups", buckets=SECONDS
        ).labels(job)

    def exposition(self) -> bytes:
        """All that is exported now, in Prometheus' text format (version 0.0.4)."""
        return generate_latest(self.registry)

    def see_plan(self, generation: int, replicas: int, state: str) -> None:
        """A plan was published."""
        self._generation.set(generation)
        self._replicas.set(replicas)

    def observe(self, event: str, worker: str, generation: int, fields: Mapping[str, Any]) -> None:
        """A worker of this agent told of an event; fields that do not fit are not counted."""
        match event:
            case "committed":
                self._committed.labels(self._job, worker).inc()
                if (step := _amount(fields.get("step"))) is not None:
                    self._step.labels(self._job, worker).set(step)
            case "retried":
                self._retried.labels(self._job, worker).inc()
            case "reinit_done":
                if (seconds := _amount(fields.get("seconds"))) is not None:
                    self._reinit.observe(seconds)
            case "healed":
                if (count := _amount(fields.get("bytes"))) is not None:
                    self._healed.inc(count)
            case "checkpoint":
                self._checkpoints.inc(fields.get("complete") is True)
            case "checkpoint_failed":
                self._failed.inc()
            case _:
                pass


def _amount(value: Any) -> float | None:
    """A finite number from 0 that a metric can take; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 2**62 and math.isfinite(value) else None
