"""What is to be served: classes (or functions) with options, bound to their arguments.

@serve.deployment(num_replicas=2)
class Model:
    def __init__(self, path): ...
    async def __call__(self, request): ...

app = Gateway.bind(Model.bind("a.bin"))                  # an application: Gateway gets a handle of Model
with serve.run(app) as running: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from rlplat.config import closest
from rlplat.errors import ConfigError
from rlplat.section import Count, CountOrZero, Seconds, Section
from rlplat.serve.autoscale import Autoscale
from rlplat.serve.batching import Batch
from rlplat.serve.http.sharing import CANARY, canary_replicas


class DeploymentOptions(Section):
    name: str = ""
    """In routes, logs and metrics; of the class by default."""
    num_replicas: Count = 1
    max_concurrency: Count = 100
    """Requests that run at once in a replica."""
    max_queued: CountOrZero = 200
    """Requests that wait behind them; those beyond are refused: 503 with Retry-After, `Busy` by a handle."""
    request_timeout_s: Seconds = 60.0
    """A request that has no answer by then is cancelled: 504, `DeadlineExceeded` by a handle."""
    drain_timeout_s: Seconds = 30.0
    """For the requests that run when a replica is to end."""
    start_timeout_s: Seconds = 600.0
    """For a replica's start, its process being there: imports, constructor, `reconfigure`. One that takes longer is
    ended and replaced, as one that fails to start."""
    health_check_period_s: Seconds = 10.0
    """A replica is asked so often whether it works: its `check_health()`, if it has one, raises where it does not."""
    health_check_timeout_s: Seconds = 30.0
    """One that gives no answer for so long is ended and replaced; so is one whose `check_health` raises three times in
    a row, and one whose thread is blocked by a `def` for longer than this and request_timeout_s."""
    max_body_bytes: Count = 64 << 20
    """Of a request over HTTP, and of a message of a WebSocket up to 16 MiB: 413, close code 1009."""
    max_held_bytes: Count = 128 << 20
    """Of all bodies and messages together that a replica holds: 503 with Retry-After, close code 1013."""
    max_connections: Count = 4096
    """Of a replica; those beyond wait to be accepted."""
    num_cpus: Annotated[float, Field(ge=0)] = 0.0
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    resources: dict[str, float] = {}
    """Of each replica; also num_cpus and num_gpus by these names."""
    autoscale: Autoscale | None = None
    batch: Batch | None = None
    """The calls that wait for a method become one call of it, with a list."""
    user_config: Any = None
    """Given to the object's `reconfigure(user_config)`: at its start, and when it changes, without a restart."""

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        if self.max_held_bytes < self.max_body_bytes:
            raise ValueError(
                f"max_body_bytes={self.max_body_bytes} is more than all bodies together, max_held_bytes="
                f"{self.max_held_bytes}: raise that too"
            )
        if self.batch is not None and not self.batch.many and self.batch.max_size > self.max_concurrency:
            raise ValueError(
                f"a batch of {self.batch.max_size} never fills where {self.max_concurrency} requests run at once: "
                "raise max_concurrency, or lower max_size of batch"
            )
        return self

    def changed(self, changes: Mapping[str, Any]) -> DeploymentOptions:
        """ConfigError, with a suggestion, for what is no option."""
        return DeploymentOptions(**{**dict(self), **changes})


