"""A run's agent behind LitServe: `python lit_serve.py PORT RUN`."""

from __future__ import annotations

import sys
from typing import Any

import litserve

import rlplat


class Act(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.agent = rlplat.load(sys.argv[2])

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # LitServe reads annotations: none is JSON
        return request["obs"]

    def predict(self, obs: Any) -> int:
        return int(self.agent.act(obs))

    def encode_response(self, action: int) -> dict[str, int]:
        return {"action": action}


if __name__ == "__main__":
    server = litserve.LitServer(Act(api_path="/v1/act"), accelerator="cpu", timeout=60)
    server.run(port=int(sys.argv[1]), host="127.0.0.1", generate_client_file=False, log_level="error")
