"""Serving: any Python behind a port, on actors; and trained policies by one command. docs/serving.md.

    @serve.deployment(num_replicas=2)
    class Model: ...

    with serve.run(Model.bind()) as running:
        print(running.url, running.handle.remote(3).result())

Every name is imported when it is first used: `rlplat.serve.Client` needs neither torch nor the runtime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlplat.serve.autoscale import Autoscale
    from rlplat.serve.batching import Batch, batch
    from rlplat.serve.client import Client
    from rlplat.serve.deployments import Application, Deployment, deployment
    from rlplat.serve.handle import Handle, Response
    from rlplat.serve.multiplexing import model_id, multiplexed
    from rlplat.serve.refusals import Refused
    from rlplat.serve.running import Running, run

_HOMES = {
    "autoscale": "Autoscale",
    "batching": "Batch batch",
    "client": "Client",
    "deployments": "Application Deployment deployment",
    "handle": "Handle Response",
    "multiplexing": "model_id multiplexed",
    "refusals": "Refused",
    "running": "Running run",
}
_HOME_BY_NAME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Application",
    "Autoscale",
    "Batch",
    "Client",
    "Deployment",
    "Handle",
    "Refused",
    "Response",
    "Running",
    "batch",
    "deployment",
    "model_id",
    "multiplexed",
    "run",
]


def __getattr__(name: str) -> Any:
    home = _HOME_BY_NAME.get(name)
    if home is None:
        raise AttributeError(f"module 'rlplat.serve' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rlplat.serve.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
