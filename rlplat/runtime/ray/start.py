"""`rlplat.init(backend="ray")`: what can be said before Ray itself is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlplat.errors import MissingExtra, OptionError

if TYPE_CHECKING:
    from rlplat.runtime.ray.backend import RayBackend


def start_on_ray(kept_promises: dict[str, bool], **options: Any) -> RayBackend:
    """kept_promises: arguments of `init` that mean nothing to Ray, and whether each has its default."""
    asked = [name for name, is_default in kept_promises.items() if not is_default]
    if asked:
        raise OptionError(
            f"rlplat.init(backend='ray'): Ray has no {', '.join(asked)}: leave that out (docs/on-ray.md says what "
            "differs)"
        )
    try:
        from rlplat.runtime.ray.backend import RayBackend
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingExtra("ray", "ray", "rlplat.init(backend='ray')") from None
    return RayBackend.start(**options)
