"""Scripts that know nothing of reknit: each runs in a child of a worker, with the environment that torchrun gives.

The worker is an ordinary one (`host`): it joins, and has a place in the plan, so that there is one membership for all
scripts.  Whenever a generation ends, or one of the children does not end well, all children are started anew.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from reknit.runtime.supervisor.restart import RestartPolicy

GIVEN_UP = 77  # a worker's exit code when its job's script has failed too often
VARIABLE = "REKNIT_PLAIN"  # tells a child why it has no job to join

_START = Path(__file__).with_name("start.py")
_WORD = re.compile(rb"reknit", re.IGNORECASE)


def is_plain(script: str) -> bool:
    """Whether a script knows nothing of reknit: the word does not occur in it.  Who cannot be read is not plain."""
    try:
        return _WORD.search(Path(script).read_bytes()) is None
    except OSError:
        return False


def hosted(script: Sequence[str], policy: RestartPolicy, kill_delay: float) -> list[str]:
    """The worker's script, and its arguments, that runs `script` (a path and its arguments) as its child.

    `kill_delay`: seconds from the agent's SIGTERM to its SIGKILL; the child has a second less, so that the worker lives
    to see its end.
    """
    grace = max(kill_delay - 1.0, kill_delay / 2)
    return [str(_START), str(policy.max_restarts), str(policy.window), str(policy.backoff), str(grace), *script]
