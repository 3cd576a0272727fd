"""Performs the steps of a newcomer in a clone, in one interpreter, so that everything is imported once.

    python tests/house/walking.py < steps.json

A step is ["page", name], ["command", words], ["python", text] or ["file", name, text].

The clone is the current directory, and the rlplat that is imported is its own. Ends at the first step that fails.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import rlplat
from rlplat.cli import main

names: dict[str, Any] = {}
SERVERS = ("dashboard",)
"""Commands that run until Ctrl-C."""


def command(words: list[str]) -> None:
    print("$", *words, flush=True)
    code = listen(words) if words[1] in SERVERS else main(words[1:])
    if code != 0:
        sys.exit(f"exit code {code}")


def listen(words: list[str]) -> int:
    """The exit code of a server that is told to end as soon as it says where it is."""
    line = [sys.executable, "-m", "rlplat.cli", *words[1:]]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        print(process.stderr.readline(), end="")
        process.send_signal(signal.SIGINT)
        return process.wait(60)


def page(name: str) -> None:
    """The programs of a page are typed at one prompt."""
    print("#", name, flush=True)
    names.clear()
    names["__name__"] = "__main__"


def python(text: str) -> None:
    print(">>>", text.partition("\n")[0], "...", flush=True)
    exec(compile(text, "<the page>", "exec"), names)


def file(name: str, text: str) -> None:
    print("$ editor", name, flush=True)
    Path(name).write_text(text)


if __name__ == "__main__":
    assert Path(rlplat.__file__).is_relative_to(Path.cwd()), rlplat.__file__
    sys.path[0] = os.getcwd()
    for kind, *rest in json.load(sys.stdin):
        {"page": page, "command": command, "python": python, "file": file}[kind](*rest)
