"""The dashboard of one job: how it is, where its time goes, how its membership changed, its workers and agents.

What is told of a whole job comes from whichever agent leads; the recording rules bridge the change of leaders.
"""

from __future__ import annotations

from reknit.deploy.grafana.panels import (
    BLUE,
    GOODPUT,
    GREEN,
    GREY,
    RED,
    STATES,
    YELLOW,
    Sheet,
    choose,
    lines,
    number,
    rows,
    state_of,
    states,
)

ONE = '{training_job="$training_job"}'
WORKERS = '{training_job="$training_job",worker=~"$worker"}'


def now(metric: str) -> str:
    """What the leader says."""
    return f"training_job:reknit_{metric}:current{ONE}"


def most(metric: str, by: str = "training_job") -> str:
    """The largest of what all agents say."""
    return f"max by ({by}) (reknit_{metric}{ONE})"


def of_workers(metric: str) -> str:
    """One value for each of the chosen workers."""
    return f"max by (worker) (reknit_{metric}{WORKERS})"


def added(metric: str, by: str = "training_job", window: str = "30m") -> str:
    """How much counters grew within a window, all agents together."""
    return f"sum by ({by}) (increase(reknit_{metric}_total{ONE}[{window}]))"


def speed(metric: str, by: str = "training_job") -> str:
    """How much counters grow a second, all agents together."""
    return f"sum by ({by}) (rate(reknit_{metric}_total{ONE}[5m]))"


def quantile(share: float, metric: str, window: str = "30m", by: str = "") -> str:
    """Of a histogram, all agents together."""
    labels = f"le, {by}" if by else "le"
    buckets = f"sum by ({labels}) (rate(reknit_{metric}_seconds_bucket{ONE}[{window}]))"
    return f"histogram_quantile({share:g}, {buckets})"


def job_dashboard() -> Sheet:
    """See above."""
    sheet = Sheet("reknit-job", "reknit: a job", "One job that reknit keeps training; `reknit status` tells it, too.")
    sheet.builder.with_variable(choose("training_job", "Job", "reknit_build_info"))
    sheet.builder.with_variable(choose("worker", "Worker", f"reknit_worker_up{ONE}", several=True))
    _add_state(sheet)
    _add_time(sheet)
    _add_membership(sheet)
    _add_workers(sheet)
    _add_copies(sheet)
    _add_agents(sheet)
    return sheet


def _add_state(sheet: Sheet) -> None:
    since_commit = f"time() - training_job:reknit_last_commit_timestamp_seconds:max{ONE}"
    since_reinit = f"time() - {most('job_last_reinit_timestamp_seconds')}"
    missing = f"{now('job_replicas_wanted')} - {now('job_replicas')}"
    goodput = f"training_job:reknit_goodput:ratio_rate1h{ONE}"
    step = f"training_job:reknit_step:max{ONE}"
    stale = ((None, GREEN), (60, YELLOW), (300, RED))
    sheet.row("How it is")
    sheet.add(
        3,
        4,
        number(
            "Replicas", now("job_replicas"), "Whole copies of the model that train.", colors=((None, RED), (1, GREEN))
        ),
        number(
            "Missing",
            missing,
            "Replicas that it would form if it had members enough.",
            colors=((None, GREEN), (1, YELLOW)),
        ),
        number("Step", step, "The newest step that was committed.", "locale"),
        number("Since that step", since_commit, "How long ago it was committed.", "s", stale),
        number("Goodput", goodput, "Share of the last hour that led to committed steps.", "percentunit", GOODPUT),
        number("Generation", now("job_generation"), "The newest plan; `reknit events` says why each came about."),
        number("Since the last reinit", since_reinit, "How long ago the membership last changed.", "s"),
        number("Spares", most("job_spares"), "Healthy members without a place, waiting in the running process."),
    )
    query = (state_of(ONE[1:-1] + ","), "state")
    sheet.add(24, 4, states("State", query, "As the newest plan says.", STATES))


def _add_time(sheet: Sheet) -> None:
    goodput = [(f"training_job:reknit_goodput:ratio_rate{window}{ONE}", window) for window in ("5m", "1h")]
    steps = [
        (f"training_job:reknit_steps_committed:rate5m{ONE}", "committed"),
        (f"max by (training_job) (rate(reknit_steps_retried_total{ONE}[5m]))", "retried"),
    ]
    duration = [
        (quantile(0.5, "step", "5m"), "median"),
        (quantile(0.95, "step", "5m"), "95 %"),
        (quantile(0.5, "reduce_wait", "5m"), "waiting for the others, median"),
    ]
    gap = [(quantile(0.5, "gap"), "median"), (quantile(1, "gap"), "worst")]
    sheet.row("Where the time goes")
    sheet.add(
        8,
        8,
        lines("Goodput", goodput, "Share of the workers' time that led to committed steps.", "percentunit", most=1),
        lines(
            "Lost time by cause",
            [(speed("lost_seconds", "cause"), "{{cause}}")],
            "Seconds lost a second, all workers together.",
            "short",
            stacked=True,
        ),
        lines("Steps", steps, "A second; retried are attempts that a membership change ended.", "ops"),
    )
    sheet.add(
        12,
        8,
        lines("Duration of a step", duration, "From commit to commit within a generation.", "s"),
        lines("Gap at a change", gap, "From a worker's last commit before it to its first one after.", "s"),
    )


