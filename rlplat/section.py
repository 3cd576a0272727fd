"""`Section`: what every group of settings is made of, and the limits of its numbers.

    class StopConfig(Section):
        env_steps: Count = 1_000_000      # the docstring below it is the setting's meaning

A section takes no unknown keys, no `true` where a number belongs, and no NaN or infinity; it does not change after
validation. In Python, wrong settings raise `InvalidSettings` with the messages of the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError, field_validator
from pydantic_core import PydanticCustomError, core_schema

from rlplat.config import layer_from_arguments, resolve
from rlplat.errors import ConfigError
from rlplat.setting_types import accepts_bool, member_type

MANY = 10**12
"""The largest count that a setting takes."""

Count = Annotated[int, Field(ge=1, le=MANY)]
CountOrZero = Annotated[int, Field(ge=0, le=MANY)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Epsilon = Annotated[float, Field(gt=0.0, le=1.0)]
"""A small number that keeps a division finite."""
Coefficient = Annotated[float, Field(ge=0.0, le=1000.0)]
Norm = Annotated[float, Field(gt=0.0, le=1e9)]
Seconds = Annotated[float, Field(gt=0.0, le=1e9)]


class InvalidSettings(ConfigError, ValidationError):
    """Wrong settings in a Python call; `errors()` are pydantic's, the text is what the command line says."""

    explanation: str

    @classmethod
    def of(cls, error: ValidationError, explanation: str) -> Self:
        details: list[Any] = [
            {
                "type": PydanticCustomError(item["type"], "{message}", {"message": item["msg"]}),
                "loc": item["loc"],
                "input": item["input"],
            }
            for item in error.errors(include_url=False)
        ]
        made = cls.from_exception_data(error.title, details)
        made.explanation = explanation
        return made

    def __str__(self) -> str:
        return self.explanation


class Section(BaseModel):
    """A group of settings: unknown keys are errors, values are not changed after validation."""

    example: ClassVar[Mapping[str, Any]] = {}
    """What a message shows where something else was given; empty: the first setting."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
    )

    def __init__(self, /, *nameless: Any, **values: Any) -> None:
        if nameless:
            name, first = type(self).__name__, next(iter(type(self).model_fields))
            raise TypeError(f"{name} takes its settings by name: {name}({first}={nameless[0]!r})")
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidSettings.of(error, _explanation(type(self), values, error)) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # validation itself does not call it

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """A class of a user's file travels by value: cloudpickle cannot rebuild one that shares its schema with the
        class in which it is nested, each of which holds the other."""
        super().__pydantic_init_subclass__(**kwargs)
        schema = cls.__pydantic_core_schema__
        if not cls.__module__.startswith("rlplat.") and isinstance(schema, dict):
            cls.__pydantic_core_schema__ = deepcopy(schema)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: Any) -> Any:
        """Python and pydantic would take it for 1."""
        annotation = cls.model_fields[info.field_name].annotation
        if not accepts_bool(annotation) and _holds_bool(value, annotation):
            raise PydanticCustomError("bool_given", "true or false is not allowed here")
        return value


@dataclass(frozen=True)
class Within:
    """Limits of a number that may be a schedule: every value that the schedule names lies within them."""

    ge: float
    le: float

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: Any) -> Any:
        named = getattr(value, "named_values", (value,))
        if not all(self.ge <= number <= self.le for number in named):
            raise PydanticCustomError("out_of_limits", "a value is out of limits")
        return value


def _holds_bool(value: Any, annotation: Any) -> bool:
    """annotation: of a section's own field; a group of settings looks at its fields itself."""
    if isinstance(value, list | tuple):
        return any(_holds_bool(item, None) for item in value)
    if isinstance(value, dict) and member_type(annotation) is not None:
        return any(isinstance(item, bool) for item in value.values())
    return isinstance(value, bool)


def _explanation(section: type[BaseModel], values: dict[str, Any], error: ValidationError) -> str:
    try:
        resolve(section, [layer_from_arguments(values)])
    except ConfigError as complaint:
        return str(complaint)
    return "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
