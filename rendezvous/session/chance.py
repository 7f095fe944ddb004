"""How long an accused agent has to answer, as a pure decision over what its accuser's looks found.

That an accusation still stands proves nothing while the store, or the accuser's host, is stalled.  So the accuser looks
twice in the accused's time, and a look that comes late or is answered late begins that time anew: a stall that two
prompt looks do not notice is too short to hide an answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Chance:
    """The time that an accused agent has to answer (monotonic): it runs since `since`; look when it is `due`.

    `unanswered`: it has had all of it.
    """

    since: float
    due: float
    unanswered: bool = False


def begin(since: float, answer: float) -> Chance:
    """A chance of `answer` seconds that runs from `since` on."""
    return Chance(since, since + answer / 2)


def weigh(chance: Chance, looked: float, returned: float, calm: float, answer: float) -> Chance:
    """The chance after a look, asked for at `looked` and answered at `returned`, that found the accusation standing.

    `calm`: from when on every agent that lives surely hears the store.
    """
    late = max(looked - chance.due, returned - looked) > answer / 2
    since = max(returned if late else chance.since, calm)
    if since > chance.since:
        return begin(since, answer)
    if looked >= since + answer:
        return replace(chance, unanswered=True)
    return Chance(since, since + answer)
