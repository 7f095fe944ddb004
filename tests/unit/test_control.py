"""The rounds inside a replica: what everybody says arrives, and who leaves is heard at once."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from tests.unit.rounds import Meeting, Member, replica, together

from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery.control import WORDS, ReplicaRounds


def test_everybody_hears_everybody() -> None:
    a, b = replica(2)
    said = together(lambda: a.say((1, 2)), lambda: b.say((3,)))
    expected = [(1, 2, *[0] * (WORDS - 2)), (3, *[0] * (WORDS - 1))]
    assert said == [expected, expected]


def test_numbers_are_exact() -> None:
    a, b = replica(2)
    assert together(lambda: a.say_number(0.1), lambda: b.say_number(-math.inf)) == [[0.1, -math.inf]] * 2


def test_tables_are_stacked_by_rank() -> None:
    a, b = replica(2)
    one, two = torch.arange(6).view(3, 2), torch.arange(6, 12).view(3, 2)
    for table in together(lambda: a.gather(one), lambda: b.gather(two)):
        assert torch.equal(table, torch.stack([one, two]))


def test_who_leaves_is_heard_at_once_by_all_who_stay() -> None:
    a, b, c = replica(3)
    heard = together(lambda: a.leave(), lambda: b.say((1,)), lambda: c.gather(torch.zeros(4, dtype=torch.int64)))
    assert all(isinstance(error, Interrupted) and error.peers == (0,) for error in heard[1:])
    b.leave()  # the round is over for everybody: nothing more is said
    c.leave()


def test_all_may_leave_in_the_same_round() -> None:
    a, b = replica(2)
    assert together(a.leave, b.leave) == [None, None]


def test_leaving_twice_or_by_agreement_says_nothing() -> None:
    meeting = Meeting(2)
    a = ReplicaRounds(Member(meeting, 0))
    a.agreed_to_leave()
    a.leave()
    assert meeting.rounds == []


def test_an_interruption_frees_who_waits() -> None:
    a, b = replica(2)
    threading.Timer(0.01, b.interrupt).start()
    (error,) = together(a.say)
    assert isinstance(error, Interrupted)


def test_a_replica_of_one_hears_itself() -> None:
    alone = ReplicaRounds(None)
    assert alone.say((7,))[0][0] == 7
    assert alone.gather(torch.ones(2, dtype=torch.int64)).shape == (1, 2)
    alone.leave()
    alone.close()


@pytest.mark.parametrize("words", [[1] * WORDS, []])
def test_a_round_has_room_for_its_words(words: list[int]) -> None:
    assert len(ReplicaRounds(None).say(words)[0]) == WORDS
