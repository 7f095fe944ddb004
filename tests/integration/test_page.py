"""The page in a real browser: it follows a real job while a worker is killed, and nothing that it shows can run.

One browser for the module, one job.
"""

from __future__ import annotations

import copy
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.faults.harness import START_SECONDS, TRAIN_PIPE, JobRun
from tests.integration.browser import Browser, find_chromium

from reknit.health.http import Pages, Unavailable
from reknit.health.http_server import HttpServer

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs Chromium (Debian: apt-get install chromium)")

EXAMPLE = Path(__file__).parents[1] / "data" / "status.json"
SHOWN = "!document.getElementById('main').hidden"


def every(selector: str) -> str:
    """Of all elements that match: their data attributes, and their text."""
    return f"Array.from(document.querySelectorAll('{selector}'), (one) => ({{...one.dataset, text: one.innerText}}))"


CELLS, EVENTS = every("#grid td:not(.vacant)"), every("#events li")
VACANT = "document.querySelectorAll('#grid td.vacant').length"


def text(browser: Browser, name: str) -> str:
    return str(browser.value(f"document.getElementById({json.dumps(name)}).innerText"))


def number(browser: Browser, name: str) -> int:
    return int(re.sub(r"\D", "", text(browser, name)) or 0)


def fetch(address: str, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/{page}", timeout=10.0) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser
        assert not browser.said


@pytest.fixture
def example() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(EXAMPLE.read_text())
    return document


def pages(status: Any) -> Pages:
    return Pages(metrics=lambda: b"", ready=lambda: (True, "ok"), healthy=lambda: (True, "ok"), status=status)


@contextmanager
def served(status: Any) -> Iterator[str]:
    server = HttpServer(pages(status), "127.0.0.1", 0)
    host, port = server.start()
    try:
        yield f"http://{host}:{port}/"
    finally:
        server.close()


# ---------------------------------------------------------------- a job


def test_the_grid_turns_and_the_event_appears_when_a_worker_is_killed(browser: Browser, tmp_path: Path) -> None:
    with JobRun(tmp_path, TRAIN_PIPE, replicas="2", pipe=2, options=("--standalone", "--http", "127.0.0.1:0")) as run:
        run.wait_strength(2, timeout=START_SECONDS)
        address = next(run.of("agent_started"))["http"]
        assert [fetch(address, page)[0] for page in ("healthz", "readyz", "status", "metrics")] == [200] * 4
        browser.open(f"http://{address}/")
        browser.wait(SHOWN, 10.0)
        browser.wait(f"{CELLS}.length === 4 && {CELLS}.every((cell) => cell.verdict === 'alive')", 10.0)
        before = {cell["worker"]: cell for cell in browser.value(CELLS)}
        assert {worker: int(cell["pid"]) for worker, cell in before.items()} == run.pids()
        assert all("alive" in cell["text"] for cell in before.values())
        assert text(browser, "replicas") == "2 of 2"
        assert browser.value(VACANT) == 0
        step, generation = number(browser, "step"), text(browser, "why").partition(",")[0]
        browser.wait(f"Number(document.getElementById('step').innerText.replace(/\\D/g, '')) > {step}", 5.0, "a step")

        victim = sorted(before)[0]
        since = len(run.poll())
        with run.hold():
            killed = run.kill(victim)
            browser.wait(f"{VACANT} === 2 && {CELLS}.length === 2", 10.0, "the grid to lose a replica")
            assert fetch(address, "readyz") == (503, f"not attached: {victim}\n")
            assert fetch(address, "healthz") == (200, "ok\n")
            browser.wait("document.getElementById('shortage').innerText.includes('50 %')", 5.0)
            browser.wait(f"{EVENTS}.some((line) => line.kind === 'loss' && / ms| s/.test(line.text))", 10.0, "the loss")
            assert victim not in {cell["worker"] for cell in browser.value(CELLS)}
            lost = next(line for line in browser.value(EVENTS) if line["kind"] == "loss")
            assert generation == f"Generation {int(lost['generation']) - 1}"
            assert victim in lost["text"]
            assert re.search(r"gap\s*\d+(\.\d)? m?s", lost["text"])
            assert f"lost {victim}" in browser.value("document.getElementById('said').textContent")
        run.wait_strength(2, since)
        assert fetch(address, "readyz") == (200, "ok\n")
        browser.wait(f"{CELLS}.length === 4 && {CELLS}.every((cell) => cell.verdict === 'alive')", 10.0, "a whole grid")
        after = {cell["worker"]: cell for cell in browser.value(CELLS)}
        assert int(after[victim]["pid"]) == run.pids()[victim] != killed
        assert [worker for worker in before if before[worker]["pid"] != after[worker]["pid"]] == [victim]
        browser.wait(f"{EVENTS}[0].kind === 'join'", 5.0)
        assert number(browser, "step") > step


# ---------------------------------------------------------------- a document


def hostile(value: Any, number: int = 0) -> Any:
    """The same document with markup in place of every text."""
    if isinstance(value, dict):
        return {key: hostile(part, number) for key, part in value.items()}
    if isinstance(value, list):
        return [hostile(part, index) for index, part in enumerate(value)]
    if isinstance(value, str) and not re.fullmatch(r"\d+\.\d+", value):  # a coordinate finds its place in the grid
        return f'"><img src=x onerror="window.ran=1"><script>window.ran=1</script><svg onload=window.ran=1>{number}'
    return value


MISTAKES = (
    "document.body.innerHTML = '<img src=x onerror=window.ran=1>'",
    "document.body.setAttribute('onclick', 'window.ran = 1'); document.body.click()",
    "const made = document.createElement('script'); made.textContent = 'window.ran = 1'; document.body.append(made)",
    "setTimeout('window.ran = 1', 0)",
    # This one no type forbids, but the policy does.
    "const frame = document.createElement('iframe'); frame.src = 'data:text/html,x'; document.body.append(frame)",
)


def test_what_others_wrote_is_shown_and_does_not_run(browser: Browser, example: dict[str, Any]) -> None:
    document = hostile(example)
    document["agents"][0]["http"] = "javascript:window.ran=1//:1"
    document["agents"][1]["http"] = "a.example/<b>:1"
    document["state"] = "__proto__"
    document["grid"][0]["places"][0]["verdict"] = "constructor"
    with served(lambda: document) as url:
        browser.open(url)
        browser.wait(f"{SHOWN} && {EVENTS}.length === 5 && {CELLS}.length === 6", 10.0)
        shown = browser.value("document.body.innerText")
        assert shown.count("<img src=x onerror=") > 20
        assert browser.value("window.ran") is None
        assert browser.value("document.images.length + document.scripts.length - 1") == 0
        assert browser.value("document.querySelectorAll('main a').length") == 0
        # Nor would it if the page made a mistake: no markup is taken, and no script but the page's own.
        for mistake in MISTAKES:
            browser.value(f"(() => {{ try {{ {mistake} }} catch (error) {{ console.log('refused') }} }})()")
        browser.wait("Array.from(document.images).every((image) => image.complete)", 5.0)
        assert browser.value("window.ran") is None
        assert browser.said.count("refused") == len(MISTAKES) - 1
        assert any("Content Security Policy" in said for said in browser.said)
        browser.said.clear()


def test_an_agent_that_does_not_answer_is_said_to_and_heard_again(browser: Browser, example: dict[str, Any]) -> None:
    server = HttpServer(pages(lambda: example), "127.0.0.1", 0)
    host, port = server.start()
    browser.open(f"http://{host}:{port}/")
    browser.wait(SHOWN, 10.0)
    browser.wait("document.getElementById('heard').innerText === 'live'", 5.0)
    server.close()
    browser.wait("!document.getElementById('trouble').hidden", 10.0)
    browser.wait("/last heard .* ago/.test(document.getElementById('heard').innerText)", 5.0)
    assert "This agent does not answer. What is shown was heard" in text(browser, "trouble")
    assert len(browser.value(CELLS)) == 6  # what was known stays

    def gone() -> Any:
        raise Unavailable("etcd does not answer")

    browser.said.clear()  # Chromium tells of each request that failed
    server = HttpServer(pages(gone), host, port)
    server.start()
    try:
        browser.wait("document.getElementById('trouble').innerText.includes('cannot tell: etcd does not answer')", 15.0)
        server.application.status = lambda: example  # type: ignore[attr-defined]
        browser.wait("document.getElementById('heard').innerText === 'live'", 20.0)
        browser.wait("document.getElementById('trouble').hidden", 5.0)
    finally:
        browser.open("about:blank")
        server.close()
        browser.said.clear()


def large(example: dict[str, Any], replicas: int, pipe: int) -> dict[str, Any]:
    document = copy.deepcopy(example)
    place = document["grid"][0]["places"][0]
    document["axes"]["pipe"] = pipe
    document["replicas"].update(now=replicas, wanted=replicas, max=replicas)
    document["grid"] = [
        {
            "slot": slot,
            "formed": 1,
            "places": [
                {**place, "coordinate": f"{stage}.0", "worker": f"host{slot}-{stage}", "pid": slot * pipe + stage + 1}
                for stage in range(pipe)
            ],
        }
        for slot in range(replicas)
    ]
    document["grid"][7 % replicas]["places"][pipe - 1].update(verdict="hung", reason="it hangs")
    return document


@pytest.mark.parametrize("shape", [(2, 2), (6, 4), (12, 1), (100, 8)], ids=lambda shape: f"{shape[0]}x{shape[1]}")
def test_it_fits_every_screen(browser: Browser, example: dict[str, Any], shape: tuple[int, int]) -> None:
    replicas, pipe = shape
    root = "document.documentElement"
    with served(lambda: large(example, replicas, pipe)) as url:
        browser.open(url)
        browser.wait(f"{SHOWN} && {CELLS}.length === {replicas * pipe}", 10.0)
        for width in (360, 768, 1440):
            browser.resize(width, 800, phone=width < 500)
            browser.wait(f"innerWidth === {width} && document.getElementById('grid').clientHeight < 1100", 5.0)
            assert browser.value(f"{root}.scrollWidth <= {root}.clientWidth")
            # Nothing sticks out of its panel.
            assert browser.value(
                "Array.from(document.querySelectorAll('.panel td')).every((cell) =>"
                " cell.getBoundingClientRect().right <= cell.closest('.panel').getBoundingClientRect().right)"
            )
            # Whoever is not well is told in words, however small its cell.
            assert "it hangs" in text(browser, "ills")
            assert "1 hung" in text(browser, "counts")
        browser.open("about:blank")


def test_the_grid_can_be_walked_through_with_the_keys_and_is_a_table_to_those_who_hear_it(
    browser: Browser, example: dict[str, Any]
) -> None:
    browser.resize(1440, 900)
    with served(lambda: example) as url:
        browser.open(url)
        browser.wait(f"{SHOWN} && {CELLS}.length === 6", 10.0)
        browser.value("document.querySelector('#grid td[tabindex=\"0\"]').focus()")
        assert text(browser, "facts").startswith("host0-0")
        for key, worker in (("ArrowRight", "host0-1"), ("ArrowDown", "host1-1"), ("ArrowLeft", "host1-0")):
            for kind in ("keyDown", "keyUp"):
                browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)
            assert text(browser, "facts").startswith(worker)
            assert browser.value("document.activeElement.dataset.worker") == worker
        tree = browser.call("Accessibility.getFullAXTree")["nodes"]
        roles = [node["role"]["value"] for node in tree if not node["ignored"]]
        assert roles.count("rowheader") >= 3
        assert roles.count("columnheader") >= 3
        assert {"main", "heading", "table"} <= set(roles)
        browser.open("about:blank")


def test_a_page_that_nobody_sees_asks_nothing(
    browser: Browser, example: dict[str, Any], wait_until: Callable[..., None]
) -> None:
    asked: list[float] = []

    def status() -> dict[str, Any]:
        asked.append(time.monotonic())
        return example

    with served(status) as url:
        browser.open(url)
        browser.wait(SHOWN, 10.0)
        browser.value(
            "Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true}) && undefined"
        )
        browser.wait("performance.now() > 2500", 10.0)
        before = len(asked)
        assert 1 <= before <= 2
        browser.value(
            "(() => { delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange')) })()"
        )
        browser.wait("document.getElementById('heard').innerText === 'live'", 5.0)
        wait_until(lambda: len(asked) > before + 1, 5.0, "the page to ask again")
        browser.open("about:blank")
