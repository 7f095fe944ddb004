"""Whether a process of this host is what a job's records say: ours, and an agent or a worker of that very job.

The records come from a store that others write to, and a process id outlives its process.  So nothing is struck, or
refused, for what does not look the part by the kernel's own word.  `look` and `node` ask the kernel; the judgements are
pure.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from reknit.rendezvous.accusation import AgentRecord
from reknit.runtime import toml

_VARIABLES = ("REKNIT_WORKER_ID", "REKNIT_SOCKET", "REKNIT_JOB", "REKNIT_AGENT", "REKNIT_CONFIG")


@dataclass(frozen=True)
class Seen:
    """A living process: its owner, command line, the variables of ours that it was started with, and its ancestors.

    `ancestors` begins with its parent.  `environment` is empty for a process of somebody else, and for a worker that
    was forked rather than started.  `file`: the job and the agent's name in the settings file that it was given.
    """

    pid: int
    uid: int
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    ancestors: tuple[int, ...] = ()
    file: Mapping[str, str] = field(default_factory=dict)


def look(pid: int) -> Seen | None:
    """What the kernel says of a process; None if there is none, or if it has ended and waits to be reaped."""
    folder = Path("/proc") / str(pid)
    try:
        state, _ = _state_and_parent(pid)
        uid = folder.stat().st_uid
        arguments = tuple(part.decode(errors="replace") for part in (folder / "cmdline").read_bytes().split(b"\0")[:-1])
    except (OSError, ValueError):
        return None
    if state in "ZX":
        return None
    environment = _environment(folder)
    files = [*_values("--config", arguments), environment.get("REKNIT_CONFIG", "")]
    file = _file(folder / "cwd" / files[0]) if files[0] and _runs_reknit(arguments) else {}
    return Seen(pid, uid, arguments, environment, _ancestors(pid), file)


def _file(path: Path) -> dict[str, str]:
    """The texts in a settings file; nothing if it is none, or is no more."""
    try:
        found = toml.read(path)
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _environment(folder: Path) -> dict[str, str]:
    try:
        parts = (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (part.decode(errors="replace").partition("=") for part in parts)
    return {name: value for name, _, value in pairs if name in _VARIABLES}


def _ancestors(pid: int) -> tuple[int, ...]:
    found: list[int] = []
    while pid > 1 and len(found) < 100:
        try:
            _, pid = _state_and_parent(pid)
        except (OSError, ValueError):
            break
        found.append(pid)
    return tuple(found)


def _state_and_parent(pid: int) -> tuple[str, int]:
    """Behind the name, which may hold blanks and parentheses, come the state and the parent."""
    state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return state, int(parent)


def node() -> str:
    """Where this process is: the host, and on it the pod; the same after a restart of the container or the agent.

    Pods may have the host's name; but each has IPC of its own, which lives as long as the pod.
    """
    return f"{socket.gethostname()}:{_ipc()}"


def default_agent_name() -> str:
    """A name that no other living agent has: in a container the process id is often 1, and the name the host's."""
    return f"{socket.gethostname()}-{_ipc() & 0xFFFFFF:x}-{os.getpid()}"


def _ipc() -> int:
    try:
        return os.stat("/proc/self/ns/ipc").st_ino
    except OSError:
        return 0


def why_twin(record: AgentRecord | None, own: str, pid: int, job: str, seen: Seen | None) -> str:
    """Why an agent at node `own`, process `pid`, must not take the name in `record`; empty if it may.

    `seen`: the process of the record's id.  In another container of the same pod it may be out of sight.
    """
    if record is None or record.node != own or record.pid == pid:
        return ""
    if seen is None or why_no_agent(seen, job, record.agent, seen.uid):
        return ""
    return (
        f"agent {record.agent} of job {job} runs here already, as process {record.pid}: end that one first, or give "
        "this one another --agent NAME"
    )


def why_no_agent(seen: Seen | None, job: str, name: str = "", uid: int | None = None) -> str:
    """Why this is no agent of the job that user `uid` (None: we) may strike; empty if it is one.

    `name`: the agent's.  Two containers of one host name may each have an agent with the same process id.
    """
    if (why := _why_not_ours(seen, uid)) or seen is None:
        return why
    arguments = seen.arguments
    jobs, names = _told(seen, "job"), _told(seen, "agent")
    own = job in jobs or not jobs  # a standalone one makes up its job's name
    if not _runs_reknit(arguments) or not {"run", "agent"} & set(arguments) or not own:
        return f"process {seen.pid} is no agent of job {job}: it runs {_program(seen)}"
    if name and names and name not in names:
        return f"process {seen.pid} is agent {names[0]}, not {name}"
    return ""


def _runs_reknit(arguments: tuple[str, ...]) -> bool:
    return any(os.path.basename(word) == "reknit" or word == "reknit.runtime.cli" for word in arguments[:6])


def _told(seen: Seen, name: str) -> list[str]:
    """What the process was told of this setting: by flags, else by its variable, else in its file."""
    found = _values(f"--{name}", seen.arguments)
    return found or [text for text in [seen.environment.get(f"REKNIT_{name.upper()}") or seen.file.get(name)] if text]


def _values(option: str, arguments: tuple[str, ...]) -> list[str]:
    """What the option was given, as `--option value` or `--option=value`."""
    joined = [word.partition("=")[2] for word in arguments if word.startswith(f"{option}=")]
    return [*joined, *(after for word, after in pairwise(arguments) if word == option)]


def why_no_worker(seen: Seen | None, worker_id: str, agent: int, uid: int | None = None) -> str:
    """Why this is not the worker, kept by process `agent` (0: by none here), that `uid` may strike; empty if it is.

    `reknit run` is an ancestor of its workers, so `agent` must be known to be one: else any process of ours would do
    that descends from it.  A worker that came to a sidecar was started with its variables.
    """
    if (why := _why_not_ours(seen, uid)) or seen is None:
        return why
    named = seen.environment.get("REKNIT_WORKER_ID", f"worker-{seen.pid}")
    if (agent and agent in seen.ancestors) or ("REKNIT_SOCKET" in seen.environment and named == worker_id):
        return ""
    return f"process {seen.pid} is not {worker_id}: it runs {_program(seen)}"


def _why_not_ours(seen: Seen | None, uid: int | None) -> str:
    if seen is None:
        return "its process has ended"
    if seen.uid != (os.getuid() if uid is None else uid):
        return f"process {seen.pid} belongs to another user"
    return ""


def _program(seen: Seen) -> str:
    """What it runs, for people: no options, since a password may be among them."""
    words = [os.path.basename(word)[:40] for word in seen.arguments[:2] if not word.startswith("-")]
    interpreter = bool(words) and words[0].startswith("python")
    return " ".join(words[: 2 if interpreter else 1]) or "nothing"
