"""What the settings of a trial scheduler may be: the annotations of its arguments say it, as those of a `Section`."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field, create_model

from rlplat.config import Layer, resolve
from rlplat.errors import ConfigError
from rlplat.section import Section

Progress = Annotated[float, Field(gt=0)]
Factor = Annotated[float, Field(gt=1)]
Unit = Annotated[str, Field(min_length=1)]
"""`step`, or the name of a metric."""
Init = typing.TypeVar("Init", bound=Callable[..., None])


def checked(init: Init) -> Init:
    """Decorator of `__init__`. ConfigError: all that is wrong, with the name of the scheduler."""
    names = list(inspect.signature(init).parameters)[1:]

    @functools.cache
    def section() -> type[Section]:
        hints = typing.get_type_hints(init, include_extras=True)
        parameters = inspect.signature(init).parameters
        fields: dict[str, Any] = {name: (hints[name], parameters[name].default) for name in names}
        return create_model("Settings", __base__=Section, **fields)

    @functools.wraps(init)
    def with_checks(self: Any, *args: Any, **settings: Any) -> None:
        try:
            found = resolve(section(), [Layer(dict(zip(names, args, strict=False)) | settings)])
        except ConfigError as error:
            raise ConfigError(f"trial scheduler '{self.name}': {error}") from None
        init(self, **dict(found))

    return with_checks  # type: ignore[return-value]
