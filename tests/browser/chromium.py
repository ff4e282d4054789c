"""Headless Chromium through its DevTools protocol: one page at a time, everything that it does written down."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

#: how long the browser may take to start, and a page to load, in seconds
PATIENCE = 60.0
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--remote-debugging-port=0", "about:blank",
)  # fmt: skip


class Tab:
    """A page under test. console: what it logged or complained about; requests: the addresses that it asked for."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self.console: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=PATIENCE))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        kind, told = message.get("method", ""), message.get("params", {})
        self._events.append(message)
        if kind == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            self.console.append(json.dumps(told["exceptionDetails"]))
        elif kind == "Runtime.consoleAPICalled":
            self.console.append(json.dumps(told["args"]))
        elif kind == "Log.entryAdded":
            self.console.append(told["entry"]["text"])

    def open(
        self, path: Path, *, scripts: bool = True, width: int = 1280, height: int = 900, dark: bool = False
    ) -> float:
        """Load a file and wait until it is there; gives the seconds that took."""
        self.console.clear()
        self.requests.clear()
        self._events.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        start = time.perf_counter()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            assert time.perf_counter() - start < PATIENCE, "the page does not load"
            self._note(json.loads(self._socket.recv(timeout=PATIENCE)))
        self.evaluate("1") if scripts else None
        return time.perf_counter() - start

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def text(self) -> str:
        """What the document holds as text, folded parts and all, also where scripts are blocked."""
        node = self.call("DOM.getDocument", depth=0)["root"]["nodeId"]
        return str(self.call("DOM.getOuterHTML", nodeId=node)["outerHTML"])

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A screenshot, of the whole page or of what is seen first."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser() -> Iterator[Tab]:
    """A new Chromium with one empty page; it and its profile are gone afterwards."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "Chromium is not installed: run .ci/browser-setup.sh"
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        log = Path(profile) / "log"
        with log.open("w") as errors:
            process = subprocess.Popen([program, f"--user-data-dir={profile}", *FLAGS], stderr=errors)
            try:
                with connect(_address(log, process), max_size=None, open_timeout=PATIENCE) as socket:
                    yield Tab(socket)
            finally:
                process.terminate()
                process.wait(PATIENCE)


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """The socket of the first page."""
    import urllib.request

    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, f"Chromium does not start: {log.read_text()[-2000:]}"
        found = re.search(r"ws://([^/]+)/", log.read_text())
        if found:
            with urllib.request.urlopen(f"http://{found[1]}/json") as answer:
                pages = [page for page in json.load(answer) if page["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
        time.sleep(0.1)
    raise AssertionError("Chromium opens no page")
