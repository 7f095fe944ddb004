"""A process for test_communicator: does what it is told on standard input, one JSON object a line, and answers alike.

Commands run one after the other on the main thread, where they may block for ever; those with `"at_once"` run on the
reading thread beside it.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import torch

from reknit.runtime.communicator import gloo_build, gloo_group, meeting_client, staging
from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.communicator.meeting import MeetingPoint
from reknit.runtime.errors import CommunicatorError, Interrupted

torch.set_num_threads(1)
takes = staging.takes
speaking = threading.Lock()
groups: dict[str, Communicator] = {}
cancellations: dict[str, threading.Event] = {}
meetings: list[MeetingPoint] = []
kept_open: list[socket.socket] = []


def say(**answer: Any) -> None:
    with speaking:
        print(json.dumps(answer), flush=True)


def connect(
    name: str,
    address: list[Any],
    rank: int,
    size: int,
    timeout_s: float = 20,
    host: str = "127.0.0.1",
    host_rank: int | None = None,
) -> Any:
    groups[name] = Communicator.connect(
        (address[0], address[1]),
        name,
        rank,
        size,
        timeout_s=timeout_s,
        hostname=host,
        cancelled=cancellations.setdefault(name, threading.Event()),
        host=host_rank,
    )


def connect_all(names: list[str], **arguments: Any) -> Any:
    """Build several groups at the same time, each on a thread."""
    threads = [threading.Thread(target=connect, args=(name,), kwargs=arguments) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cancel(name: str) -> Any:
    cancellations.setdefault(name, threading.Event()).set()


def announce_but_never_connect(**arguments: Any) -> Any:
    """Publish the own address like a member that dies before it connects, and stay there."""

    def stall(client: meeting_client.MeetingClient, keys: list[str]) -> list[bytes]:
        say(begun=True)
        threading.Event().wait()
        raise AssertionError

    meeting_client.MeetingClient.get = stall  # type: ignore[method-assign,assignment]
    connect(**arguments)


def announce_as_if_unreachable(**arguments: Any) -> Any:
    """As above, from a machine that no way leads to: nobody's call to it is answered."""
    address = deaf_address()
    vars(gloo_build)["packed"] = lambda _: gloo_group.packed(address)
    announce_but_never_connect(**arguments)


def deaf_address() -> tuple[str, int]:
    """An address of which every call goes unanswered: a socket that accepts nobody, and whose queue is full."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    kept_open.append(listener)
    for _ in range(8):
        call = socket.socket()
        call.setblocking(False)
        call.connect_ex(listener.getsockname())
        kept_open.append(call)
    return cast("tuple[str, int]", listener.getsockname())


def serve() -> Any:
    meetings.append(MeetingPoint())
    return meetings[-1].address


def announced(name: str) -> Any:
    return meetings[-1].keys(name)


def interrupt(name: str) -> Any:
    groups[name].interrupt()


def close(name: str) -> Any:
    groups.pop(name).close()


def all_reduce(name: str, value: float = 1.0, op: str = "sum") -> Any:
    tensor = torch.full((4,), value)
    groups[name].all_reduce(tensor, op)
    return tensor.tolist()


def all_reduce_until_it_fails(name: str, elements: int = 1000) -> Any:
    for _ in range(3):
        groups[name].all_reduce(torch.ones(elements))
    say(begun=True)
    while True:
        groups[name].all_reduce(torch.ones(elements))


def wait_for_the_others(name: str) -> Any:
    say(begun=True)
    groups[name].barrier()


def wait_for_future(name: str) -> Any:
    """A gradient reducer's way: chain on the future."""
    ended = threading.Event()
    outcome: list[BaseException | None] = []

    def done(future: torch.futures.Future[list[torch.Tensor]]) -> None:
        try:
            future.value()
            outcome.append(None)
        except Interrupted as error:
            outcome.append(error)
        ended.set()

    groups[name].all_reduce_future(torch.ones(10)).add_done_callback(done)
    say(begun=True)
    ended.wait()
    if outcome[0] is not None:
        raise outcome[0]


