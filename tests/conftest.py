"""In which order the modules are run: what takes longest begins first, so that nothing long is left for the end.

`make test` gives each module to one process, in this order (`--no-loadscope-reorder`).
"""

from __future__ import annotations

import pytest

# More than half a minute each: measured, longest first.  A module that is missing here is run all the same, only later.
LONGEST = (
    "test_drain",
    "test_checkpoint",
    "test_run_again",
    "test_healing",
    "test_etcd_members",
    "test_kill_in_every_phase",
    "test_node_loss",
    "test_leader_lost",
    "test_last_holder_cut_off",
    "test_etcd_outages",
    "test_scaling",
    "test_page",
    "test_prometheus",
    "test_pods",
    "test_axes",
    "test_reference_experiments",
)
FOLDERS = ("faults", "integration", "sim", "deploy", "unit")  # whose modules take long, on average, first


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by module; the tests of a module keep their order."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> tuple[int, int]:
    module, folder = item.path.stem, item.path.parent.name
    first = LONGEST.index(module) if module in LONGEST else len(LONGEST)
    return first, FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)
