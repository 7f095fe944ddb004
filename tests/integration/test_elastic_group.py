"""The group whose members change, where torch takes it: two processes, of which one dies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reknit.runtime.communicator.meeting import MeetingPoint

WORKER = Path(__file__).with_name("elastic_group_worker.py")
PATIENCE_S = 110


@pytest.fixture(scope="module")
def found() -> Iterator[list[dict[str, Any]]]:
    """What both members found, by rank."""
    meeting = MeetingPoint()
    command = [sys.executable, "-W", "ignore", str(WORKER)]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(meeting.address[1])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in (0, 1)
    ]
    try:
        printed = [worker.communicate(timeout=PATIENCE_S) for worker in workers]
        assert [worker.returncode for worker in workers] == [0, 0], printed
        yield [json.loads(out) for out, _ in printed]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        meeting.close()


BOTH = {
    "all_reduce": [3.0, 3.0],
    "all_reduce max": [2.0, 2.0],
    "all_reduce avg": [1.5, 1.5],
    "broadcast": [1.0, 1.0],
    "all_gather_into_tensor": [0.0, 0.0, 1.0, 1.0],
    "all_gather": [[0.0, 0.0], [1.0, 1.0]],
    "asynchronous": [True, True],
    "objects": [{"rank": 0}, {"rank": 1}],
    "anybody": "CommunicatorError",
}
EACH = {
    "who": [[0, 0, 2, [0, 1]], [1, 1, 2, [1, 0]]],
    "reduce_scatter_tensor": [[2.0], [4.0]],
    "reduce_scatter": [[2.0, 2.0], [4.0, 4.0]],
    "all_to_all_single": [[0.0, 2.0], [5.0, 6.0]],
    "all_to_all": [[[0.0, 0.0], [10.0, 10.0]], [[1.0, 1.0], [11.0, 11.0]]],
    "gather": [[[0.0, 0.0], [1.0, 1.0]], None],
    "scatter": [[3.0, 3.0], [4.0, 4.0]],
    "recv": [[3.0, 3.0], [7.0, 7.0]],
}


@pytest.mark.parametrize("operation", BOTH)
def test_a_collective_that_ends_alike_everywhere(found: list[dict[str, Any]], operation: str) -> None:
    assert [one[operation] for one in found] == [BOTH[operation]] * 2


@pytest.mark.parametrize("operation", EACH)
def test_a_collective_that_ends_otherwise_at_each(found: list[dict[str, Any]], operation: str) -> None:
    assert [one[operation] for one in found] == EACH[operation]


def test_one_receives_a_reduction(found: list[dict[str, Any]]) -> None:
    assert found[0]["reduce"] == [3.0, 3.0]


def test_torch_counts_from_the_own_replica(found: list[dict[str, Any]]) -> None:
    """Number 1 is the other one to both; each asked for the second member by its own number."""
    assert [one["broadcast by torch's number"] for one in found] == [[1.0, 1.0]] * 2


def test_functional_collectives_and_meshes(found: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(found):
        assert one["functional"] == [[3.0, 3.0], [0.0, 1.0], [[2.0], [4.0]][rank]]
        assert one["mesh"] == [2, rank, [3.0, 3.0]]


def test_distributed_data_parallel_and_fsdp_average_over_those_present(found: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(found):
        assert one["alone"] == [1, [rank + 1.0] * 2, [rank + 1.0] * 2]
        assert one["ddp"] == [[1.5, 1.5], [1.5, 1.5]]
        assert one["fsdp"] == [1.5, 1.5]
    assert found[0]["the next generation"] == [[1.0, 1.0], [1.0, 1.0], [0]]


def test_a_loss_surfaces_as_interrupted_and_not_in_a_backward_pass_of_an_attempt(found: list[dict[str, Any]]) -> None:
    assert found[0]["nothing raised into backward"] == [["done", True]] * 3
    assert found[0]["afterwards"] == ["Interrupted"] * 3


def test_a_loss_is_raised_into_a_backward_pass_if_nobody_would_tell(found: list[dict[str, Any]]) -> None:
    assert found[0]["nobody would tell"] == "Interrupted"


def test_the_object_stays_through_generations_and_formations(found: list[dict[str, Any]]) -> None:
    assert found[0]["same object"] is True
    assert found[0]["the next formation"] == ["done", [1.0, 1.0]]


def test_a_product_of_two_groups(found: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(found):
        for name in ("outer", "inner"):
            assert one[f"paired {name}"] == [[3.0, 3.0], [[0.0, 0.0], [1.0, 1.0]], [1.0, 1.0], rank]
        assert one["paired refuses"] == "CommunicatorError"
