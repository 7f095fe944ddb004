"""A headless Chromium, driven over a pipe by its own protocol: no driver, no library, no port.

As much of https://chromedevtools.github.io/devtools-protocol/ as a test of one page needs.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # CI runs as root; what it opens is the page under test
    "--no-first-run",
    "--no-proxy-server",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
ANSWER_SECONDS = 30.0
READS, WRITES = 3, 4  # the descriptors at which Chromium expects its pipe


def find_chromium() -> str | None:
    """Where it is, None if nowhere."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class BrowserError(Exception):
    """The browser did not do what it was asked to."""


class Browser:
    """One browser with one tab.  `with` starts it, and ends all of it.

    `said`: what the page has written to the console, its uncaught errors, and what its policy has refused.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self._folder = tempfile.mkdtemp(prefix="reknit-browser-")
        self._pid = 0
        self._to = self._from = -1
        self._session: str | None = None
        self._last, self._rest = 0, b""

    def __enter__(self) -> Browser:
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _start(self) -> None:
        path = find_chromium()
        if path is None:
            raise BrowserError(f"none of {', '.join(NAMES)} is installed")
        ours, theirs = zip(_pipe(write=True), _pipe(write=False), strict=True)
        self._to, self._from = ours
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, f"{self._folder}.output", os.O_WRONLY | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, theirs[0], READS),
            (os.POSIX_SPAWN_DUP2, theirs[1], WRITES),
        ]
        command = [path, *FLAGS, f"--user-data-dir={self._folder}", "about:blank"]
        self._pid = os.posix_spawn(path, command, os.environ, file_actions=actions, setpgroup=0)
        for descriptor in theirs:
            os.close(descriptor)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def end(self) -> None:
        """Kill it with everything that it has started, and remove what it has written."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
        for descriptor in (self._to, self._from):
            if descriptor >= 0:
                os.close(descriptor)
        self._to = self._from = -1
        shutil.rmtree(self._folder, ignore_errors=True)
        Path(f"{self._folder}.output").unlink(missing_ok=True)

    # ---------------------------------------------------------------- what it is asked to do

    def open(self, url: str) -> None:
        """Go to a page; returns when it has been loaded."""
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise BrowserError(f"{url}: {answer['errorText']}")
        self.wait("document.readyState === 'complete'", 20.0, f"{url} to be loaded")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is in the page (awaited, by value)."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition: str, timeout: float, what: str = "") -> Any:
        """Wait until an expression is true in the page; return its value."""
        deadline = time.monotonic() + timeout
        while not (value := self.value(condition)):
            if time.monotonic() > deadline:
                text = self.value("document.body.innerText")
                raise BrowserError(
                    f"waited {timeout:g} s in vain for {what or condition}; {self.said}; it shows:\n{text}"
                )
            time.sleep(0.02)
        return value

    def resize(self, width: int, height: int, scale: float = 1.0, phone: bool = False) -> None:
        """Give the page another screen, in its own pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, **features: str) -> None:
        """What the reader prefers, like `color_scheme="dark"`."""
        wanted = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=wanted)

    def screenshot(self) -> bytes:
        """A PNG of what is on the screen."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    # ---------------------------------------------------------------- its protocol

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol; return its result.  Raises BrowserError."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            answer = self._read(deadline, method)
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return answer["result"]
            self._hear(answer.get("method", ""), answer.get("params", {}))

    def _hear(self, event: str, told: Mapping[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.said.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled":
            self.said.append(" ".join(str(part.get("value", part.get("description"))) for part in told["args"]))
        elif event == "Log.entryAdded":
            self.said.append(told["entry"]["text"])

    def _read(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._from, 1 << 20) if ready else b""
            if not data:
                said = Path(f"{self._folder}.output").read_text(errors="replace")[-2000:]
                raise BrowserError(f"no answer to {what}{'' if ready else ' in time'}; it said:\n{said}")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


def _pipe(write: bool) -> tuple[int, int]:
    """A pipe as (our end, its end); neither number is one that the browser gets them under."""
    reading, writing = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, WRITES + 1) for end in (reading, writing)]
    os.close(reading)
    os.close(writing)
    return (moved[1], moved[0]) if write else (moved[0], moved[1])