def pending_work(name: str) -> Any:
    """Start operations, close the group under them, and wait for them only then."""
    group = groups[name]
    works = [group.all_reduce(torch.ones(10), asynchronous=True), group.irecv(torch.ones(10), 1 - group.rank)]
    future = group.all_reduce(torch.ones(10), asynchronous=True).future()
    group.close()
    return sum([raises(wait) is Interrupted for wait in [*(work.wait for work in works), future.wait]])


def peers_gone(name: str) -> Any:
    return groups[name].peers_gone()


def resources() -> Any:
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}


def listening_ports() -> Any:
    ports = []
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            borrowed = socket.socket(fileno=descriptor)
        except OSError:
            continue
        if borrowed.family == socket.AF_INET and borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            ports.append(borrowed.getsockname()[1])
        borrowed.detach()
    return ports


def keepalive_options(name: str) -> Any:
    """(keepalive, idle, interval, probes, user timeout) of each connection of the group."""
    group = groups[name]._group
    assert group is not None
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
    ]
    return [[one.socket.getsockopt(*option) for option in options] for one in group._connections]


def wrong_arguments(name: str) -> Any:
    """How many of some calls that cannot be right are refused; the group must still work afterwards."""
    group, one = groups[name], torch.ones(3)
    calls: list[Callable[[], Any]] = [
        lambda: group.all_reduce(one, "xor"),
        lambda: group.all_reduce(torch.ones(3, dtype=torch.int64), "avg"),
        lambda: group.all_reduce(torch.ones(3, dtype=torch.int16)),
        lambda: group.broadcast(one, group.size),
        lambda: group.send(one, group.rank),
        lambda: group.recv(one, -1),
        lambda: group.all_gather([one], torch.ones(3)),
        lambda: group.all_gather([torch.ones(2)] * group.size, one),
        lambda: group.all_gather([torch.ones(3, dtype=torch.float64)] * group.size, one),
        lambda: group.all_gather_into_tensor(torch.ones(7), one),
        lambda: group.gather(one, [one] * group.size, (group.rank + 1) % group.size),
        lambda: group.scatter(one, None, group.rank),
    ]
    return [sum([raises(call) is CommunicatorError for call in calls]), len(calls)]


def raises(call: Callable[[], Any]) -> type[BaseException] | None:
    try:
        call()
    except CommunicatorError as error:
        return type(error)
    return None


