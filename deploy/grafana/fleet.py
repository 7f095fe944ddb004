"""The dashboard of all jobs: which of them needs somebody to look at it."""

from __future__ import annotations

from reknit.deploy.grafana.panels import (
    GOODPUT,
    GREEN,
    GREY,
    ORANGE,
    RED,
    STATES,
    Sheet,
    lines,
    number,
    rows,
    state_of,
    states,
)

NAMED = "{{training_job}}"
ALL_SECONDS = '{__name__=~"reknit_productive_seconds_total|reknit_lost_seconds_total",cause!="spare"}'


def fleet_dashboard() -> Sheet:
    """See above."""
    sheet = Sheet("reknit-fleet", "reknit: all jobs", "All jobs that reknit keeps training.")
    goodput = f"sum(rate(reknit_productive_seconds_total[1h])) / (sum(rate({ALL_SECONDS}[1h])) > 0)"
    without = "count(reknit_etcd_connected == 0) or vector(0)"
    sheet.row("All jobs")
    sheet.add(
        4,
        4,
        _count("Running", "running", GREEN),
        _count("Waiting", "waiting", ORANGE),
        _count("Lost", "lost", RED),
        number("Goodput", goodput, "Of all workers' time in the last hour.", "percentunit", GOODPUT),
        number("Workers", "sum(reknit_worker_up) or vector(0)", "That are attached to an agent."),
        number("Agents without etcd", without, "Of all that are scraped.", colors=((None, GREEN), (1, RED))),
    )
    sheet.add(24, 10, rows("Jobs", _columns(), "training_job", "A row for each."))
    sheet.add(24, 8, states("State", (state_of(""), NAMED), "As each job's newest plan says.", STATES))
    hours = "training_job:reknit_goodput:ratio_rate1h"
    missing = "training_job:reknit_job_replicas_wanted:current - training_job:reknit_job_replicas:current"
    changes = "delta(training_job:reknit_job_generation:current[15m])"
    lost = "sum by (cause) (rate(reknit_lost_seconds_total[5m]))"
    sheet.add(
        12,
        8,
        lines("Goodput", [(hours, NAMED)], "Of the last hour.", "percentunit", most=1),
        lines("Missing replicas", [(f"clamp_min({missing}, 0)", NAMED)], "That each would form with more members."),
        lines("Generations in 15 minutes", [(f"clamp_min({changes}, 0)", NAMED)], "Many: it does little else."),
        lines(
            "Lost time by cause", [(lost, "{{cause}}")], "Seconds lost a second, all workers.", "short", stacked=True
        ),
    )
    return sheet


def _count(title: str, state: str, color: str) -> object:
    expression = f'count(training_job_state:reknit_job_state:current{{state="{state}"}} == 1) or vector(0)'
    return number(title, expression, f"Jobs that are {state}.", colors=((None, GREY), (1, color)))


def _columns() -> list[tuple[str, str]]:
    return [
        ("training_job:reknit_job_replicas:current", "replicas"),
        ("training_job:reknit_job_replicas_wanted:current", "wanted"),
        ("training_job:reknit_job_replicas_min:current", "minimum"),
        ("training_job:reknit_step:max", "step"),
        ("time() - training_job:reknit_last_commit_timestamp_seconds:max", "since its step (s)"),
        ("training_job:reknit_goodput:ratio_rate1h", "goodput"),
        ("training_job:reknit_job_generation:current", "generation"),
        ("max by (training_job) (reknit_worker_slowdown_ratio)", "slowest worker"),
    ]
