"""Asks whoever can tell (the runtime, by `health.verdict`) which of the placed members hang, while any is stuck."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from reknit.rendezvous.plan import Observed
from reknit.rendezvous.records import Name, Plan

logger = logging.getLogger(__name__)

Judge = Callable[[Sequence[Observed], Plan, float], Mapping[Name, str]]
"""Who of those who have a place hangs, so that it has to be put out, and why: (observed, plan, now)."""


class Judging:
    """The judge, asked at each look at which it can have anything to say."""

    def __init__(self, judge: Judge | None) -> None:
        self._judge = judge
        self._failed = False
        self.open = False  # somebody is stuck, so that it has to be looked at again in time

    def hung(self, observed: Sequence[Observed], plan: Plan, now: float, settles: float) -> Mapping[Name, str]:
        """Whom to put out, and why; nobody before `settles`: after an outage the records tell of what was before it."""
        living, placed = [o for o in observed if not o.member.dead], plan.names
        self.open = self._judge is not None and any(
            o.member.stall is not None and o.member.name in placed for o in living
        )
        if self._judge is None or not self.open or now < settles:
            return {}
        try:
            return self._judge(living, plan, now)
        except Exception:
            if not self._failed:
                logger.exception("cannot judge who hangs: nobody is put out for it")
            self._failed = True
            return {}
