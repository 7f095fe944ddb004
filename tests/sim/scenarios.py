"""What may happen: small jobs, and the events that befall them.  Names say replicas x stages, as in data x pipe."""

from __future__ import annotations

from tests.sim.state import Scenario

SCENARIOS = {
    "3x1 losses": Scenario(1, 3, 2, crash=2, silent=2, total=2, every=True),
    "3x1 evicted": Scenario(1, 3, 1, evict=1, crash=1, silent=1, total=2, every=True),
    "3x1 glitch": Scenario(1, 3, 2, glitch=2, crash=1, total=2),
    "3x1 planned": Scenario(1, 3, 1, drain=1, join=1, scale=1, total=3, every=True),
    "2x1 planned": Scenario(1, 2, 3, drain=1, join=1, every=True),
    "3x1 planned+loss": Scenario(1, 3, 1, drain=1, join=1, crash=1, silent=1, scale=1, total=2, every=True),
    "2x1 spare": Scenario(1, 2, 1, crash=2, silent=1, scale=1, total=3, spares=(0,)),
    "2x1 scale+loss": Scenario(1, 2, 2, scale=1, crash=1),
    "2x1 drain+loss+join": Scenario(1, 2, 2, drain=1, crash=1, join=1),
    "2x1 start": Scenario(1, 2, 1, crash=1, silent=1, join=1, total=2, fresh=True),
    "2x1 hasty": Scenario(1, 2, 1, crash=2, glitch=1, total=2, spares=(0,), hasty=True),
    "1x2 grow": Scenario(2, 1, 1, join=2, crash=1, total=3, desired=2),
    "1x2 grow, glitch": Scenario(2, 1, 2, join=2, glitch=1, tear=1, total=3, desired=2),
    "1x2 grow, silent": Scenario(2, 1, 1, join=2, silent=1, total=3, desired=2),
    "1x2 drain": Scenario(2, 1, 1, join=1, drain=1, crash=1, total=3),
    "1x2 start": Scenario(2, 1, 1, crash=1, silent=1, join=2, total=3, fresh=True),
    "2x2 start": Scenario(2, 2, 1, crash=1, silent=1, total=1, fresh=True),
    "2x2 one loss": Scenario(2, 2, 2, crash=1, silent=1, total=1, every=True),
    "2x2 crashes": Scenario(2, 2, 1, crash=2, total=2),
    "2x2 crash+silent": Scenario(2, 2, 1, crash=1, silent=1, total=2),
    "2x2 evicted": Scenario(2, 2, 1, evict=1),
    "2x2 glitch": Scenario(2, 2, 1, glitch=1, tear=1, total=1),
    "2x2 planned": Scenario(2, 2, 1, drain=1, join=1, scale=1, total=2),
    "2x2 crash+join": Scenario(2, 2, 1, crash=1, join=1),
    "2x2 drain+crash": Scenario(2, 2, 1, drain=1, crash=1),
    "2x2 drain+silent": Scenario(2, 2, 1, drain=1, silent=1),
    "2x2 scale+unscale": Scenario(2, 2, 1, scale=1, unscale=1, glitch=1),
    "2x2 scale+loss": Scenario(2, 2, 1, scale=1, crash=1),
    "2x2 spare": Scenario(2, 2, 1, crash=1, spares=(1,)),
    "2x2 spare, losses": Scenario(2, 2, 1, crash=2, desired=1, spares=(1,)),
    "2x2 respawn": Scenario(2, 2, 1, crash=1, respawn=1),
    "2x2 hasty": Scenario(2, 2, 1, crash=1, spares=(1,), hasty=True),
    "1x3 losses": Scenario(3, 1, 1, crash=1, silent=1, tear=1, glitch=1, join=1, total=2),
}

QUICK = (  # together well under a minute on one core
    "3x1 losses",
    "3x1 glitch",
    "2x1 planned",
    "2x1 spare",
    "2x1 scale+loss",
    "2x1 start",
    "2x1 hasty",
    "1x2 drain",
    "1x2 start",
    "2x2 one loss",
    "2x2 glitch",
    "2x2 spare",
)

BIG = {  # for random walks
    "3x2 anything": Scenario(2, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, spares=(0, 1), total=4, every=True),
    "2x3 anything": Scenario(3, 2, 2, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, spares=(0, 1), total=4, every=True),
    "2x2 anything": Scenario(2, 2, 3, 2, 2, 1, 2, 2, 1, 2, 2, 1, 1, spares=(1,), total=5, every=True),
    "4x1 anything": Scenario(1, 4, 3, 2, 2, 2, 2, 0, 1, 2, 2, 2, 1, spares=(0,), total=5, every=True),
    "2x2 losses+join": Scenario(2, 2, 2, crash=2, silent=2, join=2, total=4, every=True),
    "2x2 start, anything": Scenario(2, 2, 2, 2, 2, 1, 1, 1, 1, 2, 1, 1, 1, total=4, every=True, fresh=True),
    "2x2 hasty, anything": Scenario(2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, spares=(0,), total=4, hasty=True),
}