def collectives(name: str, stage_everything: bool = False) -> Any:
    """Every operation against what it must give; returns the names of those that gave something else."""
    staging.takes = (lambda operation, tensor: False) if stage_everything else takes
    group = groups[name]
    rank, size = group.rank, group.size
    wrong: list[str] = []

    def ones(value: float, *shape: int) -> torch.Tensor:
        return torch.full(shape or (2, 3), float(value))

    def check(what: str, got: torch.Tensor, wanted: torch.Tensor | float) -> None:
        wanted = wanted if isinstance(wanted, torch.Tensor) else torch.full_like(got, wanted)
        if got.shape != wanted.shape or not torch.equal(got, wanted):
            wrong.append(f"{what}: {got.tolist()} is not {wanted.tolist()}")

    ranks = range(size)
    reductions = {
        "sum": sum(r + 2.0 for r in ranks),
        "avg": sum(r + 2.0 for r in ranks) / size,
        "product": float(torch.tensor([r + 2.0 for r in ranks]).prod()),
        "min": 2.0,
        "max": size + 1.0,
    }
    group.barrier()
    for op, wanted in reductions.items():
        check(f"all_reduce {op}", run(group.all_reduce, tensor := ones(rank + 2), op, of=tensor), wanted)
        got = run(group.reduce, tensor := ones(rank + 2), size - 1, op, of=tensor)
        if rank == size - 1:
            check(f"reduce {op}", got, wanted)
        inputs = [ones(rank + 2 + 10 * r) for r in ranks]
        output = run(group.reduce_scatter, tensor := ones(0), inputs, op, of=tensor)
        every = torch.tensor([r + 2.0 + 10 * rank for r in ranks])
        by_op = {"sum": every.sum(), "avg": every.sum() / size, "product": every.prod(), "min": every.min()}
        check(f"reduce_scatter {op}", output, float(by_op.get(op, every.max())))
    for source in ranks:
        check("broadcast", run(group.broadcast, tensor := ones(rank), source, of=tensor), source)
        scattered = [ones(100 * source + r) for r in ranks] if rank == source else None
        check("scatter", run(group.scatter, tensor := ones(-1), scattered, source, of=tensor), 100 * source + rank)
        outputs = [ones(-1) for _ in ranks] if rank == source else None
        run(group.gather, ones(rank), outputs, source)
        for r, output in enumerate(outputs or []):
            check("gather", output, r)
    gathered = [ones(-1) for _ in ranks]
    run(group.all_gather, gathered, ones(rank))
    for r, output in enumerate(gathered):
        check("all_gather", output, r)
    output = run(group.all_gather_into_tensor, tensor := ones(-1, 2 * size, 3), ones(rank), of=tensor)
    check("all_gather_into_tensor", output, torch.cat([ones(r) for r in ranks]))
    # Rank a sends rank b a matrix of a + 1 by b + 1.
    matrices = [ones(-1, r + 1, rank + 1) for r in ranks]
    run(group.all_to_all, matrices, [ones(10 * rank + r, rank + 1, r + 1) for r in ranks])
    for r, output in enumerate(matrices):
        check("all_to_all", output, 10 * r + rank)
    # Columns of a matrix are not contiguous.
    matrix = torch.zeros(3, size + 1)
    matrix[:, rank] = rank + 1
    group.all_reduce(matrix[:, 0])
    check("all_reduce of a column", matrix[:, 0], 1.0)
    parameter = torch.nn.Parameter(ones(rank))
    group.broadcast(parameter, 0)
    check("broadcast of a parameter", parameter.detach(), 0.0)
    check("all_reduce_future", group.all_reduce_future(ones(rank + 2)).wait()[0], reductions["sum"])
    future = group.all_reduce(tensor := ones(rank + 2), "avg", asynchronous=True).future()
    future.wait()
    check("all_reduce's future", tensor, reductions["avg"])
    for a in ranks:
        for b in ranks:
            if rank == a != b:
                group.send(ones(10 * a + b), b, tag=7)
                work = group.isend(ones(10 * a + b)[:, :2], b)
                work.wait()
                assert work.is_completed()
            if rank == b != a:
                group.recv(tensor := ones(-1), a, tag=7)
                check("recv", tensor, 10 * a + b)
                work = group.irecv(tensor := ones(-1, 2, 2), a)
                work.wait()
                check("irecv", tensor, 10 * a + b)
    group.barrier(asynchronous=True).wait()
    return wrong


def run(operation: Any, *arguments: Any, of: torch.Tensor | None = None) -> Any:
    """Each operation once blocking, and once more, from the same inputs, asynchronous."""
    before = of.clone() if of is not None else None
    operation(*arguments)
    if of is None or before is None:
        return None
    blocking = of.clone()
    of.copy_(before)
    operation(*arguments, asynchronous=True).wait()
    assert torch.equal(blocking, of) or operation.__name__ == "reduce"
    return of


def obey(command: dict[str, Any]) -> None:
    action, arguments = globals()[command["do"]], command.get("with", {})
    started = time.monotonic()
    try:
        result = action(**arguments)
    except CommunicatorError as error:
        kind, peers, absent = type(error).__name__, getattr(error, "peers", ()), getattr(error, "absent", ())
        say(
            error=kind,
            message=str(error),
            peers=peers,
            absent=absent,
            seconds=time.monotonic() - started,
            t=time.monotonic(),
        )
    else:
        say(done=command["do"], result=result, seconds=time.monotonic() - started, t=time.monotonic())


def main() -> None:
    commands: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            command = json.loads(line)
            if command.get("at_once"):
                obey(command)
            else:
                commands.put(command)
        # Nobody is there any more to want anything of this process.
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    say(begun=True)
    while (command := commands.get()) is not None:
        obey(command)


if __name__ == "__main__":
    main()