@dataclass(frozen=True)
class Deployment:
    target: Callable[..., Any]
    """The class or the function."""
    options_: DeploymentOptions

    @property
    def name(self) -> str:
        return self.options_.name or self.target.__name__

    def options(self, **changes: Any) -> Deployment:
        return replace(self, options_=self.options_.changed(changes))

    def bind(self, *args: Any, **kwargs: Any) -> Application:
        """Arguments of the class's constructor; an `Application` among them arrives as its handle."""
        if not inspect.isclass(self.target) and (args or kwargs):
            raise ConfigError(f"{self.name} is a function: bind() takes no arguments")
        return Application(self, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ConfigError(f"{self.name} is a deployment: serve.run({self.name}.bind(...)), then call its handle")


@dataclass(frozen=True, eq=False)
class Application:
    deployment: Deployment
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def deployment(target: Any = None, **options: Any) -> Any:
    """Decorator, with or without options (`DeploymentOptions`)."""

    def decorate(target: Any) -> Deployment:
        if not callable(target):
            raise ConfigError(f"serve.deployment is for a class or a function, not {type(target).__name__}")
        return Deployment(target, DeploymentOptions(**options))

    return decorate if target is None else decorate(target)


def with_options(app: Application, options: dict[str, dict[str, Any]]) -> Application:
    """The same application with other options, by the deployment's name. ConfigError for a name that is not in it."""
    names = [part.deployment.name for part in parts_of(app)]
    for name in options:
        if name not in names:
            raise ConfigError(f"there is no deployment '{name}'{closest(name, names)}; there are {', '.join(names)}")
        if names.count(name) > 1:
            raise ConfigError(f"several deployments are named {name}: tell them apart by .options(name=...)")
    made: dict[int, Application] = {}

    def changed(part: Application) -> Application:
        if id(part) not in made:
            args, kwargs = replaced((part.args, part.kwargs), Application, changed)
            deployment = part.deployment.options(**options.get(part.deployment.name, {}))
            made[id(part)] = Application(deployment, args, kwargs)
        return made[id(part)]

    return changed(app)


def replaced(value: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """The value with `by(part)` in place of each part of this kind, those in lists, tuples and dicts too."""
    if isinstance(value, kind):
        return by(value)
    if type(value) in (list, tuple):
        return type(value)(replaced(each, kind, by) for each in value)
    if type(value) is dict:
        return {key: replaced(each, kind, by) for key, each in value.items()}
    return value


@dataclass(frozen=True)
class Part:
    """One deployment of an application, its arguments with the names of others in place of them."""

    name: str
    deployment: Deployment
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def calls(self) -> tuple[str, ...]:
        """The deployments that it gets handles of."""
        names: list[str] = []
        replaced((self.args, self.kwargs), PartName, lambda part: names.append(part.name))
        return tuple(names)


@dataclass(frozen=True)
class PartName:
    """Where an argument is another deployment's handle."""

    name: str


def parts_of(app: Application) -> list[Part]:
    """The deployments of an application, those that others need first, the one that takes HTTP requests last.

    One `Application` that is bound twice is one deployment; two of equal name are told apart by a number.
    """
    if not isinstance(app, Application):
        hint = f": bind it, {app.name}.bind()" if isinstance(app, Deployment) else ""
        raise ConfigError(f"an application is what bind() returns, not {type(app).__name__}{hint}")
    parts: dict[str, Part] = {}
    names: dict[int, PartName] = {}

    def visit(one: Application) -> PartName:
        if id(one) not in names:
            args, kwargs = replaced((one.args, one.kwargs), Application, visit)
            name, number = one.deployment.name, 2
            while name in parts:
                name, number = f"{one.deployment.name}_{number}", number + 1
            parts[name] = Part(name, one.deployment, args, kwargs)
            names[id(one)] = PartName(name)
        return names[id(one)]

    visit(app)
    return list(parts.values())


def canary_of(parts: list[Part], share: float) -> list[Part]:
    """The same application beside the one that runs: its deployments have other names, and call each other by these.
    ConfigError where share, of the connections, is not between 0 and 1."""
    if not 0 < share < 1:
        raise ConfigError(f"the share of a canary is a number between 0 and 1, not {share!r}")

    canary = []
    for part in parts:
        num_replicas = canary_replicas(part.deployment.options_.num_replicas, share)
        deployment = part.deployment.options(num_replicas=num_replicas, autoscale=None)
        args, kwargs = replaced((part.args, part.kwargs), PartName, lambda each: PartName(each.name + CANARY))
        canary.append(Part(part.name + CANARY, deployment, args, kwargs))
    return canary
