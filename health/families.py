"""Every metric that an agent exports: its name, kind, labels and help text.  `METRICS.md` says more of each."""

from __future__ import annotations

from typing import NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
PREFIX = "reknit_"

# Upper bounds (seconds): a reinit takes milliseconds, a step of a large model minutes, a drain perhaps an hour.
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)

CAUSES = ("start", "wait", "spare", "reinit", "heal", "retry", "checkpoint", "drain")  # causes of lost seconds
PHASES = ("detect", "plan", "interrupt", "connect", "sync")  # of a reinit
STATES = ("running", "waiting", "finished", "lost")  # of a job


class Family(NamedTuple):
    """One metric.  `name` without the prefix, and for a counter without `_total`; the label of the job is not named.

    `always`: label values that are exported from the first, as zeros: so a rule sees the first one happen.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    always: tuple[tuple[str, ...], ...] = ()

    @property
    def full_name(self) -> str:
        """As it stands in the exposition and in METRICS.md."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == COUNTER else ''}"


class Sample(NamedTuple):
    """A number that is known only when it is asked for: of the family `name`, with these label values."""

    name: str
    labels: tuple[str, ...]
    value: float


def _each(*values: str) -> tuple[tuple[str, ...], ...]:
    return tuple((value,) for value in values)


_ONE = ((),)
_GROUP, _WORKER = ("kind", "coordinate"), ("worker",)

FAMILIES = (
    Family("job_generation", GAUGE, (), "Number of the newest plan"),
    Family("job_state", GAUGE, ("state",), "1 for the state of the newest plan"),
    Family("job_replicas", GAUGE, (), "Replicas in the newest plan: intact pipelines"),
    Family("job_replicas_min", GAUGE, (), "Least number of replicas with which the job trains"),
    Family("job_replicas_max", GAUGE, (), "Largest number of replicas"),
    Family("job_replicas_wanted", GAUGE, (), "Replicas to form if there are members enough"),
    Family("job_spares", GAUGE, (), "Healthy members without a place"),
    Family("job_members", GAUGE, (), "Members that live"),
    Family("group_members", GAUGE, _GROUP, "Living members of a data group or of a replica"),
    Family("group_minimum", GAUGE, _GROUP, "How many members a group needs for the job to train"),
    Family("group_desired", GAUGE, _GROUP, "How many members a group would have at full strength"),
    Family("job_last_reinit_timestamp_seconds", GAUGE, (), "When the newest generation was seen, Unix time"),
    Family("membership_changes", COUNTER, ("type",), "Members that got or lost a place, by this agent's plans"),
    Family("reinits", COUNTER, ("reason", "result"), "Generations that this agent published, by what became of them"),
    Family("worker_up", GAUGE, _WORKER, "1: a process is attached and takes part"),
    Family("worker_placed", GAUGE, _WORKER, "1: it has a place in the newest plan"),
    Family("worker_step", GAUGE, _WORKER, "Newest step that the worker committed"),
    Family("worker_last_commit_timestamp_seconds", GAUGE, _WORKER, "When the worker last committed, Unix time"),
    Family("worker_phase", GAUGE, ("worker", "phase"), "1 for the phase that the worker is in"),
    Family("worker_phase_seconds", GAUGE, _WORKER, "For how long the worker has been in its phase"),
    Family("worker_slowdown_ratio", GAUGE, _WORKER, "The worker's own time in a step over its coordinate's median"),
    Family("worker_restarts", COUNTER, _WORKER, "Processes that were started in the worker's place"),
    Family("steps_committed", COUNTER, _WORKER, "Steps that the worker committed"),
    Family("steps_retried", COUNTER, _WORKER, "Attempts that a membership change ended"),
    Family("productive_seconds", COUNTER, _WORKER, "Seconds that led to committed steps"),
    Family("lost_seconds", COUNTER, ("worker", "cause"), "Seconds that led to no committed step"),
    Family("heal_bytes", COUNTER, (), "Bytes of state that workers here received from peers", _ONE),
    Family("heal_failures", COUNTER, (), "Healings that broke off", _ONE),
    Family("checkpoints", COUNTER, (), "Checkpoints that a worker here completed", _ONE),
    Family("checkpoints_failed", COUNTER, (), "Parts of checkpoints that were not written or restored", _ONE),
    Family("drains", COUNTER, ("result",), "Workers here that were asked to leave, and did", _each("done", "lost")),
    Family("preemption_notices", COUNTER, ("signal",), "Signals that asked workers here to leave", _each("SIGTERM")),
    Family("reinit_seconds", HISTOGRAM, ("phase",), "A worker's way into a generation, by phase", _each(*PHASES)),
    Family("gap_seconds", HISTOGRAM, (), "From a worker's last commit to its first in a newer generation", _ONE),
    Family("step_seconds", HISTOGRAM, (), "From commit to commit within a generation", _ONE),
    Family("reduce_wait_seconds", HISTOGRAM, (), "Of a step, in which a worker reduced and waited for others", _ONE),
    Family("heal_seconds", HISTOGRAM, (), "Receiving the state from peers", _ONE),
    Family("drain_seconds", HISTOGRAM, (), "From being asked to leave to the end", _ONE),
    Family("leader", GAUGE, (), "1: this agent leads the job"),
    Family("etcd_connected", GAUGE, (), "1: etcd answers, and this agent has a lease"),
    Family("lease_left_seconds", GAUGE, (), "For how long the lease surely stands"),
    Family("etcd_errors", COUNTER, ("operation",), "Tries that etcd did not answer, or refused"),
    Family("rejected_records", COUNTER, (), "Values in etcd that were malformed, and skipped", _ONE),
    Family("refused_messages", COUNTER, ("cause",), "What was turned away on the agent's socket"),
    Family("build_info", GAUGE, ("version",), "Always 1"),
)

BY_NAME = {family.name: family for family in FAMILIES}
