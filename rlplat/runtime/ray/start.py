"""`rlplat.init(backend="ray")`: what can be said before Ray itself is loaded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rlplat.errors import MissingExtra, OptionError
from rlplat.runtime.ray.watch import why_silent

if TYPE_CHECKING:
    from rlplat.runtime.connect import Settings
    from rlplat.runtime.ray.backend import RayBackend

_NOT_ON_RAY = ("hang_timeout_s", "memory_usage_threshold", "log_dir", "spill_dir", "store_full_timeout_s")


def open_backend(settings: Settings) -> RayBackend:
    defaults, address = type(settings)(), settings.address
    asked = [name for name in _NOT_ON_RAY if getattr(settings, name) != getattr(defaults, name)]
    if asked:
        raise OptionError(
            f"rlplat.init(backend='ray'): Ray has no {', '.join(asked)}: leave that out (docs/on-ray.md says what "
            "differs)"
        )
    if address not in (None, "local"):
        # No process of Ray starts here that would inherit it: its warnings about a head that does not answer are in
        # the exception as well.
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")
    try:
        from rlplat.runtime.ray.backend import RayBackend
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingExtra("ray", "ray", "rlplat.init(backend='ray')") from None
    if address not in (None, "auto", "local") and (why := why_silent(str(address))):
        raise OptionError(
            f"rlplat.init(backend='ray', address={address!r}): no Ray cluster answers there ({why}): give HOST:PORT as "
            "`ray start --head` prints it, or address='auto' on a machine of the cluster"
        )
    return RayBackend.start(settings)
