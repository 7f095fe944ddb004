"""Makes the pictures of the page that the README shows, from a real job that loses a worker and then a whole host.

    make screenshot

Four hosts, each of its own name (a UTS namespace of its own), so that no picture shows the name of a machine.  They
look best where the typeface Inter is installed (Debian: fonts-inter).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.faults.harness import EXAMPLES, ROOT, JobRun
from tests.integration.browser import Browser, find_chromium

from reknit.rendezvous.store.embedded import EmbeddedEtcd

TARGET = ROOT / "deploy" / "screenshots"
LARGEST = 200_000  # bytes of a picture
START_SECONDS = 180.0
HOSTS, REPLICAS, PIPE = {"node-a": 2, "node-b": 2, "node-c": 2}, 3, 2
SPARE = "node-d"
VICTIM, LOST_HOST = "node-a-1", "node-b"
RUN_UP, WHOLE_AGAIN = 12.0, 6.0  # seconds of training between what happens, so that there is something to see
CELLS = "document.querySelectorAll('#grid td:not(.vacant)').length"
WELL = (
    "Array.from(document.querySelectorAll('#grid td:not(.vacant)')).every((cell) => cell.dataset.verdict === 'alive')"
)


def named(name: str) -> list[str]:
    """What comes before a command so that it runs on a host called so."""
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *rights, "--uts", "sh", "-c", 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"', name]


def start(folder: Path, etcd: str, name: str) -> JobRun:
    """One host of the job."""
    options = ["--etcd", etcd, "--job", "gpt", "--agent", name, "--workers", str(HOSTS.get(name, 1)), "--detect", "2"]
    return JobRun(
        folder,
        EXAMPLES / "train_gpt.py",
        ["--steps", "1000000", "--step-ms", "80"],
        replicas=f"1:{REPLICAS}",
        pipe=PIPE,
        options=options,
        name=name,
        prefix=named(name),
    )


def picture(browser: Browser, name: str, width: int, highest: int, scale: float, scheme: str) -> None:
    """Write one PNG, as high as the page is, but no higher."""
    browser.prefer(color_scheme=scheme)
    browser.resize(width, highest, scale, phone=width < 500)
    browser.wait(f"innerWidth === {width}", 5.0)
    browser.value("new Promise((done) => setTimeout(done, 1500))")  # what is highlighted has calmed down
    height = min(highest, browser.value("document.getElementById('page').offsetHeight"))
    browser.resize(width, height, scale, phone=width < 500)
    data = browser.screenshot()
    if len(data) > LARGEST:
        sys.exit(f"{name} would have {len(data)} bytes, more than {LARGEST}")
    (TARGET / name).write_bytes(data)
    print(f"{TARGET.relative_to(ROOT) / name}: {width} x {height}, {len(data) / 1000:.0f} kB")


def look(browser: Browser, address: str, replicas: int) -> None:
    """Wait until the page shows so many replicas that are well, and what the last change has cost."""
    if not browser.value("location.href").startswith(f"http://{address}"):
        browser.open(f"http://{address}/")
    browser.wait(f"{CELLS} === {replicas * PIPE} && {WELL}", START_SECONDS, f"{replicas} replicas that are well")


def train(run: JobRun, seconds: float) -> None:
    """Let the job go on for a while."""
    until = time.monotonic() + seconds
    run.wait(lambda: time.monotonic() > until, seconds + 10.0, "time to pass")


def show(folder: Path, etcd: str, stack: ExitStack) -> None:
    """The job, what happens to it, and the pictures."""
    runs = {name: stack.enter_context(start(folder, etcd, name)) for name in HOSTS}
    browser = stack.enter_context(Browser())
    watched = runs["node-c"]
    address = watched.wait_event("agent_started", START_SECONDS)["http"]
    watched.wait_strength(REPLICAS, timeout=START_SECONDS)
    look(browser, address, REPLICAS)
    stack.enter_context(start(folder, etcd, SPARE))  # only now: as a spare
    browser.wait(f"document.getElementById('spares').innerText.includes('{SPARE}')", START_SECONDS, "the spare")
    train(watched, RUN_UP)
    runs["node-a"].kill(VICTIM)
    browser.wait("!!document.querySelector('#events .gap:not(.none-known)')", 30.0, "the gap of the loss")
    look(browser, address, REPLICAS)
    train(watched, RUN_UP)
    runs[LOST_HOST].end()
    look(browser, address, REPLICAS - 1)
    browser.wait(
        "!document.querySelector('#events li .gap').classList.contains('none-known')", 30.0, "the gap of the loss"
    )
    train(watched, WHOLE_AGAIN)
    picture(browser, "page.png", 1280, 960, 1.0, "light")
    picture(browser, "page-dark.png", 1280, 960, 1.0, "dark")
    stack.enter_context(start(folder, etcd, LOST_HOST))
    look(browser, address, REPLICAS)
    train(watched, WHOLE_AGAIN)
    picture(browser, "page-phone.png", 390, 844, 1.5, "dark")


def main(missing: Sequence[str] = ()) -> None:
    """Make them all."""
    missing = [*missing, *([] if find_chromium() else ["chromium"]), *([] if shutil.which("unshare") else ["unshare"])]
    if missing:
        sys.exit(f"make screenshot needs {' and '.join(missing)}")
    TARGET.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="reknit-screenshot-") as folder,
        EmbeddedEtcd() as etcd,
        ExitStack() as stack,
    ):
        show(Path(folder), etcd.endpoint, stack)


if __name__ == "__main__":
    main()
