"""What an agent exports, as Prometheus' own parser reads it: all of METRICS.md, and nothing else."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reknit.health.families import BUCKETS, CAUSES, COUNTER, FAMILIES, HISTOGRAM, Sample
from reknit.health.metrics import Metrics
from reknit.health.recording import KEPT_SECONDS, Recording

TABLE = Path(__file__).resolve().parents[2] / "health" / "METRICS.md"

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(metrics: Metrics) -> Series:
    """Every sample by name and labels; each belongs to the job."""
    found: Series = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("training_job") == "gpt"
            key = (sample.name, frozenset(labels.items()))
            assert key not in found, "a series stands there twice"
            found[key] = sample.value
    return found


class Host:
    """An agent's recording, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.staying: set[str] = set()
        self.metrics = Metrics("gpt")
        self.recording = Recording(self.metrics, self.staying.__contains__, lambda: self.now, lambda: self.now + 1e9)

    def tell(self, event: str, worker: str = "w0", generation: int = 1, **fields: Any) -> None:
        self.recording.told(event, worker, generation, fields, self.now)

    def commit(self, step: int, generation: int = 1, worker: str = "w0", **fields: Any) -> None:
        self.tell("committed", worker, generation, step=step, **fields)

    def join(self, worker: str = "w0", pid: int = 7) -> None:
        """A worker that comes to its first generation at once."""
        self.recording.attached(worker, pid, False, self.now)
        self.recording.built(worker, self.now)
        self.recording.placed(worker, True, False, self.now)
        self.tell("reinit_done", worker)

    def get(self, name: str, /, **labels: str) -> float | None:
        return series(self.metrics).get((name, frozenset(labels.items())))

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for found, labels in series(self.metrics) if found == name]


@pytest.fixture
def host() -> Host:
    return Host()


# ---------------------------------------------------------------- the table


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*)\| \S.* \|$", TABLE.read_text(), re.MULTILINE)
    assert len(rows) == len({name for name, _, _ in rows})
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_the_table_lists_what_there_is() -> None:
    assert documented() == {family.full_name: (family.kind, frozenset(family.labels)) for family in FAMILIES}


def test_names_are_as_prometheus_wants_them() -> None:
    for family in FAMILIES:
        assert family.full_name.endswith("_total") == (family.kind == COUNTER), family
        assert (family.kind != HISTOGRAM) or family.name.endswith("_seconds"), family
        assert family.text
        assert not family.text.endswith("."), family
        assert "le" not in family.labels, family


def test_every_vocabulary_is_in_the_table() -> None:
    text = TABLE.read_text()
    for family in FAMILIES:
        for values in family.always:
            for value in values:
                assert f"`{value}`" in text or f'"{value}"' in text, (family.name, value)
    for cause in CAUSES:
        assert f"`{cause}`" in text


def test_what_is_counted_from_the_first_stands_there_as_zero(host: Host) -> None:
    found = series(host.metrics)
    for family in FAMILIES:
        for values in family.always:
            labels = frozenset(zip(family.labels, values, strict=True))
            suffix = "_count" if family.kind == HISTOGRAM else ""
            assert found[family.full_name + suffix, labels] == 0


# ---------------------------------------------------------------- the container


def test_a_histogram_counts_up_to_each_bound(host: Host) -> None:
    for seconds in (0.001, 0.0011, 4000.0):
        host.metrics.observe("heal_seconds", seconds)
    counts = {
        labels["le"]: host.get("reknit_heal_seconds_bucket", **labels)
        for labels in host.labels("reknit_heal_seconds_bucket")
    }
    assert len(counts) == len(BUCKETS) + 1
    assert (counts["0.001"], counts["0.002"], counts["3600.0"], counts["+Inf"]) == (1, 2, 2, 3)
    assert host.get("reknit_heal_seconds_sum") == pytest.approx(4000.0021)


def test_an_unknown_metric_or_a_label_too_many_is_a_mistake_of_the_caller(host: Host) -> None:
    with pytest.raises(KeyError):
        host.metrics.count("nonsense")
    with pytest.raises(ValueError, match="labels"):
        host.metrics.count("heal_bytes", "w0")


