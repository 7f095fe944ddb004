"""`python -m tests.sim [NAME ...]`: search scenarios by hand; `--walk N` walks them at random (`--seed K`) instead."""

from __future__ import annotations

import argparse
import sys
import time

from tests.sim.model import Model
from tests.sim.product import Product
from tests.sim.scenarios import BIG, SCENARIOS
from tests.sim.search import search, walk
from tests.sim.state import Rules


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--walk", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--without", default="", help="rules to switch off, separated by commas")
    arguments = parser.parse_args()
    scenarios = SCENARIOS | BIG
    rules = Rules(**{rule: False for rule in arguments.without.split(",") if rule})
    failed = False
    for name in arguments.names or (BIG if arguments.walk else SCENARIOS):
        begun = time.process_time()
        model = Model(scenarios[name], rules, Product(scenarios[name].stages))
        verdict = walk(model, arguments.walk, arguments.seed) if arguments.walk else search(model, arguments.seconds)
        failed |= not verdict.holds
        print(f"{name:22} {time.process_time() - begun:6.1f} s  {verdict}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
