"""A browser without a window, driven through its debugging pipe: JSON messages, no package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
LIMIT = 60  # seconds for an answer
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
FLAGS += ["--remote-debugging-pipe", "--disable-background-networking", "--disable-extensions"]
# The browser reads from 3 and writes to 4.
LAUNCH = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
LAUNCH += "os.execvp(sys.argv[3], sys.argv[3:])"


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page without a network; remembers errors and what the page asked for."""

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, self._out = self._pipe()
        self._in, theirs_out = self._pipe()
        command = [sys.executable, "-c", LAUNCH, str(theirs_in), str(theirs_out), program, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        off = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.call("Network.emulateNetworkConditions", offline=True, **off)

    @staticmethod
    def _pipe() -> list[int]:
        """Both ends above 10, so that none is in the way of 3 and 4."""
        ends = []
        for end in os.pipe():
            ends.append(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10))
            os.close(end)
        return ends

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser and wait for its answer; events on the way are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + LIMIT
        while (answer := self._read(end)).get("id") != self._number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _read(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(self._in, 2**20) if ready else b""
            if not chunk:
                raise TimeoutError("The browser did not answer.")
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file in a window of that size, and wait until it is drawn."""
        self.events.clear()
        phone = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.prefer_dark(dark)
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")
        self.settle()

    def prefer_dark(self, dark: bool) -> None:
        wanted = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[wanted])

    def js(self, expression: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", **asked)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def type(self, field: str, text: str) -> None:
        """Put a text into an input, as a user would."""
        self.js(f"""(() => {{
            const field = document.querySelector({json.dumps(field)});
            field.value = {json.dumps(text)};
            field.dispatchEvent(new Event("input"));
        }})()""")

    def settle(self) -> None:
        """Wait for two frames, so that what was asked for is drawn."""
        again = "requestAnimationFrame(() => requestAnimationFrame(done))"
        self.js(f"new Promise((done) => {again})")

    def wait(self, fact: str) -> None:
        end = time.monotonic() + LIMIT
        while not self.js(fact):
            if time.monotonic() > end:
                raise TimeoutError(f"Never came true: {fact}")
            time.sleep(0.02)

    def key(self, name: str) -> None:
        """Press a key."""
        text = {"Enter": "\r", "Space": " "}.get(name, name if len(name) == 1 else "")
        code = {"Enter": 13, "Tab": 9, "Space": 32, "Escape": 27}.get(name, 0)
        pressed = {"key": " " if name == "Space" else name, "windowsVirtualKeyCode": code}
        kind = "keyDown" if text else "rawKeyDown"
        self.call("Input.dispatchKeyEvent", type=kind, text=text, **pressed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)
        self.settle()

    def move(self, x: float, y: float) -> None:
        """Put the pointer somewhere."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def screenshot(self, path: Path, whole: bool = True) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(data["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    @property
    def errors(self) -> list[Any]:
        """Exceptions, errors and warnings since the page was opened."""
        self.js("0")  # what happened before has come in when this is answered
        found = []
        for event in self.events:
            name, told = event.get("method"), event.get("params", {})
            if name == "Runtime.exceptionThrown":
                found.append(told["exceptionDetails"])
            elif name == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
                found.append(told["args"])
            elif name == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(told["entry"])
        return found

    @property
    def requests(self) -> list[str]:
        """Everything that the page asked for."""
        asked = (e for e in self.events if e.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in asked]

    def close(self) -> None:
        for end in (self._in, self._out):
            os.close(end)  # it ends when nobody is at the other end
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
