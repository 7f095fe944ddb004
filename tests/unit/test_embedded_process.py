"""How soon an embedded etcd that died is started again."""

from __future__ import annotations

from reknit.rendezvous.store.embedded_process import next_delay


def test_deaths_in_a_row_are_followed_by_longer_and_longer_waits_until_it_has_lived_for_a_while() -> None:
    delays = [0.0]
    for lived in (5.0, 0.1, 0.1, 0.1, 0.1, 0.1, 3600.0, 1.0):
        delays.append(next_delay(delays[-1], lived))
    assert delays[1:] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 0.2, 0.4]
