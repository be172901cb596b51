"""Shows a page to a Chromium and asks it what is there, in real time: no machine is too slow for that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND",
           "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,900",
           "--enable-logging=stderr", "--remote-debugging-pipe")  # fmt: skip

needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on this machine: the page was shown to no browser"
)

DOCUMENT = "document.documentElement.outerHTML"
LOADED = "document.readyState === 'complete' && location.href !== 'about:blank'"
#: A page draws what depends on its boxes' sizes once it has them (a ResizeObserver): by the end of its second frame.
DRAWN = "new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(then))))"


def shown(page: Path, script: str = DOCUMENT) -> tuple[Any, list[str]]:
    """What an expression gives in a page that is drawn (of a promise: its value), and what the page complained of."""
    with tempfile.TemporaryDirectory() as work:
        log, asked, answered = (Path(work, name) for name in ("log", "asked", "answered"))
        for pipe in (asked, answered):
            os.mkfifo(pipe)
        # a browser reads what is asked of it from file 3, and answers in file 4
        command = ["sh", "-c", 'exec "$@" 3<"$0/asked" 4>"$0/answered"', work, str(BROWSER), *OPTIONS]
        with log.open("w") as errors:
            browser = subprocess.Popen([*command, f"--user-data-dir={work}/profile"], stdout=errors, stderr=errors)
        try:
            with asked.open("wb", buffering=0) as requests, answered.open("rb") as answers:
                value = _value(lambda request: _answer(request, requests, answers), page.as_uri(), script)
        finally:
            browser.wait(60)  # it ends where nothing can be asked any more
        return value, [line for line in log.read_text().splitlines() if "CONSOLE" in line]


def _value(ask: Callable[[dict], dict], page: str, script: str) -> Any:
    target = ask({"method": "Target.createTarget", "params": {"url": page}})["targetId"]
    session = ask({"method": "Target.attachToTarget", "params": {"targetId": target, "flatten": True}})["sessionId"]

    def value(expression: str) -> Any:
        of = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        given = ask({"method": "Runtime.evaluate", "params": of, "sessionId": session})
        assert "exceptionDetails" not in given, given
        return given["result"].get("value")

    while not value(LOADED):
        pass
    value(DRAWN)
    return value(script)


def _answer(request: dict, requests, answers) -> dict:
    requests.write(json.dumps({"id": 1, **request}).encode() + b"\0")
    said = b""
    while True:
        more = answers.read1()
        assert more, "the browser ended before it answered"
        *whole, said = (said + more).split(b"\0")
        for answer in map(json.loads, whole):
            if answer.get("id") == 1:
                assert "result" in answer, answer
                return answer["result"]
