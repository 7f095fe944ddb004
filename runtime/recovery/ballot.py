"""What the vote in the data group says, as the one integer of which the minimum is taken (PROTOCOL.md, rule 13).

Above all, how much newer the newest generation known is than the one that votes: its minimum is what the rule asks
for.  Below, as a stowaway, one rank's time: the largest that any rank put there.  A vector would be plainer, but gloo's
ring sends a message more for each further rank's part of it, and every step would wait for them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

RANK_BITS, FIGURE_BITS, AHEAD_BITS = 16, 26, 20
_MOST_RANK, _MOST_FIGURE, _MOST_AHEAD = (1 << RANK_BITS) - 1, (1 << FIGURE_BITS) - 1, (1 << AHEAD_BITS) - 1
_NOTHING = _MOST_FIGURE << RANK_BITS | _MOST_RANK
_SCALE = 1 << 20  # a figure is the logarithm (base 2) of nanoseconds: any time fits, to a millionth


class Ballot(NamedTuple):
    """`ahead`: by how many generations all know a newer plan.  `rank` and its `seconds`: None if nobody put any."""

    ahead: int
    rank: int | None = None
    seconds: float = 0.0


_SILENT = Ballot(0)


def encode(ahead: int, rank: int = 0, seconds: float | None = None) -> int:
    """The word that a rank puts in; `seconds` None: it has nothing to tell."""
    if ahead == 0 and seconds is None:
        return _NOTHING  # as in most steps
    word = min(ahead, _MOST_AHEAD) << RANK_BITS + FIGURE_BITS
    if seconds is None or not 0 < seconds < 1e9 or rank > _MOST_RANK:
        return word | _NOTHING
    figure = max(1, round(math.log2(max(1.0, seconds * 1e9)) * _SCALE))
    return word | _MOST_FIGURE - figure << RANK_BITS | rank


def decode(word: int) -> Ballot:
    """What the minimum of all words says.  The time is of those who know least, which are all, but for a moment."""
    if word == _NOTHING:
        return _SILENT
    ahead, figure = word >> RANK_BITS + FIGURE_BITS, _MOST_FIGURE - (word >> RANK_BITS & _MOST_FIGURE)
    if figure == 0:
        return Ballot(ahead)
    return Ballot(ahead, word & _MOST_RANK, 2 ** (figure / _SCALE) / 1e9)
