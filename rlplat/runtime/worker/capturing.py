"""A placement group that captures the children of what runs in it (`placement_group_capture_child_tasks=True`).

The backend of a worker is replaced by `Capturing` while such a task runs, or for as long as such an actor lives. So
everything else has nothing to ask on its way: remote functions bind themselves anew when the backend has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlplat.runtime.backend import Backend
from rlplat.runtime.demand import captured
from rlplat.runtime.options import Options
from rlplat.runtime.remote import ActorHandle
from rlplat.runtime.wire.codec import RemoteCode
from rlplat.runtime.wire.values import Capture


class Capturing:
    """A backend that submits into the group, unless the options of what is submitted say otherwise."""

    def __init__(self, backend: Backend, capture: Capture) -> None:
        self._backend, self._capture = backend, capture
        # Bound here, as these are called often.
        self.get, self.put, self.wait = backend.get, backend.put, backend.wait
        self.submit_call, self.adopt = backend.submit_call, backend.adopt

    def submitter(self, code: RemoteCode, options: Options) -> Callable[[tuple, dict], Any]:
        return self._backend.submitter(code, captured(options, self._capture))

    def create_actor(self, code: RemoteCode, args: tuple, kwargs: dict, options: Options) -> ActorHandle:
        return self._backend.create_actor(code, args, kwargs, captured(options, self._capture))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)
