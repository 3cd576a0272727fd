"""Asking machines: a verb of `host` on one of them, or on all at once, with what they print under their names."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeVar

from rlplat.cluster.host import RESULT
from rlplat.cluster.machines import Machine, Unreachable, explained
from rlplat.cluster.node_process import HostError

_AT_ONCE = 64
Item = TypeVar("Item")
Answer = TypeVar("Answer")
Feed = Callable[[IO[bytes]], None]
"""Writes what follows the request."""


def ask(
    machine: Machine,
    verb: str,
    request: Mapping[str, Any],
    hear: Callable[[str], None] = lambda line: None,
    feed: Feed | None = None,
) -> dict[str, Any]:
    """The answer of `host` there; `hear` gets each line that is printed meanwhile. HostError: what went wrong."""
    process = subprocess.Popen(
        machine.argv([machine.python, "-m", "rlplat.cluster.host", verb]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    complained: list[str] = []
    failed: list[Exception] = []

    def hear_complaint(line: str) -> None:
        complained.append(line)
        hear(line)

    threads = [
        threading.Thread(target=_give, args=(process.stdin, request, feed, failed)),
        threading.Thread(target=_read, args=(process.stderr, hear_complaint)),
    ]
    for thread in threads:
        thread.start()
    answer: dict[str, Any] | None = None

    def take(line: str) -> None:
        nonlocal answer
        if line.startswith(RESULT):
            answer = json.loads(line.removeprefix(RESULT))
        else:
            hear(line)

    try:
        _read(process.stdout, take)
        code = process.wait()
    except BaseException:  # Ctrl-C: the other side ends with its connection
        process.kill()
        process.wait()
        raise
    finally:
        for thread in threads:
            thread.join()
        for stream in (process.stdout, process.stderr):
            stream.close()
    if failed:
        raise HostError(f"the files could not be sent: {failed[0]}") from failed[0]
    if answer is None:
        raise HostError(_failure(machine, code, complained))
    if "error" in answer:
        raise HostError(answer["error"])
    return answer


def on_each(items: Iterable[Item], do: Callable[[Item], Answer]) -> list[Answer | Exception]:
    """`do(item)` for all items at once; where it raised HostError or Unreachable, that, in the place of the answer."""

    def attempt(item: Item) -> Answer | Exception:
        try:
            return do(item)
        except (HostError, Unreachable) as error:
            return error

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(attempt, items))


def _give(stdin: IO[bytes], request: Mapping[str, Any], feed: Feed | None, failed: list[Exception]) -> None:
    try:
        with stdin:
            stdin.write(json.dumps(request).encode() + b"\n")
            if feed is not None:
                feed(stdin)
    except BrokenPipeError:
        pass  # the other side has ended, and says why
    except Exception as error:  # a file that cannot be read
        failed.append(error)


def _read(stream: IO[bytes], hear: Callable[[str], Any]) -> None:
    for line in stream:
        hear(line.decode(errors="replace").rstrip("\r\n"))


def _failure(machine: Machine, code: int, complained: Sequence[str]) -> str:
    """Why there is no answer: ssh's own line, or that there is no Python or no rlplat."""
    text = "\n".join(complained)
    if "No module named" in text and "rlplat" in text:
        return f"{machine.python} has no rlplat: install the same version there, or set python:"
    if code == 127 or (code == 126 and "ermission" in text):
        return f"there is no {machine.python}: set python: to one that has rlplat"
    if code == 255:
        return explained(text, machine.name)
    return complained[-1] if complained else f"ended with exit code {code}"
