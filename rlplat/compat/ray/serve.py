"""`ray.serve` of today over `rlplat.serve`; that of 2020 (`serve.init`, endpoints, backends) is refused in words."""

from __future__ import annotations

import time
from typing import Any

from rlplat import serve
from rlplat.compat.ray.refusals import check, refusing
from rlplat.errors import OptionError
from rlplat.serve import Application, Deployment, Handle, Running
from rlplat.serve import model_id as get_multiplexed_model_id

DeploymentHandle = Handle
_NOT_HERE = {
    "route_prefix": "each application has its own port",
    "graceful_shutdown_wait_loop_s": "running.stop(drain_s) of rlplat.serve.run",
    "logging_config": "what replicas print is shown",
    "placement_group_bundles": "resources of ray_actor_options",
    "version": "running.update of rlplat.serve.run",
    "local_testing_mode": "ray.init(local_mode=True)",
    "external_scaler_enabled": "running.scale of rlplat.serve.run",
}
_OPTIONS = {
    **{name: name for name in "num_replicas name user_config health_check_period_s health_check_timeout_s".split()},
    "max_ongoing_requests": "max_concurrency",
    "max_concurrent_queries": "max_concurrency",
    "max_queued_requests": "max_queued",
    "graceful_shutdown_timeout_s": "drain_timeout_s",
}
_AUTOSCALE = {
    "min_replicas": "min_replicas",
    "max_replicas": "max_replicas",
    "target_ongoing_requests": "target_ongoing",
    "target_num_ongoing_requests_per_replica": "target_ongoing",
    "upscale_delay_s": "up_after_s",
    "downscale_delay_s": "down_after_s",
}
_running: dict[str, Running] = {}
_http: dict[str, Any] = {}


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Of `serve.deployment`, by our names."""
    options: dict[str, Any] = {}
    for name, ours in _OPTIONS.items():
        if (value := given.pop(name, None)) is not None and (name, value) != ("max_queued_requests", -1):
            options[ours] = value
    actor = dict(given.pop("ray_actor_options", None) or {})
    options |= {key: actor.pop(key) for key in ("num_cpus", "num_gpus", "resources") if key in actor}
    if actor:
        raise OptionError(f"ray_actor_options has {', '.join(actor)}: num_cpus, num_gpus, resources are here")
    if scaling := given.pop("autoscaling_config", None):
        check("autoscaling_config", {k: v for k, v in scaling.items() if k not in _AUTOSCALE}, {})
        options["autoscale"] = serve.Autoscale(**{_AUTOSCALE[key]: value for key, value in scaling.items()})
    if options.get("num_replicas") == "auto":
        del options["num_replicas"]
        options.setdefault("autoscale", serve.Autoscale())
    if given.get("route_prefix") == "/":
        del given["route_prefix"]
    check("serve.deployment", given, _NOT_HERE)
    return options


def deployment(target: Any = None, **options: Any) -> Any:
    made = serve.deployment(**_options(options))
    return made if target is None else made(target)


def batch(function: Any = None, *, max_batch_size: int = 10, batch_wait_timeout_s: float = 0.01, **others: Any) -> Any:
    check("serve.batch", others, {"max_concurrent_batches": "batches run one after the other"})
    made = serve.batch(max_size=max_batch_size, max_wait_ms=batch_wait_timeout_s * 1e3)
    return made if function is None else made(function)


def multiplexed(function: Any = None, *, max_num_models_per_replica: int = 3) -> Any:
    made = serve.multiplexed(max_models=max_num_models_per_replica)
    return made if function is None else made(function)


def start(http_options: dict[str, Any] | None = None, detached: bool = False, **others: Any) -> None:
    """http_options: host, port."""
    given = http_options if isinstance(http_options, dict) else vars(http_options) if http_options else {}
    check("serve.start", others, {"proxy_location": "replicas accept connections themselves"})
    check("http_options", {k: v for k, v in given.items() if k not in ("host", "port")}, {"root_path": "a proxy's"})
    _http.update({key: given[key] for key in ("host", "port") if key in given})


class HTTPOptions:
    def __init__(self, **options: Any) -> None:
        vars(self).update(options)


def run(
    target: Application,
    *,
    blocking: bool = False,
    name: str = "default",
    route_prefix: str | None = "/",
    **others: Any,
) -> Handle:
    """Start it, or update the application of that name; -> the handle of its ingress."""
    check("serve.run", others, _NOT_HERE)
    if route_prefix not in ("/", None):
        raise OptionError(f"serve.run(route_prefix={route_prefix!r}) is not here: {_NOT_HERE['route_prefix']}")
    if name in _running:
        _running[name].update(target)
    else:
        port = None if route_prefix is None else _http.get("port", 8000)
        _running[name] = serve.run(target, host=_http.get("host", "127.0.0.1"), port=port)
    if blocking:
        try:
            while name in _running:
                time.sleep(1.0)
        finally:
            delete(name)
    return _running[name].handle if name in _running else Handle(name)


def get_app_handle(name: str = "default") -> Handle:
    if name not in _running:
        raise OptionError(f"no application {name!r} runs here; there are {', '.join(_running) or 'none'}")
    return _running[name].handle


def status() -> dict[str, Any]:
    return {name: running.status() for name, running in _running.items()}


def delete(name: str) -> None:
    if running := _running.pop(name, None):
        running.stop()


def shutdown() -> None:
    for name in list(_running):
        delete(name)
    _http.clear()


__path__: list[str] = []  # a package, so that `from` asks refusals.py for what is missing
__getattr__ = refusing(__name__)
