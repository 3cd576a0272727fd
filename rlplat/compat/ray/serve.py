"""`ray.serve` by `rlplat.serve`: names and arguments of Ray. FastAPI's `ingress` is refused; see docs/serving.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlplat import serve as ours
from rlplat.errors import ConfigError

_SAME = ("name", "num_replicas", "user_config")
_OPTIONS = {"max_ongoing_requests": "max_concurrency", "max_concurrent_queries": "max_concurrency",
            "max_queued_requests": "max_queued", "graceful_shutdown_timeout_s": "drain_timeout_s",
            "request_timeout_s": "request_timeout_s", "health_check_period_s": "health_check_period_s",
            "health_check_timeout_s": "health_check_timeout_s"}  # fmt: skip
_running: dict[str, Any] = {}
get_multiplexed_model_id = ours.model_id


def _translated(options: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in options.items():
        if value is None:
            continue
        if key in _SAME and value != "auto":
            made[key] = value
        elif key in _OPTIONS:
            made[_OPTIONS[key]] = value
        elif key == "ray_actor_options":
            for name, amount in value.items():
                if name not in ("num_cpus", "num_gpus", "resources"):
                    raise ConfigError(f"ray_actor_options: {name!r} is no option of a deployment here")
                made[name] = amount
        elif key == "autoscaling_config" or value == "auto":
            made["autoscale"] = _autoscale({} if value == "auto" else dict(value))
        else:
            raise ConfigError(f"serve.deployment has no {key!r} here: docs/serving.md lists its options")
    return made


def _autoscale(given: dict[str, Any]) -> Any:
    settings: dict[str, Any] = {}
    for key in ("min_replicas", "max_replicas"):
        if key in given:
            settings[key] = given.pop(key)
    for key in ("target_ongoing_requests", "target_num_ongoing_requests_per_replica"):
        if key in given:
            settings["target_ongoing"] = float(given.pop(key))
    given.pop("initial_replicas", None)
    if given:
        raise ConfigError(
            f"autoscaling_config: {', '.join(given)}: not here; there are {', '.join(settings)}"
        )
    return ours.Autoscale(**settings)


def deployment(target: Any = None, **options: Any) -> Any:
    """Decorator, with or without options."""
    made = _translated(options)
    return (
        (lambda given: ours.deployment(given, **made)) if target is None else ours.deployment(target, **made)
    )


def batch(function: Any = None, *, max_batch_size: int = 10, batch_wait_timeout_s: float = 0.0) -> Any:
    decorate = ours.batch(max_size=max_batch_size, max_wait_ms=1000 * batch_wait_timeout_s)
    return decorate if function is None else decorate(function)


def multiplexed(function: Any = None, *, max_num_models_per_replica: int = 3) -> Any:
    decorate = ours.multiplexed(max_models=max_num_models_per_replica)
    return decorate if function is None else decorate(function)


class _Handle:
    """`DeploymentHandle`: `handle.remote(x).result()`, `await handle.method.remote(x)`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return self._handle.remote(*args, **kwargs)

    def options(self, *, multiplexed_model_id: str = "", stream: bool = False, method_name: str = "") -> Any:
        handle = getattr(self._handle, method_name) if method_name else self._handle
        if multiplexed_model_id:
            handle = handle.options(model_id=multiplexed_model_id)
        if stream:
            raise ConfigError(
                "handle.options(stream=True): `async for value in handle.stream(...)` of rlplat.serve"
            )
        return _Handle(handle)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Handle(getattr(self._handle, name))


def start(**options: Any) -> None:
    """Nothing to start: `run` does."""
    if options.get("http_options"):
        raise ConfigError("serve.start(http_options=...): serve.run(app, host=..., port=...) here")


def run(
    target: Any, *, name: str = "default", route_prefix: str | None = "/", blocking: bool = False,
    host: str = "127.0.0.1", port: int = 8000, **others: Any,
) -> Any:  # fmt: skip
    """Start or replace the application `name`; its handle."""
    if route_prefix not in ("/", None) or others:
        raise ConfigError("serve.run: an application has a port of its own here (port=), and no route_prefix")
    delete(name)
    running = _running[name] = ours.run(target, host=host, port=None if route_prefix is None else port)
    if blocking:
        try:
            import signal

            signal.pause()
        except KeyboardInterrupt:
            delete(name)
    return _Handle(running.handle)


def get_app_handle(name: str) -> Any:
    if name not in _running:
        raise ConfigError(f"no application {name!r} runs; there are {', '.join(_running) or 'none'}")
    return _Handle(_running[name].handle)


def status() -> dict[str, Any]:
    return {name: running.status() for name, running in _running.items()}


def delete(name: str) -> None:
    if name in _running:
        _running.pop(name).stop()


def shutdown() -> None:
    for name in list(_running):
        delete(name)


def __getattr__(name: str) -> Any:
    told = {
        "create_backend": "@serve.deployment", "create_endpoint": "serve.run", "init": "serve.run",
        "ingress": "a method asgi(self) that returns the FastAPI app", "get_handle": "serve.get_app_handle",
    }  # fmt: skip
    if name in told:
        raise AttributeError(f"rlplat.compat.ray.serve has no {name!r}; here it is {told[name]}")
    raise AttributeError(f"rlplat.compat.ray.serve has no {name!r}; rlplat's own is in docs/serving.md")
