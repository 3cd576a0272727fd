"""Serving: any Python behind a port, on actors; and trained policies by one command. docs/serving.md.

    @serve.deployment(num_replicas=2)
    class Model: ...

    with serve.run(Model.bind()) as running:
        print(running.url, running.handle.remote(3).result())

Every name is imported when it is first used: `rlplat.serve.Client` needs neither torch nor the runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplat.lazy_names import lazy_names

if TYPE_CHECKING:
    from rlplat.serve.autoscale import Autoscale as Autoscale
    from rlplat.serve.batching import Batch as Batch, batch as batch
    from rlplat.serve.client import Client as Client
    from rlplat.serve.deployments import (
        Application as Application,
        Deployment as Deployment,
        deployment as deployment,
    )
    from rlplat.serve.handle import Handle as Handle, Response as Response
    from rlplat.serve.multiplexing import model_id as model_id, multiplexed as multiplexed
    from rlplat.serve.refusals import Refused as Refused
    from rlplat.serve.running import Running as Running, run as run
else:
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
    __getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
