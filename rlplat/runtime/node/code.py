"""Folders of runtime environments (`working_dir`, `py_modules`) that lie with the program: a machine that has joined
pulls them, as large values, before it takes an environment for defined.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable

from rlplat.runtime.envs.spec import ARCHIVE, search_path, segment_of
from rlplat.runtime.machine.worker_logs import SNAPSHOTS
from rlplat.runtime.wire.messages import NODE, Pull, Pulled
from rlplat.runtime.wire.values import ErrorInfo


class Code:
    """`define(key, spec)` and `fail(key, error)`: what becomes of an environment; `pull`s are answered by `pulled`."""

    def __init__(
        self,
        session: str,
        folder: str,
        pull: Callable[[Pull], None],
        define: Callable[[str, str], None],
        fail: Callable[[str, ErrorInfo], None],
    ) -> None:
        self._session, self._snapshots = session, os.path.join(folder, SNAPSHOTS)
        self._pull, self._define, self._fail = pull, define, fail
        self._requests = itertools.count(1)
        self._pulling: dict[int, str] = {}
        """Names of snapshots, by request."""
        self._waiting: dict[str, tuple[str, set[str]]] = {}
        """Environments: what they are, and what they lack."""

    def _is_here(self, name: str) -> bool:
        path = os.path.join(self._snapshots, name)
        return os.path.isdir(path) or os.path.lexists(f"{path}{ARCHIVE}")

    def define(self, key: str, spec: str) -> None:
        missing = {name for name in search_path(json.loads(spec)) if not self._is_here(name)}
        if not missing:
            self._define(key, spec)
            return
        self._waiting[key] = spec, missing
        for name in missing - {*self._pulling.values()}:
            request = next(self._requests)
            self._pulling[request] = name
            self._pull(Pull(request, NODE, segment_of(name)))

    def pulled(self, message: Pulled) -> None:
        name = self._pulling.pop(message.request)
        if message.is_there:  # a name of its own: the copy may make way for others
            os.makedirs(self._snapshots, mode=0o700, exist_ok=True)
            kept = os.path.join(self._session, name)
            os.link(os.path.join(self._session, segment_of(name)), kept)
            os.symlink(kept, os.path.join(self._snapshots, f"{name}{ARCHIVE}"))
        for key, (spec, missing) in list(self._waiting.items()):
            if name in missing and not message.is_there:
                del self._waiting[key]
                why = message.error or "it is not there any more"
                text = f"a folder of its working_dir or py_modules could not be had from the program's machine: {why}"
                self._fail(key, ErrorInfo("RuntimeEnvFailed", text))
            missing.discard(name)
            if not missing and key in self._waiting:
                del self._waiting[key]
                self._define(key, spec)
