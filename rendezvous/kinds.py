"""What a generation came about by, in one word of a fixed vocabulary.

The reason is a sentence for people; the kind is what counters, labels and lists go by.  Each of the leader's rules says
it of its own plan (`plan.RULES`), and it is kept in the plan's head and in its history.
"""

from __future__ import annotations

BEGIN, JOIN, LOSS, EVICTION, DRAIN, SCALE = "begin", "join", "loss", "eviction", "drain", "scale"
REPORT, RESTORE, DECISION = "report", "restore", "decision"
ENDED_WELL, STATE_LOST = "finished", "lost"

KINDS = {
    BEGIN: "the job begins, anew perhaps",
    JOIN: "members have arrived",
    LOSS: "members were lost",
    EVICTION: "members were put out: they hang, or others cannot reach them",
    DRAIN: "members leave on request",
    SCALE: "another number of replicas is wanted",
    REPORT: "a connection broke between members that live",
    RESTORE: "the state was lost, and a checkpoint (or what the scripts built) takes its place",
    ENDED_WELL: "all have made the last step",
    STATE_LOST: "the state was lost, and nothing can take its place",
    DECISION: "the leader decides: on a version that a complete set holds, or that somebody starts afresh",
}


def guessed(state: str, restore: bool, decided: bool, broken: bool) -> str:
    """The likely kind of a plan that was written before kinds were.

    `restore`, `decided`: it has a target; `broken`: it broke the generation before it.
    """
    if state in (ENDED_WELL, STATE_LOST):
        return state
    if decided:
        return DECISION if not restore else RESTORE if broken else BEGIN
    return LOSS if broken else JOIN
