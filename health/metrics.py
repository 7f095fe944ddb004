"""The agent's Prometheus metrics, and the only importer of prometheus_client.

Workers never export anything themselves: they tell the agent, which owns the one registry of this host's part of the
job. Label `training_job`, since `job` is Prometheus' own.

The numbers are kept here, not in the client's own objects: so a scrape shows one moment, a worker that has left takes
its series with it, and whoever has numbers of its own is asked for them only then.  What there is, `families` lists.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from reknit.health.families import BUCKETS, BY_NAME, COUNTER, FAMILIES, HISTOGRAM, PREFIX, Family, Sample

log = logging.getLogger("reknit.agent")


Source = Callable[[], Iterable[Sample]]


class Distribution:
    """How often seconds fell into each bucket, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bound and count, cumulative, as the exposition wants them."""
        total, found = 0, []
        for bound, count in zip([*map(_bound, BUCKETS), "+Inf"], self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


def _bound(seconds: float) -> str:
    return str(float(seconds))


class Metrics:
    """What this agent exports; the constructor opens nothing.  All methods may be called from any thread.

    Names are those of `families`; another name, or a wrong number of labels, is a KeyError or ValueError.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._numbers: dict[str, dict[tuple[str, ...], float]] = {}
        self._distributions: dict[str, dict[tuple[str, ...], Distribution]] = {}
        self._sources: list[Source] = []
        self._failed: list[Source] = []
        self.registry = CollectorRegistry()
        self.registry.register(self)
        for family in FAMILIES:
            for labels in family.always:
                if family.kind == HISTOGRAM:
                    self._distributions.setdefault(family.name, {})[labels] = Distribution()
                else:
                    self._numbers.setdefault(family.name, {})[labels] = 0.0

    # ---------------------------------------------------------------- what is known

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """A counter grows."""
        _check(BY_NAME[name], labels)
        with self._lock:
            numbers = self._numbers.setdefault(name, {})
            numbers[labels] = numbers.get(labels, 0.0) + by

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        """A histogram sees one more."""
        _check(BY_NAME[name], labels)
        with self._lock:
            self._distributions.setdefault(name, {}).setdefault(labels, Distribution()).add(seconds)

    def forget(self, worker: str) -> None:
        """A worker has gone for good: its series go."""
        with self._lock:
            for name, numbers in self._numbers.items():
                if "worker" in BY_NAME[name].labels:
                    position = BY_NAME[name].labels.index("worker")
                    self._numbers[name] = {k: v for k, v in numbers.items() if k[position] != worker}

    def ask(self, source: Source) -> None:
        """At each scrape ask `source` for its numbers, which are gauges, or counters that are kept elsewhere."""
        self._sources.append(source)

    # ---------------------------------------------------------------- what is told

    def exposition(self) -> bytes:
        """All that is exported now, in Prometheus' text format (version 0.0.4)."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """As prometheus_client asks a collector."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for source in self._sources:
            for sample in self._asked(source):
                found.setdefault(sample.name, {})[sample.labels] = float(sample.value)
        with self._lock:
            for name, numbers in self._numbers.items():
                found[name] = {**numbers, **found.get(name, {})}
            metrics = [self._metric(family, found.get(family.name, {})) for family in FAMILIES]
        yield from (metric for metric in metrics if metric.samples)

    def describe(self) -> Iterator[Metric]:
        """As prometheus_client asks a collector: so it is not scraped to be registered."""
        yield from (_empty(family, ["training_job", *family.labels]) for family in FAMILIES)

    def _asked(self, source: Source) -> list[Sample]:
        """What a source tells; one that fails takes nothing but its own numbers away."""
        try:
            samples = list(source())
            for sample in samples:
                _check(BY_NAME[sample.name], sample.labels)
            return samples
        except Exception:
            if source not in self._failed:
                log.exception("some metrics cannot be told")
                self._failed.append(source)
            return []

    def _metric(self, family: Family, numbers: dict[tuple[str, ...], float]) -> Metric:
        made = _empty(family, ["training_job", *family.labels])
        for labels, seconds in sorted(self._distributions.get(family.name, {}).items()):
            made.add_metric([self._job, *labels], seconds.buckets(), seconds.sum)
        for labels, value in sorted(numbers.items()):
            made.add_metric([self._job, *labels], value)
        metric: Metric = made
        return metric


def _empty(family: Family, labels: list[str]) -> Any:
    kind = {COUNTER: CounterMetricFamily, HISTOGRAM: HistogramMetricFamily}.get(family.kind, GaugeMetricFamily)
    return kind(PREFIX + family.name, family.text, labels=labels)


def _check(family: Family, labels: tuple[str, ...]) -> None:
    if len(labels) != len(family.labels):
        raise ValueError(f"{family.full_name} has the labels {family.labels}, not {labels}")
