"""A run's agent behind Ray Serve: `python ray_serve.py PORT RUN`; RAY_SERVE_ENABLE_HA_PROXY=1 for its other proxy."""

from __future__ import annotations

import signal
import sys
from typing import Any

import ray
from ray import serve
from starlette.responses import JSONResponse

import rlplat


class Act:
    def __init__(self, run: str) -> None:
        self.agent = rlplat.load(run)

    async def __call__(self, request: Any) -> JSONResponse:  # of a dict the answer would be chunked
        return JSONResponse({"action": int(self.agent.act((await request.json())["obs"]))})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    ray.init(include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"port": int(sys.argv[1])})
        deployment = serve.deployment(Act, max_ongoing_requests=1000, logging_config={"enable_access_log": False})
        serve.run(deployment.bind(sys.argv[2]), route_prefix="/v1/act")
        signal.pause()
    finally:
        serve.shutdown()
        ray.shutdown()
