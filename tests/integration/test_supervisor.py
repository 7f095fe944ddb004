"""Real workers under a real supervisor: forked from a warm process and exec'ed."""

import os
import queue
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reknit.runtime.supervisor.supervisor import Exited, Failed, Started, Supervisor, SupervisorError, SupervisorEvent

DEADLINE = 60.0


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline, f"not within {DEADLINE} s: {what}"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Host:
    """A supervisor, what it told, and what its workers printed."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.events: queue.Queue[SupervisorEvent] = queue.Queue()
        self.lines: queue.Queue[tuple[float, str, str, str]] = queue.Queue()
        self.pids: list[int] = []
        self.supervisor = Supervisor(
            self.events.put,
            on_output=lambda *line: self.lines.put((time.monotonic(), *line)),
            **{"modules": (), **options},
        )
        self.supervisor.open()

    def script(self, source: str, name: str = "script.py") -> str:
        path = self.folder / name
        path.write_text(textwrap.dedent(source))
        return str(path)

    def start(self, source: str, *arguments: str, worker_id: str = "w0", **options: Any) -> None:
        script = self.script(source, f"{worker_id}.py")
        self.supervisor.start(worker_id, [script, *arguments], **options)

    def next(self, kind: type[Any]) -> Any:
        while True:
            event = self.events.get(timeout=DEADLINE)
            if isinstance(event, Started):
                self.pids.append(event.pid)
            if isinstance(event, kind):
                return event
            assert not isinstance(event, Failed), event

    def line(self, worker_id: str = "w0", stream: str = "stdout") -> str:
        while True:
            _, from_worker, from_stream, line = self.lines.get(timeout=DEADLINE)
            if (from_worker, from_stream) == (worker_id, stream):
                return line

    def all_lines(self, worker_id: str = "w0", stream: str = "stdout") -> list[str]:
        """After `Exited`: everything that is left."""
        lines = []
        while not self.lines.empty():
            _, from_worker, from_stream, line = self.lines.get()
            if (from_worker, from_stream) == (worker_id, stream):
                lines.append(line)
        return lines

    def run(self, source: str, *arguments: str, **options: Any) -> tuple[int | None, list[str]]:
        """Run a script to its end: its return code and standard output."""
        self.start(source, *arguments, **options)
        exited = self.next(Exited)
        return exited.returncode, self.all_lines()


@pytest.fixture(params=["warm", "exec"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    yield from running(tmp_path, warm=request.param == "warm")


@pytest.fixture
def warm_host(tmp_path: Path) -> Iterator[Host]:
    yield from running(tmp_path)


def running(folder: Path, **options: Any) -> Iterator[Host]:
    host = Host(folder, **options)
    yield host
    host.supervisor.close(grace_seconds=0.0)
    while not host.events.empty():
        event = host.events.get()
        if isinstance(event, Started):
            host.pids.append(event.pid)
    assert not [pid for pid in host.pids if is_alive(pid)], "workers are left"
    assert host.supervisor.warm_pid is None


def test_a_script_runs_as_python_would_run_it(host: Host) -> None:
    code, lines = host.run(
        """
        import atexit, os, pickle, sys
        class Thing: pass
        atexit.register(lambda: print(type(pickle.loads(pickle.dumps(Thing()))).__module__))
        print(sys.argv[1:], __name__, sys.path[0] == os.path.dirname(__file__), sys.argv[0] == __file__)
        print(os.environ["ADDED"], "ADDED" in os.environ, os.getcwd())
        print(os.getsid(0) == os.getpid() == os.getpgid(0), sys.stdin.read() == "")
        print(sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd")))
        print([name for name in ("torch", "etcd3", "grpc", "google.protobuf") if name in sys.modules])
        """,
        "one",
        "--two",
        environment={"ADDED": "yes"},
        folder=str(host.folder),
    )
    assert code == 0
    assert lines == [
        "['one', '--two'] __main__ True True",
        f"yes True {host.folder}",
        "True True",
        "['0', '1', '2'] 4",  # the fourth lists the folder
        "[]",
        "__main__",
    ]


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit('a message')", 1),
        ("raise ValueError('wrong')", 1),
        ("syntax error", 1),
        ("import os; os._exit(9)", 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("import ctypes; ctypes.string_at(0)", -11),
        ("import os; os.abort()", -6),
    ],
)
def test_exit_codes(host: Host, source: str, code: int) -> None:
    assert host.run(source)[0] == code


def test_the_exit_hook_of_the_interpreter_runs_after_an_exception(host: Host) -> None:
    code, lines = host.run("import atexit; atexit.register(print, 'bye'); print('in'); 1/0")
    assert (code, lines) == (1, ["in", "bye"])


def test_a_traceback_is_the_scripts_own(host: Host) -> None:
    host.start(
        """
        def fail():
            raise RuntimeError("the reason")
        fail()
        """
    )
    assert host.next(Exited).returncode == 1
    tail = host.supervisor.tail("w0")
    assert tail[0] == "Traceback (most recent call last):"
    assert tail[-1] == "RuntimeError: the reason"
    assert [line for line in tail if line.startswith("  File")] == [
        f'  File "{host.folder}/w0.py", line 4, in <module>',
        f'  File "{host.folder}/w0.py", line 3, in fail',
    ]
    host.run("print('fine')")
    assert host.supervisor.tail("w0") == []


def test_scripts_and_folders_that_do_not_exist(host: Host) -> None:
    host.supervisor.start("w0", ["/does/not/exist.py"])
    assert host.next(Exited).returncode == 2
    assert host.supervisor.tail("w0") == [
        "reknit: cannot read the script '/does/not/exist.py': No such file or directory"
    ]
    host.start("pass", worker_id="w1", folder="/does/not/exist")
    event = host.events.get(timeout=DEADLINE)
    if isinstance(event, Started):
        assert host.next(Exited).returncode == 2
        assert "cannot enter the working folder" in host.supervisor.tail("w1")[0]
    else:
        assert isinstance(event, Failed)
        assert "/does/not/exist" in event.reason


def test_ps_shows_which_worker_it_is_and_not_its_arguments(host: Host) -> None:
    source = "import sys, time; print(sys.argv[1], flush=True); time.sleep(600)"
    host.start(source, "--token=secret", environment={"REKNIT_WORKER_ID": "w0"})
    pid = host.next(Started).pid
    assert host.line() == "--token=secret"
    assert Path(f"/proc/{pid}/comm").read_text() == "reknit:w0\n"
    shown = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0")
    assert shown.startswith("reknit:w0 /")
    assert f"{host.folder}/w0.py".startswith(shown.removeprefix("reknit:w0 ")), "cut off where there is no more room"
    if host.supervisor.warm_pid is not None:
        assert Path(f"/proc/{host.supervisor.warm_pid}/comm").read_text() == "reknit-warm\n"
    host.supervisor.stop("w0", 0.0)


def test_the_kernel_says_who_died_and_how_long_it_lived(host: Host) -> None:
    host.start("import time; print('up'); time.sleep(60)")
    started = host.next(Started)
    host.line()
    began = time.monotonic()
    assert host.supervisor.signal("w0", signal.SIGKILL)
    exited = host.next(Exited)
    assert (exited.worker_id, exited.pid, exited.returncode) == ("w0", started.pid, -9)
    assert 0 < exited.lived_seconds < DEADLINE
    assert time.monotonic() - began < 1.5, "the status was not told, only guessed after a time"
    assert not host.supervisor.signal("w0", signal.SIGKILL)


def test_stop_is_gentle_first(host: Host) -> None:
    host.start(
        """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        print("up")
        time.sleep(60)
        """
    )
    host.line()
    host.supervisor.stop("w0", grace_seconds=DEADLINE)
    assert host.next(Exited).returncode == 5


@pytest.mark.parametrize("state", ["deaf", "stopped"])
def test_stop_is_not_gentle_for_ever(host: Host, state: str) -> None:
    host.start("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(60)")
    host.line()
    if state == "stopped":
        host.supervisor.signal("w0", signal.SIGSTOP)
    began = time.monotonic()
    host.supervisor.stop("w0", grace_seconds=0.2)
    assert host.next(Exited).returncode == -9
    assert 0.2 <= time.monotonic() - began < 5.0


def test_stop_signals_the_worker_alone_but_kills_its_children_with_it(host: Host) -> None:
    host.start(
        """
        import os, signal, sys, time
        if (child := os.fork()) == 0:
            signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"the child was signalled\\n"))
            while True:
                time.sleep(60)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print(child)
        time.sleep(60)
        """
    )
    child = int(host.line())
    assert is_alive(child)
    host.supervisor.stop("w0", grace_seconds=DEADLINE)
    assert host.next(Exited).returncode == 0
    assert host.all_lines() == []
    eventually(lambda: not is_alive(child), "the child dies with the worker")


def test_children_die_with_a_killed_worker(host: Host) -> None:
    host.start("import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid); time.sleep(60)")
    child = int(host.line())
    host.supervisor.signal("w0", signal.SIGKILL)
    assert host.next(Exited).returncode == -9
    eventually(lambda: not is_alive(child), "the child dies with the worker")


def test_a_name_is_free_again_after_the_exit(host: Host) -> None:
    host.start("import time; print('up'); time.sleep(60)")
    host.line()
    with pytest.raises(SupervisorError, match="running already"):
        host.start("pass")
    host.supervisor.stop("w0", grace_seconds=0.0)
    host.next(Exited)
    assert host.run("print('again')") == (0, ["again"])


def test_chatty_workers_lose_no_line_and_mix_none(host: Host) -> None:
    source = """
        import sys
        for number in range(5000):
            print(sys.argv[1], number, "x" * 200)
            print(sys.argv[1], number, file=sys.stderr)
        print("no newline at the end", end="")
    """
    for name in ("w0", "w1"):
        host.start(source, name, worker_id=name)
    for _ in range(2):
        assert host.next(Exited).returncode == 0
    out: dict[tuple[str, str], list[str]] = {}
    while not host.lines.empty():
        _, worker_id, stream, line = host.lines.get()
        out.setdefault((worker_id, stream), []).append(line)
    for name in ("w0", "w1"):
        assert out[name, "stdout"] == [f"{name} {n} {'x' * 200}" for n in range(5000)] + ["no newline at the end"]
        assert out[name, "stderr"] == [f"{name} {n}" for n in range(5000)]
        assert host.supervisor.tail(name) == [f"{name} {n}" for n in range(4950, 5000)]


def test_lines_come_when_they_are_printed_and_odd_bytes_do_no_harm(host: Host) -> None:
    host.start("import os, time; print('now'); os.write(1, b'\\xff\\x00 odd\\r\\n' + b'y' * 200_000); time.sleep(60)")
    assert host.line() == "now"
    assert host.line() == "\ufffd\x00 odd"
    assert len(host.line()) >= 65536


def test_a_process_that_escaped_with_the_pipe_does_not_hold_up_the_exit(host: Host) -> None:
    host.start("import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)")
    escaped = int(host.line())
    try:
        assert host.next(Exited).returncode == 0
    finally:
        os.kill(escaped, signal.SIGKILL)


@pytest.mark.parametrize("options", ["warm=False", "modules=()"])
def test_a_worker_whose_output_nobody_reads_any_more_goes_on(tmp_path: Path, options: str) -> None:
    # The supervisor's process is killed; its workers train on (the link decides when to leave, not a broken pipe).
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, time\n"
        "parent = os.getppid()\n"
        "print(os.getpid())\n"
        "while os.getppid() == parent: time.sleep(0.005)\n"
        "for _ in range(3): print('into the void'); print('and here', file=sys.stderr)\n"
        "open(sys.argv[1], 'w').write('alive')\n"
    )
    driver = (
        "import sys, time\n"
        "from reknit.runtime.supervisor.supervisor import Supervisor\n"
        f"s = Supervisor(print, {options})\n"
        "s.open()\n"
        "s.start('w0', sys.argv[1:])\n"
        "time.sleep(60)\n"
    )
    proof = tmp_path / "proof"
    process = subprocess.Popen(
        [sys.executable, "-c", driver, str(script), str(proof)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[w0] "):
            break
    process.kill()
    process.wait()
    process.stdout.close()
    eventually(proof.exists, "the worker came to its end")
    eventually(lambda: not is_alive(int(line.split()[1])), "and ended")


def test_close_stops_everything(host: Host) -> None:
    for number in range(3):
        host.start("import time; print('up'); time.sleep(60)", worker_id=f"w{number}")
    pids = {host.next(Started).pid for _ in range(3)}
    warm = host.supervisor.warm_pid
    host.supervisor.close(grace_seconds=5.0)
    assert not [pid for pid in {*pids, *([warm] if warm else [])} if is_alive(pid)]
    with pytest.raises(SupervisorError, match="closing"):
        host.start("pass")


def test_nothing_is_left_after_many_workers(host: Host) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    host.run("pass")
    before = descriptors()
    for _ in range(15):
        assert host.run("pass")[0] == 0
    eventually(lambda: descriptors() == before, "all descriptors are closed")


# ---------------------------------------------------------------------------------------- the warm process


def test_a_fork_is_quick(warm_host: Host) -> None:
    warm_host.run("pass")
    delays = []
    for _ in range(10):
        began = time.monotonic()
        warm_host.start("import time; print(time.monotonic())")
        delays.append(float(warm_host.line()) - began)
        warm_host.next(Exited)
    print(f"start to the script's first line, bare warm process: median {statistics.median(delays) * 1000:.1f} ms")
    assert statistics.median(delays) < 0.2


def test_workers_train_from_a_fork_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    host = Host(tmp_path, modules=("torch", "torch._dynamo"))
    try:
        source = """
            import random, sys, time
            print(time.monotonic())
            assert "torch._dynamo" in sys.modules
            import torch
            torch.set_num_threads(2)
            model = torch.nn.Linear(64, 64)
            optimizer = torch.optim.AdamW(model.parameters())
            model(torch.ones(256, 64)).sum().backward()
            optimizer.step()
            print(time.monotonic())
            print(torch.initial_seed(), random.random())
            print([name for name in ("etcd3", "grpc", "google.protobuf") if name in sys.modules])
        """
        host.start(source, environment={"OMP_NUM_THREADS": "1"})
        host.next(Exited)
        seeds = [host.all_lines()[2]]
        first, step = [], []
        for _ in range(4):
            began = time.monotonic()
            host.start(source)
            assert host.next(Exited).returncode == 0
            lines = host.all_lines()
            first.append(float(lines[0]) - began)
            step.append(float(lines[1]) - began)
            seeds.append(lines[2])
            assert lines[3] == "[]"
        assert host.supervisor.warm_pid is not None, "importing torch left it fit to fork"
        assert len({part for seed in seeds for part in seed.split()}) == 10, "each fork has random numbers of its own"
        print(
            f"start to the script's first line, torch imported: median {statistics.median(first) * 1000:.1f} ms; "
            f"to the end of the first optimizer step: {statistics.median(step) * 1000:.1f} ms"
        )
        assert statistics.median(first) < 0.5
    finally:
        host.supervisor.close(grace_seconds=0.0)


def test_workers_outlive_the_warm_process(warm_host: Host) -> None:
    warm_host.start("import sys, time; print('up'); time.sleep(60)")
    warm_host.start("import sys, time; print('up'); time.sleep(60)", worker_id="w1")
    eventually(lambda: warm_host.lines.qsize() == 2, "both are up")
    warm_host.all_lines()
    pids = [warm_host.next(Started).pid for _ in range(2)]
    first_warm = warm_host.supervisor.warm_pid
    assert first_warm is not None
    os.kill(first_warm, signal.SIGKILL)
    eventually(lambda: warm_host.supervisor.warm_pid not in (None, first_warm), "a new warm process")
    assert all(is_alive(pid) for pid in pids)
    assert warm_host.supervisor.signal("w0", signal.SIGKILL)
    exited = warm_host.next(Exited)
    assert (exited.worker_id, exited.returncode) == ("w0", None)
    assert warm_host.run("print('from the new one')") == (0, ["from the new one"])
    warm_host.supervisor.stop("w1", grace_seconds=5.0)
    assert warm_host.next(Exited).worker_id == "w1"


def test_what_is_sent_to_all_processes_of_a_job_is_the_agents_and_the_workers_to_hear(warm_host: Host) -> None:
    host = warm_host
    host.start("import time; print('up', flush=True); time.sleep(60)")
    assert host.line() == "up"
    warm = host.supervisor.warm_pid
    assert warm is not None
    for number in (signal.SIGTERM, signal.SIGUSR1):
        os.kill(warm, number)
    os.kill(host.pids[-1] if host.pids else host.next(Started).pid, signal.SIGUSR1)
    assert host.next(Exited).returncode == -signal.SIGUSR1
    assert host.supervisor.warm_pid == warm


def test_requests_survive_the_death_of_the_warm_process(warm_host: Host) -> None:
    warm_host.run("pass")
    warm = warm_host.supervisor.warm_pid
    assert warm is not None
    # Stopped, it takes the requests and answers none: whatever it was doing, they must be asked again, once each.
    os.kill(warm, signal.SIGSTOP)
    for number in range(3):
        warm_host.start("print('ran')", worker_id=f"w{number}")
    eventually(lambda: all(worker.requested for worker in warm_host.supervisor._workers.values()), "all are asked")
    os.kill(warm, signal.SIGKILL)
    exits = {warm_host.next(Exited) for _ in range(3)}
    assert {(each.worker_id, each.returncode) for each in exits} == {("w0", 0), ("w1", 0), ("w2", 0)}
    printed = [line for _, _, stream, line in list(warm_host.lines.queue) if stream == "stdout"]
    assert printed == ["ran"] * 3


def test_a_worker_can_be_stopped_before_it_began(warm_host: Host) -> None:
    warm_host.run("pass")
    warm = warm_host.supervisor.warm_pid
    assert warm is not None
    os.kill(warm, signal.SIGSTOP)
    warm_host.start("print('ran')")
    warm_host.supervisor.stop("w0", grace_seconds=5.0)
    os.kill(warm, signal.SIGCONT)
    exited = warm_host.next(Exited)
    assert exited.pid is None
    assert exited.returncode != 0
    assert warm_host.all_lines() == []


def test_a_module_that_cannot_be_imported_is_a_clear_failure(tmp_path: Path) -> None:
    host = Host(tmp_path, modules=("module_that_does_not_exist",))
    try:
        host.start("pass")
        failed = host.next(Failed)
        assert failed.worker_id == "w0"
        assert "cannot import module_that_does_not_exist" in failed.reason
        assert "--no-warm" in failed.reason
        host.start("pass", worker_id="w1")
        assert host.next(Failed).worker_id == "w1"
    finally:
        host.supervisor.close()


@pytest.mark.parametrize(
    "source",
    [
        "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    ],
    ids=["starts a thread", "kills the warm process"],
)
def test_modules_that_cannot_be_forked_cost_speed_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "awkward_module.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    host = Host(tmp_path, modules=("awkward_module",))
    try:
        assert host.run("print('ran')") == (0, ["ran"])
        assert host.supervisor.warm_pid is None
    finally:
        host.supervisor.close()


def test_the_warm_process_ends_with_its_supervisor_and_ignores_the_working_folder(tmp_path: Path) -> None:
    # A module of the user's that has a library module's name must not be imported in its place.
    (tmp_path / "argparse.py").write_text("raise SystemExit('the wrong argparse')")
    driver = (
        "import time\n"
        "from reknit.runtime.supervisor.supervisor import Supervisor\n"
        "s = Supervisor(print, modules=())\n"
        "s.open()\n"
        "while not (s._warm and s._warm.ready): time.sleep(0.005)\n"
        "print(s.warm_pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    (tmp_path / "elsewhere").mkdir()
    script = tmp_path / "elsewhere" / "driver.py"
    script.write_text(driver)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    warm = int(process.stdout.readline())
    assert is_alive(warm)
    process.kill()
    process.wait()
    process.stdout.close()
    eventually(lambda: not is_alive(warm), "the warm process ends")


def test_a_failure_at_one_thing_ends_neither_the_thread_nor_the_other_workers(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.start("import time; print('up'); time.sleep(60)", worker_id="w0")
    assert host.line("w0") == "up"
    tried = threading.Event()

    def fail(worker: object) -> None:
        tried.set()
        raise RuntimeError("on purpose")

    with monkeypatch.context() as patched:
        patched.setattr(host.supervisor, "_kill", fail)
        host.supervisor.stop("w0", 0.0)
        assert tried.wait(DEADLINE)
    host.start("print('ran')", worker_id="w1")
    assert host.line("w1") == "ran"
    assert host.next(Exited).worker_id == "w1"
    host.supervisor.stop("w0", 0.0)
    assert host.next(Exited).returncode == -9
