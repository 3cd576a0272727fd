"""A headless Chromium whose pages a benchmark opens and asks: its DevTools protocol, over websockets."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from typing import Any

from websockets.sync.client import connect


class Chromium:
    def __init__(self) -> None:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        if program is None:
            raise SystemExit("no Chromium on PATH: apt install chromium")
        self._home = tempfile.TemporaryDirectory(prefix="rlplat-chromium-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
             f"--user-data-dir={self._home.name}", "--window-size=1400,1000", "about:blank"],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "DevTools listening on" in line:
                self._address = urllib.parse.urlsplit(line.split()[-1]).netloc
                return
        raise SystemExit("Chromium did not start")

    def open(self, url: str) -> Tab:
        """A new tab, when the page and its scripts have been loaded."""
        asked = urllib.request.Request(f"http://{self._address}/json/new?{urllib.parse.quote(url)}", method="PUT")
        with urllib.request.urlopen(asked, timeout=60) as answer:
            tab = Tab(json.load(answer)["webSocketDebuggerUrl"])
        while True:
            with contextlib.suppress(RuntimeError):  # of a context that ends when the page takes its place
                if tab.evaluate('document.readyState === "complete" && location.href !== "about:blank"'):
                    return tab
            time.sleep(0.02)

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()
        self._home.cleanup()


class Tab:
    def __init__(self, address: str) -> None:
        self._connection = connect(address, max_size=None)
        self._sent = 0

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page, awaited; RuntimeError where it throws."""
        self._sent += 1
        parameters = {"expression": script, "awaitPromise": True, "returnByValue": True, "replMode": True}
        self._connection.send(json.dumps({"id": self._sent, "method": "Runtime.evaluate", "params": parameters}))
        while True:
            said = json.loads(self._connection.recv(timeout=300))
            if said.get("id") == self._sent:
                break
        if "error" in said or "exceptionDetails" in said["result"]:
            raise RuntimeError(str(said))
        return said["result"]["result"].get("value")