def test_a_source_that_fails_takes_only_its_own_numbers_away_and_is_logged_once(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Iterator[Sample]:
        yield Sample("leader", (), 1)
        raise RuntimeError("no")

    def wrong() -> Iterable[Sample]:
        return [Sample("leader", ("label",), 1)]

    host.metrics.ask(broken)
    host.metrics.ask(wrong)
    host.metrics.ask(lambda: [Sample("etcd_connected", (), 1)])
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert host.get("reknit_leader") is None
            assert host.get("reknit_etcd_connected") == 1
    assert len(caplog.records) == 2


def test_label_values_may_hold_anything(host: Host) -> None:
    nasty = 'a"b\\c\nd{}é'
    host.metrics.count("steps_committed", nasty)
    assert host.get("reknit_steps_committed_total", worker=nasty) == 1


# ---------------------------------------------------------------- workers


def test_a_workers_steps_and_its_time(host: Host) -> None:
    host.recording.happened("worker_started", "w0", {"pid": 7}, 98.0)
    host.recording.attached("w0", 7, False, 100.0)
    assert host.get("reknit_worker_phase", worker="w0", phase="wait") == 1
    host.now = 102.0
    host.recording.assigned("w0", 102.0)
    assert host.get("reknit_worker_phase", worker="w0", phase="start") == 1
    host.now = 103.0
    host.recording.built("w0", 103.0)
    host.recording.placed("w0", True, False, 103.0)
    host.now = 104.0
    host.tell("reinit_done")
    for step in (1, 2, 3):
        host.now += 2.0
        host.commit(step, timing={"own": 1.0, "wait": 0.5, "slowdown": 1.25, "slowest": ["w9", 1.3, 0.1]})
    host.now += 1.0
    assert host.get("reknit_worker_up", worker="w0") == 1
    assert host.get("reknit_worker_placed", worker="w0") == 1
    assert host.get("reknit_worker_step", worker="w0") == 3
    assert host.get("reknit_steps_committed_total", worker="w0") == 3
    assert host.get("reknit_worker_last_commit_timestamp_seconds", worker="w0") == 1e9 + 110
    assert host.get("reknit_worker_slowdown_ratio", worker="w0") == 1.25
    assert host.get("reknit_productive_seconds_total", worker="w0") == 6
    assert host.get("reknit_lost_seconds_total", worker="w0", cause="start") == 3
    assert host.get("reknit_lost_seconds_total", worker="w0", cause="wait") == 2
    assert host.get("reknit_lost_seconds_total", worker="w0", cause="reinit") == 1
    assert host.get("reknit_step_seconds_count") == 2
    assert host.get("reknit_reduce_wait_seconds_sum") == 1.5
    assert host.labels("reknit_worker_phase") == [{"worker": "w0", "phase": "training"}]
    assert host.get("reknit_worker_phase_seconds", worker="w0") == 1
    assert host.recording.totals() == (6, 6)


def test_a_reinit_by_phase_and_the_gap_that_it_makes(host: Host) -> None:
    host.join()
    host.commit(1)
    host.now += 0.2
    host.tell("reinit_begin")
    host.tell("retried", step=2)
    host.now += 0.3
    phases = {"plan": 0.01, "interrupt": 0.02, "connect": 0.2, "sync": 0.07}
    host.tell("reinit_done", generation=2, phases=phases)
    host.now += 1.0
    host.commit(2, generation=2)
    for phase, seconds in phases.items():
        assert host.get("reknit_reinit_seconds_count", phase=phase) == 1
        assert host.get("reknit_reinit_seconds_sum", phase=phase) == seconds
    assert host.get("reknit_reinit_seconds_count", phase="detect") == 0
    assert host.get("reknit_gap_seconds_sum") == pytest.approx(1.5)
    assert host.get("reknit_step_seconds_count") == 0
    assert host.get("reknit_steps_retried_total", worker="w0") == 1
    assert host.get("reknit_lost_seconds_total", worker="w0", cause="retry") == pytest.approx(0.2)
    assert host.get("reknit_lost_seconds_total", worker="w0", cause="reinit") == pytest.approx(0.3)


def test_what_it_is_stuck_at_is_told_in_words_of_the_table(host: Host) -> None:
    host.join()
    text = TABLE.read_text()
    for phase, kind, word in (
        ("reduce", "waits", "reduce"),
        ("my evaluation of 17", "long", "announced"),
        ("its process is stopped", "silent", "silent"),
        ("a phase of a later version", "busy", "other"),
    ):
        host.recording.pulse("w0", phase, kind, 4.0, host.now)
        assert host.labels("reknit_worker_phase") == [{"worker": "w0", "phase": word}]
        assert host.get("reknit_worker_phase_seconds", worker="w0") == 4
        assert f"`{word}`" in text
    host.recording.pulse("w0", "reduce", "waits", 0.0, host.now)
    assert host.labels("reknit_worker_phase") == [{"worker": "w0", "phase": "training"}]


def test_healing_and_checkpoints(host: Host) -> None:
    host.join()
    host.tell("healed", bytes=1000, seconds=0.5)
    host.tell("heal_failed", reason="the generation is over")
    host.tell("checkpoint", complete=True, paused=0.1)
    host.tell("checkpoint", complete=False, paused=0.1)
    host.tell("checkpoint_failed", reason="disk full")
    assert host.get("reknit_heal_bytes_total") == 1000
    assert host.get("reknit_heal_seconds_count") == 1
    assert host.get("reknit_heal_failures_total") == 1
    assert host.get("reknit_checkpoints_total") == 1
    assert host.get("reknit_checkpoints_failed_total") == 1


def test_a_death_and_the_next_process(host: Host) -> None:
    host.staying.add("w0")
    host.recording.happened("worker_started", "w0", {"pid": 7}, 100.0)
    host.join(pid=7)
    host.commit(1)
    host.now += 1.0
    host.recording.detached("w0", host.now)
    host.recording.happened("worker_died", "w0", {"pid": 7, "cause": "SIGKILL"}, host.now)
    assert host.get("reknit_worker_up", worker="w0") == 0
    assert host.labels("reknit_worker_phase") == []
    assert host.get("reknit_worker_restarts_total", worker="w0") == 0
    host.now += 2 * KEPT_SECONDS
    assert host.get("reknit_worker_up", worker="w0") == 0, "it will be started again, however late"
    host.recording.happened("worker_started", "w0", {"pid": 8}, host.now)
    host.join(pid=8)
    host.commit(2, generation=2)
    assert host.get("reknit_worker_up", worker="w0") == 1
    assert host.get("reknit_worker_restarts_total", worker="w0") == 1
    assert host.get("reknit_gap_seconds_count") == 0, "it is another process"
    assert host.get("reknit_lost_seconds_total", worker="w0", cause="retry") == 1
    assert host.get("reknit_lost_seconds_total", worker="w0", cause="start") == 2 * KEPT_SECONDS


def test_what_a_spare_missed_is_no_gap_of_the_job(host: Host) -> None:
    host.join()
    host.commit(1)
    host.now += 7200.0  # others trained on
    host.commit(900, generation=4)
    assert host.get("reknit_gap_seconds_count") == 0
    host.now += 0.5
    host.commit(901, generation=5)
    assert host.get("reknit_gap_seconds_sum") == pytest.approx(0.5)


def test_the_series_of_a_worker_that_is_gone_go_but_its_time_stays_in_the_sum(host: Host) -> None:
    host.join()
    host.now += 3.0
    host.commit(1)
    host.recording.happened("draining", "w0", {}, host.now)
    host.recording.detached("w0", host.now)
    host.recording.happened("drained", "w0", {"seconds": 2.0}, host.now)
    assert host.get("reknit_drains_total", result="done") == 1
    assert host.get("reknit_drain_seconds_sum") == 2.0
    host.now += KEPT_SECONDS - 1
    assert host.get("reknit_steps_committed_total", worker="w0") == 1
    host.now += 2
    assert not [labels for _, labels in series(host.metrics) if "worker" in dict(labels)]
    assert host.recording.totals() == (3, 0)


def test_who_is_gone_loses_no_more_though_nobody_scrapes(host: Host) -> None:
    host.join()
    host.now += 3.0
    host.commit(1)
    host.recording.happened("worker_died", "w0", {"cause": "SIGKILL"}, host.now)
    host.now += KEPT_SECONDS + 1
    once = host.recording.totals()
    host.now += 3600.0
    assert host.recording.totals() == once


def test_a_worker_that_dies_while_it_drains_is_a_drain_that_failed(host: Host) -> None:
    host.join()
    host.recording.happened("draining", "w0", {}, host.now)
    host.recording.happened("worker_died", "w0", {"cause": "SIGKILL"}, host.now)
    assert host.get("reknit_drains_total", result="lost") == 1
    assert host.get("reknit_drains_total", result="done") == 0


def test_who_has_no_place_while_the_job_trains_is_a_spare(host: Host) -> None:
    host.recording.plan(runs=False)
    host.recording.attached("w0", 7, False, host.now)
    host.now += 2.0
    host.recording.plan(runs=True)
    host.recording.placed("w0", False, False, host.now)
    host.now += 5.0
    assert host.get("reknit_lost_seconds_total", worker="w0", cause="wait") == 2
    assert host.get("reknit_lost_seconds_total", worker="w0", cause="spare") == 5
    assert host.recording.totals() == (0, 2)


def test_signals_are_counted_by_name_and_unknown_ones_together(host: Host) -> None:
    for name in ("SIGTERM", "SIGUSR1", "nonsense", "SIGNONSENSE"):
        host.recording.notice(name)
    assert host.get("reknit_preemption_notices_total", signal="SIGTERM") == 1
    assert host.get("reknit_preemption_notices_total", signal="SIGUSR1") == 1
    assert host.get("reknit_preemption_notices_total", signal="other") == 2


def test_a_straggler_is_logged_by_name_when_it_becomes_one_and_when_it_ends(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.join()
    with caplog.at_level(logging.INFO):
        for step in range(1, 80):
            host.now += 1.0
            slow = 2.5 if step < 40 else 1.1
            host.commit(step, timing={"own": 0.1, "wait": 0.1, "slowdown": 1.0, "slowest": ["far-7", slow, 0.2]})
            assert (host.recording.stragglers == {"far-7"}) == (20 < step < 60)
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "far-7 is a straggler",
        "far-7 is no straggler any more",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"step": True, "timing": 7},
        {"step": -1, "timing": {"wait": "long", "slowdown": float("nan"), "slowest": [1, 2, 3]}},
        {"step": float("inf"), "timing": {"wait": -1, "slowest": ["x" * 1000, 9.0, 1.0]}},
        {"step": 10**400, "timing": {"slowest": ["w1", float("inf"), 1.0], "slowdown": [1]}},
    ],
)
def test_what_a_worker_says_may_be_anything(host: Host, fields: dict[str, Any]) -> None:
    host.join()
    host.tell("committed", **fields)
    host.tell("reinit_done", phases=["connect"])
    host.tell("reinit_done", phases={"connect": "x", "other": 1.0})
    host.tell("healed", bytes="many", seconds=None)
    host.tell("checkpoint", complete="yes", paused={})
    host.tell("worker_died")  # only its agent can say so
    host.recording.told("committed", "w0", 1, {"step": 5}, 1e300)
    host.recording.told("committed", "nobody", 1, {"step": 5}, host.now)
    assert host.get("reknit_steps_committed_total", worker="w0") == 2
    assert host.get("reknit_worker_up", worker="w0") == 1
    assert host.get("reknit_worker_slowdown_ratio", worker="w0") is None
    assert host.get("reknit_checkpoints_total") == 0
    assert host.get("reknit_productive_seconds_total", worker="w0") == 0
