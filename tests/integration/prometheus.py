"""A real Prometheus server that a test starts, lets scrape, and asks through its HTTP API."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
START_SECONDS = 30.0


class Answer(NamedTuple):
    """One series of an answer: its labels, and (Unix time, value) for each sample, oldest first."""

    labels: Mapping[str, str]
    samples: Sequence[tuple[float, float]]

    @property
    def value(self) -> float:
        """The newest."""
        return self.samples[-1][1]


class Prometheus:
    """One server on a port that the kernel chooses, which scrapes `targets` (host:port) and evaluates `rules`."""

    def __init__(
        self, folder: Path, targets: Sequence[str], rules: Sequence[Path] = (), interval: str = "250ms"
    ) -> None:
        assert PROMETHEUS is not None
        folder.mkdir()
        times = {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
        jobs = [{"job_name": "reknit", "static_configs": [{"targets": list(targets)}]}]
        config = {"global": times, "rule_files": [str(path) for path in rules], "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps(config))  # YAML takes JSON
        self._log = folder / "log"
        command = [PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "--web.listen-address=127.0.0.1:0"], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def __enter__(self) -> Prometheus:
        try:
            self._address = self.wait(self._listening, START_SECONDS, "its address").group(1)
            self.wait(lambda: self.query("up"), START_SECONDS, "a first scrape")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _listening(self) -> re.Match[str] | None:
        return re.search(r'msg="Listening on" address=(127\.0\.0\.1:\d+)', self._log.read_text(errors="replace"))

    def query(self, expression: str, at: float | None = None) -> list[Answer]:
        """Evaluate an expression, a range too, now or at a Unix time."""
        parameters = {"query": expression} | ({} if at is None else {"time": str(at)})
        url = f"http://{self._address}/api/v1/query?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            answer: dict[str, Any] = json.load(response)
        assert answer["status"] == "success", answer
        found = []
        for series in answer["data"]["result"]:
            samples = series["values"] if "values" in series else [series["value"]]
            found.append(Answer(series["metric"], [(float(t), float(v)) for t, v in samples]))
        return found

    def value(self, expression: str, at: float | None = None) -> float | None:
        """Of an expression that gives one series; None if it gives none."""
        found = self.query(expression, at)
        assert len(found) <= 1, found
        return found[0].value if found else None

    def by(self, label: str, expression: str) -> dict[str, float]:
        """Values by one label that tells the series apart."""
        found = self.query(expression)
        values = {answer.labels[label]: answer.value for answer in found}
        assert len(values) == len(found), found
        return values

    def wait(self, condition: Callable[[], Any], timeout: float, what: str) -> Any:
        """Wait until `condition()` is true and return its value."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                value = condition()
            except OSError:  # it has only begun to listen
                value = None
            if value:
                return value
            log = self._log.read_text(errors="replace")[-3000:]
            assert self._process.poll() is None, f"Prometheus has ended:\n{log}"
            assert time.monotonic() < deadline, f"waited {timeout:g} s in vain for {what}:\n{log}"
            time.sleep(0.05)


def check_metrics(exposition: bytes) -> str:
    """What `promtool check metrics` complains of."""
    assert PROMTOOL is not None
    command = [PROMTOOL, "check", "metrics"]
    done = subprocess.run(command, input=exposition, capture_output=True, timeout=30, check=False)
    complaints = (done.stdout + done.stderr).decode()
    assert done.returncode in (0, 3) or complaints, done
    return complaints