def _add_membership(sheet: Sheet) -> None:
    members, group = "group_members", "kind, coordinate"
    replicas = [
        (now("job_replicas"), "now"),
        (now("job_replicas_wanted"), "wanted"),
        (now("job_replicas_min"), "minimum"),
        (most("job_replicas_max"), "maximum"),
    ]
    reasons = [(added("reinits", "reason", "$__rate_interval"), "{{reason}}")]
    changes = [(added("membership_changes", "type", "$__rate_interval"), "{{type}}")]
    above = [(f"{most(members, group)} - {most('group_minimum', group)}", "{{kind}} {{coordinate}}")]
    below = [(f"{most('group_desired', group)} - {most(members, group)}", "{{kind}} {{coordinate}}")]
    phases = [(quantile(0.95, "reinit", by="phase"), "{{phase}}")]
    sheet.row("Membership")
    sheet.add(
        8,
        8,
        lines("Replicas", replicas, "Whole copies of the model, beside their bounds."),
        lines("Generations by reason", reasons, "Why the plan changed.", stacked=True),
        lines("Who came and went", changes, "Members that got or lost a place.", stacked=True),
        lines(
            "Reinit by phase, 95 %",
            phases,
            "detect: since the first sign of a loss. interrupt: out of blocked collectives. connect: new groups. "
            "sync: compare, heal, ready.",
            "s",
        ),
        lines("Members above each group's minimum", above, "Below 0 the job can't train.", least=None),
        lines("Members missing in each group", below, "Against full strength."),
    )


def _add_workers(sheet: Sheet) -> None:
    columns = [
        (of_workers("worker_up"), "up"),
        (of_workers("worker_placed"), "has a place"),
        (of_workers("worker_step"), "step"),
        (f"time() - {of_workers('worker_last_commit_timestamp_seconds')}", "since its step (s)"),
        (of_workers("worker_phase_seconds"), "in its phase (s)"),
        (of_workers("worker_slowdown_ratio"), "slowdown"),
        (of_workers("worker_restarts_total"), "restarts"),
    ]
    phase = f"max by (worker, phase) (reknit_worker_phase{WORKERS})"
    in_phase = f"{phase} * on (worker) group_left {of_workers('worker_phase_seconds')}"
    slow = "A worker's own time in a step over the median at its coordinate; above 1.5 it is a straggler."
    sheet.row("Workers")
    sheet.add(24, 9, rows("Workers", columns, "worker", "What each is at now."))
    sheet.add(
        12,
        8,
        lines("Slowdown", [(of_workers("worker_slowdown_ratio"), "{{worker}}")], slow),
        lines("Time in its phase", [(in_phase, "{{worker}} {{phase}}")], "Long for who hangs, and who waits.", "s"),
    )


def _add_copies(sheet: Sheet) -> None:
    heal = [(quantile(0.95, "heal"), "95 %"), (added("heal_failures"), "broke off (number)")]
    saved = [(added("checkpoints"), "complete"), (added("checkpoints_failed"), "parts that failed")]
    drains = [
        (added("drains", "result"), "{{result}}"),
        (added("preemption_notices", "signal"), "notice by {{signal}}"),
        (quantile(0.95, "drain"), "seconds, 95 %"),
    ]
    sheet.row("Healing, checkpoints, drains (within 30 minutes)")
    sheet.add(
        6,
        8,
        lines("Healed bytes a second", [(speed("heal_bytes"), "bytes")], "State that came from peers.", "Bps"),
        lines("Healing", heal, "How long the copy takes, for which all wait.", "s"),
        lines("Checkpoints", saved, "Written in the background."),
        lines("Drains", drains, "Workers that left on request."),
    )


def _add_agents(sheet: Sheet) -> None:
    by, name = "instance", "{{instance}}"
    leads = {"0": ("follows", GREY), "1": ("leads", BLUE)}
    there = {"0": ("away", RED), "1": ("there", GREEN)}
    refused = [
        (added("rejected_records", window="5m"), "records in etcd"),
        (added("refused_messages", "cause", "5m"), "on the socket: {{cause}}"),
    ]
    sheet.row("Agents")
    sheet.add(
        12,
        8,
        states("Leader", (most("leader", by), name), "The agent that publishes plans.", leads),
        states("etcd", (most("etcd_connected", by), name), "While it is away, training goes on.", there),
    )
    sheet.add(
        8,
        8,
        lines("Lease left", [(most("lease_left_seconds", by), name)], "At 0 its workers are given up.", "s"),
        lines(
            "Errors of etcd", [(speed("etcd_errors", "operation"), "{{operation}}")], "Not answered, refused.", "ops"
        ),
        lines("Turned away", refused, "Malformed, too large, or another user's: somebody else writes here."),
    )
