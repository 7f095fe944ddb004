"""Shows what a leader looks at to whoever counts it: the newest plan, the spec and the members, at each look."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from reknit.rendezvous.records import Member, Plan, Spec

logger = logging.getLogger(__name__)

Witness = Callable[[Plan, Spec, Sequence[Member], int], None]
"""Called with (plan, spec, members, the term's revision) on the leader's thread; it must return at once."""


class Witnessing:
    """Calls the witness; what it raises keeps no leader from leading."""

    def __init__(self, witness: Witness | None, revision: int) -> None:
        self._witness, self._revision = witness, revision
        self._failed = False

    def show(self, plan: Plan | None, spec: Spec, members: Sequence[Member]) -> None:
        """The leader looks at this."""
        if self._witness is None or plan is None:
            return
        try:
            self._witness(plan, spec, members, self._revision)
        except Exception:
            if not self._failed:
                logger.exception("what the leader sees cannot be counted")
            self._failed = True
