"""Each rule switched off: what then goes wrong shows why the rule is there.  Read it before you simplify one away.

A rule inside a pure function is switched off by wrapping the product's function; one that the shell around it follows,
by a switch of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tests.sim.model import Model
from tests.sim.product import Decide, NextPlan, Product, React
from tests.sim.scenarios import SCENARIOS
from tests.sim.search import Verdict, search, walk
from tests.sim.state import Rules

from reknit.rendezvous.plan import Observed, Outcome, Patience, next_plan
from reknit.rendezvous.records import Plan, Spec, Version
from reknit.runtime.recovery.decision import Decision, Reaction, Row, decide, reaction


class Mutant(NamedTuple):
    """A rule switched off, and a scenario that shows it: by search, or where that takes long, by random walks."""

    scenario: str
    rules: Rules = Rules()
    next_plan: NextPlan = next_plan
    decide: Decide = decide
    reaction: React = reaction
    long: bool = False
    walks: int = 0
    seed: int = 1

    def model(self) -> Model:
        scenario = SCENARIOS[self.scenario]
        product = Product(scenario.stages, self.next_plan, self.decide, self.reaction)
        return Model(scenario, self.rules, product)

    def verdict(self) -> Verdict:
        return walk(self.model(), self.walks, self.seed) if self.walks else search(self.model())


# ---------------------------------------------------------------- the comparison


def everybody_has_a_say(target: Version | None, table: Sequence[Row], size: int) -> Decision:
    return decide(target, [row._replace(current=True) for row in table], size)


def only_what_was_committed(target: Version | None, table: Sequence[Row], size: int) -> Decision:
    """Roll forward only if a survivor has committed it."""
    committed = {row.committed for row in table}
    rows = [row._replace(prepared=row.prepared if row.prepared in committed else None) for row in table]
    return decide(target, rows, size)


def compare_steps(target: Version | None, table: Sequence[Row], size: int) -> Decision:
    """What one would write first: the highest step that somebody has committed, whichever attempt made it."""
    rows = [row for row in table if row.committed is not None]
    if target is not None or not rows:
        return Decision(target, "")
    top = max((row.committed.step, row.committed) for row in rows if row.committed is not None)
    can = {row.coordinate for row in rows if any(v.step == top[0] for v in row.held)}
    return Decision(top[1] if can == set(range(size)) else None, "")


# ---------------------------------------------------------------- the reaction


def never_urgent(generation: int, entered: bool, known: int, broken: int, stands: bool) -> Reaction:
    return reaction(generation, entered, known, 0, stands)


def never_superseded(generation: int, entered: bool, known: int, broken: int, stands: bool) -> Reaction:
    return reaction(generation, True, known, broken, stands)


# ---------------------------------------------------------------- the leader


def deaf_to_reports(
    observed: Sequence[Observed], spec: Spec, previous: Plan | None, now: float, patience: Patience
) -> Outcome:
    deaf = [replace(o, member=replace(o.member, left=0)) for o in observed]
    return next_plan(deaf, spec, previous, now, patience)


def blind_to_the_unplaced(
    observed: Sequence[Observed], spec: Spec, previous: Plan | None, now: float, patience: Patience
) -> Outcome:
    """Losing a member of an older generation, which may still run it, is no reason for a plan."""
    assert previous is not None
    here = {o.member.name for o in observed}
    known = replace(previous, former=tuple(f for f in previous.former if f.name in here))
    return next_plan(observed, spec, known, now, patience)


def watermark_stays(
    observed: Sequence[Observed], spec: Spec, previous: Plan | None, now: float, patience: Patience
) -> Outcome:
    """No plan says that the generations before it are broken."""
    outcome = next_plan(observed, spec, previous, now, patience)
    return outcome if outcome.plan is None else replace(outcome, plan=replace(outcome.plan, broken=0))


def runs_never_break(
    observed: Sequence[Observed], spec: Spec, previous: Plan | None, now: float, patience: Patience
) -> Outcome:
    """Who comes back to a place counts as if it had never been without one."""
    outcome = next_plan(observed, spec, previous, now, patience)
    if outcome.plan is None or previous is None:
        return outcome
    first = {f.name: f.since for f in previous.former}
    replicas = tuple(
        replace(r, places=tuple(replace(p, since=first.get(p.name, p.since)) for p in r.places))
        for r in outcome.plan.replicas
    )
    return replace(outcome, plan=replace(outcome.plan, replicas=replicas))


WITHOUT = {
    "current": Mutant("2x1 spare", decide=everybody_has_a_say),
    "forward": Mutant("3x1 losses", decide=only_what_was_committed),
    "tags": Mutant("2x2 spare", decide=compare_steps),
    "urgent": Mutant("2x2 one loss", reaction=never_urgent),
    "supersede": Mutant("2x2 planned", reaction=never_superseded, long=True),
    "watermark": Mutant("2x2 one loss", next_plan=watermark_stays),
    "report": Mutant("3x1 glitch", next_plan=deaf_to_reports),
    "unplaced": Mutant("2x2 drain+silent", next_plan=blind_to_the_unplaced, long=True),
    "since": Mutant("2x1 spare", next_plan=runs_never_break),
    "repair": Mutant("2x1 scale+loss", Rules(repair=False)),
    "target": Mutant("3x1 planned+loss", Rules(target=False), long=True),
    "compare_job": Mutant("2x2 one loss", Rules(compare_job=False)),
    "vote_job": Mutant("2x2 one loss", Rules(vote_job=False)),
    "replica_last": Mutant("2x2 one loss", Rules(replica_last=False), long=True),
    "reliable": Mutant("2x2 one loss", Rules(reliable=False), long=True),
    "oblige": Mutant("2x2 one loss", Rules(oblige=False), long=True),
    "prompt": Mutant("2x2 glitch", Rules(prompt=False)),
    "ready": Mutant("1x2 grow, glitch", Rules(ready=False), long=True),
    "agree": Mutant("2x1 planned", Rules(agree=False)),
    "release": Mutant("2x1 drain+loss+join", Rules(release=False)),
    "finish": Mutant("1x2 drain", Rules(finish=False)),
    "incarnation": Mutant("2x2 respawn", Rules(incarnation=False)),
    "formed": Mutant("2x2 scale+unscale", Rules(formed=False), walks=2000, seed=2),
}
