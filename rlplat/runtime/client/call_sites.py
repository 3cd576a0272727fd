"""What made each object, and where in the user's code, when RLPLAT_RECORD_CALLSITES is set (docs/observability.md).

The verbs of one client are replaced by ones that note their caller: whoever does not set the variable pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from rlplat.runtime.options import Options
from rlplat.runtime.process import own_frames
from rlplat.runtime.refs import ObjectRef
from rlplat.runtime.wire.codec import RemoteCode

_SLACK = 10_000


def record_call_sites(client: Any) -> None:
    """From now on `client.call_sites` has id -> (task, "file.py:12 in function") of the objects that it owns."""
    sites: dict[int, tuple[str, str]] = {}
    client.call_sites = sites

    def recording(verb: Callable[..., Any], made_by: Callable[..., str]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            out = verb(*args, **kwargs)
            refs = out if type(out) is list else [getattr(out, "_creation", out)]
            site = made_by(*args), _site()
            for ref in refs:
                if type(ref) is ObjectRef:
                    sites[ref.id] = site
            if len(sites) > 2 * len(client.objects.book) + _SLACK:
                for id in [id for id in list(sites) if client.objects.book.find(id) is None]:
                    sites.pop(id, None)
            return out

        return recorded

    client.put = recording(client.put, lambda value: "put")
    client.create_actor = recording(client.create_actor, lambda code, *_: f"actor {code.name}")
    client.submit_call = recording(
        client.submit_call, lambda handle, method, *_: f"{handle._info.class_name}.{method}"
    )
    submitter = client.submitter

    def recording_submitter(code: RemoteCode, options: Options) -> Callable[..., Any]:
        return recording(submitter(code, options), lambda *_: options.name or code.name)

    client.submitter = recording_submitter


def _site() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and own_frames.is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
