"""The network that other fault tests cut: what it drops it drops silently."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.faults.network import Network, require_namespaces

_ECHO = """
import socket
server = socket.create_server(("", 4000))
print("listening", flush=True)
connection, _ = server.accept()
while data := connection.recv(100):
    connection.send(data)
"""
_ASK = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 4000), timeout=5)
for line in sys.stdin:
    connection.settimeout(float(line))
    try:
        connection.send(b"x")
        print("echo" if connection.recv(100) else "end of file", flush=True)
    except TimeoutError:
        print("silence", flush=True)
    except OSError as error:
        print(repr(error), flush=True)
"""


@pytest.fixture
def network() -> Iterator[Network]:
    require_namespaces()
    with Network() as network:
        for name in ("one", "two", "three"):
            network.add(name)
        yield network


class Talk:
    """A connection between two machines, over which a test asks for an echo."""

    def __init__(self, network: Network, source: str, target: str) -> None:
        self._echo = _python(network, target, _ECHO)
        assert self._echo.stdout is not None
        assert self._echo.stdout.readline() == "listening\n"
        self._asking = _python(network, source, _ASK, network.address(target))

    def __enter__(self) -> Talk:
        assert self.ask() == "echo"
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._asking, self._echo):
            process.kill()
            process.communicate()

    def ask(self, seconds: float = 5.0) -> str:
        """What comes within so many seconds."""
        assert self._asking.stdin is not None
        assert self._asking.stdout is not None
        self._asking.stdin.write(f"{seconds}\n")
        return self._asking.stdout.readline().strip()


def _python(network: Network, name: str, code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [*network.machines[name].enter, sys.executable, "-I", "-S", "-c", code, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


def test_a_cut_is_silent_and_heals_both_ways(network: Network) -> None:
    with Talk(network, "one", "two") as cut, Talk(network, "three", "one") as other:
        network.cut("one", "two")
        assert cut.ask(0.5) == "silence"
        assert other.ask() == "echo"
        network.heal("one", "two")
        assert cut.ask() == "echo"


@pytest.mark.parametrize("unplugged", ["one", "two"])
def test_a_lost_link_is_silent_and_comes_back(network: Network, unplugged: str) -> None:
    with Talk(network, "one", "two") as talk:
        network.unplug(unplugged)
        assert talk.ask(1.5) == "silence"
        network.plug(unplugged)
        assert talk.ask() == "echo"
