"""Who leads, and how far a lease can be trusted."""

from __future__ import annotations

import math
import time

import pytest

from reknit.rendezvous.session.candidacy import Candidacy, Timing
from reknit.rendezvous.session.election import Contact, Role, decide
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import Entry, Lease

MINE, OTHERS = Lease(7, 6), Lease(8, 6)
CONTACT = Contact(ttl=6.0, renewed=100.0)


def key(lease: int, holder: str = "somebody") -> Entry:
    return Entry("leader", holder.encode(), mod_revision=21, create_revision=20, lease=lease)


def test_an_absent_key_is_campaigned_for() -> None:
    assert decide(None, True, MINE, CONTACT, 101.0).role is Role.CAMPAIGN


def test_nobody_campaigns_before_the_key_has_been_seen() -> None:
    assert decide(None, False, MINE, CONTACT, 101.0).role is Role.FOLLOW


def test_the_key_on_the_own_lease_is_held_with_its_creation_as_the_fence() -> None:
    decision = decide(key(MINE.id), True, MINE, CONTACT, 101.0)
    assert (decision.role, decision.revision) == (Role.HOLD, 20)


def test_the_key_of_another_agent_is_followed_and_named() -> None:
    decision = decide(key(OTHERS.id, "agent-b"), True, MINE, CONTACT, 101.0)
    assert decision.role is Role.FOLLOW
    assert "agent-b" in decision.reason


def test_the_key_of_an_earlier_life_of_the_same_agent_is_not_held() -> None:
    assert decide(key(OTHERS.id, "me"), True, MINE, CONTACT, 101.0).role is Role.FOLLOW


@pytest.mark.parametrize("leader", [None, key(MINE.id), key(OTHERS.id), key(0)])
@pytest.mark.parametrize(
    ("lease", "contact", "now"), [(None, None, 101.0), (None, CONTACT, 101.0), (MINE, CONTACT, 106.0)]
)
def test_without_a_lease_that_surely_stands_nothing_is_done(
    leader: Entry | None, lease: Lease | None, contact: Contact | None, now: float
) -> None:
    assert decide(leader, True, lease, contact, now).role is Role.FOLLOW


def test_a_key_that_hangs_on_no_lease_is_cleared_because_it_would_stand_forever() -> None:
    assert decide(key(0), True, MINE, CONTACT, 101.0).role is Role.CLEAR


def test_the_lease_counts_from_when_the_renewal_was_asked_for_not_from_its_answer() -> None:
    contact = CONTACT.renew(asked=102.0, now=103.9, ttl=6.0)
    assert contact.deadline == 108.0
    assert contact.sure(107.9)
    assert not contact.sure(108.0)


def test_missing_records_mean_losses_while_the_lease_is_renewed_in_time() -> None:
    contact = CONTACT.renew(asked=102.0, now=102.1, ttl=6.0)
    assert contact.settles(103.0) <= 103.0


def test_missing_records_mean_nothing_yet_during_and_after_an_outage_in_which_leases_may_have_ended() -> None:
    assert CONTACT.settles(105.0) == math.inf
    contact = CONTACT.renew(asked=105.0, now=105.1, ttl=6.0)
    assert 105.1 < contact.settles(105.2) < math.inf
    again = contact.renew(asked=107.0, now=107.1, ttl=6.0)
    assert again.settles(107.2) == contact.settles(105.2)
    assert again.settles(107.2) <= 109.0


def test_a_lease_that_is_gone_too_early_may_mean_that_all_are_gone_and_the_others_find_out_by_their_renewals() -> None:
    contact = CONTACT.end(101.0)
    assert contact.settles(101.1) >= 101.0 + CONTACT.ttl / 3
    again = contact.renew(asked=101.0, now=101.1, ttl=6.0)
    assert again.settles(101.2) == contact.settles(101.2)


def test_an_outage_too_short_to_end_any_lease_delays_nothing() -> None:
    contact = CONTACT.renew(asked=103.8, now=103.9, ttl=6.0)
    assert contact.settles(104.0) <= 104.0


@pytest.mark.parametrize("joins", [True, False])
def test_an_agent_that_joins_takes_nobody_for_lost_at_once_as_an_outage_may_just_have_ended(joins: bool) -> None:
    candidacy = Candidacy(MemoryStore(), "leader", "new", Timing(ttl=6.0), lambda event: None, lambda lease: None)
    if joins:
        candidacy.join()
    begun = time.monotonic()
    candidacy._grant(begun)
    assert (candidacy.settles(begun) >= begun + 6.0 / 3) is joins
    assert candidacy.settles(begun) < begun + 6.0
